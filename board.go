package pacecar

import (
	"slices"
	"time"
)

// hereEvery is how often a process says that it is alive, with an exchange that
// it makes anyway.
const hereEvery = 10 * time.Second

// boardLocked makes a query of all there is to say and ask; nil if nothing.
func (l *Limiter) boardLocked() *flight {
	now := l.now()
	f := &flight{window: l.window, sent: now}
	q := &f.query
	q.process, q.from, q.generation, q.known = l.process, l.from, l.generation(), l.stored.version
	q.restore = l.memory.take()
	q.heard = l.memory.serial(l.clock.key(now) - l.longest)
	if l.outage.away { // first find out what is still known there
		l.look, q.write = false, true // and that it can be written
		return f
	}
	l.expireLocked(now)
	l.oweLocked(f, now)
	l.exchanges++
	q.seq = l.exchanges
	if l.heard != nil && l.heard.policy < l.stored.version {
		q.tell, q.policy = true, l.stored.text
	}
	q.drop, l.outage.dropped = mergeBack(l.outage.dropped), nil
	q.back, l.back = mergeBack(l.back), nil
	if len(q.back) > maxAboard { // the rest with the next
		q.back, l.back = q.back[:maxAboard], q.back[maxAboard:]
	}
	q.late, l.late = slices.DeleteFunc(l.late, func(d lateness) bool { // out of every window, after an outage say
		return d.left+l.longest < now-l.clock.diff
	}), nil
	if l.pause.until > now {
		q.pause, q.paused = l.pause.until-now, l.pause.heard
		f.pause = l.pause
	}
	l.pause = pauseAsk{}
	needed := l.look || q.restore != nil || q.tell || q.pause > 0 ||
		len(q.charge)+len(q.drop)+len(q.back)+len(q.late) > 0
	if needed || now >= l.lease.due {
		l.boardQueueLocked(f, now)
	}
	l.boardBacklogLocked(f, now)
	if n := l.wantLocked(now); n > 0 && len(f.aboard) > 0 {
		q.asks = append(q.asks, ask{count: n, cost: 1, longest: 0})
	}
	if !needed && len(q.asks) == 0 {
		return nil
	}
	if l.remote && now >= l.here {
		q.here, l.here = true, now+hereEvery.Microseconds()
	}
	l.look = false
	return f
}

// boardQueueLocked takes waiters aboard, and joins what is alike.
func (l *Limiter) boardQueueLocked(f *flight, now int64) {
	asks := f.query.asks
	taken := 0
	for _, w := range l.queue {
		if len(f.aboard) == maxAboard {
			break
		}
		taken++
		if w.state != queued || !l.fitsLocked(w) || l.crowdedLocked(now) && l.parkLocked(w, now, l.outage.settle-now) {
			continue
		}
		a := ask{count: 1, cost: w.units, longest: l.longestLocked(w, now), delay: w.delay}
		if k := len(asks); k > 0 && asks[k-1].alike(a) {
			asks[k-1].count++
		} else {
			asks = append(asks, a)
		}
		f.aboard = append(f.aboard, w)
	}
	l.queue = slices.Delete(l.queue, 0, taken)
	f.query.asks = asks
}

// alike reports whether b differs from a in nothing but the count.
func (a ask) alike(b ask) bool {
	b.count = a.count
	return a == b
}

// mergeBack puts slots to give back in order, the latest first, and joins those
// of one time.
func mergeBack(back []span) []span {
	slices.SortFunc(back, func(a, b span) int { return bySlot(b, a) })
	merged := back[:0]
	for _, s := range back {
		if k := len(merged); k > 0 && merged[k-1].slot == s.slot {
			merged[k-1].units += s.units
			continue
		}
		merged = append(merged, s)
	}
	return merged
}
