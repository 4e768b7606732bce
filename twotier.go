package pacecar

import (
	"math"
	"slices"
	"time"
)

// The local bucket holds slots that the window has booked for this process
// ahead of its requests, so that the common case at a high rate costs no round
// trip and saving one never adds a request. It is filled by exchanges that are
// made anyway, with slots that are free at that moment only, and holds them for
// three quarters of the slack at most: within the rest, the request leaves.
//
// When no slot is free, requests wait in any case. Then those of a busy process
// wait a little for each other, to share an exchange, as long as that cannot
// make them miss the slot that they would have had.
type lease struct {
	held  []held
	timer *time.Timer // gives back what was held too long

	// The recent rate of requests, for how many to hold.
	rate  float64 // requests per microsecond
	count int64   // requests since...
	since int64

	next   int64       // when there is a slot again, as far as is known
	due    int64       // until when the queue may wait for company; 0: not at all
	gather *time.Timer // ends that
}

// held are slots of one time, to be used before until.
type held struct {
	slot   span
	made   int64
	serial int64 // of the state then, or more
	until  int64
}

// holdFor is how long a slot may be held.
func (l *Limiter) holdFor() int64 { return min(l.slack*3/4, l.fresh) }

// maxGather is the longest that a request waits for company.
const maxGather = lookAfter / 2

// hitLocked takes a slot that is held, if there is one and nobody else waits.
func (l *Limiter) hitLocked(now, units int64) (pass, bool) {
	l.lease.count++
	if len(l.queue) > 0 {
		return pass{}, false
	}
	h, ok := l.heldLocked(now, units)
	return pass{slot: h.slot, made: h.made, resume: l.clock.resume, held: true}, ok
}

// heldLocked takes a slot out of the bucket.
func (l *Limiter) heldLocked(now, units int64) (held, bool) {
	b := &l.lease
	if len(b.held) == 0 || l.outage.away || now < l.outage.settle ||
		l.clock.until() > now || l.pausingLocked() {
		return held{}, false
	}
	for i := range b.held {
		h := &b.held[i]
		if now >= h.until || h.slot.units < units {
			continue
		}
		taken := *h
		taken.slot.units = units
		if h.slot.units -= units; h.slot.units == 0 {
			b.held = slices.Delete(b.held, i, i+1)
		}
		l.stats.LocalHits++
		return taken, true
	}
	return held{}, false
}

// serveLocked gives slots that are held to those who came to the queue while
// they were on their way.
func (l *Limiter) serveLocked(now int64) {
	some := true
	l.queue = slices.DeleteFunc(l.queue, func(w *waiter) bool {
		if w.state == queued && some {
			var h held
			if h, some = l.heldLocked(now, w.units); some {
				l.holdLocked(w, h, true)
			}
		}
		return w.state != queued
	})
}

// rateLocked returns this process's recent rate, in requests per microsecond.
// For longer than a moment it cannot be above the quota's.
func (l *Limiter) rateLocked(now int64) float64 {
	b := &l.lease
	if elapsed := now - b.since; elapsed > 0 {
		recent := float64(b.count) / float64(elapsed)
		b.rate += (recent - b.rate) * min(1, float64(elapsed)/float64(4*l.holdFor()))
		b.count, b.since = 0, now
	}
	rate := b.rate
	for i := range l.bounds {
		rate = min(rate, float64(l.bounds[i].limit)/float64(l.bounds[i].window))
	}
	return rate
}

// wantLocked says how many slots to lease: what the recent rate will use within
// the hold, and some more for chance, less what is held. At a low rate that is
// none.
func (l *Limiter) wantLocked(now int64) int64 {
	use := l.rateLocked(now) * float64(l.holdFor())
	if use < 1 || l.policy.Lease < 0 || !l.remote || now < l.outage.settle {
		return 0
	}
	n := int64(use + 1.5*math.Sqrt(use))
	if l.policy.Lease > 0 {
		n = min(n, int64(l.policy.Lease))
	}
	for _, h := range l.lease.held {
		n -= h.slot.units
	}
	return max(0, n)
}

// gatherLocked reports whether w, the last in the queue, and those before it
// wait for company: they have to wait much longer for a slot, and others may
// come meanwhile, by the recent rate or from the requests in Base.
func (l *Limiter) gatherLocked(w *waiter) bool {
	b, now := &l.lease, l.now()
	if len(l.queue) > 1 {
		return now < b.due && len(l.queue) < maxAboard
	}
	b.due = 0
	if !l.remote || l.policy.Lease < 0 || l.heard == nil || now < l.outage.settle {
		return false
	}
	wait := max(l.clock.local(l.heard.tail), b.next) - now
	gather := min(wait-max(wait/3, 2*l.rtt+minLead.Microseconds()), maxGather.Microseconds())
	if now-b.next < l.holdFor() { // slots are taken as they become free
		gather = max(gather, l.slack/4)
	}
	if company := l.out > 0 || float64(gather)*l.rateLocked(now) >= 1; gather <= 0 || !company || w.latest-now < wait {
		return false
	}
	b.due = now + gather
	if b.gather == nil {
		b.gather = time.AfterFunc(duration(gather), l.gathered)
	} else {
		b.gather.Reset(duration(gather))
	}
	return true
}

// gathered takes the queue aboard.
func (l *Limiter) gathered() {
	l.mu.Lock()
	defer l.unlock()
	l.flyLocked()
}

// leaseLocked takes units of r into the bucket, which were booked after sent. If
// they are refused, there is nothing free for anybody before the wait is over.
func (l *Limiter) leaseLocked(units int64, r run, a *answer, sent int64) {
	if r.slot == 0 {
		l.lease.next = sent + r.wait
		return
	}
	until := sent + l.holdFor()
	l.lease.held = append(l.lease.held, held{span{r.slot, units}, a.generation, a.serial, until})
	wait := duration(until - l.now() + l.holdFor()) // a busy process has made an exchange by then
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
