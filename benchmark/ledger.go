package main

import (
	"math"
	"sync"
	"time"

	"github.com/pacecar-go/pacecar"
)

// What the upstream did with an arrival.
const (
	accepted = iota
	refused  // over the quota
	foreign  // for somebody else's doing
)

// A log is every arrival at the upstream, in order, in columns.
type log struct {
	At     []time.Duration // since the upstream began
	Worker []int
	Status []int
}

// A ledger keeps every rate in an exact sliding window: an arrival is accepted
// if fewer than Limit were accepted in the Per before it, the moment Per ago
// not counted. One that is refused does not count towards any window: the
// friendlier of the two customs, and the one that lets a limiter that only
// obeys Retry-After get along.
type ledger struct {
	rates     pacecar.Rates
	foreignAt int           // the number of accepted arrivals after which...
	foreign   time.Duration // ...everything is refused for so long

	mu     sync.Mutex
	begun  time.Time
	recent []ring // one for each rate
	until  time.Duration
	count  int // accepted
	log    log
}

// A ring holds the times of the last Limit accepted arrivals.
type ring struct {
	at   []time.Duration
	next int
}

func newLedger(rates pacecar.Rates, foreignAt int, foreign time.Duration) *ledger {
	l := &ledger{rates: rates, foreignAt: foreignAt, foreign: foreign, begun: time.Now()}
	for _, r := range rates {
		ring := ring{at: make([]time.Duration, r.Limit)}
		for i := range ring.at {
			ring.at[i] = math.MinInt64 / 2 // long ago
		}
		l.recent = append(l.recent, ring)
	}
	return l
}

// arrive judges an arrival now, and returns how long an arrival that is refused
// should have waited. The clock is read with mu held, so that times are in
// order.
func (l *ledger) arrive(worker int) (wait time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Since(l.begun)
	status, wait := l.judge(now)
	l.log.At = append(l.log.At, now)
	l.log.Worker = append(l.log.Worker, worker)
	l.log.Status = append(l.log.Status, status)
	return wait, status == accepted
}

// judge is arrive, without the clock and the log. It requires mu.
func (l *ledger) judge(now time.Duration) (status int, wait time.Duration) {
	if l.foreign > 0 && l.until == 0 && l.count >= l.foreignAt {
		l.until = now + l.foreign
	}
	if now < l.until {
		return foreign, l.until - now
	}
	for i, r := range l.rates {
		ring := &l.recent[i]
		if oldest := ring.at[ring.next]; now-oldest < r.Per {
			wait = max(wait, r.Per-(now-oldest))
		}
	}
	if wait > 0 {
		return refused, wait
	}
	for i := range l.recent {
		ring := &l.recent[i]
		ring.at[ring.next] = now
		ring.next = (ring.next + 1) % len(ring.at)
	}
	l.count++
	return accepted, 0
}
