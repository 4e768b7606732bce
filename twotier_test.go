package pacecar

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"
)

// totals adds up what limiters count.
func totals(limiters []*Limiter) (s Stats) {
	for _, l := range limiters {
		one := l.Stats()
		s.LocalHits += one.LocalHits
		s.RoundTrips += one.RoundTrips
		s.GivenBack += one.GivenBack
	}
	return s
}

// TestRoundTripsAtHighRates: at 2,000 a second from four processes, a request
// costs a fraction of a round trip: with callers who always wait for the next
// slot, who think in between, and who come at random, below the limit.
func TestRoundTripsAtHighRates(t *testing.T) {
	t.Parallel()
	const (
		far   = 5 * time.Millisecond
		near  = 100 * time.Microsecond
		slack = 100 * time.Millisecond
	)
	for _, c := range []struct {
		name  string
		rtt   time.Duration
		slack time.Duration
		think time.Duration // at most, of 64 callers...
		rate  float64       // ...or, if not zero, of arrivals a second
		lease int
		most  float64
	}{
		{"greedy", near, 0, 0, 0, 0, 0.15},
		{"greedy, far", far, 0, 0, 0, 0, 0.15},
		{"greedy, slack", near, slack, 0, 0, 0, 0.05},
		{"thoughtful", near, 0, 20 * time.Millisecond, 0, 0, 0.15},
		{"thoughtful, slack", near, slack, 20 * time.Millisecond, 0, 0, 0.07},
		{"arrivals", near, 0, 0, 1800, 0, 0.15},
		{"arrivals, far", far, 0, 0, 1800, 0, 0.15},
		// At random, near the limit: 0.048 to 0.053 from run to run.
		{"arrivals, slack", near, slack, 0, 1700, 0, 0.06},
		{"half of the arrivals", near, 0, 0, 900, 0, 0.3},
		{"no lease", near, 0, 0, 1800, -1, 1.1},
		{"a lease of 2", near, 0, 0, 1800, 2, 0.4},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := Policy{Rates: MustRates("2000/s"), Slack: c.slack, Lease: c.lease}
				redis := newStandIn(&p, c.rtt)
				tr := newTrace()
				ctx, cancel := context.WithCancel(t.Context())
				limiters := make([]*Limiter, 4)
				var wg sync.WaitGroup
				for i := range limiters {
					l := redis.limiter(t, p)
					limiters[i] = l
					if c.rate > 0 {
						wg.Go(func() { arrive(ctx, &wg, l, tr, i, c.rate/4) })
						continue
					}
					for j := range 16 {
						wg.Go(func() {
							rnd := rand.New(rand.NewPCG(uint64(i), uint64(j)))
							for l.Wait(ctx) == nil {
								tr.add(i, 1)
								time.Sleep(time.Duration(rnd.Int64N(int64(c.think + 1))))
							}
						})
					}
				}
				wg.Go(func() {
					for ; c.lease > 0 && ctx.Err() == nil; time.Sleep(time.Millisecond) {
						if n := limiters[0].holds(); n > int64(c.lease) {
							t.Errorf("holds %d", n)
						}
					}
				})
				last := 10 * time.Second
				time.Sleep(last)
				cancel()
				wg.Wait()
				time.Sleep(time.Second)
				tr.check(t, p.Rates)
				s := totals(limiters)
				n := float64(len(tr.left))
				trips := float64(s.RoundTrips) / n
				t.Logf("%.0f a second, %.3f round trips each, %.2f local hits, %.2f given back",
					n/last.Seconds(), trips, float64(s.LocalHits)/n, float64(s.GivenBack)/n)
				if trips > c.most {
					t.Errorf("%.3f round trips each, want %.2f at most", trips, c.most)
				}
				if c.lease < 0 && s.LocalHits > 0 {
					t.Errorf("%d local hits", s.LocalHits)
				}
				want := 2000 / (1 + p.slack(p.Rates[0]).Seconds())
				if c.rate > 0 {
					want = min(want, c.rate)
				}
				if n < 0.95*want*last.Seconds() {
					t.Errorf("%.0f left in %v", n, last)
				}
			})
		})
	}
}

// arrive makes requests that come at random, so many a second.
func arrive(ctx context.Context, wg *sync.WaitGroup, l *Limiter, tr *trace, process int, rate float64) {
	rnd := rand.New(rand.NewPCG(uint64(process), 0))
	for ctx.Err() == nil {
		time.Sleep(time.Duration(rnd.ExpFloat64() / rate * float64(time.Second)))
		wg.Go(func() {
			if l.Wait(ctx) == nil {
				tr.add(process, 1)
			}
		})
	}
}

// holds returns how many slots l holds ahead of its requests.
func (l *Limiter) holds() (n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.lease.held {
		n += h.slot.units
	}
	return n
}

// TestScarceSlotsAreNotHeld: at a low rate there is never a lease, be it that
// many wait or that a burst meets a quota that is free.
func TestScarceSlotsAreNotHeld(t *testing.T) {
	for _, rates := range []string{"3/s", "3/s, 30/m", "20/s"} {
		bubble(t, func(t *testing.T) {
			p := Policy{Rates: MustRates(rates)}
			redis := newStandIn(&p, time.Millisecond)
			limiters := make([]*Limiter, 4)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for i := range limiters {
				limiters[i] = redis.limiter(t, p)
				for range 16 {
					wg.Go(func() {
						for l := limiters[i]; l.Wait(ctx) == nil; {
						}
					})
				}
			}
			time.Sleep(20 * time.Second)
			cancel()
			wg.Wait()
			time.Sleep(2 * time.Minute)
			burst(t, limiters[0], 3)
			if s := totals(limiters); s.LocalHits > 0 {
				t.Errorf("%s: %d local hits", rates, s.LocalHits)
			}
		})
	}
}

// TestIdleProcessHoldsNothing: what was held goes back soon after its hold, and
// is free for others.
func TestIdleProcessHoldsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("2000/s")}
		redis := newStandIn(&p, 100*time.Microsecond)
		l, other := redis.limiter(t, p), redis.limiter(t, p)
		left := 0
		for l.holds() < 5 {
			burst(t, l, 1)
			left++
			time.Sleep(time.Millisecond)
		}
		held := uint64(l.holds())
		time.Sleep(2*duration(l.holdFor()) + time.Millisecond)
		if n := l.holds(); n > 0 {
			t.Errorf("holds %d", n)
		}
		if s := l.Stats(); s.GivenBack < held || s.LocalHits == 0 {
			t.Errorf("%d were held: %+v", held, s)
		}
		between(t, "the rest", burst(t, other, 2000-left), 0, 10*time.Millisecond)
	})
}

// TestLocalHitAllocatesNothing: and takes no lock for long; see BenchmarkLocalHit.
func TestLocalHitAllocatesNothing(t *testing.T) {
	l := leased(t)
	if n := testing.AllocsPerRun(1000, func() { _ = l.Wait(t.Context()) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if s := l.Stats(); s.LocalHits < 1000 || s.RoundTrips > 0 {
		t.Errorf("%+v", s)
	}
}

// leased returns a limiter that holds as many slots as a test can use.
func leased(t testing.TB) *Limiter {
	p := Policy{Rates: MustRates("1000000000/s")}
	l := newStandIn(&p, 0).limiter(t, p)
	now := l.now()
	l.clock.heard = now
	l.lease.held = []held{{slot: span{now + time.Hour.Microseconds(), 1 << 60}, until: 1 << 60}}
	return l
}

// leasedTransport returns a Transport on base whose limiter is leased.
func leasedTransport(t testing.TB, base http.RoundTripper) http.RoundTripper {
	tr := transportOf(t, Config{Base: base, Routes: map[string]Policy{"api.example/": plenty}})
	_, key := tr.router.match(getURL(t.Context(), "http://api.example/"))
	tr.limiters.byKey.Store(key, leased(t))
	return tr
}

// BenchmarkLocalHit measures a request that leaves on a slot already held: of
// the limiter alone, and through a Transport, beside what any wrapper costs.
func BenchmarkLocalHit(b *testing.B) {
	b.Run("limiter", func(b *testing.B) {
		l, ctx := leased(b), b.Context()
		b.ReportAllocs()
		for b.Loop() {
			if err := l.Wait(ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
	base := newFixed()
	for _, c := range []struct {
		name string
		rt   http.RoundTripper
	}{
		{"wrapper", plain{base}},
		{"transport", leasedTransport(b, base)},
	} {
		b.Run(c.name, func(b *testing.B) {
			req := getURL(b.Context(), "http://api.example/v1/meetings?year=2024")
			b.ReportAllocs()
			for b.Loop() {
				sendOn(b, c.rt, req)
			}
		})
	}
}
