// Command server stands in for an API that allows 10 requests in any second.
package main

import (
	"flag"
	"log"
	"net/http"
	"sync"
	"time"
)

const limit = 10

func main() {
	listen := flag.String("listen", "127.0.0.1:8091", "address")
	flag.Parse()
	var mu sync.Mutex
	var recent []time.Time // those allowed in the last second
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		for len(recent) > 0 && now.Sub(recent[0]) >= time.Second {
			recent = recent[1:]
		}
		if len(recent) == limit {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "slow down", http.StatusTooManyRequests)
			return
		}
		recent = append(recent, now)
	})
	log.Fatal(http.ListenAndServe(*listen, nil))
}
