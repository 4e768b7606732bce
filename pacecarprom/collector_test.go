package pacecarprom

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pacecar-go/pacecar"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// gather returns each series there is, as `name{label="value",...}`; of a
// histogram, its count.
func gather(t testing.TB, c *Collector) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(c); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			id := strings.TrimPrefix(f.GetName(), "pacecar_") + "{" + strings.Join(labels, ",") + "}"
			series[id] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return series
}

// want fails the test where a series is not as it should be.
func want(t testing.TB, got map[string]float64, wanted map[string]float64) {
	t.Helper()
	for id, v := range wanted {
		if g, ok := got[id]; !ok || g != v {
			t.Errorf("%s: %v (there: %v), want %v", id, g, ok, v)
		}
	}
}

// refusal is what a real refusal for err looks like.
func refusal(err error) error { return &pacecar.Error{Key: "k", Err: err} }

func TestObserve(t *testing.T) {
	c := New(Options{})
	at := time.Now()
	for _, e := range []pacecar.Event{
		{Kind: pacecar.EventSlot, Tier: pacecar.TierWindow, Wait: 2 * time.Second},
		{Kind: pacecar.EventSlot, Tier: pacecar.TierBucket},
		{Kind: pacecar.EventSlot, Tier: pacecar.TierBucket},
		{Kind: pacecar.EventSlot, Tier: pacecar.TierShare},
		{Kind: pacecar.EventRefused, Err: refusal(pacecar.ErrWaitTooLong)},
		{Kind: pacecar.EventUnrouted},
		{Kind: pacecar.EventLimited, Reason: "429 with retry-after"},
		{Kind: pacecar.EventPaused, Wait: 5 * time.Second, Until: at.Add(5 * time.Second), Reason: "429 with retry-after"},
		{Kind: pacecar.EventPaused, Wait: 6 * time.Second, Until: at.Add(8 * time.Second)}, // two seconds later: three more
		{Kind: pacecar.EventRetry, Attempt: 1},
		{Kind: pacecar.EventLate, Late: time.Second},
		{Kind: pacecar.EventDegraded},
		{Kind: pacecar.EventRestored, Wait: 1500 * time.Millisecond},
		{Kind: pacecar.EventLost},
	} {
		if e.Kind != pacecar.EventUnrouted {
			e.Key, e.Route = "k", "r"
		}
		c.Observe(t.Context(), e)
	}
	want(t, gather(t, c), map[string]float64{
		`wait_seconds{route="r",tier="window"}`:                    1,
		`wait_seconds{route="r",tier="bucket"}`:                    2,
		`wait_seconds{route="r",tier="share"}`:                     1,
		`requests_sent_total{route="r"}`:                           4,
		`local_hits_total{route="r"}`:                              2,
		`requests_refused_total{reason="wait_too_long",route="r"}`: 1,
		`requests_refused_total{reason="deadline",route="r"}`:      0,
		`requests_unrouted_total{}`:                                1,
		`answers_limited_total{route="r"}`:                         1,
		`pauses_total{origin="self",route="r"}`:                    1,
		`pauses_total{origin="fleet",route="r"}`:                   1,
		`pause_seconds_total{origin="self",route="r"}`:             5,
		`pause_seconds_total{origin="fleet",route="r"}`:            3,
		`retries_total{route="r"}`:                                 1,
		`requests_late_total{route="r"}`:                           1,
		`outages_total{route="r"}`:                                 1,
		`outage_seconds_total{route="r"}`:                          1.5,
		`state_lost_total{route="r"}`:                              1,
		`watched{}`:                                                0,
		`requests_degraded_total{route="r"}`:                       0,
		`slots_given_back_total{route="r"}`:                        0,
		`redis_round_trips_total{route="r"}`:                       0,
	})
}

// The buckets are the ones asked for, and the sum is in seconds.
func TestWaitSeconds(t *testing.T) {
	c := New(Options{Buckets: []float64{1, 10}})
	c.Observe(t.Context(), pacecar.Event{Kind: pacecar.EventSlot, Route: "r", Tier: pacecar.TierWindow, Wait: 2500 * time.Millisecond})
	if err := testutil.CollectAndCompare(c, strings.NewReader(`
# HELP pacecar_wait_seconds How long requests that left had waited for their slot, in seconds, by whose slot it was. From EventSlot.
# TYPE pacecar_wait_seconds histogram
pacecar_wait_seconds_bucket{route="r",tier="window",le="1"} 0
pacecar_wait_seconds_bucket{route="r",tier="window",le="10"} 1
pacecar_wait_seconds_bucket{route="r",tier="window",le="+Inf"} 1
pacecar_wait_seconds_sum{route="r",tier="window"} 2.5
pacecar_wait_seconds_count{route="r",tier="window"} 1
`), "pacecar_wait_seconds"); err != nil {
		t.Error(err)
	}
}

func TestNewPanicsOnBuckets(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("Buckets out of order are accepted, and panic at the first event")
		}
	}()
	New(Options{Buckets: []float64{2, 1}})
}

func TestReason(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{refusal(pacecar.ErrWaitTooLong), "wait_too_long"},
		{refusal(pacecar.ErrCostTooHigh), "cost_too_high"},
		{refusal(fmt.Errorf("the slot is beyond the deadline: %w", context.DeadlineExceeded)), "deadline"},
		{refusal(context.Canceled), "canceled"},
		{refusal(fmt.Errorf("%w: %w", pacecar.ErrUnavailable, context.DeadlineExceeded)), "unavailable"},
		{refusal(fmt.Errorf("%w: %w", pacecar.ErrUnavailable, context.Canceled)), "unavailable"},
		{refusal(errors.New("new")), "other"},
		{nil, "other"},
	} {
		if got := reason(test.err); got != test.want {
			t.Errorf("%v: %s, want %s", test.err, got, test.want)
		}
		// Each is counted: a reason that is missing in reasons would panic here.
		New(Options{}).Observe(t.Context(), pacecar.Event{Kind: pacecar.EventRefused, Route: "r", Err: test.err})
	}
}

// Kinds and tiers that come later are no new series, and no panic.
func TestUnknown(t *testing.T) {
	c := New(Options{})
	before := gather(t, c)
	for kind := pacecar.EventLost + 1; kind < pacecar.EventLost+20; kind++ {
		c.Observe(t.Context(), pacecar.Event{Kind: kind, Route: fmt.Sprint("r", int(kind))})
	}
	c.Observe(t.Context(), pacecar.Event{})
	c.Observe(t.Context(), pacecar.Event{Kind: -1})
	if after := gather(t, c); !maps.Equal(before, after) {
		t.Errorf("unknown kinds changed something: %v, was %v", after, before)
	}
	for tier := pacecar.Tier(10); tier < 20; tier++ {
		c.Observe(t.Context(), pacecar.Event{Kind: pacecar.EventSlot, Route: "r", Tier: tier})
	}
	want(t, gather(t, c), map[string]float64{`wait_seconds{route="r",tier="unknown"}`: 10})
}

func TestPerKey(t *testing.T) {
	event := pacecar.Event{Kind: pacecar.EventSlot, Route: "r", Key: "host#tenant", Tier: pacecar.TierWindow}
	stats := map[string]pacecar.Stats{event.Key: {Route: "r", Rates: pacecar.MustRates("1/s"), Waiting: 2}}

	c := New(Options{})
	c.Observe(t.Context(), event)
	c.watch(&source{told: true, stats: func() (map[string]pacecar.Stats, bool) { return stats, true }})
	for id := range gather(t, c) {
		if strings.Contains(id, "tenant") || strings.Contains(id, "key=") {
			t.Errorf("the key is a label: %s", id)
		}
	}

	c = New(Options{PerKey: true})
	c.Observe(t.Context(), event)
	c.watch(&source{told: true, stats: func() (map[string]pacecar.Stats, bool) { return stats, true }})
	got := gather(t, c)
	want(t, got, map[string]float64{
		`requests_sent_total{key="host#tenant",route="r"}`:        1,
		`wait_seconds{key="host#tenant",route="r",tier="window"}`: 1,
		`requests_waiting{key="host#tenant",route="r"}`:           2,
		`limit_slots{key="host#tenant",period="1s",route="r"}`:    1,
		`pauses_total{key="host#tenant",origin="self",route="r"}`: 0,
	})
	for id := range got {
		if strings.Contains(id, "route=") && !strings.Contains(id, "key=") {
			t.Errorf("no key: %s", id)
		}
	}
}

// A label that is not UTF-8 would panic in Observe and fail the scrape.
func TestInvalidText(t *testing.T) {
	c := New(Options{PerKey: true})
	c.Observe(t.Context(), pacecar.Event{Kind: pacecar.EventSlot, Route: "r\xff", Key: "k\xfe"})
	c.watch(&source{stats: func() (map[string]pacecar.Stats, bool) {
		return map[string]pacecar.Stats{"k\xff": {Route: "r\xff", Waiting: 1}, "k\xfe": {Route: "r\xff", Waiting: 1}}, true
	}})
	want(t, gather(t, c), map[string]float64{`requests_waiting{key="k` + "\uFFFD" + `",route="r` + "\uFFFD" + `"}`: 2})
}

func TestKeysOfARoute(t *testing.T) {
	c, now := New(Options{}), time.Now()
	c.watch(&source{told: true, stats: func() (map[string]pacecar.Stats, bool) {
		return map[string]pacecar.Stats{
			"a": {Route: "r", Rates: pacecar.MustRates("3/s, 30/m"), Waiting: 2, Late: time.Second, HeadStart: 2 * time.Second,
				PausedUntil: now.Add(time.Hour), NextSlot: now.Add(time.Hour), RoundTrips: 1, GivenBack: 2, Degraded: 3, Sent: 9},
			"b": {Route: "r", Rates: pacecar.MustRates("3/s, 30/m"), Waiting: 3, Late: 2 * time.Second, HeadStart: time.Second,
				PausedUntil: now.Add(-time.Second), Away: true, RoundTrips: 10, GivenBack: 20, Degraded: 30, Sent: 90},
			"c": {Route: "other"},
		}, true
	}})
	got := gather(t, c)
	want(t, got, map[string]float64{
		`requests_waiting{route="r"}`:                 5,
		`late_seconds{route="r"}`:                     2,
		`head_start_seconds{route="r"}`:               2,
		`redis_away{route="r"}`:                       1,
		`limit_slots{period="1s",route="r"}`:          3,
		`limit_slots{period="1m",route="r"}`:          30,
		`limit_period_seconds{period="1m",route="r"}`: 60,
		`redis_round_trips_total{route="r"}`:          11,
		`slots_given_back_total{route="r"}`:           22,
		`requests_degraded_total{route="r"}`:          33,
		`requests_sent_total{route="r"}`:              0, // from events, of which there were none
		`redis_away{route="other"}`:                   0,
		`pause_remaining_seconds{route="other"}`:      0,
		`next_slot_seconds{route="other"}`:            0,
		`watched{}`:                                   1,
	})
	for _, id := range []string{`pause_remaining_seconds{route="r"}`, `next_slot_seconds{route="r"}`} {
		if v := got[id]; v > 3600 || v < 3600-600 {
			t.Errorf("%s: %v, want almost 3600", id, v)
		}
	}
}

// A key that was forgotten counts from zero again; the counters go on.
func TestCountersGoOn(t *testing.T) {
	c := New(Options{})
	var now map[string]pacecar.Stats
	c.watch(&source{stats: func() (map[string]pacecar.Stats, bool) { return now, true }})
	for i, step := range []struct {
		stats map[string]pacecar.Stats
		trips float64
	}{
		{map[string]pacecar.Stats{"a": {Route: "r", RoundTrips: 5}}, 5},
		{map[string]pacecar.Stats{"a": {Route: "r", RoundTrips: 7}}, 7},
		{map[string]pacecar.Stats{"a": {Route: "r", RoundTrips: 7}, "b": {Route: "r", RoundTrips: 1}}, 8},
		{map[string]pacecar.Stats{"a": {Route: "r", RoundTrips: 2}, "b": {Route: "r", RoundTrips: 2}}, 11}, // a restarted
		{map[string]pacecar.Stats{"b": {Route: "r", RoundTrips: 2}}, 11},                                   // a is gone
		{map[string]pacecar.Stats{"a": {Route: "r", RoundTrips: 4}, "b": {Route: "r", RoundTrips: 2}}, 15}, // and came back
		{map[string]pacecar.Stats{"a": {Route: "r", RoundTrips: 5, Sent: 5}}, 16},
		{map[string]pacecar.Stats{"a": {Route: "r", RoundTrips: 6, Sent: 1}}, 22}, // seen by another counter
		{nil, 22},
	} {
		now = step.stats
		want(t, gather(t, c), map[string]float64{`redis_round_trips_total{route="r"}`: step.trips})
		if t.Failed() {
			t.Fatalf("step %d", i)
		}
	}
}

// A fine is a Base that answers everything.
type fine struct{}

func (fine) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("")), Request: req}, nil
}

func get(t testing.TB, tr http.RoundTripper, tenant string) error {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example.com/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Tenant", tenant)
	resp, err := tr.RoundTrip(req)
	if err == nil {
		resp.Body.Close()
	}
	return err
}

// The same with a real Transport, which forgets keys when it has more than 64.
func TestForgottenKeys(t *testing.T) {
	c := New(Options{})
	tr, err := pacecar.New(pacecar.Config{
		Routes: map[string]pacecar.Policy{"/": {
			Rates: pacecar.MustRates("1000/ms"),
			Key:   func(r *http.Request) string { return r.Header.Get("Tenant") },
		}},
		Base:    fine{},
		Observe: c.Observe,
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Watch(tr)
	sent := 0.0
	send := func(tenant string) {
		if err := get(t, tr, tenant); err != nil {
			t.Fatal(err)
		}
		sent++
	}
	for i := range 64 {
		for range 3 {
			send(fmt.Sprint("old", i))
		}
	}
	before := gather(t, c)
	time.Sleep(50 * time.Millisecond) // much longer than the windows
	for i := range 64 {
		send(fmt.Sprint("new", i))
	}
	send("old0")
	after, trips := gather(t, c), uint64(0)
	for key, s := range tr.Stats() {
		if trips += s.RoundTrips; s.Sent != 1 {
			t.Errorf("%s was not forgotten: the test shows nothing", key)
		}
	}
	want(t, after, map[string]float64{
		`requests_sent_total{route="/"}`:     sent,
		`redis_round_trips_total{route="/"}`: before[`redis_round_trips_total{route="/"}`] + float64(trips),
	})
	for id, v := range before {
		if strings.Contains(id, "_total{") && after[id] < v {
			t.Errorf("%s went back from %v to %v", id, v, after[id])
		}
	}
}

func TestWatchLimiter(t *testing.T) {
	c := New(Options{})
	l, err := pacecar.NewLimiter(nil, "smtp", pacecar.Policy{Rates: pacecar.MustRates("2/h"), MaxWait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	c.WatchLimiter(l)
	c.WatchLimiter(l) // counts once
	for range 5 {
		_ = l.Wait(t.Context())
	}
	for range 2 {
		want(t, gather(t, c), map[string]float64{
			`watched{}`:                         1,
			`requests_sent_total{route="smtp"}`: 2,
			`requests_refused_total{reason="unknown",route="smtp"}`: 3,
			`limit_slots{period="1h",route="smtp"}`:                 2,
			`limit_period_seconds{period="1h",route="smtp"}`:        3600,
		})
	}
	runtime.KeepAlive(l)
}

// A Transport that nobody refers to is not kept alive, and its counts stay.
func TestWatchForgets(t *testing.T) {
	c := New(Options{})
	tr, err := pacecar.New(pacecar.Config{
		Routes:  map[string]pacecar.Policy{"/": {Rates: pacecar.MustRates("10/s")}},
		Base:    fine{},
		Observe: c.Observe,
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Watch(tr)
	c.Watch(tr)
	if err := get(t, tr, ""); err != nil {
		t.Fatal(err)
	}
	want(t, gather(t, c), map[string]float64{`watched{}`: 1, `requests_waiting{route="/"}`: 0})
	runtime.KeepAlive(tr)
	tr = nil
	for deadline := time.Now().Add(20 * time.Second); gather(t, c)[`watched{}`] != 0; {
		if time.Now().After(deadline) {
			t.Fatal("the Transport is still watched")
		}
		runtime.GC()
	}
	got := gather(t, c)
	if _, ok := got[`requests_waiting{route="/"}`]; ok {
		t.Error("there are gauges of a Transport that is gone")
	}
	want(t, got, map[string]float64{`requests_sent_total{route="/"}`: 1})
}

func TestWatchNil(t *testing.T) {
	for name, watch := range map[string]func(){
		"Transport": func() { New(Options{}).Watch(nil) },
		"Limiter":   func() { New(Options{}).WatchLimiter(nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a nil %s is accepted", name)
				}
			}()
			watch()
		}()
	}
}

// What is counted while scrapes run is counted once.
func TestConcurrent(t *testing.T) {
	c := New(Options{})
	tr, err := pacecar.New(pacecar.Config{
		Routes:  map[string]pacecar.Policy{"/": {Rates: pacecar.MustRates("100000/s")}},
		Base:    fine{},
		Observe: c.Observe,
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Watch(tr)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				if err := get(t, tr, ""); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range 20 {
				gather(t, c)
			}
		})
	}
	wg.Wait()
	want(t, gather(t, c), map[string]float64{
		`requests_sent_total{route="/"}`:     800,
		`redis_round_trips_total{route="/"}`: float64(tr.Stats()["api.example.com"].RoundTrips),
	})
}

func TestLint(t *testing.T) {
	c := New(Options{})
	c.Observe(t.Context(), pacecar.Event{Kind: pacecar.EventSlot, Route: "r", Tier: pacecar.TierWindow})
	c.watch(&source{told: true, stats: func() (map[string]pacecar.Stats, bool) {
		return map[string]pacecar.Stats{"k": {Route: "r", Rates: pacecar.MustRates("1/s")}}, true
	}})
	problems, err := testutil.CollectAndLint(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	if n := testutil.CollectAndCount(c); n < 30 {
		t.Errorf("%d series looked at: not all metrics are there", n)
	}
}
