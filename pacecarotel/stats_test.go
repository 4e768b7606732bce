package pacecarotel_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/pacecar-go/pacecar"
	"github.com/pacecar-go/pacecar/pacecarotel"
)

// TestForgotten: counters go on when the keys they come from were forgotten as
// unused, and some of them have come back.
func TestForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tm := newTelemetry(t, pacecarotel.Options{})
		tr := tm.transport(pacecar.Policy{Rates: pacecar.MustRates("5/s"), Key: pacecar.ByHeader("Tenant")}, pacecar.Config{})
		sent := 0
		send := func(tenant string, n int) {
			for range n {
				if _, err := tm.get(t.Context(), tr, url, "Tenant", tenant); err != nil {
					t.Fatal(err)
				}
				sent++
			}
			tm.want("pacecar.sent_requests", map[string]float64{route(): float64(sent)})
		}
		forgotten := 0
		for round := range 6 {
			before := tr.Stats()
			send("less", 6-round)
			send("more", 6+round)
			if len(before) > 0 && tr.Stats()[keyOf("more")].Sent == uint64(6+round) {
				forgotten++
			}
			time.Sleep(time.Minute)
			for i := range 100 {
				send(fmt.Sprint(round, i), 2)
			}
			time.Sleep(time.Minute)
		}
		if forgotten == 0 {
			t.Error("the keys were not forgotten: the test shows nothing")
		}
	})
}

// keyOf returns the key of a tenant of the tests.
func keyOf(tenant string) string {
	by := pacecar.ByHeader("Tenant")
	return "api.example.com #" + by(&http.Request{Header: http.Header{"Tenant": {tenant}}})
}

// TestComesBackBetweenReadings: a key that was forgotten and has come back by
// the next reading counts from zero.
func TestComesBackBetweenReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tm := newTelemetry(t, pacecarotel.Options{})
		tr := tm.transport(pacecar.Policy{Rates: pacecar.MustRates("5/s"), Key: pacecar.ByHeader("Tenant")}, pacecar.Config{})
		send := func(tenant string, n int) {
			for range n {
				if _, err := tm.get(t.Context(), tr, url, "Tenant", tenant); err != nil {
					t.Fatal(err)
				}
			}
		}
		send("again", 3)
		for i := range 63 {
			send(fmt.Sprint(i), 1)
		}
		tm.want("pacecar.sent_requests", map[string]float64{route(): 66})
		time.Sleep(time.Minute)
		send("one more", 1)
		if n := len(tr.Stats()); n != 1 {
			t.Fatalf("%d keys: the others were not forgotten", n)
		}
		send("again", 2)
		tm.want("pacecar.sent_requests", map[string]float64{route(): 69})
	})
}

// TestSources: what several sources say of one route is added up, one that is
// watched twice counts once, and what a stopped one counted stays.
func TestSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tm := newTelemetry(t, pacecarotel.Options{})
		policy := pacecar.Policy{Rates: pacecar.MustRates("1/10s"), Lease: -1}
		one, two := tm.transport(policy, pacecar.Config{}), tm.transport(policy, pacecar.Config{})
		limiter, err := pacecar.NewLimiter(nil, "mail", policy)
		if err != nil {
			t.Fatal(err)
		}
		tm.WatchLimiter(limiter)
		want := func(name string, http, mail float64) {
			t.Helper()
			tm.want(name, map[string]float64{route(): http, "pacecar.route=mail": mail})
		}

		ctx, cancel := context.WithCancel(t.Context())
		var callers sync.WaitGroup
		for range 3 {
			callers.Go(func() { tm.get(ctx, one, url) })
			callers.Go(func() { tm.get(ctx, two, url) })
			callers.Go(func() { limiter.Wait(ctx) })
		}
		synctest.Wait()
		want("pacecar.sent_requests", 2, 1)
		want("pacecar.waiting_requests", 4, 2)
		cancel()
		callers.Wait()
		want("pacecar.waiting_requests", 0, 0)
		want("pacecar.given_back_slots", 4, 2)

		time.Sleep(time.Minute)
		tm.get(t.Context(), one, url)
		stop := tm.Watch(one)
		stop()
		stop()
		want("pacecar.sent_requests", 3, 1)
		time.Sleep(time.Minute)
		tm.get(t.Context(), one, url) // not watched
		tm.get(t.Context(), two, url)
		want("pacecar.sent_requests", 4, 1)
		tm.Watch(one)
		want("pacecar.sent_requests", 4, 1)
		time.Sleep(time.Minute)
		tm.get(t.Context(), one, url)
		want("pacecar.sent_requests", 5, 1)
	})
}

// TestReaders: several readers, that collect at the same time as requests are
// sent, see the same totals.
func TestReaders(t *testing.T) {
	a, b := sdkmetric.NewManualReader(), sdkmetric.NewManualReader()
	o, err := pacecarotel.New(pacecarotel.Options{
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(a), sdkmetric.WithReader(b)),
	})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := pacecar.New(pacecar.Config{
		Routes:  map[string]pacecar.Policy{"api.example.com/": {Rates: pacecar.MustRates("100000/s")}},
		Base:    base(fine),
		Observe: o.Observe,
	})
	if err != nil {
		t.Fatal(err)
	}
	o.Watch(tr)
	tm := &telemetry{Observer: o, t: t, traces: newTelemetry(t, pacecarotel.Options{}).traces}
	tm.spans = newTelemetry(t, pacecarotel.Options{}).spans

	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 200 {
				if _, err := tm.get(t.Context(), tr, url); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, reader := range []*sdkmetric.ManualReader{a, b} {
		all.Go(func() {
			last := 0.0
			for range 100 {
				now := values(t, metrics(t, reader)["pacecar.sent_requests"])[route()]
				if now < last {
					t.Errorf("a counter went from %v back to %v", last, now)
				}
				last = now
			}
		})
	}
	all.Wait()
	for _, reader := range []*sdkmetric.ManualReader{a, b} {
		m := metrics(t, reader)
		waits := total(t, m["pacecar.wait.duration"])
		if sent := total(t, m["pacecar.sent_requests"]); sent != 800 || waits != 800 {
			t.Errorf("sent: %v waits: %v, want 800", sent, waits)
		}
	}
}

// TestNil: what would fail at the first collection fails at once.
func TestNil(t *testing.T) {
	tm := newTelemetry(t, pacecarotel.Options{})
	for name, watch := range map[string]func(){
		"Transport": func() { tm.Watch(nil) },
		"Limiter":   func() { tm.WatchLimiter(nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			watch()
		}()
	}
}
