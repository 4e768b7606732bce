// Command paced is plain with pacecar.
package main

import (
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pacecar-go/pacecar"
	"github.com/pacecar-go/pacecar/pacecarprom"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
)

func main() {
	upstream := flag.String("upstream", "127.0.0.1:8091", "the server's address")
	n := flag.Int64("n", 1e9, "how many requests")
	addr := flag.String("redis", "127.0.0.1:6391", "the address of Redis")
	metrics := flag.String("metrics", "", "the address to show metrics at")
	timeout := flag.Duration("timeout", time.Minute, "for how long a request may take, with its wait")
	level := slog.LevelInfo
	flag.TextVar(&level, "log", slog.LevelInfo, "what to log: debug, info, warn or error")
	flag.Parse()

	m := pacecarprom.New(pacecarprom.Options{})
	t, err := pacecar.New(pacecar.Config{
		Redis:        redis.NewClient(&redis.Options{Addr: *addr, MaxRetries: -1, DialerRetries: 1}),
		RedisTimeout: 5 * time.Second, // so that a machine which is busy with builds is no outage
		Routes: pacecar.Routes{
			"/": {Name: "tour", Rates: pacecar.MustRates("10/s")},
		},
		Observe: m.Observe,
		Logger:  slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
	})
	if err != nil {
		log.Fatal(err)
	}
	m.Watch(t)
	prometheus.MustRegister(m)
	if *metrics != "" {
		http.Handle("/metrics", promhttp.Handler())
		go func() { log.Fatal(http.ListenAndServe(*metrics, nil)) }()
	}
	client := &http.Client{Transport: t, Timeout: *timeout}

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
