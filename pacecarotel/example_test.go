package pacecarotel_test

import (
	"context"
	"fmt"
	"net/http"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/pacecar-go/pacecar"
	"github.com/pacecar-go/pacecar/pacecarotel"
)

// The metrics of a client, here with a reader that collects when asked. Leave
// MeterProvider out for the global one, and Base for net/http's transport.
func Example() {
	reader := sdkmetric.NewManualReader()
	o, err := pacecarotel.New(pacecarotel.Options{
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	t, err := pacecar.New(pacecar.Config{
		Routes: map[string]pacecar.Policy{
			"api.example.com/": {Rates: pacecar.MustRates("2/m"), MaxWait: time.Second},
		},
		Base: base(fine),
		Observe: func(ctx context.Context, e pacecar.Event) {
			o.Observe(ctx, e)
			if e.Kind == pacecar.EventRefused {
				fmt.Println("refused by", e.Route) // what else you want of an event
			}
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	o.Watch(t)

	client := &http.Client{Transport: t}
	for range 3 {
		if resp, err := client.Get("https://api.example.com/v1/"); err == nil {
			resp.Body.Close()
		}
	}

	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		fmt.Println(err)
		return
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		sum, ok := m.Data.(metricdata.Sum[int64])
		if !ok || m.Name != "pacecar.sent_requests" && m.Name != "pacecar.refused_requests" {
			continue
		}
		for _, p := range sum.DataPoints {
			fmt.Println(m.Name, p.Value, encode(p.Attributes))
		}
	}
	// Unordered output:
	// refused by api.example.com/
	// pacecar.refused_requests 1 error.type=wait_too_long,pacecar.route=api.example.com/
	// pacecar.sent_requests 2 pacecar.route=api.example.com/
}
