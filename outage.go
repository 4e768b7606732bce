package pacecar

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// While Redis does not answer, no request waits for it: they are refused, or go
// on with this process's share. What holds then (policy FailOpen, Replicas not
// exceeded):
//
//   - Slots that Redis had booked are used as booked.
//   - The share begins with what was free by the last answer, divided by
//     Replicas. A process that had heard nothing for a while takes a window of
//     up to shortWindow for full and waits it out; of a longer one it assumes
//     what it last heard, and of one it never heard of, that all is free: here,
//     and only at the beginning, the fleet can exceed a rate, by its shares.
//   - All shares together are at most Limit in any window.
//   - When Redis answers again, what was sent is charged, and for as long as
//     another process may not have noticed yet, requests need a slot of the
//     share and one of Redis.
type outage struct {
	away    bool
	since   int64   // when it began
	cause   error   // of the last failure
	retry   int64   // the next probe, not before
	backoff int64   // between probes
	active  bool    // somebody asked since the last probe
	share   *ledger // FailOpen: this process's share
	settle  int64   // until when both a slot of the share and one of Redis are needed
	sent    []span  // what Redis must be charged, by this process's time
}

// The wait between probes doubles from the one to the other.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 500 * time.Millisecond
)

// shortWindow is the longest period that is waited out when nothing is known.
const shortWindow = 2 * time.Second

// failedLocked takes in that an exchange failed.
func (l *Limiter) failedLocked(f *flight, err error) {
	o, now := &l.outage, l.now()
	o.sent = append(f.owed, o.sent...)
	l.late = append(f.query.late, l.late...) // told twice, it counts once
	if f.pause.until > l.pause.until {
		l.pause = f.pause
	}
	if f.query.restore != nil {
		l.memory.pending = f.query.restore
	}
	o.cause = err
	if !o.away {
		o.away, o.since, o.backoff = true, now, minBackoff.Microseconds()
		if l.policy.Outage == FailOpen {
			l.openShareLocked(f.sent, now)
		}
		l.tellLocked(Event{Kind: EventDegraded, Err: err, Outage: l.policy.Outage})
	} else {
		o.backoff = min(2*o.backoff, maxBackoff.Microseconds())
	}
	wait := o.backoff + rand.Int64N(o.backoff/4)
	o.retry = now + wait
	if o.active || len(l.slotted) > 0 || len(l.queue)+len(f.aboard) > 0 {
		time.AfterFunc(duration(wait), l.probe)
	}
	o.active = false
	l.strandedLocked(f)
}

// strandedLocked finds another way for all who wait for Redis.
func (l *Limiter) strandedLocked(f *flight) {
	waiting := append(f.aboard, l.queue...)
	l.queue = nil
	for _, w := range waiting {
		if w.state == queued {
			l.joinLocked(w)
		}
	}
	for w := range l.slotted {
		w.looked = false
		w.nudge() // a slot that is still to come may find Redis back
	}
	l.lookers = l.lookers[:0]
}

// unavailableLocked refuses w because Redis is away.
func (l *Limiter) unavailableLocked(w *waiter) {
	w.state = refused
	w.err = l.refusal(fmt.Errorf("%w: %w", ErrUnavailable, l.outage.cause), 0)
	w.nudge()
}

// probe tries Redis again, if somebody has asked for it meanwhile.
func (l *Limiter) probe() {
	l.mu.Lock()
	defer l.unlock()
	if l.outage.away && (l.outage.active || len(l.slotted) > 0) {
		l.probeLocked(l.now())
	}
}

func (l *Limiter) probeLocked(now int64) {
	if l.flight == nil && now >= l.outage.retry {
		l.look = true
		l.launchLocked()
	}
}

// degradedLocked decides for w without Redis, if that is how things stand.
func (l *Limiter) degradedLocked(w *waiter) bool {
	o, now := &l.outage, l.now()
	if o.away {
		idle := !o.active && now-o.retry > maxBackoff.Microseconds()
		o.active = true
		if l.policy.Outage == FailClosed && idle && l.flight == nil {
			// Nobody has tried for long: this one does, and waits for the reply.
			w.state = queued
			l.queue = append(l.queue, w)
			l.probeLocked(now)
			return true
		}
		l.probeLocked(now)
	}
	switch {
	case !o.away && now >= o.settle:
		return false
	case l.policy.Outage == FailClosed:
		l.unavailableLocked(w)
	default:
		l.shareLocked(w, now)
	}
	l.stats.Degraded++
	return true
}

// shareLocked gives w a slot of this process's share.
func (l *Limiter) shareLocked(w *waiter, now int64) {
	a := ask{count: 1, cost: w.units, longest: -1}
	if w.limit != noLimit {
		a.longest = max(0, w.limit-now)
	}
	for _, g := range l.outage.share.logs {
		if w.units > g.limit {
			l.unavailableLocked(w)
			return
		}
	}
	r := l.outage.share.exchange(now, &query{asks: []ask{a}}).runs[0]
	if r.slot == 0 {
		l.refuseLocked(w, r.wait)
		return
	}
	w.state, w.slot = sharing, span{r.slot, w.units}
	l.slotted[w] = struct{}{}
	w.nudge()
}

// openShareLocked makes the share, with what the fleet has used before sent
// marked as used.
func (l *Limiter) openShareLocked(sent, now int64) {
	replicas := int64(l.policy.Replicas)
	bounds := make([]bound, len(l.bounds))
	for i, b := range l.bounds {
		b.limit /= replicas
		if b.limit == 0 { // below one: one in a longer window
			b.window = (b.window*replicas + l.bounds[i].limit - 1) / l.bounds[i].limit
			b.limit = 1
		}
		bounds[i] = b
	}
	share := newLedger(bounds)
	share.generation = 1
	at := now
	if l.heard != nil {
		at = max(at, l.clock.local(l.heard.tail))
	}
	fresh := l.heard != nil && sent-l.clock.heard <= lookAfter.Microseconds()
	for i := range share.logs {
		g := &share.logs[i]
		free := g.limit
		if l.heard != nil {
			free = min(free, l.heard.free[i]/replicas)
		}
		if !fresh && l.policy.Rates[i].Per <= shortWindow {
			free = 0
		}
		if free < g.limit {
			g.append(at, g.limit-free)
		}
	}
	l.outage.share = &share
}

// leaves returns when a slot of the share is, in this process's time.
func (o *outage) leaves(slot int64) int64 {
	at := max(slot+o.share.offset, o.share.resume)
	if !o.away {
		at = min(at, o.settle)
	}
	return at
}

// unshare gives back a slot of the share.
func (o *outage) unshare(now int64, s span) {
	o.share.exchange(now, &query{generation: o.share.generation, back: []span{s}})
}

// rejoinLocked sends a waiter of the share to Redis, once that answers again
// and its turn in the share has come or is no longer needed.
func (l *Limiter) rejoinLocked(w *waiter, now int64) bool {
	if l.outage.away || l.outage.leaves(w.slot.slot) > now {
		return false
	}
	delete(l.slotted, w)
	w.state = queued
	l.queue = append(l.queue, w)
	l.flyLocked()
	return true
}

// sentLocked remembers what left without Redis.
func (l *Limiter) sentLocked(now, units int64) {
	o := &l.outage
	grain := l.longest / memoryGrains
	if k := len(o.sent); k > 0 && now-o.sent[k-1].slot < grain {
		o.sent[k-1].units += units
		return
	}
	for len(o.sent) > 0 && o.sent[0].slot+grain < now-l.longest {
		o.sent = o.sent[1:]
	}
	o.sent = append(o.sent, span{now, units})
}

// oweLocked moves what Redis must be charged aboard f.
func (l *Limiter) oweLocked(f *flight, now int64) {
	grain := l.longest / memoryGrains
	for _, s := range l.outage.sent {
		if s.slot+grain >= now-l.longest {
			f.query.charge += s.units
		}
	}
	f.owed, l.outage.sent = l.outage.sent, nil
}

// learnLocked takes in what an answer says of the key and of Redis.
func (l *Limiter) learnLocked(f *flight, now int64, a *answer) {
	var units int64
	for i, slot := range eachGrant(a.runs) {
		if slot > 0 {
			units += f.units(i)
		}
	}
	if known := l.generation(); known != 0 && a.generation != known {
		l.renewLocked(now, a)
	}
	l.clock.learn(f.sent, now, a)
	l.heard = a
	l.memory.forget(a.key() - l.longest)
	l.memory.learn(a, units)
	l.busy = max(l.busy, l.clock.local(a.tail)+l.longest)
	if o := &l.outage; o.away {
		o.away = false
		if l.policy.Outage == FailOpen {
			o.settle = now + (maxBackoff + maxBackoff/4).Microseconds() + l.timeout.Microseconds()
		}
		l.tellLocked(Event{Kind: EventRestored, Wait: duration(now - o.since), Outage: l.policy.Outage})
		for w := range l.slotted {
			w.nudge()
		}
	}
}

// renewLocked meets a state that was made anew. What this process had booked
// and the state does not cover is booked again, or charged if it was used.
// What it does cover is used at the same instants as before.
func (l *Limiter) renewLocked(now int64, a *answer) {
	l.memory.forget(l.clock.key(now) - l.longest)
	units, covered := l.memory.renew(a.restored)
	moved := l.clock.offset - a.offset
	var again []*waiter
	for w := range l.slotted {
		switch {
		case w.state != holding:
		case w.serial > covered:
			units -= w.units
			again = append(again, w)
			delete(l.slotted, w)
		default:
			w.slot.slot += moved
		}
	}
	slices.SortFunc(again, func(a, b *waiter) int { return bySlot(a.slot, b.slot) })
	for _, w := range again {
		w.state = queued
		w.nudge()
	}
	l.queue = append(again, l.queue...)
	for _, h := range l.lease.held {
		units -= h.slot.units
	}
	if units > 0 {
		l.outage.sent = append(l.outage.sent, span{now, units})
	}
	l.lease.held, l.back, l.late = nil, nil, nil
}
