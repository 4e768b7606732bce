package pacecar

import (
	"fmt"
	"slices"
	"strings"
)

// A quota's rates can change while it is in use: in one process, by SetPolicy,
// or in the whole fleet, by rates that are stored in Redis beside the bookings
// (see [Admin]). Those win over the processes' own. Redis refuses who does not
// know of them, so that from one booking to the next all are held to them; a
// process tells them again if Redis loses them. Their version only grows, so
// that a fleet that is half deployed cannot go back and forth.
//
// What is booked stays booked: at new limits, the slots of a period's log count
// as before. A period that is new begins with what the log of the longest one
// still holds of its window, and one that was not in force for a while catches up
// with it. The window knows which logs are up to date: with processes whose own
// rates have different periods, too, each keeps its own, whatever the others send.

// stored are the rates that were stored for the whole fleet, as far as this
// process knows.
type stored struct {
	version int64  // Redis's time when they were; 0: never
	rates   Rates  // nil: each process's own
	text    string // the same, as stored
}

// SetPolicy replaces the policy of a route while it is in use, in this process.
// pattern is as in Config.Routes; Name must stay as it is, and routes that share
// a quota change together, all but their Key, Cost and Feedback. Requests that
// have a slot keep it, all others are held to the new policy. Rates that are
// stored in Redis for the whole fleet win over those of policy. A policy that New
// would refuse and an unknown pattern are errors, and change nothing. During an
// outage, Outage and this process's share stay as they were.
func (t *Transport) SetPolicy(pattern string, policy Policy) error {
	err := policy.validate()
	r := t.router.named(pattern)
	switch {
	case r == nil:
		err = t.router.unknown(pattern)
	case err == nil && policy.Name != r.policy.Load().Name:
		err = fmt.Errorf("Name: cannot change from %q", r.policy.Load().Name)
	}
	if err != nil {
		return fmt.Errorf("pacecar: Routes[%q]: %w", pattern, err)
	}
	policy.Rates = slices.Clone(policy.Rates)
	t.limiters.set(t.router, r, policy)
	return nil
}

// set puts a policy in force for r and for those that share its quota. Who is told
// of it may use the Transport.
func (ls *limiters) set(rt *router, r *route, policy Policy) {
	var changed []*Limiter
	defer func() {
		for _, l := range changed {
			l.mu.Lock()
			l.unlock()
		}
	}()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	var labels, names []string // of their limiters
	for _, other := range rt.routes {
		if other != r && !r.together(other) {
			continue
		}
		p, old := policy, other.policy.Load()
		if p.Name = old.Name; other != r {
			p.Key, p.Cost, p.Feedback = old.Key, old.Cost, old.Feedback
		}
		other.policy.Store(&p)
		labels = append(labels, other.label())
		if p.Name != "" { // it may have been used under another route's label first
			names = append(names, p.Name)
		}
	}
	for key, l := range ls.all() {
		name, _, _ := strings.Cut(key, " #")
		if slices.Contains(labels, l.route) || slices.Contains(names, name) {
			l.mu.Lock()
			l.setPolicyLocked(policy)
			l.mu.Unlock()
			changed = append(changed, l)
		}
	}
}

// setPolicyLocked puts a policy in force.
func (l *Limiter) setPolicyLocked(policy Policy) {
	l.own = policy.Rates
	policy.Rates = l.policy.Rates
	l.policy = policy
	if l.stored.rates != nil && !slices.Equal(l.own, l.stored.rates) {
		l.tellLocked(noRequest, Event{Kind: EventRates, Reason: "stored ones win", Rates: slices.Clone(l.stored.rates)})
	}
	l.setRatesLocked("set")
}

// undoneLocked takes back all of f, of which nothing was done.
func (l *Limiter) undoneLocked(f *flight) {
	l.unsendLocked(f)
	l.unreturnLocked(f)
	l.requeueLocked(f.aboard)
	if f.query.here {
		l.here = 0
	}
	l.look = true
}

// storedLocked meets rates that were stored and are news.
func (l *Limiter) storedLocked(a *answer) {
	l.stored = stored{version: a.policy, text: a.rates}
	if a.rates != "" {
		rates, err := ParseRates(a.rates)
		if err != nil { // of a later version than this
			l.tellLocked(noRequest, Event{Kind: EventRates, Reason: "not understood", Err: err})
			return
		}
		l.stored.rates = rates
	}
	l.setRatesLocked("stored")
}

// setRatesLocked puts those rates in force that are to be.
func (l *Limiter) setRatesLocked(reason string) {
	rates := l.own
	if l.stored.rates != nil {
		rates = l.stored.rates
	}
	before, had := l.policy.Rates, l.bounds
	l.policy.Rates = rates
	if bounds := l.policy.bounds(); slices.Equal(bounds, had) {
		return
	}
	l.from = longestOf(had).name // most likely: else the window says
	l.boundLocked()
	l.window = l.window.with(l.bounds)
	if l.heard != nil {
		l.fitLocked(l.heard)
	}
	if l.memory.pending != nil {
		l.restoreLocked(l.now())
	}
	for _, w := range slices.Concat(l.queue, l.backlog.queue) {
		if w.state == queued {
			l.fitsLocked(w)
		}
	}
	l.backlog.turn = 0
	l.callLocked()
	if !slices.Equal(before, rates) {
		l.tellLocked(noRequest, Event{Kind: EventRates, Reason: reason, Rates: slices.Clone(rates)})
	}
}

// fitsLocked holds w to the rates in force: it may have come under others, or
// have had a slot. It refuses one that costs more than there ever is.
func (l *Limiter) fitsLocked(w *waiter) bool {
	if w.keep > 0 {
		w.keep = l.leftFreeLocked()
	}
	err := l.tooHighLocked(w)
	if err != nil {
		w.state, w.err = refused, err
		w.nudge()
	}
	return err == nil
}

// boundLocked sizes the limiter for its rates.
func (l *Limiter) boundLocked() {
	l.bounds = l.policy.bounds()
	l.least, l.shortest, l.longest, l.slack = forever, forever, 0, forever
	for i, r := range l.policy.Rates {
		l.least = min(l.least, int64(r.Limit))
		l.shortest = min(l.shortest, r.Per.Microseconds())
		l.longest = max(l.longest, l.bounds[i].window)
		l.slack = min(l.slack, l.policy.slack(r).Microseconds())
	}
	l.fresh = min(lookAfter.Microseconds(), l.shortest/4)
	l.memory.grain = max(1, l.longest/memoryGrains)
}

// fitLocked makes an answer to a query under other rates one under these: all
// may be free.
func (l *Limiter) fitLocked(a *answer) {
	a.free = a.free[:0:0]
	for _, b := range l.bounds {
		a.free = append(a.free, b.limit)
	}
}
