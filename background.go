package pacecar

import (
	"context"
	"time"
)

// Background work, a backfill say, uses what others leave. With a policy's
// Reserve it books a slot only when so many stay free, and never one that is
// yet to come, behind which others would have to wait. The window tells who gets
// none when its turn is to ask again: one after the other, over the fleet.

type backgroundKey struct{}

// Background returns a context whose requests are background work: under a
// policy with a Reserve they leave so many slots free, and wait as long as there
// are no more. Without a Reserve it changes nothing. While Redis is away it waits
// under [FailOpen], and is refused, as all else is, under [FailClosed].
func Background(ctx context.Context) context.Context {
	return context.WithValue(ctx, backgroundKey{}, true)
}

// keepLocked returns how many slots a request with that context leaves free.
func (l *Limiter) keepLocked(ctx context.Context) int64 {
	if l.policy.Reserve == 0 || ctx.Value(backgroundKey{}) == nil {
		return 0
	}
	return min(int64(l.policy.Reserve), l.least-1) // rates that were stored may be lower
}

// turnLocked has w ask again at its turn.
func (w *waiter) turnLocked(turn int64) {
	w.state, w.turn = turned, turn
	w.nudge()
}

// standstill is how often background work looks whether an outage is over.
const standstill = 500 * time.Millisecond

// standLocked has w ask again when the outage may be over.
func (l *Limiter) standLocked(w *waiter, now int64) {
	w.turnLocked(now + standstill.Microseconds())
}
