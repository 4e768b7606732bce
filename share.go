package pacecar

import (
	"math/rand/v2"
	"slices"
)

// openShareLocked makes this process's share: see outage.
func (l *Limiter) openShareLocked(now int64) {
	share := newLedger(l.shareBounds())
	share.generation = 1
	quiet := l.outage.quiet
	for i := range share.logs {
		g := &share.logs[i]
		for _, s := range l.usedLocked(i, g.bound, quiet) {
			g.append(s.slot, s.units)
		}
	}
	if until := max(l.pause.until, l.clock.until()); until > now {
		share.exchange(now, &query{pause: until - now})
	}
	l.outage.share = &share
}

// shareBounds returns the bounds of a share.
func (l *Limiter) shareBounds() []bound {
	replicas := int64(l.policy.Replicas)
	bounds := slices.Clone(l.bounds)
	for i := range bounds {
		b := &bounds[i]
		if b.limit < replicas { // below one: one in a longer window
			b.window = (b.window*replicas + b.limit - 1) / b.limit
			b.limit = replicas
		}
		b.limit /= replicas
	}
	return bounds
}

// usedLocked returns what of the share's i-th rate counts as used when it is
// opened, in the order of time.
func (l *Limiter) usedLocked(i int, share bound, quiet int64) (used []span) {
	replicas, b := int64(l.policy.Replicas), &l.bounds[i]
	if b.limit < replicas {
		first := quiet + rand.Int64N(share.window)
		if l.short(i) {
			first = quiet + b.window + rand.Int64N(share.window-b.window)
		}
		return []span{{first - share.window, 1}}
	}
	// Some have left later than was heard of, or slots of before another outage were
	// dropped, and sold again: when they were used is not known.
	if l.short(i) && (len(l.late) > 0 || quiet < l.outage.settle+b.window) {
		return []span{{quiet, share.limit}}
	}
	// Each slot of the fleet counts from its time on, as far as it is known: to
	// the full number in all, and rounded down on the way, so that it is freed no
	// sooner.
	var marked, booked int64
	for _, e := range l.memory.used(l.clock.key(quiet)-b.window, b.limit) {
		booked = e.upto
		if part := booked / replicas; part > marked {
			used = append(used, span{min(quiet, l.clock.local(e.at)), part - marked})
			marked = part
		}
	}
	if rest := (booked+l.unheardLocked(i, quiet)+replicas-1)/replicas - marked; rest > 0 {
		used = append(used, span{quiet, rest})
	}
	used = append(used, l.outage.sent...) // in an outage just before, not yet charged
	slices.SortStableFunc(used, bySlot)
	return used
}

// parked is the slot in the share of who waits for the settling's end.
const parked = 1 << 61

// shareLocked gives w a slot of this process's share.
func (l *Limiter) shareLocked(w *waiter, now int64) {
	o := &l.outage
	w.state, w.slot, w.share = sharing, span{parked, w.units}, span{}
	if !slices.ContainsFunc(o.share.logs, func(g slotLog) bool { return w.units > g.limit }) {
		r := o.share.exchange(now, &query{asks: []ask{{count: 1, cost: w.units, longest: w.longest(now)}}}).runs[0]
		if r.slot == 0 {
			l.refuseLocked(w, r.wait)
			return
		}
		w.slot.slot = r.slot
	} else if o.away { // the share never has as many
		l.unavailableLocked(w)
		return
	}
	l.slotted[w] = struct{}{}
	w.nudge()
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

// rejoinLocked sends w, which has a slot of the share, to Redis, once that
// answers again and w's turn in the share has come. When that is no longer
// needed, it sends all.
func (l *Limiter) rejoinLocked(w *waiter, now int64) bool {
	o := &l.outage
	if o.away || o.leaves(w.slot.slot) > now {
		return false
	}
	rejoin := []*waiter{w}
	if now >= o.settle {
		rejoin = rejoin[:0]
		for w := range l.slotted {
			if w.state == sharing {
				rejoin = append(rejoin, w)
			}
		}
		slices.SortFunc(rejoin, func(a, b *waiter) int { return bySlot(a.slot, b.slot) })
	}
	for _, w := range rejoin {
		delete(l.slotted, w)
		w.state, w.share = queued, span{}
		if now < o.settle {
			w.share = w.slot
		}
		l.queue = append(l.queue, w)
	}
	l.flyLocked()
	return true
}

// longestLocked returns the longest wait for a slot of Redis. One that is booked
// before all have charged what they sent must lie in the time in which the share
// holds too, and near its slot there.
func (l *Limiter) longestLocked(w *waiter, now int64) int64 {
	longest := w.longest(now)
	if now < l.outage.settle {
		soon := min(l.outage.settle-now, l.shortest/2)
		if longest < 0 || soon < longest {
			longest = soon
		}
	}
	return longest
}

// crowdedLocked reports whether slots of before the outage are still booked for
// after the settling. Nobody waits for them any more, and they will be dropped;
// what is booked before that is logged behind them.
func (l *Limiter) crowdedLocked(now int64) bool {
	return now < l.outage.settle && l.clock.local(l.heard.tail) > l.outage.settle
}

// parkLocked has w ask again when all have charged what they sent, unless that
// would be too late. Redis has refused it a slot within that time.
func (l *Limiter) parkLocked(w *waiter, now, wait int64) bool {
	if w.share.units == 0 || w.latest != forever && now+wait > w.latest {
		return false
	}
	l.outage.unshare(now, w.share)
	w.state, w.slot, w.share = sharing, span{parked, w.units}, span{}
	l.slotted[w] = struct{}{}
	w.nudge()
	return true
}

// spentLocked takes in that w leaves now.
func (l *Limiter) spentLocked(w *waiter, now int64) {
	o, used := &l.outage, w.share
	if w.state == sharing {
		l.sentLocked(span{now, w.units})
		used = w.slot
	}
	if used.units > 0 && used.slot < parked && 2*(now-o.leaves(used.slot)) > l.slack {
		o.share.exchange(now, &query{generation: o.share.generation, late: []lateness{{used.slot, now, used.units}}})
	}
}
