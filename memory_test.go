package pacecar

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"
)

// TestMemory: what is remembered never makes a slot earlier, or one less.
func TestMemory(t *testing.T) {
	heard := func(at, serial, units int64) func(*memory) {
		return func(m *memory) { m.learn(&answer{now: at - 5, tail: at, serial: serial}, units) }
	}
	for _, c := range []struct {
		name  string
		do    []func(*memory)
		pairs []entry
		own   []own
	}{
		{"pairs of one grain are one, as late as the last", []func(*memory){heard(100, 3, 1), heard(109, 5, 2)},
			[]entry{{109, 5}}, []own{{109, 5, 3}}},
		{"no news, no pair", []func(*memory){heard(100, 3, 0), heard(150, 3, 0)}, []entry{{100, 3}}, nil},
		{"the last pair out of the window says where the rest begins",
			[]func(*memory){heard(100, 3, 1), heard(150, 5, 1), heard(200, 9, 1), func(m *memory) { m.forget(160) }},
			[]entry{{150, 5}, {200, 9}}, []own{{200, 9, 1}}},
		{"what is booked for later is not used after all",
			[]func(*memory){heard(100, 3, 1), heard(200, 5, 2), heard(300, 9, 0), func(m *memory) { m.end(150) }},
			[]entry{{100, 3}, {150, 5}}, []own{{100, 3, 1}, {150, 5, 2}}},
		{"what a new state does not cover is charged, the rest moves with its clock",
			[]func(*memory){heard(100, 3, 1), heard(200, 5, 2), func(m *memory) {
				if got := m.renew(4, 7); !slices.Equal(got, []own{{200, 5, 2}}) {
					t.Errorf("uncovered: %v", got)
				}
			}},
			[]entry{{107, 3}}, []own{{107, 3, 1}}},
		{"what was not used is not charged",
			[]func(*memory){heard(100, 3, 1), heard(200, 7, 4), func(m *memory) { m.unbook(6, 3) }},
			[]entry{{100, 3}, {200, 7}}, []own{{100, 3, 1}, {200, 7, 1}}},
	} {
		m := memory{grain: 10}
		for _, do := range c.do {
			do(&m)
		}
		if !reflect.DeepEqual(m.pairs, c.pairs) || len(m.own)+len(c.own) > 0 && !reflect.DeepEqual(m.own, c.own) {
			t.Errorf("%s: %v %v, want %v %v", c.name, m.pairs, m.own, c.pairs, c.own)
		}
	}
}

// TestMemoryUsed: the fleet's bookings of a window, as a share counts them.
func TestMemoryUsed(t *testing.T) {
	m := memory{grain: 10, pairs: []entry{{100, 30}, {200, 35}, {300, 42}}}
	for _, c := range []struct {
		since, most int64
		want        []entry
	}{
		{250, 10, []entry{{300, 7}}},
		{100, 10, []entry{{200, 5}, {300, 12}}},
		{50, 10, []entry{{100, 10}, {200, 15}, {300, 22}}}, // those before may all be of this window
		{50, 99, []entry{{100, 30}, {200, 35}, {300, 42}}},
		{300, 10, []entry{}},
	} {
		if got := m.used(c.since, c.most); !slices.Equal(got, c.want) {
			t.Errorf("since %d: %v, want %v", c.since, got, c.want)
		}
	}
}

// TestMemoryCovered: which numbers mean the same in the states that a process
// has met and in a new one.
func TestMemoryCovered(t *testing.T) {
	m := memory{lines: []line{{1, 0}, {2, 50}, {3, 40}}} // 2 has what 1 had up to 50, and 3 what 2 had up to 40
	for _, c := range []struct{ origin, restored, want int64 }{
		{3, 99, 99},
		{2, 99, 40}, // 3 went its own way after 40
		{2, 30, 30},
		{1, 99, 40},
		{7, 99, 0}, // never heard of
		{0, 0, 0},  // it was not restored
	} {
		if got := m.covered(c.origin, c.restored); got != c.want {
			t.Errorf("from %d up to %d: covered up to %d, want %d", c.origin, c.restored, got, c.want)
		}
	}
}

// TestIdleKeyOwesNothing: a state that expired in silence is no lost state.
func TestIdleKeyOwesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("100/s")}
		redis := newStandIn(&p, time.Millisecond)
		l := redis.limiter(t, p)
		for range 3 {
			between(t, "all of the quota", burst(t, l, 100), 0, 10*time.Millisecond)
			time.Sleep(10 * time.Second)
		}
	})
}

// TestPauseSurvivesALoss: while anybody waits, Redis cannot forget a pause.
func TestPauseSurvivesALoss(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("10/s")}
		redis := newStandIn(&p, time.Millisecond)
		limiters := []*Limiter{redis.limiter(t, p), redis.limiter(t, p)}
		tr := newTrace()
		var wg sync.WaitGroup
		for i, l := range limiters {
			burst(t, l, 10)
			wg.Go(func() {
				time.Sleep(100 * time.Millisecond)
				for range 20 {
					if err := l.Wait(t.Context()); err != nil {
						t.Error(err)
					}
					tr.add(i, 1)
				}
			})
		}
		limiters[0].pauseFor(10*time.Second, 0, "test")
		paused := time.Since(tr.start)
		for range 5 {
			time.Sleep(1500 * time.Millisecond)
			redis.flush()
		}
		wg.Wait()
		for _, d := range tr.left {
			if at := duration(d.at); at > paused+lookAfter && at < paused+10*time.Second {
				t.Errorf("left at %v, paused from %v for 10 s", at, paused)
			}
		}
		tr.check(t, p.Rates)
	})
}

// TestWhoRestoresFirstWins: of two processes that know of a lost state, the one
// that knows less speaks first and sells slots that the other one holds. That
// one books again.
func TestWhoRestoresFirstWins(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("2/s")}
		redis := newStandIn(&p, time.Millisecond)
		less, more := redis.limiter(t, p), redis.limiter(t, p)
		tr := newTrace()
		var wg sync.WaitGroup
		wait := func(i int, l *Limiter, n int) {
			for range n {
				wg.Go(func() {
					if err := l.Wait(t.Context()); err != nil {
						t.Error(err)
					}
					tr.add(i, 1)
				})
			}
			time.Sleep(10 * time.Millisecond)
		}
		wait(0, less, 3)
		wait(1, more, 6) // to the fifth second
		redis.flush()
		wait(0, less, 6) // the same slots again
		wg.Wait()
		time.Sleep(time.Second)
		tr.check(t, p.Rates)
		if n := len(tr.left); n != 15 {
			t.Errorf("%d left", n)
		}
	})
}

// TestLossAfterALineWasGivenUp: what is restored has no line that is gone.
func TestLossAfterALineWasGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("3/s")}
		redis := newStandIn(&p, time.Millisecond)
		l := redis.limiter(t, p)
		giveUp(t, l, 1000)
		burst(t, l, 3)
		time.Sleep(2 * time.Second)
		redis.flush()
		between(t, "after the loss", burst(t, l, 3), 0, 3*time.Second)
	})
}

// TestLookerOfALostState: who asked for the clock, books again because its slot
// was lost, and meets an outage, is not forgotten.
func TestLookerOfALostState(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("10/s"), Outage: FailOpen, Replicas: 2}
		redis := newStandIn(&p, 20*time.Millisecond)
		other, l := redis.limiter(t, p), redis.limiter(t, p)
		burst(t, other, 10)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- l.Wait(ctx) }()
		var w *waiter
		until := func(what func() bool) {
			for is := false; !is; time.Sleep(time.Millisecond) {
				l.mu.Lock()
				for v := range l.slotted {
					w = v
				}
				is = what()
				l.mu.Unlock()
			}
		}
		until(func() bool { return w != nil && w.looked })
		redis.flush()
		redis.change(func() { // another has told what it knew
			redis.book.exchange(time.Now().UnixMicro(), &query{asks: []ask{{count: 3, cost: 1, longest: -1}}})
		})
		until(func() bool { return w.state == queued })
		redis.kill()
		until(func() bool { return l.outage.away })
		redis.restart(false)
		var wg sync.WaitGroup
		greedy(ctx, &wg, other, newTrace(), 0, 20)
		if err := <-done; err != nil {
			t.Error(err)
		}
		cancel()
		wg.Wait()
	})
}

// TestLastWritesLost: a failover to a replica that had not heard of the last
// bookings costs at most those.
func TestLastWritesLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("100/s")}
		redis := newStandIn(&p, time.Millisecond)
		lost := int64(0)
		tr := redis.fleet(t, p, 4, 16, 500*time.Millisecond, func(*trace) {
			for range 20 {
				time.Sleep(400 * time.Millisecond)
				var replica ledger
				redis.change(func() {
					replica = redis.book
					replica.spares = slices.Clone(replica.spares)
					replica.logs = slices.Clone(replica.logs)
					for i := range replica.logs {
						replica.logs[i].entries = slices.Clone(replica.logs[i].entries)
					}
				})
				time.Sleep(10 * time.Millisecond)
				redis.change(func() {
					lost = max(lost, redis.book.serial-replica.serial)
					redis.book = replica
				})
			}
		})
		if most := mostIn(tr.left, time.Second.Microseconds()); most > 100+3*lost { // a window sees up to three
			t.Errorf("%d in a second; at most %d bookings were lost at once", most, lost)
		}
		t.Logf("%d in a second at most; up to %d bookings were lost at once", mostIn(tr.left, time.Second.Microseconds()), lost)
	})
}

// TestRestoredByOne: one process that remembers is enough for a fleet of which
// the others are new.
func TestRestoredByOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("10/s")}
		redis := newStandIn(&p, time.Millisecond)
		old := redis.limiter(t, p)
		tr := newTrace()
		take := func(i int, l *Limiter, n int) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for range n {
				if err := l.Wait(ctx); err != nil {
					t.Error(err)
				}
				tr.add(i, 1)
			}
		}
		take(0, redis.limiter(t, p), 9) // by a process that is gone
		take(1, old, 1)
		redis.flush()
		take(1, old, 1)
		take(2, redis.limiter(t, p), 20)
		tr.check(t, p.Rates)
	})
}
