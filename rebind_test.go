package pacecar

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A rebinding is a window of which a test books under one rate after the other.
type rebinding struct {
	t    *testing.T
	w    window
	from string // the longest period in force
}

func newRebinding(t *testing.T, rdb redis.Scripter, rates string) *rebinding {
	w := mustLimiter(t, rdb, "k", Policy{Rates: MustRates(rates)}).window
	return &rebinding{t: t, w: w}
}

// set puts rates in force, with the next exchange.
func (r *rebinding) set(before, rates string) {
	r.from = longestOf((&Policy{Rates: MustRates(before)}).bounds()).name
	r.w = r.w.with((&Policy{Rates: MustRates(rates)}).bounds())
}

func (r *rebinding) exchange(q *query) *answer {
	r.t.Helper()
	q.process, q.from = "p", r.from
	a, err := r.w.exchange(r.t.Context(), q)
	if err != nil || a.from != "" {
		r.t.Fatal(a, err)
	}
	r.from = ""
	return a
}

// take books up to n slots that are free now, and returns how many it got.
func (r *rebinding) take(n int64) (got int64) {
	r.t.Helper()
	for _, run := range r.exchange(&query{asks: []ask{{count: n, cost: 1, longest: 0}}}).runs {
		if run.slot > 0 {
			got += run.count
		}
	}
	return got
}

// TestNewPeriodCountsAll: a new period counts all that the longest one holds of
// its window, also what is more than its limit by now.
func TestNewPeriodCountsAll(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		r := newRebinding(t, connect(), "100/10s")
		r.take(100)
		r.set("100/10s", "10/10s")
		time.Sleep(time.Second)
		r.exchange(&query{charge: []span{{r.exchange(&query{}).key(), 7}}})
		r.set("10/10s", "10/10s, 120/m")
		if a := r.exchange(&query{asks: []ask{{count: 1, cost: 1, longest: 0}}}); a.free[1] != 13 {
			t.Errorf("107 of 120 are used, %d free", a.free[1])
		}
	})
}

// TestEmptyPeriodBetween: a period under which nothing was booked does not make
// the one before it be forgotten.
func TestEmptyPeriodBetween(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		r := newRebinding(t, connect(), "50/m")
		r.take(1)
		r.set("50/m", "20/s")
		for range 3 {
			r.take(20)
			time.Sleep(1100 * time.Millisecond)
		}
		refused := &query{asks: []ask{{count: 1, cost: 30, longest: 0}}}
		time.Sleep(time.Second)
		r.exchange(refused)
		r.set("20/s", "20/2s")
		r.exchange(refused)
		r.set("20/2s", "50/m")
		if n := r.take(50); n > 0 {
			t.Errorf("%d more left, of 50 a minute", n)
		}
	})
}

// TestLateAcrossRates: a booking that is moved since it was late does not stand in
// for one that was made since.
func TestLateAcrossRates(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		r := newRebinding(t, connect(), "2/10s")
		one := []ask{{count: 1, cost: 1, longest: -1}}
		a := r.exchange(&query{asks: one})
		time.Sleep(time.Second)
		r.set("2/10s", "100/20s")
		time.Sleep(time.Second)
		first := time.Now()
		r.exchange(&query{asks: one})
		time.Sleep(time.Second)
		r.exchange(&query{generation: a.generation, late: []lateness{{a.runs[0].slot, a.now + 3_000_000, 1}}})
		time.Sleep(time.Second)
		r.set("100/20s", "2/10s")
		b := r.exchange(&query{asks: one})
		if third := time.Since(first) + duration(b.runs[0].slot+b.offset-b.now); third < 10*time.Second {
			t.Errorf("three left within %v", third)
		}
	})
}

// TestGrainChanges: a slot that was logged exactly is given back where it is, not
// where a log that is coarse by now would have it.
func TestGrainChanges(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		r := newRebinding(t, connect(), "1000/h")
		time.Sleep(100 * time.Millisecond) // off the grain
		a := r.exchange(&query{asks: []ask{{count: 800, cost: 1, longest: -1}}})
		r.set("1000/h", "1001/h")
		time.Sleep(3 * time.Second)
		var left []departure
		take := func(n int64) { left = append(left, departure{time.Now().UnixMicro(), r.take(n)}) }
		take(201)
		r.exchange(&query{generation: a.generation, seq: 7, back: []span{{a.runs[0].slot, 800}}})
		take(800)
		time.Sleep(time.Hour - 2*time.Second)
		for range 40 {
			time.Sleep(100 * time.Millisecond)
			take(1001)
			take(800)
			take(200)
		}
		if most := mostIn(left, time.Hour.Microseconds()); most > 1001 {
			t.Errorf("%d left in an hour", most)
		}
	})
}

// TestLineOfOldRates: what is given back of a line that was booked under higher
// rates is not for those who come under the lower ones.
func TestLineOfOldRates(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		r, tr := newRebinding(t, connect(), "10/s"), newTrace()
		a := r.exchange(&query{asks: []ask{{count: 100, cost: 1, longest: -1}}})
		r.set("10/s", "1/s")
		r.exchange(&query{asks: []ask{{count: 1, cost: 30, longest: 0}}})
		back := &query{generation: a.generation, seq: 1}
		for _, run := range slices.Backward(a.runs[:len(a.runs)-1]) { // the last one stays
			back.back = append(back.back, span{run.slot, run.count})
		}
		r.exchange(back)
		for range 600 {
			if n := r.take(10); n > 0 {
				tr.add(0, n)
			}
			time.Sleep(100 * time.Millisecond)
		}
		tr.check(t, MustRates("1/s"))
	})
}

// A rateHistory is a random history of bookings under rates that change, with
// slots given back, pauses, late departures and clock steps. Each departure must
// keep the rates under which it was booked, counting all before it that they know
// of.
type rateHistory struct {
	history
	epochs [][]knownRate
	first  int // epoch of the state
	left   []epochDeparture
	line   []epochBooking
}

// A knownRate is one in force, and since when its log knows of departures.
type knownRate struct {
	bound
	since int64
}

type epochDeparture struct {
	departure
	epoch int
}

type epochBooking struct {
	booking
	epoch int
}

// enter begins an epoch: a period that was in force before goes on knowing what it
// knew, one that is new knows what the longest one holds.
func (h *rateHistory) enter(bounds []bound, fresh bool) {
	known := map[string]int64{}
	longest := knownRate{}
	for _, epoch := range h.epochs[h.first:] {
		longest = knownRate{}
		for _, r := range epoch {
			known[r.name] = r.since
			if r.window > longest.window {
				longest = r
			}
		}
	}
	var rates []knownRate
	for _, b := range bounds {
		since, old := known[b.name]
		if !old {
			since = max(longest.since, h.now+h.skew-(longest.window-h.slack)+1)
		}
		if fresh {
			since = -1 << 60
		}
		rates = append(rates, knownRate{b, since})
	}
	h.epochs = append(h.epochs, rates)
}

func (h *rateHistory) advance(d int64) {
	until := h.now + d
	for len(h.line) > 0 {
		at := func(b epochBooking) int64 { return max(b.slot+h.l.offset, h.l.resume) + b.late }
		b := slices.MinFunc(h.line, func(a, b epochBooking) int { return int(at(a) - at(b)) })
		if at(b) > until {
			break
		}
		i := slices.Index(h.line, b)
		h.line = slices.Delete(h.line, i, i+1)
		h.now = max(h.now, at(b))
		h.left = append(h.left, epochDeparture{departure{h.now + h.skew, b.units}, b.epoch})
		if b.late > h.slack/2 {
			h.l.exchange(h.now, &query{generation: h.l.generation, late: []lateness{{b.slot, h.now, b.units}}})
		}
	}
	h.now = until
}

// periods are those that come and go, as windows without slack.
var periods = []bound{{name: "a", window: 400_000}, {name: "b", window: 1_000_000, grain: 100_000}, {name: "c", window: 2_500_000, grain: 250_000}}

func (h *rateHistory) bounds() (bounds []bound) {
	for bounds == nil {
		for _, b := range periods {
			if h.r.IntN(2) == 0 {
				b.limit, b.window = 1+h.r.Int64N(8), b.window+h.slack
				bounds = append(bounds, b)
			}
		}
	}
	return bounds
}

func (h *rateHistory) step() {
	h.advance(h.r.Int64N(400_000))
	q := &query{}
	back := func(i int) {
		q.back = append(q.back, h.line[i].span)
		h.line = slices.Delete(h.line, i, i+1)
	}
	for n := h.r.IntN(4); n > 0 && len(h.line) > 0; n-- {
		back(h.r.IntN(len(h.line)))
	}
	switch h.r.IntN(14) {
	case 0:
		q.pause, q.paused = 1+h.r.Int64N(1_000_000), h.l.resume
	case 1:
		step := h.r.Int64N(5_000_000)
		h.now, h.skew = h.now-step, h.skew+step
	case 2:
		q.resume = true
	case 3: // the end of the line
		slices.SortFunc(h.line, func(a, b epochBooking) int { return bySlot(a.span, b.span) })
		for n := h.r.IntN(5); n > 0 && len(h.line) > 0; n-- {
			back(len(h.line) - 1)
		}
	}
	slices.SortFunc(q.back, func(a, b span) int { return bySlot(b, a) })
	h.l.begin(h.now)
	q.generation = h.l.generation
	if bounds := h.bounds(); h.r.IntN(6) == 0 {
		fresh := h.l.generation == 0
		if fresh {
			h.first = len(h.epochs)
		}
		h.l.rebind(bounds)
		h.enter(bounds, fresh)
	}
	var costs []int64
	q.asks, costs = randomAsks(h.r, h.l.logs)
	for i, slot := range eachGrant(h.l.do(q).runs) {
		if slot == 0 {
			continue
		}
		late := h.r.Int64N(h.slack + 1)
		if h.r.IntN(5) == 0 {
			late = h.r.Int64N(100_000)
		}
		h.line = append(h.line, epochBooking{booking{span{slot, costs[i]}, late}, len(h.epochs) - 1})
	}
}

// broken names a rate that was not kept; "" if there is none.
func (h *rateHistory) broken() string {
	slices.SortStableFunc(h.left, func(a, b epochDeparture) int { return int(a.at - b.at) })
	for _, d := range h.left {
		for _, r := range h.epochs[d.epoch] {
			per, n := r.window-h.slack, int64(0)
			for _, o := range h.left {
				if o.epoch <= d.epoch && o.at > max(d.at-per, r.since) && o.at <= d.at {
					n += o.units
				}
			}
			if n > r.limit {
				return fmt.Sprintf("%d left in the %v before %d, of %d", n, duration(per), d.at, r.limit)
			}
		}
	}
	return ""
}

// TestLedgerKeepsRatesThatChange checks random histories.
func TestLedgerKeepsRatesThatChange(t *testing.T) {
	var wg sync.WaitGroup
	for part := range uint64(2) {
		wg.Go(func() {
			for seed := part; seed < 3000; seed += 2 {
				h := rateHistory{history: history{r: rand.New(rand.NewPCG(seed, 5)), slack: 20_000, now: 1_000_000_000}}
				bounds := h.bounds()
				h.l = newLedger(bounds)
				h.enter(bounds, true)
				for range 60 {
					h.step()
				}
				h.advance(1 << 40)
				if s := h.broken(); s != "" {
					t.Errorf("seed %d: %s", seed, s)
				}
			}
		})
	}
	wg.Wait()
}
