package pacecar

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// storeRates stores rates for the whole fleet, as an Admin would.
func storeRates(t *testing.T, m *miniredis.Miniredis, key string, version int64, rates string) {
	t.Helper()
	m.HSet("pacecar:1:{"+key+"}:clock", "policy", fmt.Sprint(version), "rates", rates)
	if err := dialMini(t, m).Persist(t.Context(), "pacecar:1:{"+key+"}:clock").Err(); err != nil {
		t.Fatal(err)
	}
}

// greedy has goroutines take slots until ctx ends, and adds them to tr.
func greedy(ctx context.Context, wg *sync.WaitGroup, l *Limiter, tr *trace, process, goroutines int) {
	for range goroutines {
		wg.Go(func() {
			for l.Wait(ctx) == nil {
				tr.add(process, 1)
			}
		})
	}
}

// TestObserveMaySend: who is told of other rates may use the Transport.
func TestObserveMaySend(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var tr *Transport
		var told int
		tr = transportOf(t, Config{
			Base:   roundTripFunc(func(*http.Request) (*http.Response, error) { return response(200, ""), nil }),
			Routes: Routes{"a.example/": {Rates: MustRates("1/s")}, "b.example/": {Rates: MustRates("1/s")}},
			Observe: func(_ context.Context, e Event) {
				if e.Kind == EventRates {
					told++
					if _, err := tr.RoundTrip(getURL(t.Context(), "http://b.example/")); err != nil {
						t.Error(err)
					}
				}
			},
		})
		if _, err := tr.RoundTrip(getURL(t.Context(), "http://a.example/")); err != nil {
			t.Fatal(err)
		}
		if err := tr.SetPolicy("a.example/", Policy{Rates: MustRates("2/s")}); err != nil || told != 1 {
			t.Errorf("told %d times, %v", told, err)
		}
	})
}

// setPolicy puts a policy in force, as Transport.SetPolicy does.
func (l *Limiter) setPolicy(p Policy) {
	l.mu.Lock()
	defer l.unlock()
	l.setPolicyLocked(p)
}

// between returns how many left in that time since the trace began.
func (tr *trace) between(from, to time.Duration) (n int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, d := range tr.left {
		if at := time.Duration(d.at) * time.Microsecond; from <= at && at < to {
			n++
		}
	}
	return n
}

// TestStoredRates: rates that are stored change a busy fleet, up and down, to
// other periods, and back to its own; no window of what is in force for all of
// it holds more.
func TestStoredRates(t *testing.T) {
	for _, c := range []struct {
		name, own, stored string
		settled           time.Duration // by when all that was booked before has left
	}{
		{"higher", "5/s", "20/s", 5 * time.Second},
		{"lower", "20/s", "5/s", 5 * time.Second},
		{"another period", "20/s", "50/5s", 5 * time.Second},
		{"one more", "10/s", "10/s, 50/10s", 5 * time.Second},
		{"one less", "10/s, 40/10s", "10/s", 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				m := newMini()
				p := Policy{Rates: MustRates(c.own)}
				tr := newTrace()
				ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
				defer cancel()
				var wg sync.WaitGroup
				limiters := make([]*Limiter, 3)
				for i := range limiters {
					limiters[i] = mustLimiter(t, dialMini(t, m), "k", p)
					greedy(ctx, &wg, limiters[i], tr, i, 4)
				}
				time.Sleep(30 * time.Second)
				storeRates(t, m, "k", time.Now().UnixMicro(), c.stored)
				time.Sleep(30 * time.Second)
				for _, l := range limiters {
					if s := l.Stats(); s.Rates.String() != c.stored || time.Since(s.RatesStored) > 31*time.Second {
						t.Errorf("in force: %+v", s)
					}
				}
				storeRates(t, m, "k", time.Now().UnixMicro(), "")
				wg.Wait()
				if s := limiters[0].Stats(); s.Rates.String() != c.own || s.RatesStored.IsZero() {
					t.Errorf("in force at the end: %+v", s)
				}
				for i, rates := range []string{c.own, c.stored, c.own} {
					from, to := time.Duration(i)*30*time.Second, time.Duration(i+1)*30*time.Second
					if i > 0 {
						from += c.settled
					}
					part := newTrace()
					for _, d := range tr.left {
						if at := time.Duration(d.at) * time.Microsecond; from <= at && at < to {
							part.left = append(part.left, d)
						}
					}
					part.check(t, MustRates(rates))
					most := 0.0
					for _, r := range MustRates(rates) {
						if perSecond := float64(r.Limit) / r.Per.Seconds(); most == 0 || perSecond < most {
							most = perSecond
						}
					}
					if want := 0.8 * most * (to - from).Seconds(); float64(len(part.left)) < want {
						t.Errorf("%d under %s in %v, want %.0f", len(part.left), rates, to-from, want)
					}
				}
			})
		})
	}
}

// TestSetPolicyUnderStoredRates: that they win is told.
func TestSetPolicyUnderStoredRates(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMini()
		var told []Event
		x := transportOf(t, Config{Redis: dialMini(t, m), Base: &upstream{}, Routes: Routes{"upstream.example/": {Rates: MustRates("4/s")}},
			Observe: func(_ context.Context, e Event) {
				if e.Kind == EventRates {
					told = append(told, e)
				}
			}})
		storeRates(t, m, "upstream.example", time.Now().UnixMicro(), "2/s")
		if _, err := x.RoundTrip(getURL(t.Context(), "http://upstream.example/")); err != nil {
			t.Fatal(err)
		}
		if err := x.SetPolicy("upstream.example/", Policy{Rates: MustRates("9/s")}); err != nil {
			t.Fatal(err)
		}
		if len(told) != 2 || told[0].Reason != "stored" || told[1].Reason != "stored ones win" || told[1].Rates.String() != "2/s" {
			t.Errorf("told %+v", told)
		}
	})
}

// TestRefusalSaysWhy: with the bound, and how much of the wait is a pause.
func TestRefusalSaysWhy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := mustLimiter(t, nil, "k", Policy{Rates: MustRates("1/s"), MaxWait: 500 * time.Millisecond})
		burst(t, l, 1)
		l.pauseFor(7*time.Second, 0, "test")
		const want = "pacecar: k: the wait for a slot is too long: above MaxWait, 500ms (next slot in 8.02s, of which it is paused for 7s)"
		if err := l.Wait(t.Context()); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	})
}

// TestStoredRatesSurvive: the fleet tells Redis the stored rates again when it
// loses them, and they outlive a key that nobody uses.
func TestStoredRatesSurvive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMini()
		p := Policy{Rates: MustRates("20/s")}
		l := mustLimiter(t, dialMini(t, m), "k", p)
		version := time.Now().UnixMicro()
		storeRates(t, m, "k", version, "2/s")
		wait := func(n int) time.Duration {
			t.Helper()
			began := time.Now()
			for range n {
				if err := l.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			return time.Since(began)
		}
		if took := wait(5); took < 2*time.Second {
			t.Errorf("5 took %v at 2/s", took)
		}
		m.FlushAll()
		wait(5)
		if got := m.HGet("pacecar:1:{k}:clock", "rates"); got != "2/s" {
			t.Errorf("stored after a loss: %q", got)
		}
		time.Sleep(24 * time.Hour)
		l = mustLimiter(t, dialMini(t, m), "k", p) // a process that never heard of them
		if took := wait(5); took < 2*time.Second {
			t.Errorf("5 took %v at 2/s, a day later", took)
		}
		if l.Stats().RatesStored.UnixMicro() != version {
			t.Errorf("stored at %v", l.Stats().RatesStored)
		}
	})
}

// TestOddStoredRates: what this version does not understand is told, and the
// rates stay.
func TestOddStoredRates(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMini()
		var events []Event
		c := Config{Redis: dialMini(t, m), Observe: func(_ context.Context, e Event) {
			if e.Kind == EventRates {
				events = append(events, e)
			}
		}}
		p := Policy{Rates: MustRates("20/s")}
		l := newLimiter(&c, "k", "k", &p)
		storeRates(t, m, "k", 1, "20/s and more")
		for range 3 {
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if len(events) != 1 || events[0].Err == nil || l.Stats().Rates.String() != "20/s" {
			t.Errorf("events %+v, %+v", events, l.Stats())
		}
	})
}

// TestSetPolicy: a new policy holds for requests that come after it, for those
// that wait without a slot, and for quotas of the route that are in use.
func TestSetPolicy(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		tr := newTrace()
		base := roundTripFunc(func(req *http.Request) (*http.Response, error) {
			tr.add(0, 1)
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: req}, nil
		})
		x := transportOf(t, Config{Redis: connect(), Base: base, Routes: map[string]Policy{
			"upstream.example/": {Rates: MustRates("2/s")},
			"other.example/":    {Rates: MustRates("2/s"), Name: "shared"},
			"third.example/":    {Rates: MustRates("2/s"), Name: "shared", Key: func(*http.Request) string { return "t" }},
			"fourth.example/":   {Rates: MustRates("2/s")},
			"fifth.example/":    {Rates: MustRates("2/s"), Name: "fourth.example"}, // the fourth's
			"/":                 {Rates: MustRates("2/s")},
		}})
		send := func(host string, n int) time.Duration {
			began := time.Now()
			for range n {
				if _, err := x.RoundTrip(getURL(t.Context(), "http://"+host+"/")); err != nil {
					t.Fatal(err)
				}
			}
			return time.Since(began)
		}
		if took := send("upstream.example", 6); took < 2*time.Second {
			t.Errorf("6 took %v at 2/s", took)
		}
		if err := x.SetPolicy("upstream.example/", Policy{Rates: MustRates("100/s")}); err != nil {
			t.Fatal(err)
		}
		if took := send("upstream.example", 50); took > 1100*time.Millisecond {
			t.Errorf("50 took %v at 100/s", took)
		}
		if err := x.SetPolicy("other.example/", Policy{Rates: MustRates("1/s"), Name: "shared"}); err != nil {
			t.Fatal(err)
		}
		if took := send("third.example", 4); took < 3*time.Second {
			t.Errorf("4 took %v at 1/s, set for another route of the quota", took)
		}
		for _, c := range []struct {
			pattern, name, rates string
			most                 time.Duration
		}{
			{"fourth.example/", "", "50/s", 1100 * time.Millisecond},
			{"fifth.example/", "fourth.example", "500/s", 100 * time.Millisecond},
		} {
			if err := x.SetPolicy(c.pattern, Policy{Rates: MustRates(c.rates), Name: c.name}); err != nil {
				t.Fatal(err)
			}
			took := send("fourth.example", 25)
			if took += send("fifth.example", 25); took > c.most {
				t.Errorf("50 took %v at %s, set for %s", took, c.rates, c.pattern)
			}
		}
		if err := x.SetPolicy("upstream.example/", Policy{Rates: MustRates("1/s"), MaxWait: time.Millisecond}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		send("upstream.example", 1)
		if _, err := x.RoundTrip(getURL(t.Context(), "http://upstream.example/")); !errors.Is(err, ErrWaitTooLong) {
			t.Errorf("with a new MaxWait: %v", err)
		}
		if rates := x.router.named("/").policy.Load().Rates.String(); rates != "2/s" {
			t.Errorf("the route of all other hosts has %s now", rates)
		}
		for pattern, p := range map[string]Policy{
			"upstream.example/": {},
			"upstream.example":  {Rates: MustRates("1/s")},
			"UPSTREAM.example/": {Rates: MustRates("1/s")},
			"other.example/":    {Rates: MustRates("1/s"), Name: "another"},
		} {
			if err := x.SetPolicy(pattern, p); err == nil || !strings.Contains(err.Error(), "Routes["+fmt.Sprintf("%q", pattern)) {
				t.Errorf("%s: %v", pattern, err)
			}
		}
	})
}

// TestSetPolicyOfANameUsedBefore: a quota changes also if a request to the host
// that its Name is came first, under the route of all hosts.
func TestSetPolicyOfANameUsedBefore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("100/s")}
		named := p
		named.Name = "b.example"
		x := transportOf(t, Config{Base: &upstream{}, Routes: Routes{"a.example/": named, "/": p}})
		send := func(url string) {
			if _, err := x.RoundTrip(getURL(t.Context(), url)); err != nil {
				t.Fatal(err)
			}
		}
		send("http://b.example/")
		named.Rates = MustRates("3/s")
		if err := x.SetPolicy("a.example/", named); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for range 6 {
			send("http://a.example/")
		}
		between(t, "6 at 3/s", time.Since(began), time.Second, 3*time.Second)
	})
}

// TestSetPolicyLower: who waits for more slots than there are any more is
// refused, and lower rates hold for all that is not booked.
func TestSetPolicyLower(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := mustLimiter(t, nil, "k", Policy{Rates: MustRates("10/s")})
		tr := newTrace()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		greedy(ctx, &wg, l, tr, 0, 20)
		time.Sleep(5 * time.Second)
		l.setPolicy(Policy{Rates: MustRates("3/s")})
		wg.Wait()
		if n := tr.between(8*time.Second, 20*time.Second); n > 36+3 || n < 30 {
			t.Errorf("%d in 12 s at 3/s", n)
		}
		if err := l.WaitN(t.Context(), 4); !errors.Is(err, ErrCostTooHigh) {
			t.Errorf("4 slots of 3: %v", err)
		}
	})
}

// TestCostAboveAgain: who had a slot that Redis lost, and costs more than there
// ever is when it books again, is refused.
func TestCostAboveAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("10/s")}
		r := newStandIn(&p, time.Millisecond)
		l, other := r.limiter(t, p), r.limiter(t, p)
		burst(t, other, 1)
		burst(t, l, 9)
		done := make(chan error)
		go func() { done <- l.WaitN(t.Context(), 8) }()
		time.Sleep(100 * time.Millisecond)
		lower := Policy{Rates: MustRates("3/s")}
		l.setPolicy(lower)
		other.setPolicy(lower)
		r.flush()
		r.change(func() { r.book.rebind(l.bounds) })
		burst(t, other, 1) // which restores the first booking only
		if err := <-done; !errors.Is(err, ErrCostTooHigh) {
			t.Errorf("8 slots of 3: %v", err)
		}
	})
}

// TestOutageKeepsItsKind: FailOpen that is set in an outage is for the next.
func TestOutageKeepsItsKind(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("10/s")}
		r := newStandIn(&p, time.Millisecond)
		l := r.limiter(t, p)
		burst(t, l, 1)
		r.kill()
		time.Sleep(time.Second)
		if err := l.Wait(t.Context()); !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
		p.Outage, p.Replicas = FailOpen, 2
		l.setPolicy(p)
		if err := l.Wait(t.Context()); !errors.Is(err, ErrUnavailable) {
			t.Error(err)
		}
		r.restart(false)
		time.Sleep(time.Second)
		burst(t, l, 1)
		r.kill()
		time.Sleep(3 * time.Second)
		burst(t, l, 3)
	})
}

// TestRatesTakenBack: rates that were taken back stay so when Redis loses its
// state, though a process has not heard of it.
func TestRatesTakenBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMini()
		rdb := dialMini(t, m)
		p := Policy{Rates: MustRates("20/s")}
		a, err := NewAdmin(rdb, "")
		if err != nil {
			t.Fatal(err)
		}
		l1, l2 := mustLimiter(t, rdb, "k", p), mustLimiter(t, rdb, "k", p)
		burst(t, l1, 1)
		if err := a.SetRates(t.Context(), "k", MustRates("2/s")); err != nil {
			t.Fatal(err)
		}
		burst(t, l1, 1)
		burst(t, l2, 1)
		if err := a.SetRates(t.Context(), "k", nil); err != nil {
			t.Fatal(err)
		}
		burst(t, l1, 1) // has heard; l2 has not
		m.FlushAll()
		for range 5 {
			burst(t, l2, 1)
			burst(t, l1, 1)
			time.Sleep(2 * time.Second)
		}
		if x, y := l1.Stats().Rates.String(), l2.Stats().Rates.String(); x != y || x != "20/s" {
			t.Errorf("in force: %s and %s", x, y)
		}
	})
}

// TestRatesDuringARestore: the number of rates changes while what Redis lost is
// being told to it, in vain.
func TestRatesDuringARestore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("10/s")}
		r := newStandIn(&p, 2*time.Millisecond)
		l := r.limiter(t, p)
		burst(t, l, 5)
		r.flush()
		go func() { _ = l.Wait(t.Context()) }()
		for {
			time.Sleep(100 * time.Microsecond)
			l.mu.Lock()
			under := l.flight != nil && l.flight.query.restore != nil
			l.mu.Unlock()
			if under {
				break
			}
		}
		r.kill()
		l.setPolicy(Policy{Rates: MustRates("10/s, 100/m")})
		time.Sleep(time.Second)
		r.restart(true)
		time.Sleep(2 * time.Second)
		burst(t, l, 1)
	})
}

// TestRatesThereAndBack: what left under other rates counts when the old ones are
// in force again within their period.
func TestRatesThereAndBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rdb := dialMini(t, newMini())
		l := mustLimiter(t, rdb, "k", Policy{Rates: MustRates("5/10s")})
		a, err := NewAdmin(rdb, "")
		if err != nil {
			t.Fatal(err)
		}
		set := func(rates Rates) {
			t.Helper()
			if err := a.SetRates(t.Context(), "k", rates); err != nil {
				t.Fatal(err)
			}
		}
		burst(t, l, 5)
		time.Sleep(2 * time.Second)
		set(MustRates("20/s"))
		for range 3 {
			burst(t, l, 20)
			time.Sleep(1100 * time.Millisecond)
		}
		time.Sleep(time.Second)
		set(nil) // 60 left in the last 5 s
		tr := newTrace()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		greedy(ctx, &wg, l, tr, 0, 3)
		wg.Wait()
		if n := tr.between(0, 4500*time.Millisecond); n > 0 {
			t.Errorf("%d left although 60 had in the last 10 s", n)
		}
	})
}

// TestShorterPeriodBetween: a period that comes back counts what left while a
// shorter one was in force, whose log does not hold it any more.
func TestShorterPeriodBetween(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		l := mustLimiter(t, connect(), "k", Policy{Rates: MustRates("50/10s")})
		burst(t, l, 1)
		time.Sleep(time.Second)
		l.setPolicy(Policy{Rates: MustRates("20/s")})
		for range 4 {
			burst(t, l, 20)
			time.Sleep(1100 * time.Millisecond)
		}
		l.setPolicy(Policy{Rates: MustRates("50/10s"), MaxWait: 100 * time.Millisecond})
		if err := l.Wait(t.Context()); !errors.Is(err, ErrWaitTooLong) {
			t.Errorf("got %v, though 80 left in the last 5 s", err)
		}
	})
}

// TestNewPeriodOfAnOldQuota: a new period does not count what its window cannot
// hold, however much was booked before.
func TestNewPeriodOfAnOldQuota(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		l := mustLimiter(t, connect(), "k", Policy{Rates: MustRates("100/s")})
		for range 30 {
			burst(t, l, 100)
			time.Sleep(1500 * time.Millisecond)
		}
		l.setPolicy(Policy{Rates: MustRates("100/s, 1000/10m")})
		between(t, "a new period", burst(t, l, 100), 0, time.Second)
	})
}

// TestCoarseLogsTakeOver: a log that is not exact counts each slot once, however
// often it was not in force, and though it was evicted.
func TestCoarseLogsTakeOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rdb := dialMini(t, newMini())
		exchange := func(rates, from string, n int64) *answer {
			t.Helper()
			p := Policy{Rates: MustRates(rates)}
			a, err := newShared(rdb, "pacecar", "k", p.bounds()).exchange(t.Context(),
				&query{process: "p", from: from, asks: []ask{{count: n, cost: 1, longest: -1}}})
			if err != nil || a.from != "" {
				t.Fatal(a, err)
			}
			return a
		}
		time.Sleep(10 * time.Second) // off the grain of a day's log
		exchange("20/s, 2000/d", "1s", 20)
		time.Sleep(1500 * time.Millisecond)
		exchange("20/s, 2000/d", "1s", 10)
		for i := range int64(5) {
			exchange("20/s", "24h0m0s", 1)
			if a := exchange("20/s, 2000/d", "1s", 1); a.free[1] != 2000-a.serial || a.serial != 32+2*i {
				t.Errorf("%d are booked, and %d of 2000 free", a.serial, a.free[1])
			}
		}
		rdb.Del(t.Context(), "pacecar:1:{k}:log:24h0m0s")
		if a := exchange("2000/2d", "24h0m0s", 1); a.free[0] != 2000-a.serial {
			t.Errorf("after a log was evicted %d are booked, and %d of 2000 free", a.serial, a.free[0])
		}
	})
}

// TestOtherRatesOfAnEmptyQuota: a quota of which nothing is booked yet can change
// hands.
func TestOtherRatesOfAnEmptyQuota(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rdb := dialMini(t, newMini())
		w := newShared(rdb, "pacecar", "k", (&Policy{Rates: MustRates("10/s")}).bounds())
		if _, err := w.exchange(t.Context(), &query{process: "p", asks: []ask{{count: 1, cost: 11, longest: -1}}}); err != nil {
			t.Fatal(err)
		}
		between(t, "under other rates", burst(t, mustLimiter(t, rdb, "k", Policy{Rates: MustRates("20/2s")}), 20), 0, 50*time.Millisecond)
	})
}

// TestRestoredUnderOtherRates: what one process tells of a state that was lost
// counts, though another with other periods has made a new one.
func TestRestoredUnderOtherRates(t *testing.T) {
	for _, other := range []string{"10/s, 40/20s", "10/s, 40/30s"} {
		bubble(t, func(t *testing.T) {
			m := newMini()
			var away atomic.Bool
			one := mustLimiter(t, flaky{dialMini(t, m), &away}, "k", Policy{Rates: MustRates("10/s, 40/20s"), MaxWait: 100 * time.Millisecond})
			two := mustLimiter(t, dialMini(t, m), "k", Policy{Rates: MustRates(other)})
			for range 4 {
				burst(t, one, 9)
				time.Sleep(1100 * time.Millisecond)
			}
			away.Store(true)
			if err := one.Wait(t.Context()); !errors.Is(err, ErrUnavailable) {
				t.Fatal(err)
			}
			m.FlushAll()
			burst(t, two, 1)
			away.Store(false)
			time.Sleep(time.Second)
			left := 0
			for range 20 {
				if one.Wait(t.Context()) == nil {
					left++
				}
			}
			if left > 3 {
				t.Errorf("%d more left after 37 of 40", left)
			}
		})
	}
}

// TestNothingIsLostWhenNothingWasDone: who was told to ask again still says that
// it is alive, and gives back what it had.
func TestNothingIsLostWhenNothingWasDone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rdb := dialMini(t, newMini())
		a, err := NewAdmin(rdb, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, rates := range []string{"10/s", "10/2s", "10/3s", "10/4s"} {
			burst(t, mustLimiter(t, rdb, "k", Policy{Rates: MustRates(rates)}), 1)
		}
		if s, err := a.Status(t.Context(), "k"); err != nil || s.Processes != 4 {
			t.Errorf("%+v, %v", s, err)
		}
		l := mustLimiter(t, rdb, "other", Policy{Rates: MustRates("2/s")})
		burst(t, l, 2)
		ctx, cancel := context.WithCancel(t.Context())
		for range 10 {
			go func() { _ = l.Wait(ctx) }()
		}
		time.Sleep(10 * time.Millisecond)
		if err := a.SetRates(t.Context(), "other", MustRates("2/s, 100/m")); err != nil {
			t.Fatal(err)
		}
		cancel()
		time.Sleep(2 * time.Second)
		between(t, "after ten were given back", burst(t, l, 2), 0, 100*time.Millisecond)
	})
}

// TestRatesThereAndBackInALine: what leaves meanwhile counts, though it is logged
// no earlier than the line's end.
func TestRatesThereAndBackInALine(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		l, tr := mustLimiter(t, connect(), "k", Policy{Rates: MustRates("10/s")}), newTrace()
		var wg sync.WaitGroup
		send := func(n int) {
			for range n {
				wg.Go(func() {
					if err := l.Wait(t.Context()); err != nil {
						t.Error(err)
					}
					tr.add(0, 1)
				})
			}
			time.Sleep(300 * time.Millisecond)
		}
		send(11) // the last of them at 1.02 s
		l.setPolicy(Policy{Rates: MustRates("100/500ms")})
		send(89)
		l.setPolicy(Policy{Rates: MustRates("10/s")})
		send(9)
		wg.Wait()
		if n := tr.between(310*time.Millisecond, 1300*time.Millisecond); n != 1 {
			t.Errorf("%d left in the second after 89 at once", n)
		}
	})
}

// TestCostNobodyHas: the window never looks for slots that cannot be.
func TestCostNobodyHas(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		l := mustLimiter(t, connect(), "k", Policy{Rates: MustRates("3/s")})
		for _, a := range []ask{{count: 2, cost: 8, longest: -1}, {count: 2, cost: 2, longest: -1, keep: 2}, {count: 1, cost: 1, longest: -1, keep: 7}} {
			got, err := l.window.exchange(t.Context(), &query{asks: []ask{a}})
			if err != nil || len(got.runs) != 1 || got.runs[0].slot != 0 || got.runs[0].count != a.count || got.serial != 0 {
				t.Errorf("%+v: %+v, %v", a, got, err)
			}
		}
	})
}

// A renewed window is another one after each change of rates, as one in Redis is.
type renewed struct{ *standIn }

func (w *renewed) with(bounds []bound) window {
	w.standIn.with(bounds)
	return &renewed{w.standIn}
}

// TestLateReplyAfterOtherRates: the reply of an exchange that was given up comes
// when there are more rates than it tells of.
func TestLateReplyAfterOtherRates(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("10/s"), Outage: FailOpen, Replicas: 2}
		r := newStandIn(&p, 10*time.Millisecond)
		l := r.limiter(t, p)
		l.window = &renewed{r}
		r.stop()
		go func() { _ = l.Wait(t.Context()) }()
		time.Sleep(300 * time.Millisecond) // given up
		p.Rates = MustRates("10/s, 100/m")
		before := newLedger((&Policy{Rates: MustRates("10/s")}).bounds())
		l.setPolicy(p)
		r.change(func() { r.book = before }) // it answers what it was asked
		r.cont()
		time.Sleep(7 * time.Millisecond)
		r.change(func() { r.book.rebind(l.bounds) })
		r.kill()
		_ = l.Wait(t.Context())
		r.restart(false)
		_ = l.Wait(t.Context())
		l.mu.Lock()
		free := l.heard.free
		l.mu.Unlock()
		if len(free) != 2 {
			t.Errorf("free of each rate: %v", free)
		}
	})
}

// A leaving is when a request asked and when it left, of which process, and under
// which rates that it must keep.
type leaving struct {
	asked, left time.Duration
	process     int
	rates       Rates
}

// keeps fails if one of those with rates makes a window before it too full. What
// others did at the same moment may have come after it.
func keeps(t *testing.T, all []leaving) {
	t.Helper()
	for _, l := range all {
		for _, r := range l.rates {
			n := 0
			for _, other := range all {
				if other.left > l.left-r.Per && (other.left < l.left || other.left == l.left && other.process == l.process) {
					n++
				}
			}
			if n > r.Limit {
				t.Errorf("%d left in the %v before %v, under %v", n, r.Per, l.left, r)
				return
			}
		}
	}
}

// TestRatesAtRandom: a fleet whose rates are set again and again, to periods that
// come and go. Some processes ask now and then, and never hear of some rates. Who
// asks after rates were set, and leaves before the next are, keeps them, whatever
// left before.
func TestRatesAtRandom(t *testing.T) {
	t.Parallel()
	for i, rates := range [][]string{
		{"10/s", "20/2s"},
		{"10/s", "5/s", "20/2s", "3/350ms"},
		{"10/s", "1/100ms", "2/200ms, 10/s", "5/500ms"},
		{"20/s", "2000/d, 20/s", "3/350ms"},
	} {
		for seed := range uint64(3) {
			bubble(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, uint64(i)))
				m := newMini()
				a, err := NewAdmin(dialMini(t, m), "")
				if err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				ctx, cancel := context.WithCancel(t.Context())
				var mu sync.Mutex
				var all []leaving
				var wg sync.WaitGroup
				for p := range 12 {
					l := mustLimiter(t, dialMini(t, m), "k", Policy{Rates: MustRates(rates[0])})
					r := rand.New(rand.NewPCG(seed, uint64(p)))
					think := int64(p) * int64(250*time.Millisecond)
					wg.Go(func() {
						for ctx.Err() == nil {
							time.Sleep(time.Duration(r.Int64N(think + 1)))
							for range 1 + r.IntN(5) {
								wg.Go(func() {
									asked := time.Since(start)
									if l.Wait(ctx) == nil {
										mu.Lock()
										defer mu.Unlock()
										all = append(all, leaving{asked: asked, left: time.Since(start)})
									}
								})
							}
							time.Sleep(500 * time.Millisecond)
						}
					})
				}
				set, since := MustRates(rates[0]), time.Duration(0)
				for range 15 {
					time.Sleep(time.Duration(r.Int64N(int64(2 * time.Second))))
					mu.Lock()
					for j, l := range all {
						if l.asked > since && l.left > since {
							all[j].rates = set
						}
					}
					mu.Unlock()
					set = MustRates(rates[r.IntN(len(rates))])
					if err := a.SetRates(t.Context(), "k", set); err != nil {
						t.Error(err)
					}
					since = time.Since(start)
				}
				cancel()
				wg.Wait()
				keeps(t, all)
			})
		}
	}
}

// giveUp has n wait in line, all of whom are cancelled at once, in any order.
func giveUp(t *testing.T, l *Limiter, n int) {
	ctx, cancel := context.WithCancel(t.Context())
	for range n {
		go func() { _ = l.Wait(ctx) }()
	}
	time.Sleep(1500 * time.Millisecond)
	cancel()
	time.Sleep(2 * time.Second)
}

// TestRatesAfterALineWasGivenUp: other rates do not wait for a line that is gone,
// whether they have the same period or another.
func TestRatesAfterALineWasGivenUp(t *testing.T) {
	for _, rates := range []string{"30/s", "30/2s", "3/s, 1000/h"} {
		windows(t, func(t *testing.T, connect func() redis.Scripter) {
			l := mustLimiter(t, connect(), "k", Policy{Rates: MustRates("3/s")})
			giveUp(t, l, 1000)
			l.setPolicy(Policy{Rates: MustRates(rates)})
			between(t, rates, burst(t, l, 3), 0, 3*time.Second)
		})
	}
}

// TestCoarseTimesStay: a log of rounded times hands none on that are later than
// any slot: an idle quota stays idle.
func TestCoarseTimesStay(t *testing.T) {
	for _, c := range []struct{ before, after string }{
		{"20/s, 2000/d", "20/2s"}, {"20/s, 2000/d", "20/2s, 2000/d"}, {"20/s, 1000000/30d", "20/2s, 1000000/30d"},
	} {
		windows(t, func(t *testing.T, connect func() redis.Scripter) {
			l := mustLimiter(t, connect(), "k", Policy{Rates: MustRates(c.before)})
			burst(t, l, 20)
			time.Sleep(10 * time.Second)
			l.setPolicy(Policy{Rates: MustRates(c.after)})
			between(t, c.after, burst(t, l, 1), 0, 3*time.Second)
		})
	}
}

// TestCoarseTimesOfTwoDeployments: nor do they grow from one process to the other.
func TestCoarseTimesOfTwoDeployments(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMini()
		one := mustLimiter(t, dialMini(t, m), "k", Policy{Rates: MustRates("20/s, 2000/d")})
		two := mustLimiter(t, dialMini(t, m), "k", Policy{Rates: MustRates("20/2s")})
		for range 100 {
			between(t, "one", burst(t, one, 1), 0, 3*time.Second)
			between(t, "the other", burst(t, two, 1), 0, 3*time.Second)
			time.Sleep(time.Second)
		}
	})
}

// TestNewPeriodAfterALateness: the key's clock may have been set back to before a
// log's first entry: that does not stand for all that was ever booked.
func TestNewPeriodAfterALateness(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		w := mustLimiter(t, connect(), "k", Policy{Rates: MustRates("20/s")}).window
		exchange := func(q *query) *answer {
			t.Helper()
			q.process = "p"
			a, err := w.exchange(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		wait := func(a *answer) time.Duration { return duration(a.runs[len(a.runs)-1].slot + a.offset - a.now) }
		one := []ask{{count: 1, cost: 1, longest: -1}}
		for range 1200 {
			exchange(&query{asks: one})
			time.Sleep(55 * time.Millisecond)
		}
		a := exchange(&query{asks: []ask{{count: 25, cost: 1, longest: -1}}})
		time.Sleep(wait(a) + 80*time.Millisecond)
		now := exchange(&query{asks: one}).now // somebody is behind it
		exchange(&query{generation: a.generation, late: []lateness{{a.runs[1].slot, now, 1}}})
		w = w.with((&Policy{Rates: MustRates("20/s, 1000/h")}).bounds())
		if wait := wait(exchange(&query{from: "1s", asks: one})); wait > 5*time.Second {
			t.Errorf("with 1,000 an hour, the next slot is in %v", wait)
		}
	})
}

// TestRatesInForceAfterExpiry: a quota that had expired but for its stored rates
// says which are in force from the first booking on.
func TestRatesInForceAfterExpiry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rdb := dialMini(t, newMini())
		a, err := NewAdmin(rdb, "")
		if err != nil {
			t.Fatal(err)
		}
		l := mustLimiter(t, rdb, "k", Policy{Rates: MustRates("1/10s"), MaxWait: time.Second})
		for _, rates := range []string{"1/10s", "1/8s"} {
			if err := a.SetRates(t.Context(), "k", MustRates(rates)); err != nil {
				t.Fatal(err)
			}
			if rates == "1/8s" {
				break
			}
			for range 2 {
				time.Sleep(time.Minute)
				burst(t, l, 1)
			}
		}
		if err := l.Wait(t.Context()); !errors.Is(err, ErrWaitTooLong) {
			t.Errorf("another one left at once: %v", err)
		}
	})
}

// TestPeriodsOfTwoDeployments: processes whose own rates have other periods keep
// them, each its own, whatever the others send.
func TestPeriodsOfTwoDeployments(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMini()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		start := time.Now()
		var mu sync.Mutex
		var all []leaving
		var wg sync.WaitGroup
		var trips uint64
		var limiters []*Limiter
		for i, text := range []string{"10/s", "5/s, 90/10s", "16/2s"} {
			p := Policy{Rates: MustRates(text)}
			l := mustLimiter(t, dialMini(t, m), "k", p)
			limiters = append(limiters, l)
			for range 3 {
				wg.Go(func() {
					for l.Wait(ctx) == nil {
						mu.Lock()
						all = append(all, leaving{left: time.Since(start), process: i, rates: p.Rates})
						mu.Unlock()
					}
				})
			}
		}
		wg.Wait()
		keeps(t, all)
		for _, l := range limiters {
			trips += l.Stats().RoundTrips
		}
		t.Logf("%d left, %.2f round trips each", len(all), float64(trips)/float64(len(all)))
		if len(all) < 90 || float64(trips) > 3*float64(len(all)) {
			t.Errorf("%d left, with %d round trips", len(all), trips)
		}
	})
}
