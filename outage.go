package pacecar

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// While Redis does not answer, no request waits for it: requests are refused,
// or go on with this process's share.
//
// # Why FailOpen keeps the rates
//
// Say that no more than Replicas processes are there, all with this policy, and
// that Redis answers all of them or none. A share is a window in memory, of
// Limit / Replicas, rounded down: by itself, all shares together never exceed a
// rate. What is left are the two changes.
//
// When Redis goes: nobody leaves on a slot of Redis that has not heard from it
// for lookAfter, and no answer is older than RedisTimeout. So by the time that
// both have passed since the exchange that failed was begun, nobody does any
// more. Until then a share has nothing. Then it has its part of what has left
// the windows, as far as this process knows the fleet's bookings; of those that
// it may not know of, it takes the worst: all that was free, at the end of that
// time.
//
// Of a window longer than shortWindow that would be too long to wait out. There
// a share begins with its part of what was free when this process last heard
// of it, or with all of it if it never did, and bookings that it has not heard
// of exceed the rate: all together at most by the shares, for one window.
//
// When Redis comes: what was sent is charged, each slot at its time. Each process
// tries Redis often enough to find it, and to charge it, within settleFor; for as
// long a request needs a slot of the share and one of Redis that lies within
// that time. After it, all that is in any window is in Redis's logs. A process
// that sent nothing while Redis was away, and never noticed, may take what the
// others have yet to charge.
//
// A share below one slot is one slot in a window that is Replicas / Limit times
// as long. Its first is at a random time of that, so that processes spread; but
// only the average is kept then: by chance, up to Replicas may leave together.
type outage struct {
	away    bool
	mode    Outage      // the policy's when it began
	since   int64       // when it began
	quiet   int64       // FailOpen: nobody leaves on a slot of Redis after that
	cause   error       // of the last failure
	asked   int64       // when somebody last asked for a slot
	retry   int64       // the next probe, not before
	backoff int64       // between probes
	timer   *time.Timer // of the next probe; nil: there is none
	beat    *time.Timer // when Redis must be heard of
	share   *ledger     // FailOpen: this process's share, by this process's time
	settle  int64       // until when both a slot of the share and one of Redis are needed
	sent    []span      // what Redis must be charged, by this process's time
	dropped []span      // slots of Redis that were not used
}

// The wait between probes doubles from the one to the other. A quarter at most
// is added by chance.
const (
	minProbe = 100 * time.Millisecond
	maxProbe = 400 * time.Millisecond
)

// probeFor is for how long Redis is tried after the last request. Who comes
// later waits for the next try.
const probeFor = 10 * time.Second

// maxBeat is how long there may be no news from Redis while somebody waits: under
// FailOpen, or in a pause. idleBeat is the same else: nobody sends while Redis is
// away, and no pause is to end.
const (
	maxBeat  = time.Second
	idleBeat = 10 * time.Second
)

// shortWindow is the longest period that is waited out.
const shortWindow = 2 * time.Second

// settleFor returns by when every process that sends will have found that Redis
// answers again: after a try that just missed it, the wait, and another.
func (l *Limiter) settleFor() int64 {
	return (maxProbe + maxProbe/4 + 2*l.timeout).Microseconds()
}

// failedLocked takes in that an exchange failed.
func (l *Limiter) failedLocked(f *flight, err error) {
	o, now := &l.outage, l.now()
	l.unsendLocked(f)
	waiting := slices.Concat(f.aboard, l.queue, l.backlog.queue)
	l.queue, l.backlog.queue = nil, nil
	o.cause = err
	if o.away {
		o.backoff = min(2*o.backoff, maxProbe.Microseconds())
	} else {
		o.away, o.mode, o.since, o.backoff = true, l.policy.Outage, now, minProbe.Microseconds()
		if len(waiting)+len(l.slotted) > 0 { // else nobody asks: see probeFor
			o.asked = now
		}
		l.dropHeldLocked()
		o.dropped, l.back = append(o.dropped, l.back...), nil
		waiting = append(l.strandedLocked(), waiting...)
		if o.mode == FailOpen {
			o.quiet = max(now, f.sent+l.rtt+l.timeout.Microseconds()) + lookAfter.Microseconds()
			l.openShareLocked(now)
		}
		l.tellLocked(noRequest, Event{Kind: EventDegraded, Err: err, Outage: o.mode})
	}
	o.retry = now + o.backoff + rand.Int64N(o.backoff/4)
	for _, w := range waiting {
		if w.state == queued {
			l.joinLocked(w)
		}
	}
	l.lookers = l.lookers[:0]
	l.watchLocked(now)
}

// strandedLocked takes their slots from those who would leave so long after the
// last answer that Redis would have to be heard first, and returns them in their
// order. With FailClosed they keep them: Redis may be back by then.
func (l *Limiter) strandedLocked() (waiting []*waiter) {
	for w := range l.slotted {
		w.looked = false
		if l.outage.mode == FailClosed || w.state == holding &&
			l.clock.local(w.slot.slot) <= l.clock.heard+lookAfter.Microseconds() {
			w.nudge()
			continue
		}
		waiting = append(waiting, w)
	}
	slices.SortFunc(waiting, func(a, b *waiter) int {
		return cmp.Compare(l.leavesLocked(a), l.leavesLocked(b))
	})
	for _, w := range waiting {
		if w.state == holding {
			l.memory.unbook(w.serial, w.units)
		}
		l.dropLocked(w)
		w.state = queued
	}
	return waiting
}

// watchLocked has Redis tried again as long as there is somebody to ask for it.
func (l *Limiter) watchLocked(now int64) {
	o := &l.outage
	wanted := len(l.slotted)+len(l.queue)+len(l.backlog.queue) > 0 || now-o.asked < probeFor.Microseconds()
	if o.away && o.timer == nil && l.flight == nil && wanted {
		o.timer = time.AfterFunc(duration(max(0, o.retry-now)), l.probe)
	}
}

// probe tries Redis.
func (l *Limiter) probe() {
	l.mu.Lock()
	defer l.unlock()
	l.outage.timer = nil
	l.probeLocked()
}

func (l *Limiter) probeLocked() {
	o, now := &l.outage, l.now()
	if !o.away || l.flight != nil {
		return
	}
	if o.mode == FailOpen && now-o.since > (maxBeat+2*l.timeout).Microseconds() {
		l.memory.end(l.clock.key(o.quiet)) // all have noticed
	}
	l.look = true
	l.launchLocked()
}

// degradedLocked decides for w without Redis, if that is how things stand.
func (l *Limiter) degradedLocked(w *waiter) bool {
	o, now := &l.outage, l.now()
	if !o.away && now >= o.settle {
		return false
	}
	if w.keep > 0 && o.mode == FailOpen { // it waits, in the backlog
		if o.away {
			o.asked = now
			l.watchLocked(now)
		}
		return false
	}
	if o.away {
		o.asked = now
		if o.timer == nil && l.flight == nil && now > o.retry {
			// Nobody has tried for long: this one waits for what comes of it.
			w.state = queued
			l.queue = append(l.queue, w)
			l.probeLocked()
			return true
		}
		l.watchLocked(now)
		l.stats.Degraded++
	}
	if o.mode == FailClosed {
		l.unavailableLocked(w)
	} else {
		l.shareLocked(w, now)
	}
	return true
}

// unavailableLocked refuses w because Redis is away.
func (l *Limiter) unavailableLocked(w *waiter) {
	w.state = refused
	w.err = l.refusal(fmt.Errorf("%w: %w", ErrUnavailable, l.outage.cause), 0)
	w.nudge()
}

// sentLocked remembers what left without Redis, the earliest first.
func (l *Limiter) sentLocked(s span) {
	o, grain := &l.outage, l.memory.grain
	l.busy = max(l.busy, s.slot+l.longest)
	if k := len(o.sent); k > 0 && o.sent[k-1].slot/grain == s.slot/grain {
		o.sent[k-1] = span{max(s.slot, o.sent[k-1].slot), o.sent[k-1].units + s.units}
		return
	}
	for len(o.sent) > 0 && o.sent[0].slot < s.slot-l.longest {
		o.sent = o.sent[1:]
	}
	o.sent = append(o.sent, s)
}

// oweLocked moves what Redis must be charged aboard f.
func (l *Limiter) oweLocked(f *flight, now int64) {
	f.owed, l.outage.sent = l.outage.sent, nil
	slices.SortStableFunc(f.owed, bySlot)
	for _, s := range f.owed {
		if s.slot+l.longest > now {
			f.query.charge = append(f.query.charge, span{l.clock.key(s.slot), s.units})
		}
	}
}

// beatLocked has Redis heard of while requests wait for slots of it that are far
// away, so that no process overlooks an outage in which others send, nor the end
// of a pause; and that what is paused or set from outside is seen while nothing
// leaves.
func (l *Limiter) beatLocked() {
	o, after := &l.outage, maxBeat
	switch {
	case !l.remote || !l.awaitsLocked():
		return
	case l.now() < o.settle:
		after = l.timeout / 2 // see learnLocked
	case l.policy.Outage == FailOpen:
		after = min(duration(l.shortest)+lookAfter, maxBeat) // before a share of another process has anything
	case l.clock.until() <= l.now():
		after = idleBeat
	}
	if o.beat == nil {
		o.beat = time.AfterFunc(after, l.beat)
	} else {
		o.beat.Reset(after)
	}
}

// awaitsLocked reports whether Redis is to be heard of: somebody waits, or an
// outage has just ended, and another one must not be overlooked, nor a silence
// of this process be taken for one.
func (l *Limiter) awaitsLocked() bool {
	return len(l.slotted)+len(l.backlog.queue) > 0 || l.now() < l.outage.settle
}

func (l *Limiter) beat() {
	l.mu.Lock()
	defer l.unlock()
	if l.awaitsLocked() && !l.outage.away {
		l.look = true
		l.flyLocked()
	}
}

// endOutageLocked takes in that Redis answers again.
func (l *Limiter) endOutageLocked(now int64) {
	o := &l.outage
	o.away = false
	if o.timer != nil {
		o.timer.Stop()
		o.timer = nil
	}
	if o.mode == FailOpen {
		o.settle = now + l.settleFor()
	}
	l.tellLocked(noRequest, Event{Kind: EventRestored, Wait: duration(now - o.since), Outage: o.mode})
	waiting := l.queue
	l.queue = nil
	for _, w := range waiting {
		if w.state == queued {
			l.joinLocked(w)
		}
	}
	for w := range l.slotted {
		w.nudge()
	}
}
