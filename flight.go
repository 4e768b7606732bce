package pacecar

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A flight is one exchange with the window, and who is aboard. At most one is
// under way for a key in a process; it takes along everybody who waits, so that
// under load one round trip serves many.
type flight struct {
	query  query
	window window    // to which it goes
	aboard []*waiter // in the order of query.asks
	owed   []span    // what query.charge is made of
	pause  pauseAsk  // what query.pause is made of
	sent   int64
	over   bool // it has landed, or was given up and what it brings goes back
}

// maxAboard bounds how long one exchange keeps Redis busy.
const maxAboard = 256

// A pauseAsk is a pause to ask for.
type pauseAsk struct {
	until  int64 // by this process's time
	heard  int64 // see query.paused
	reason string
}

// flyLocked begins an exchange if there is reason to, none is under way, and
// the window is thought to answer.
func (l *Limiter) flyLocked() {
	if l.flight != nil || l.outage.away {
		return
	}
	l.launchLocked()
}

// launchLocked begins an exchange if there is reason to.
func (l *Limiter) launchLocked() {
	f := l.boardLocked()
	if f == nil {
		return
	}
	l.flight = f
	if l.remote {
		go l.fly(f)
		return
	}
	for ; f != nil; f = l.boardLocked() { // in memory: at once, and never fails
		a, _ := f.window.exchange(context.Background(), &f.query)
		l.landLocked(f, a)
	}
	l.flight = nil
}

// fly makes the exchange of f, and those that follow while there is reason to.
func (l *Limiter) fly(f *flight) {
	for f != nil {
		// The bound is ours: a go-redis client may ignore the context's.
		ctx, cancel := context.WithTimeout(context.Background(), l.timeout)
		late := f // the loop goes on to the next
		alarm := time.AfterFunc(l.timeout, func() { l.giveUp(late, fmt.Errorf("%w (%v)", errTimeout, l.timeout)) })
		a, err := f.window.exchange(ctx, &f.query)
		alarm.Stop()
		cancel()
		if err != nil {
			l.giveUp(f, err)
			return
		}
		l.mu.Lock()
		if f.over {
			l.returnLocked(f, a)
			l.unlock()
			return
		}
		f.over = true
		l.landLocked(f, a) // under way still: what it brings is for the next
		f = l.boardLocked()
		l.flight = f
		l.unlock()
	}
}

// unsendLocked takes back what f was to say and may not have. Said twice, a pause
// counts once; what was sent counts again, and so does a lateness that moved its
// booking: the window holds too much then, never too little. f's query may be
// being read still.
func (l *Limiter) unsendLocked(f *flight) {
	q := &f.query
	l.outage.sent = slices.Concat(f.owed, l.outage.sent)
	if q.generation == l.generation() {
		l.late = slices.Concat(q.late, l.late)
	}
	if f.pause.until > l.pause.until {
		l.pause = f.pause
	}
	if q.restore != nil {
		l.restoreLocked(l.now()) // anew: the rates may be others by now
	}
}

// errTimeout is why an exchange failed that took longer than RedisTimeout.
var errTimeout = errors.New("no reply within RedisTimeout")

// giveUp ends an exchange that failed or took too long.
func (l *Limiter) giveUp(f *flight, err error) {
	l.mu.Lock()
	defer l.unlock()
	if f.over {
		return
	}
	f.over, l.flight = true, nil
	l.stats.RoundTrips++
	l.failedLocked(f, err)
}

// returnLocked gives back what a reply brings after its flight was given up.
func (l *Limiter) returnLocked(f *flight, a *answer) {
	if a.stale || a.from != "" { // nothing was done
		l.unreturnLocked(f)
	}
	news := a.generation > l.generation() // of a state that is news still
	if news {
		l.learnLocked(f, l.now(), a)
	}
	for i, r := range eachGrant(a.runs) {
		if r > 0 {
			l.giveBackLocked(span{r, f.units(i)}, a.generation)
		}
	}
	if news { // it may have ended an outage, and what was sent must be charged soon
		l.flyLocked()
		l.beatLocked()
	}
}

// unreturnLocked takes back the slots that f was to give back, and has not.
func (l *Limiter) unreturnLocked(f *flight) {
	if q := &f.query; q.generation == l.generation() {
		l.back = slices.Concat(q.back, l.back)
		l.outage.dropped = slices.Concat(q.drop, l.outage.dropped)
	}
}

// units returns what the i-th booking of the query costs.
func (f *flight) units(i int) int64 {
	if i < len(f.aboard) {
		return f.aboard[i].units
	}
	return 1
}

// eachGrant yields the index and slot of each booking; the slot is 0 for one
// that was refused.
func eachGrant(runs []run) func(yield func(int, int64) bool) {
	return func(yield func(int, int64) bool) {
		i := 0
		for _, r := range runs {
			for range r.count {
				if !yield(i, r.slot) {
					return
				}
				i++
			}
		}
	}
}

// landLocked takes in an answer and hands out what it brings.
func (l *Limiter) landLocked(f *flight, a *answer) {
	now := l.now()
	l.stats.RoundTrips++
	l.rtt += (now - f.sent - l.rtt) / 8
	if a.stale || a.from != "" {
		l.undoneLocked(f)
		if a.stale {
			l.storedLocked(a)
		} else {
			l.from = a.from
		}
		return
	}
	if a.serial < f.query.heard { // Redis lost its state: tell it, and ask again
		l.restoreLocked(now)
		l.requeueLocked(f.aboard)
		if known := l.generation(); a.generation != 0 && a.generation != known {
			// Another has told what it knew, and may have sold the rest again.
			l.againLocked(l.memory.covered(a.origin, a.restored))
		}
		l.look = true
		return
	}
	paused, freed := a.resume > max(l.clock.resume, a.now), a.resume < l.clock.resume
	l.learnLocked(f, now, a)
	if paused {
		wait := duration(a.resume - a.now)
		l.tellLocked(noRequest, Event{Kind: EventPaused, Wait: wait, Until: time.Now().Add(wait), Reason: f.pause.reason})
	}
	if freed {
		for w := range l.slotted {
			w.nudge()
		}
	}
	l.grantLocked(f, a)
	l.serveLocked(now)
	for _, w := range l.lookers {
		w.looked = false
		w.nudge()
	}
	l.lookers = l.lookers[:0]
	l.callLocked()
	l.beatLocked()
}

// decideLocked gives w its slot, or refuses it. Background work that got none
// goes back to the backlog.
func (l *Limiter) decideLocked(w *waiter, r run, a *answer) (back bool) {
	s := span{r.slot, w.units}
	switch {
	case w.state != queued: // its context ended meanwhile
		if r.slot > 0 {
			l.giveBackLocked(s, a.generation)
		}
	case r.slot == 0 && l.parkLocked(w, l.now(), r.wait):
	case r.slot == 0 && w.keep > 0:
		l.backlog.turn = a.now + r.wait - a.offset
		back = true
	case r.slot == 0:
		l.refuseLocked(w, r.wait)
	default:
		l.holdLocked(w, held{slot: s, made: a.generation, serial: a.serial}, false)
	}
	return back
}

// grantLocked tells each who was aboard what it got; the rest is the lease.
func (l *Limiter) grantLocked(f *flight, a *answer) {
	aboard := f.aboard
	var back []*waiter
	for _, r := range a.runs {
		own := min(int(r.count), len(aboard))
		for _, w := range aboard[:own] {
			if l.decideLocked(w, r, a) {
				back = append(back, w)
			}
		}
		aboard = aboard[own:]
		if rest := r.count - int64(own); rest > 0 {
			l.leaseLocked(rest, r, a, f.sent)
		}
	}
	l.requeueLocked(back)
}

// pauseFor asks that the key's clock be stopped for d from now, for the whole
// fleet. heard is the last pause known when the request was sent whose answer
// asks for it: one sent before the last pause cannot lengthen that. pauseFor
// reports whether, as far as this process knows, the clock will stand for d.
func (l *Limiter) pauseFor(d time.Duration, heard int64, reason string) bool {
	l.mu.Lock()
	defer l.unlock()
	until := l.now() + micros(d)
	switch {
	case until <= l.pause.until:
		return true
	case heard < l.clock.resume:
		return until <= l.clock.until()
	}
	l.pause = pauseAsk{until, heard, reason}
	if l.outage.away && l.outage.share != nil {
		l.outage.share.exchange(l.now(), &query{pause: micros(d), paused: l.outage.share.resume})
	}
	l.flyLocked()
	return true
}

// limited counts and tells an answer that says that the rate was too high.
func (l *Limiter) limited(ctx context.Context, said advice) {
	l.mu.Lock()
	defer l.unlock()
	l.stats.Limited++
	l.tellLocked(ctx, Event{Kind: EventLimited, Wait: said.wait, Reason: said.reason})
}

// pausingLocked reports whether a pause has been asked for and not yet heard of.
func (l *Limiter) pausingLocked() bool {
	return l.pause.until > 0 || l.flight != nil && l.flight.pause.until > 0
}
