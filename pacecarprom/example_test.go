package pacecarprom_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/pacecar-go/pacecar"
	"github.com/pacecar-go/pacecar/pacecarprom"
	"github.com/prometheus/client_golang/prometheus"
)

// upstream stands in for an API, so that the examples need no network. Leave
// Base out to send requests by net/http's own transport.
type upstream struct{}

func (upstream) RoundTrip(req *http.Request) (*http.Response, error) {
	body := io.NopCloser(strings.NewReader("fine\n"))
	return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Body: body, Request: req}, nil
}

func Example() {
	m := pacecarprom.New(pacecarprom.Options{})
	t, err := pacecar.New(pacecar.Config{
		Redis: nil, // a *redis.Client shares the quotas with every process that uses it
		Routes: map[string]pacecar.Policy{
			"api.example.com/": {Rates: pacecar.MustRates("2/m"), MaxWait: time.Second},
		},
		Base:    upstream{},
		Observe: m.Observe,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	m.Watch(t)
	registry := prometheus.NewRegistry() // or prometheus.MustRegister, for the default one
	registry.MustRegister(m)

	client := &http.Client{Transport: t}
	for range 5 {
		if resp, err := client.Get("https://api.example.com/"); err == nil {
			resp.Body.Close()
		}
	}

	families, err := registry.Gather() // as promhttp's handler does for /metrics
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if v := metric.GetCounter().GetValue(); v > 0 && strings.HasPrefix(family.GetName(), "pacecar_requests") {
				fmt.Println(family.GetName(), v)
			}
		}
	}
	// Output:
	// pacecar_requests_refused_total 3
	// pacecar_requests_sent_total 2
}

// A function of your own can look at the same events.
func ExampleCollector_Observe() {
	m := pacecarprom.New(pacecarprom.Options{})
	t, err := pacecar.New(pacecar.Config{
		Routes: map[string]pacecar.Policy{"api.example.com/": {Rates: pacecar.MustRates("2/m")}},
		Base:   upstream{},
		Observe: func(ctx context.Context, e pacecar.Event) {
			m.Observe(ctx, e)
			fmt.Println(e.Kind, e.Route)
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	m.Watch(t)

	client := &http.Client{Transport: t}
	if resp, err := client.Get("https://api.example.com/"); err == nil {
		resp.Body.Close()
	}
	// Output: slot api.example.com/
}
