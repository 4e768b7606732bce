package pacecar

import (
	"context"
	"slices"
	"time"
)

// Background work, a backfill say, uses what others leave. With a policy's
// Reserve it books a slot only when so many stay free, and never one that is
// yet to come, behind which others would have to wait. It has a queue of its own,
// of which the first ask. When there is too little, the window names the turn at
// which this process may ask again: one process after the other, at the pace of
// what is left to all. So a process that is gone leaves a gap of one slot.

type backgroundKey struct{}

// Background returns a context whose requests are background work: under a
// policy with a Reserve they leave that many slots free, and wait while no more
// than those are free. Without a Reserve it changes nothing. While Redis is away
// it waits under [FailOpen], and is refused, as all else is, under [FailClosed].
func Background(ctx context.Context) context.Context {
	return context.WithValue(ctx, backgroundKey{}, true)
}

// keepLocked returns how many slots a request with that context leaves free.
func (l *Limiter) keepLocked(ctx context.Context) int64 {
	if l.policy.Reserve == 0 || ctx.Value(backgroundKey{}) == nil {
		return 0
	}
	return l.leftFreeLocked()
}

// leftFreeLocked returns how many slots background work leaves free. Rates that
// were stored may be lower than the policy's Reserve.
func (l *Limiter) leftFreeLocked() int64 { return min(int64(l.policy.Reserve), l.least-1) }

// A backlog is the background work that waits for a slot.
type backlog struct {
	queue []*waiter
	sweep int         // the length at which to look through the queue
	turn  int64       // when to ask again, by the key's clock; 0: now
	timer *time.Timer // of the turn
}

// standstill is how often background work looks whether an outage is over.
const standstill = 500 * time.Millisecond

// maxAsking is how much background work asks in one exchange.
const maxAsking = 16

// turnLocked returns when background work may ask, by this process's time.
func (l *Limiter) turnLocked(now int64) int64 {
	switch {
	case l.outage.away:
		return now + standstill.Microseconds()
	case now < l.outage.settle:
		return l.outage.settle
	case l.backlog.turn == 0:
		return now
	}
	return l.clock.local(l.backlog.turn)
}

// joinBacklogLocked has w wait for its turn, or refuses it.
func (l *Limiter) joinBacklogLocked(w *waiter) {
	b, now := &l.backlog, l.now()
	if len(b.queue) >= b.sweep { // those whose contexts have ended are there still
		l.callLocked()
		b.sweep = max(64, 2*len(b.queue))
	}
	if at := l.turnLocked(now); l.keepsLocked(w, now, at) {
		b.queue = append(b.queue, w)
		l.summonLocked(now, at)
	}
}

// callLocked has background work ask, or wait for its turn to. It refuses who
// cannot wait so long.
func (l *Limiter) callLocked() {
	b := &l.backlog
	if len(b.queue) == 0 {
		return
	}
	now := l.now()
	at := l.turnLocked(now)
	b.queue = slices.DeleteFunc(b.queue, func(w *waiter) bool { return !l.keepsLocked(w, now, at) })
	l.summonLocked(now, at)
}

// keepsLocked reports whether w goes on waiting for the turn at at. It refuses w
// if that cannot wait so long.
func (l *Limiter) keepsLocked(w *waiter, now, at int64) bool {
	latest := at
	if l.outage.away { // when it will be over is not known
		latest = now
	}
	if w.state == queued && latest > w.latest {
		l.refuseLocked(w, at-now)
	}
	return w.state == queued
}

// summonLocked has the backlog ask when its turn comes.
func (l *Limiter) summonLocked(now, at int64) {
	b := &l.backlog
	switch {
	case len(b.queue) == 0:
	case at <= now:
		l.flyLocked()
	case b.timer == nil:
		b.timer = time.AfterFunc(duration(at-now), l.call)
	default:
		b.timer.Reset(duration(at - now))
	}
}

// call is for the timer of the turn.
func (l *Limiter) call() {
	l.mu.Lock()
	defer l.unlock()
	l.callLocked()
}

// boardBacklogLocked takes the first of the backlog aboard, as far as they are
// alike, when it is their turn.
func (l *Limiter) boardBacklogLocked(f *flight, now int64) {
	b := &l.backlog
	if len(b.queue) == 0 || l.turnLocked(now) > now {
		return
	}
	a := ask{longest: -1}
	taken := 0
	for _, w := range b.queue {
		if w.state != queued || !l.fitsLocked(w) {
			taken++
			continue
		}
		if a.count == 0 {
			a.cost, a.delay, a.keep, a.again = w.units, w.delay, w.keep, b.turn > 0
		}
		if a.count == maxAsking || a.cost != w.units || a.delay != w.delay || a.keep != w.keep {
			break
		}
		a.count++
		taken++
		f.aboard = append(f.aboard, w)
	}
	b.queue = slices.Delete(b.queue, 0, taken)
	if a.count > 0 {
		f.query.asks = append(f.query.asks, a)
		b.turn = 0
	}
}

// requeueLocked puts waiters back to the front of their queues.
func (l *Limiter) requeueLocked(waiters []*waiter) {
	if len(waiters) == 0 { // as after most exchanges
		return
	}
	var front, back []*waiter
	for _, w := range waiters {
		if w.keep > 0 {
			back = append(back, w)
		} else {
			front = append(front, w)
		}
	}
	l.queue = slices.Concat(front, l.queue)
	l.backlog.queue = slices.Concat(back, l.backlog.queue)
}
