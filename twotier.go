package pacecar

import (
	"slices"
	"time"
)

// The local bucket holds slots that the window has booked for this process
// ahead of its requests, so that the common case at a high rate costs no round
// trip and saving one never adds a request. It is filled by exchanges that are
// made anyway, with slots that are free at that moment only, and holds them for
// half of the slack at most: within the other half, the request leaves.
type lease struct {
	held  []held
	timer *time.Timer // gives back what is held too long

	// The recent rate of requests, for how many to hold.
	rate  float64 // requests per microsecond
	count int64   // requests since...
	since int64
}

// held are slots of one time, to be used before until.
type held struct {
	slot  span
	made  int64
	until int64
}

// holdFor is how long a slot may be held.
func (l *Limiter) holdFor() int64 { return min(l.slack/2, l.fresh) }

// hitLocked takes a slot that is held, if there is one and nobody else waits.
func (l *Limiter) hitLocked(now, units int64) (pass, bool) {
	l.lease.count++
	if len(l.lease.held) == 0 || len(l.queue) > 0 || l.outage.away || now < l.outage.settle ||
		l.clock.resume+l.clock.diff > now || l.pausingLocked() {
		return pass{}, false
	}
	for i := range l.lease.held {
		h := &l.lease.held[i]
		if now >= h.until || h.slot.units < units {
			continue
		}
		p := pass{slot: span{h.slot.slot, units}, made: h.made, resume: l.clock.resume}
		if h.slot.units -= units; h.slot.units == 0 {
			l.lease.held = slices.Delete(l.lease.held, i, i+1)
		}
		l.stats.LocalHits++
		return p, true
	}
	return pass{}, false
}

// wantLocked says how many slots to lease: what the recent rate will use within
// the hold, less what is held. At a low rate that is none.
func (l *Limiter) wantLocked(now int64) int64 {
	hold := l.holdFor()
	b := &l.lease
	if elapsed := now - b.since; elapsed > 0 {
		recent := float64(b.count) / float64(elapsed)
		b.rate += (recent - b.rate) * min(1, float64(elapsed)/float64(4*hold))
		b.count, b.since = 0, now
	}
	if l.policy.Lease < 0 || !l.remote || now < l.outage.settle {
		return 0
	}
	n := int64(b.rate * float64(hold))
	if l.policy.Lease > 0 {
		n = min(n, int64(l.policy.Lease))
	}
	for _, h := range b.held {
		n -= h.slot.units
	}
	return max(0, n)
}

// leaseLocked takes slots into the bucket. They were booked after sent.
func (l *Limiter) leaseLocked(s span, made, sent int64) {
	until := sent + l.holdFor()
	l.lease.held = append(l.lease.held, held{s, made, until})
	wait := duration(until - l.now())
	if l.lease.timer == nil {
		l.lease.timer = time.AfterFunc(wait, l.returnHeld)
	} else {
		l.lease.timer.Reset(wait)
	}
}

// returnHeld gives back what was not used, when the process has fallen idle.
func (l *Limiter) returnHeld() {
	l.mu.Lock()
	defer l.unlock()
	l.expireLocked(l.now())
	l.flyLocked()
}

// expireLocked moves what was held too long to what is given back.
func (l *Limiter) expireLocked(now int64) {
	l.lease.held = slices.DeleteFunc(l.lease.held, func(h held) bool {
		if now < h.until {
			return false
		}
		if h.made == l.generation() {
			l.stats.GivenBack += uint64(h.slot.units)
			l.back = append(l.back, h.slot)
		}
		return true
	})
}

// dropHeldLocked gives all up that is held.
func (l *Limiter) dropHeldLocked() {
	for _, h := range l.lease.held {
		l.giveBackLocked(h.slot, h.made)
	}
	l.lease.held = nil
}
