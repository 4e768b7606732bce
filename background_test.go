package pacecar

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// backfill has goroutines of background work on l until ctx ends.
func backfill(ctx context.Context, wg *sync.WaitGroup, l *Limiter, tr *trace, process, goroutines int) {
	for range goroutines {
		wg.Go(func() {
			for l.Wait(Background(ctx)) == nil {
				tr.add(process, 1)
			}
		})
	}
}

// TestReserve: with a backfill of two processes under way all the time, requests
// that come now and then, never more than the reserve in a window, do not wait;
// and no window holds more than its limit.
func TestReserve(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		p := Policy{Rates: MustRates("20/s"), Reserve: 5}
		tr := newTrace()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		limiters := []*Limiter{mustLimiter(t, connect(), "k", p)}
		if limiters[0].remote {
			limiters = append(limiters, mustLimiter(t, connect(), "k", p))
		}
		for i, l := range limiters {
			backfill(ctx, &wg, l, tr, i, 8)
		}
		time.Sleep(3 * time.Second)
		for i := range 100 {
			began := time.Now()
			if err := limiters[i%len(limiters)].Wait(t.Context()); err != nil {
				t.Error(err)
			}
			tr.add(0, 1)
			if waited := time.Since(began); waited > 0 {
				t.Errorf("request %d waited %v", i, waited)
			}
			time.Sleep(210 * time.Millisecond)
		}
		took := time.Since(tr.start)
		cancel()
		wg.Wait()
		tr.check(t, p.Rates)
		background := len(tr.left) - 100
		trips := uint64(0)
		for _, l := range limiters {
			trips += l.Stats().RoundTrips
		}
		t.Logf("%d of background work in %v, %.2f round trips each", background, took, float64(trips)/float64(len(tr.left)))
		// What the others use comes off the 15 that are left to the backfill.
		if least := int(0.9 * took.Seconds() * (15 - 100/took.Seconds())); background < least {
			t.Errorf("%d of background work in %v, want %d", background, took, least)
		}
		// A turn comes at the pace of who is alone: what others take in between
		// costs another.
		if limiters[0].remote && float64(trips) > 5*float64(len(tr.left)) {
			t.Errorf("%d round trips for %d requests", trips, len(tr.left))
		}
	})
}

// TestReserveAlone: a backfill with nobody else has what the reserve leaves, and
// is not slowed down by the reserve of a second rate.
func TestReserveAlone(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		p := Policy{Rates: MustRates("10/s, 60/10s"), Reserve: 4}
		tr := newTrace()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		backfill(ctx, &wg, mustLimiter(t, connect(), "k", p), tr, 0, 16)
		wg.Wait()
		tr.check(t, MustRates("6/s, 56/10s"))
		if n := len(tr.left); n < 56*6*9/10 {
			t.Errorf("%d in a minute, want nearly %d", n, 56*6)
		}
	})
}

// TestBackgroundStandsStill: behind a long line of other requests background work
// waits until that is gone, and is refused at once where it cannot wait so long.
func TestBackgroundStandsStill(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		p := Policy{Rates: MustRates("10/s"), Reserve: 2}
		l := mustLimiter(t, connect(), "k", p)
		var wg sync.WaitGroup
		var left atomic.Int64
		for range 50 {
			wg.Go(func() {
				if err := l.Wait(t.Context()); err != nil {
					t.Error(err)
				}
				left.Add(1)
			})
		}
		time.Sleep(100 * time.Millisecond)
		short, cancel := context.WithTimeout(Background(t.Context()), time.Second)
		defer cancel()
		began := time.Now()
		if err := l.Wait(short); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 0 {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		if err := l.Wait(Background(t.Context())); err != nil || left.Load() != 50 {
			t.Errorf("got %v, with %d of the others gone", err, left.Load())
		}
		if err := l.WaitN(Background(t.Context()), 9); !errors.Is(err, ErrCostTooHigh) {
			t.Errorf("a cost above what the reserve leaves: %v", err)
		}
		wg.Wait()
	})
}

// TestBackgroundInAnOutage: it is refused with FailClosed, and stands still with
// FailOpen until Redis answers again.
func TestBackgroundInAnOutage(t *testing.T) {
	for _, outage := range []Outage{FailClosed, FailOpen} {
		t.Run(outage.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := Policy{Rates: MustRates("10/s"), Reserve: 2, Outage: outage, Replicas: 2}
				r := newStandIn(&p, time.Millisecond)
				l := r.limiter(t, p)
				if err := l.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				r.kill()
				time.Sleep(time.Second)
				began := time.Now()
				go func() {
					time.Sleep(3 * time.Second)
					r.restart(false)
				}()
				err := l.Wait(Background(t.Context()))
				waited := time.Since(began)
				if outage == FailClosed && (!errors.Is(err, ErrUnavailable) || waited > time.Second) {
					t.Errorf("got %v after %v", err, waited)
				}
				if outage == FailOpen && (err != nil || waited < 3*time.Second || waited > 6*time.Second) {
					t.Errorf("got %v after %v", err, waited)
				}
				want := uint64(0)
				if outage == FailClosed {
					want = 1
				}
				if n := l.Stats().Degraded; n != want {
					t.Errorf("%d were decided without Redis, want %d", n, want)
				}
			})
		})
	}
}

// TestReserveValues: what Reserve may be.
func TestReserveValues(t *testing.T) {
	for reserve, ok := range map[int]bool{-1: false, 0: true, 2: true, 3: false} {
		_, err := NewLimiter(nil, "k", Policy{Rates: MustRates("3/s, 30/m"), Reserve: reserve})
		if (err == nil) != ok {
			t.Errorf("%d: %v", reserve, err)
		}
	}
}

// TestReserveAboveTheLimit: background work waits for its turn while the limit
// falls below the reserve.
func TestReserveAboveTheLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := mustLimiter(t, nil, "k", Policy{Rates: MustRates("20/s"), Reserve: 5})
		burst(t, l, 20)
		done := make(chan error)
		go func() { done <- l.Wait(Background(t.Context())) }()
		synctest.Wait()
		l.setPolicy(Policy{Rates: MustRates("3/s"), Reserve: 2})
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestBackgroundResumes: a pause that is ended early ends for background work too.
func TestBackgroundResumes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMini()
		rdb := dialMini(t, m)
		l := mustLimiter(t, rdb, "k", Policy{Rates: MustRates("10/s"), Reserve: 2})
		a, err := NewAdmin(rdb, "")
		if err != nil {
			t.Fatal(err)
		}
		burst(t, l, 10)
		if _, err := a.Pause(t.Context(), "k", time.Hour); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		done := make(chan error)
		go func() { done <- l.Wait(Background(t.Context())) }()
		time.Sleep(time.Second)
		if err := a.Resume(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil || time.Since(began) > 10*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// TestBackgroundRaised: background work hears of higher rates while it waits for
// its turn.
func TestBackgroundRaised(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMini()
		rdb := dialMini(t, m)
		l := mustLimiter(t, rdb, "k", Policy{Rates: MustRates("10/h"), Reserve: 2})
		a, err := NewAdmin(rdb, "")
		if err != nil {
			t.Fatal(err)
		}
		burst(t, l, 10)
		began := time.Now()
		done := make(chan error)
		go func() { done <- l.Wait(Background(t.Context())) }()
		time.Sleep(time.Second)
		if err := a.SetRates(t.Context(), "k", MustRates("1000/h")); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			burst(t, l, 1)
			time.Sleep(time.Second)
		}
		if err := <-done; err != nil || time.Since(began) > time.Minute {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// TestBackgroundCancelled: a backfill that is given up leaves nothing behind.
func TestBackgroundCancelled(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		l := mustLimiter(t, connect(), "k", Policy{Rates: MustRates("10/s"), Reserve: 2})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() { _ = l.Wait(Background(ctx)) })
		}
		time.Sleep(time.Second)
		cancel()
		wg.Wait()
		for range 5 { // so that the state lives on
			burst(t, l, 1)
			time.Sleep(time.Second)
		}
		began := time.Now()
		if err := l.Wait(Background(t.Context())); err != nil || time.Since(began) > 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// TestNotBehindABackfill: nobody waits behind a long backfill in his process.
func TestNotBehindABackfill(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("10/s"), Reserve: 2}
		r := newStandIn(&p, 10*time.Millisecond)
		l := r.limiter(t, p)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 10000 {
			go func() { _ = l.Wait(Background(ctx)) }()
		}
		time.Sleep(time.Millisecond)
		if took := burst(t, l, 1); took > 30*time.Millisecond {
			t.Errorf("behind the backfill for %v", took)
		}
		cancel()
	})
}

// TestBackgroundHearsOfOtherRates: background work that begins to wait when its
// process has a turn far away still hears of higher rates.
func TestBackgroundHearsOfOtherRates(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rdb := dialMini(t, newMini())
		l := mustLimiter(t, rdb, "k", Policy{Rates: MustRates("10/h"), Reserve: 2})
		a, err := NewAdmin(rdb, "")
		if err != nil {
			t.Fatal(err)
		}
		burst(t, l, 10)
		short, cancel := context.WithTimeout(Background(t.Context()), time.Second)
		defer cancel()
		if err := l.Wait(short); err == nil {
			t.Error("not refused")
		}
		time.Sleep(30 * time.Second)
		began := time.Now()
		done := make(chan error)
		go func() { done <- l.Wait(Background(t.Context())) }()
		time.Sleep(time.Second)
		if err := a.SetRates(t.Context(), "k", MustRates("1000/h")); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil || time.Since(began) > time.Minute {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}
