package pacecar

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestWhatAnOutageCosts measures, by phase, how many of the requests that 20/s
// allow four greedy processes do not send because Redis was away for 3 s and came
// back empty: docs/benchmark.md has the figures.
func TestWhatAnOutageCosts(t *testing.T) {
	const (
		second = time.Second
		gone   = 10 * second
		back   = gone + 3*second
	)
	p := Policy{Rates: MustRates("20/s"), Outage: FailOpen, Replicas: 4}
	run := func(t *testing.T, outage bool) (tr *trace) {
		bubble(t, func(t *testing.T) {
			redis := newStandIn(&p, 200*time.Microsecond)
			tr = redis.fleet(t, p, 4, 16, 0, func(*trace) {
				time.Sleep(gone)
				if outage {
					redis.kill()
				}
				time.Sleep(back - gone)
				if outage {
					redis.restart(true)
				}
				time.Sleep(17 * second)
			})
			tr.check(t, p.Rates)
		})
		return tr
	}
	with, without := run(t, true), run(t, false)
	lost := 0
	for _, phase := range []struct {
		name     string
		from, to time.Duration
	}{
		{"before", 0, gone},
		{"first second without Redis", gone, gone + second},
		{"second second", gone + second, gone + 2*second},
		{"third second", gone + 2*second, back},
		{"first second after", back, back + second},
		{"second second after", back + second, back + 2*second},
		{"third second after", back + 2*second, back + 3*second},
		{"the next seven", back + 3*second, back + 10*second},
	} {
		a, b := with.between(phase.from, phase.to), without.between(phase.from, phase.to)
		lost += b - a
		t.Logf("%-27s %3d of %3d", phase.name, a, b)
	}
	t.Logf("%d requests lost, %.2f s of the quota", lost, float64(lost)/20)
	if lost < 0 || lost > 3*20 {
		t.Errorf("%d requests lost", lost)
	}
}

// TestWhatARefusalCosts measures how many of the requests that 20/s allow four
// greedy processes do not send when the upstream refuses everything for 2 s, with
// a Retry-After in whole seconds, rounded up: docs/benchmark.md has the figures.
func TestWhatARefusalCosts(t *testing.T) {
	const from, to, end = 10*time.Second + 300*time.Millisecond, 12*time.Second + 300*time.Millisecond, 20 * time.Second
	bubble(t, func(t *testing.T) {
		m, tr := newMini(), newTrace()
		var refused atomic.Int64
		base := roundTripFunc(func(req *http.Request) (*http.Response, error) {
			resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: req}
			if at := time.Since(tr.start); from <= at && at < to {
				refused.Add(1)
				resp.StatusCode = http.StatusTooManyRequests
				resp.Header.Set("Retry-After", strconv.Itoa(int(math.Ceil((to - at).Seconds()))))
			} else {
				tr.add(0, 1)
			}
			return resp, nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), end)
		defer cancel()
		var wg sync.WaitGroup
		for range 4 {
			x := transportOf(t, Config{Redis: dialMini(t, m), Base: base, Routes: map[string]Policy{"/": {Rates: MustRates("20/s")}}})
			for range 16 {
				wg.Go(func() {
					for ctx.Err() == nil {
						resp, err := x.RoundTrip(getURL(ctx, "http://upstream.example/"))
						if closeResponse(resp); err != nil {
							return // the slot is beyond the end
						}
					}
				})
			}
		}
		wg.Wait()
		tr.check(t, MustRates("20/s"))
		first := end
		for _, d := range tr.left {
			if at := time.Duration(d.at) * time.Microsecond; at >= to {
				first = min(first, at)
			}
		}
		t.Logf("%d refused, the first sent again %v after the upstream allows it; %d sent in the %v after that",
			refused.Load(), first-to, tr.between(to, end), end-to)
		if n := refused.Load(); n == 0 || n > 40 {
			t.Errorf("%d refused", n)
		}
	})
}
