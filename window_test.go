package pacecar

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// A schedule makes random queries and keeps what was booked, so that it can
// give slots back.
type schedule struct {
	r          *rand.Rand
	seq        int64
	unit       int64 // of time: about a window
	generation int64
	serial     int64
	resume     int64
	key        int64
	booked     []span
	past       []past
}

func randomBounds(r *rand.Rand, unit int64) []bound {
	names := []string{"a", "b", "c"}
	bs := make([]bound, 1+r.IntN(3))
	for i := range bs {
		bs[i] = bound{name: names[i], limit: 1 + r.Int64N(8), window: 1 + r.Int64N(unit*int64(i+1))}
		if r.IntN(3) == 0 {
			bs[i].grain = 1 + r.Int64N(unit/10)
		}
	}
	return bs
}

func (s *schedule) query(bounds []bound) *query {
	least := int64(1 << 62)
	for _, b := range bounds {
		least = min(least, b.limit)
	}
	s.seq++
	q := &query{generation: s.generation, process: "p", seq: s.seq - s.r.Int64N(20)/19} // seldom twice
	switch s.r.IntN(14) {
	case 0:
		return q // a look
	case 7:
		q.resume = true
	case 8:
		q.reset = s.r.IntN(4) == 0
	case 1:
		for at, n := s.key, s.r.IntN(5); n >= 0; n-- {
			at -= s.r.Int64N(1+s.unit/4) * s.r.Int64N(3) / 2
			q.charge = append([]span{{at, 1 + s.r.Int64N(4)}}, q.charge...)
		}
	case 2:
		q.pause, q.paused = 1+s.r.Int64N(s.unit), s.resume-s.r.Int64N(2)
	case 3:
		if len(s.booked) > 0 {
			b := s.booked[s.r.IntN(len(s.booked))]
			q.late = []lateness{{b.slot, b.slot + s.r.Int64N(s.unit), b.units}, {b.slot, b.slot + s.r.Int64N(s.unit), 1}}
		}
	case 4:
		if s.r.IntN(8) == 0 && len(s.past) > 0 {
			p := s.past[s.r.IntN(len(s.past))]
			p.serial += s.serial
			p.until = s.key
			for range bounds {
				p.rest = append(p.rest, max(0, s.r.Int64N(6)-3))
			}
			q.restore = &p
		}
	case 6:
		if len(s.booked) > 0 {
			q.drop = append(q.drop, s.booked[s.r.IntN(len(s.booked))], s.booked[s.r.IntN(len(s.booked))])
		}
	case 5:
		q.generation -= s.r.Int64N(2) // of another state
	}
	for range s.r.IntN(4) {
		if i := len(s.booked); i > 0 {
			i = s.r.IntN(i)
			q.back = append(q.back, s.booked[i])
			s.booked = slices.Delete(s.booked, i, i+1)
		}
	}
	sort.Slice(q.back, func(i, j int) bool { return q.back[i].slot > q.back[j].slot })
	for range s.r.IntN(4) {
		a := ask{count: 1 + s.r.Int64N(5), cost: 1 + s.r.Int64N(least), longest: -1, delay: max(0, s.r.Int64N(s.unit)-s.unit/2)}
		if s.r.IntN(2) == 0 {
			a.longest = s.r.Int64N(2 * s.unit)
		}
		if least > 1 && a.cost < least && s.r.IntN(3) == 0 {
			a.keep = 1 + s.r.Int64N(least-a.cost)
			a.again = s.r.IntN(2) == 0
		}
		q.asks = append(q.asks, a)
	}
	if s.r.IntN(20) == 0 {
		q.heard = s.serial + s.r.Int64N(2)
	}
	return q
}

func (s *schedule) learn(q *query, a *answer) {
	s.generation, s.serial, s.resume, s.key = a.generation, a.serial, a.resume, a.key()
	if len(q.asks) > 0 { // only for a cost: a run says how many bookings
		for _, r := range a.runs {
			if r.slot > 0 {
				s.booked = append(s.booked, span{r.slot, 1})
			}
		}
	}
	s.past = append(s.past, past{offset: a.offset, resume: a.resume, booked: []entry{{a.tail, a.serial}}})
}

// agree runs one random schedule on Redis and on a ledger that is given the
// times that Redis saw. step lets time pass, and reports whether it went back.
func agree(t *testing.T, rdb redis.Scripter, seed uint64, unit int64, steps int, step func(r *rand.Rand) (back bool)) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	bounds := randomBounds(r, unit)
	others := [][]bound{bounds, randomBounds(r, unit), randomBounds(r, unit)}
	var w window = newShared(rdb, "test", fmt.Sprintf("k%d", seed), bounds)
	l := newLedger(bounds)
	s := &schedule{r: r, unit: unit}
	for i := range steps {
		back, before := step(r), forceOf(bounds)
		if r.IntN(8) == 0 && !back { // with both, the script knows less: it has not all logs
			bounds = others[r.IntN(len(others))]
			w = w.with(bounds)
		}
		q := s.query(bounds)
		got, err := w.exchange(context.Background(), q)
		if err == nil && got.from != "" {
			q.from = got.from
			got, err = w.exchange(context.Background(), q)
		}
		if err != nil {
			t.Fatalf("seed %d, step %d: %v", seed, i, err)
		}
		l.begin(got.now)
		if forceOf(bounds) != before {
			l.rebind(bounds)
			l.turn = 0
		}
		want := l.do(q)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d, step %d: bounds %+v\nquery %+v\nredis  %+v\nledger %+v", seed, i, bounds, q, got, want)
		}
		s.learn(q, want)
	}
}

// TestWindowsAgree holds the script and its model to the same answers.
func TestWindowsAgree(t *testing.T) {
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		m := miniredis.RunT(t)
		m.ClockTTL(true)
		rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
		defer rdb.Close()
		now := time.Unix(1_700_000_000, 0)
		for seed := range uint64(150) {
			const unit = 1_000_000
			agree(t, rdb, seed, unit, 25, func(r *rand.Rand) bool {
				d := time.Duration(r.Int64N(unit/2)) * time.Microsecond
				if r.IntN(10) == 0 {
					d = -d // golang/go#65508: the clock goes back
				}
				now = now.Add(d)
				m.SetTime(now)
				return d < 0
			})
			m.FlushAll()
		}
	})
	t.Run("redis-server", func(t *testing.T) {
		t.Parallel()
		rdb := startRedis(t).client()
		defer rdb.Close()
		for seed := range uint64(600) {
			agree(t, rdb, seed, 2_000, 25, func(*rand.Rand) bool { return false })
		}
	})
}

// A departure is when a request left, in microseconds, and what it cost.
type departure struct {
	at, units int64
}

// mostIn returns the most units that left within any half-open interval of
// length per.
func mostIn(left []departure, per int64) (most int64) {
	slices.SortFunc(left, func(a, b departure) int { return int(a.at - b.at) })
	var sum int64
	first := 0
	for _, d := range left {
		sum += d.units
		for d.at-left[first].at >= per {
			sum -= left[first].units
			first++
		}
		most = max(most, sum)
	}
	return most
}

// TestLedgerKeepsEveryRate runs random histories of bookings of any cost, cancels,
// late departures, pauses and clock steps, and checks every window.
func TestLedgerKeepsEveryRate(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 2))
		const unit, slack = 1_000_000, 20_000
		bounds := randomBounds(r, unit)
		for i := range bounds {
			bounds[i].window += slack + unit/4
		}
		h := history{r: r, l: newLedger(bounds), slack: slack, now: 1_000_000_000}
		for range 60 {
			h.step()
		}
		h.advance(1 << 40)
		for _, b := range bounds {
			if most := mostIn(h.left, b.window-slack); most > b.limit {
				t.Fatalf("seed %d: %d left in a window of %v, the limit is %d\n%v", seed, most,
					time.Duration(b.window-slack)*time.Microsecond, b.limit, h.left)
			}
		}
	}
}

type history struct {
	r     *rand.Rand
	l     ledger
	now   int64 // by the server's clock
	skew  int64 // what the true clock is ahead of it
	slack int64
	out   []booking // booked, not yet left
	left  []departure
}

type booking struct {
	span
	late int64 // how long after its slot it leaves
}

// advance lets time pass, and those whose time comes leave.
func (h *history) advance(d int64) {
	until := h.now + d
	for {
		next := -1
		at := func(b booking) int64 { return max(b.slot+h.l.offset, h.l.resume) + b.late }
		for i, b := range h.out {
			if next < 0 || at(b) < at(h.out[next]) {
				next = i
			}
		}
		if next < 0 || at(h.out[next]) > until {
			break
		}
		b := h.out[next]
		h.out = slices.Delete(h.out, next, next+1)
		h.now = max(h.now, at(b))
		h.left = append(h.left, departure{h.now + h.skew, b.units})
		if b.late > h.slack/2 {
			h.l.exchange(h.now, &query{
				generation: h.l.generation,
				late:       []lateness{{b.slot, h.now, b.units}},
			})
		}
	}
	h.now = until
}

// randomAsks returns up to three asks, and what each booking of them costs.
func randomAsks(r *rand.Rand, logs []slotLog) (asks []ask, costs []int64) {
	least := logs[0].limit
	for _, g := range logs {
		least = min(least, g.limit)
	}
	for range r.IntN(4) {
		a := ask{count: 1 + r.Int64N(3), cost: 1 + r.Int64N(least), longest: -1}
		if a.cost < least && r.IntN(3) == 0 {
			a.keep = 1 + r.Int64N(least-a.cost)
		}
		if r.IntN(2) == 0 {
			a.longest = r.Int64N(2_000_000)
		}
		asks = append(asks, a)
		costs = append(costs, slices.Repeat([]int64{a.cost}, int(a.count))...)
	}
	return asks, costs
}

func (h *history) step() {
	h.advance(h.r.Int64N(400_000))
	q := &query{generation: h.l.generation}
	for range h.r.IntN(3) {
		if i := len(h.out); i > 0 {
			i = h.r.IntN(i)
			q.back = append(q.back, h.out[i].span)
			h.out = slices.Delete(h.out, i, i+1)
		}
	}
	sort.Slice(q.back, func(i, j int) bool { return q.back[i].slot > q.back[j].slot })
	switch h.r.IntN(14) {
	case 0:
		q.pause, q.paused = 1+h.r.Int64N(1_000_000), h.l.resume
	case 1:
		back := h.r.Int64N(5_000_000)
		h.now, h.skew = h.now-back, h.skew+back
	case 2:
		q.resume = true
	case 3: // dropped, not given back: the slot stays empty
		if i := len(h.out); i > 0 {
			i = h.r.IntN(i)
			q.drop = append(q.drop, h.out[i].span)
			h.out = slices.Delete(h.out, i, i+1)
		}
	}
	var costs []int64
	q.asks, costs = randomAsks(h.r, h.l.logs)
	a := h.l.exchange(h.now, q)
	for i, slot := range eachGrant(a.runs) {
		if slot > 0 {
			late := h.r.Int64N(h.slack + 1)
			if h.r.IntN(5) == 0 {
				late = h.r.Int64N(100_000)
			}
			h.out = append(h.out, booking{span{slot, costs[i]}, late})
		}
	}
}

// TestClockBackAfterALineWasGivenUp: Redis's clock that goes back by a moment
// does not bring a line back that is gone.
func TestClockBackAfterALineWasGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("3/s")}
		r := newStandIn(&p, time.Millisecond)
		l := r.limiter(t, p)
		giveUp(t, l, 1000)
		burst(t, l, 3)
		time.Sleep(2 * time.Second)
		r.change(func() { r.book.seen = time.Now().UnixMicro() + 100_000 })
		between(t, "then", burst(t, l, 3), 0, 3*time.Second)
	})
}

// TestLateInPart: of a burst that is late, some were logged later than their slot:
// which, is not known.
func TestLateInPart(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		w := mustLimiter(t, connect(), "k", Policy{Rates: MustRates("2000/s")}).window
		var left []departure
		exchange := func(q *query) *answer {
			a, err := w.exchange(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		leave := func(n int64) { left = append(left, departure{time.Now().UnixMicro(), n}) }
		a := exchange(&query{asks: []ask{{count: 5, cost: 1, longest: -1}, {count: 1, cost: 1, longest: -1, delay: 40_000}, {count: 10, cost: 1, longest: -1}}})
		slot := a.runs[0].slot
		leave(5)
		time.Sleep(40 * time.Millisecond)
		leave(1)
		time.Sleep(110 * time.Millisecond)
		leave(10)
		exchange(&query{generation: a.generation, late: []lateness{{slot, a.now + 150_000, 10}}})
		for range 1500 {
			for _, r := range exchange(&query{asks: []ask{{count: 2000, cost: 1}}}).runs {
				if r.slot > 0 {
					leave(r.count)
				}
			}
			time.Sleep(time.Millisecond)
		}
		if most := mostIn(left, 1_000_000); most > 2000 {
			t.Errorf("%d left in a second", most)
		}
	})
}

// TestOddReplies: a reply that does not answer what was asked is an error.
func TestOddReplies(t *testing.T) {
	q := &query{asks: []ask{{count: 2, cost: 1}, {count: 1, cost: 3}}}
	reply := func(runs ...any) []any {
		words := make([]any, answerWords+1, answerWords+1+len(runs))
		for i := range words {
			words[i] = int64(1)
		}
		return append(words, runs...)
	}
	for _, good := range [][]any{
		reply(int64(3), int64(5)), reply(int64(2), int64(5), int64(1), int64(-7)),
		{int64(7), "3/s"}, {int64(7), "", "1s"},
	} {
		if _, err := parseAnswer(good, 1, q); err != nil {
			t.Errorf("%v: %v", good, err)
		}
	}
	for _, bad := range [][]any{
		nil, {"OK"}, {int64(1)}, {int64(1), int64(2)}, {int64(1), "", int64(1)}, reply()[:answerWords],
		reply(), reply(int64(2), int64(5)), reply(int64(4), int64(5)), reply(int64(3)),
		reply(int64(-1), int64(5), int64(4), int64(5)), reply(int64(0), int64(5), int64(3), int64(5)), reply("3", int64(5)),
	} {
		if a, err := parseAnswer(bad, 1, q); err == nil {
			t.Errorf("%v is read as %+v", bad, a)
		}
	}
}
