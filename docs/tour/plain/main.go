// Command plain calls a server from 16 goroutines, as fast as it can.
package main

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

func main() {
	upstream := flag.String("upstream", "127.0.0.1:8091", "the server's address")
	n := flag.Int64("n", 1e9, "how many requests")
	flag.Parse()

	client := &http.Client{}

	var wg sync.WaitGroup
	var begun, refused atomic.Int64
	began := time.Now()
	for range 16 {
		wg.Go(func() {
			for begun.Add(1) <= *n {
				resp, err := client.Get("http://" + *upstream + "/?token=secret")
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				resp.Body.Close()
				if resp.StatusCode == http.StatusTooManyRequests {
					refused.Add(1)
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(began).Round(100 * time.Millisecond)
	if r := refused.Load(); r > 0 {
		fmt.Printf("%d requests in %v, %d refused with 429\n", *n, took, r)
		return
	}
	fmt.Printf("%d requests in %v, all answered\n", *n, took)
}
