package pacecar

import (
	"context"
	"fmt"
	"math"
	"time"
)

// lookAfter is how long ago the last news of the key's clock may be when a
// request leaves: a pause that another process asked for is obeyed after this
// much at the latest. For short periods it is less: a quarter of the shortest.
const lookAfter = 50 * time.Millisecond

// forever is later than any time and longer than any duration.
const forever int64 = math.MaxInt64

// A waiter is one call of Wait that has to wait. The limiter's mu guards it.
type waiter struct {
	units  int64
	began  int64 // when it came
	latest int64 // when it may leave at the latest
	delay  int64 // how far away its slot must be at least
	keep   int64 // how many slots it leaves free: see Background
	byCtx  bool  // that is the context's deadline
	state  waiterState
	slot   span          // in state holding and sharing
	made   int64         // the generation in which slot was booked
	serial int64         // of the state then, or more
	held   bool          // slot was leased: see pass
	share  span          // in state holding: a slot of the share, which it takes too
	err    error         // in state refused
	wake   chan struct{} // has room for one: state or clock have changed
	looked bool          // is among the lookers
}

type waiterState int

const (
	queued  waiterState = iota // in the queue, or in an exchange
	holding                    // has a slot in the window
	sharing                    // has a slot of this process's share
	refused                    // err says why
	gone                       // its context has ended
)

func newWaiter(units, keep, now int64) *waiter {
	return &waiter{units: units, keep: keep, began: now, wake: make(chan struct{}, 1)}
}

// longest returns how long it may wait from now on; -1: for ever.
func (w *waiter) longest(now int64) int64 {
	if w.latest == forever {
		return -1
	}
	return max(0, w.latest-now)
}

// nudge makes the waiter look at its state again.
func (w *waiter) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// holdLocked gives w a slot of the window.
func (l *Limiter) holdLocked(w *waiter, h held, leased bool) {
	w.state, w.slot, w.made, w.serial, w.held = holding, h.slot, h.made, h.serial, leased
	l.slotted[w] = struct{}{}
	w.nudge()
}

// A pass lets one call leave now.
type pass struct {
	slot   span
	made   int64   // the generation in which it was booked
	resume int64   // the last pause known when the call leaves
	share  bool    // of this process's share: Redis does not know of it
	held   bool    // was leased: part of the slack is used up
	began  int64   // when the wait began
	waiter *waiter // has the slot still, which is to come; nil: the call may leave
}

// tier returns where the slot came from.
func (p *pass) tier() Tier {
	switch {
	case p.share:
		return TierShare
	case p.held:
		return TierBucket
	}
	return TierWindow
}

// untilNews is the wait of who cannot know when it may leave.
const untilNews = -1

// awaitLocked waits for w's turn or, unless guess is notEarly, for its head start;
// then the pass holds on to w. It gives mu up meanwhile.
func (l *Limiter) awaitLocked(ctx context.Context, w *waiter, guess int64) (pass, error) {
	l.stats.Waiting++
	defer func() { l.stats.Waiting-- }()
	var timer *time.Timer // made when there is something to wait for
	for {
		early := int64(0)
		if guess != notEarly {
			early = l.head.early(guess)
		}
		p, wait, err := l.stepLocked(w, early)
		if err != nil {
			return p, l.refusedLocked(ctx, err)
		}
		if wait == 0 {
			return p, nil
		}
		var fires <-chan time.Time
		if wait != untilNews {
			if timer == nil {
				timer = time.NewTimer(duration(wait))
				defer timer.Stop()
			} else {
				timer.Reset(duration(wait))
			}
			fires = timer.C
		}
		l.unlock()
		select {
		case <-w.wake:
		case <-fires:
		case <-ctx.Done():
		}
		l.mu.Lock()
		if err := ctx.Err(); err != nil {
			return pass{}, l.refusedLocked(ctx, l.quitLocked(w, err))
		}
	}
}

// joinLocked puts w where it waits for a slot.
func (l *Limiter) joinLocked(w *waiter) {
	if l.degradedLocked(w) {
		return
	}
	w.state = queued
	if w.keep > 0 {
		idle := len(l.slotted)+len(l.backlog.queue) == 0
		l.joinBacklogLocked(w)
		if idle { // its turn may be far away
			l.beatLocked()
		}
		return
	}
	l.queue = append(l.queue, w)
	if !l.gatherLocked(w) {
		l.flyLocked()
	}
}

// stepLocked says what w does next: go on with the pass (a wait of zero), fail,
// or wait that long, unless nudged.
func (l *Limiter) stepLocked(w *waiter, early int64) (p pass, wait int64, err error) {
	for {
		now := l.now()
		switch {
		case w.state == refused:
			return p, 0, w.err
		case w.state == queued:
			return p, untilNews, nil
		case w.state == gone: // Base has returned
			return p, 0, l.refusal(context.Canceled, 0)
		case w.state == sharing && l.rejoinLocked(w, now):
			continue // in the queue now
		case w.state == holding && l.tooLateLocked(w.slot, now):
			// An answer that takes as long again must find the next slot still
			// to come.
			w.delay = min(max(2*w.delay, 2*l.rtt, minLead.Microseconds()), l.longest)
			l.dropLocked(w)
			l.joinLocked(w)
			continue
		}
		at := l.leavesLocked(w)
		switch {
		case at > max(w.latest, now): // the clock was stopped meanwhile
			l.dropLocked(w)
			l.refuseLocked(w, at-now)
		case at-early > now:
			wait = at - early - now
			if early == 0 && l.staleLocked(w, at) {
				wait = max(0, wait-l.leadLocked())
			}
			if wait > 0 {
				return p, wait, nil
			}
			l.lookLocked(w)
			return p, untilNews, nil
		case at > now:
			return pass{waiter: w, began: w.began}, 0, nil
		case w.state == holding && l.outage.away && l.outage.mode == FailClosed:
			l.dropLocked(w)
			l.unavailableLocked(w)
		case l.staleLocked(w, now):
			l.lookLocked(w)
			return p, untilNews, nil
		default:
			return l.leaveLocked(w, now), 0, nil
		}
	}
}

// tooLateLocked reports whether now is so much after a slot that to report it
// would not mend it: more than half of the shortest period, or, while there is
// nobody to report it to, more than the slack.
func (l *Limiter) tooLateLocked(s span, now int64) bool {
	late := l.clock.key(now) - s.slot
	return 2*late > l.shortest || l.outage.away && late > l.slack
}

// leavesLocked returns when w leaves, as far as is known.
func (l *Limiter) leavesLocked(w *waiter) int64 {
	if w.state == sharing {
		return l.outage.leaves(w.slot.slot)
	}
	return l.clock.local(w.slot.slot)
}

// leaveLocked lets w go.
func (l *Limiter) leaveLocked(w *waiter, now int64) pass {
	delete(l.slotted, w)
	l.spentLocked(w, now)
	return pass{slot: w.slot, made: w.made, resume: l.clock.resume, share: w.state == sharing, held: w.held, began: w.began}
}

// departLocked tells that the caller of p left at left.
func (l *Limiter) departLocked(ctx context.Context, p *pass, left int64) {
	late := l.reportLocked(ctx, p, left)
	l.stats.Sent++
	l.tellLocked(ctx, Event{Kind: EventSlot, Tier: p.tier(), Wait: duration(left - p.began), Late: late})
}

// reportLocked returns how long after its slot the caller of p left. When that
// takes more than half of the slack (of a leased slot, more than it may be held
// for), which leaves the rest for the way, those behind must know of the excess,
// to keep their distance.
func (l *Limiter) reportLocked(ctx context.Context, p *pass, left int64) time.Duration {
	if p.share {
		return 0
	}
	late, most := l.clock.lateness(p.slot.slot, left), l.slack/2
	if p.held {
		most = l.holdFor()
	}
	if late > most && p.made == l.generation() {
		l.late = append(l.late, lateness{p.slot.slot, left - l.clock.least - most, p.slot.units})
		l.tellLocked(ctx, Event{Kind: EventLate, Late: duration(late)})
		l.flyLocked()
	}
	l.stats.Late = duration(late)
	return l.stats.Late
}

// dropLocked takes w's slot away and gives it back.
func (l *Limiter) dropLocked(w *waiter) {
	delete(l.slotted, w)
	if w.state == sharing {
		l.outage.unshare(l.now(), w.slot)
		return
	}
	if w.share.units > 0 {
		l.outage.unshare(l.now(), w.share)
	}
	l.giveBackLocked(w.slot, w.made)
}

// giveBackLocked returns a slot with the next exchange, which it begins. One
// that was booked in a state since lost is not known there.
func (l *Limiter) giveBackLocked(s span, made int64) {
	if made != l.generation() {
		return
	}
	l.stats.GivenBack += uint64(s.units)
	if l.outage.away { // it does not fit in with what is sent meanwhile
		l.outage.dropped = append(l.outage.dropped, s)
		return
	}
	l.back = append(l.back, s)
	l.flyLocked()
}

// quitLocked ends the wait of w, whose context has ended.
func (l *Limiter) quitLocked(w *waiter, cause error) error {
	wait := int64(0)
	if w.state == holding || w.state == sharing {
		wait = l.leavesLocked(w) - l.now()
		l.dropLocked(w)
	}
	if w.state == refused {
		return w.err
	}
	w.state = gone // an exchange that brings it a slot gives that back
	return l.refusal(cause, wait)
}

// refuseLocked refuses w, whose slot would be that far away.
func (l *Limiter) refuseLocked(w *waiter, wait int64) {
	reason := fmt.Errorf("%w: above MaxWait, %v", ErrWaitTooLong, l.policy.MaxWait)
	if w.byCtx {
		reason = fmt.Errorf("the slot is beyond the deadline: %w", context.DeadlineExceeded)
	}
	w.state, w.err = refused, l.refusal(reason, wait)
	w.nudge()
}

func (l *Limiter) refusal(reason error, wait int64) *Error {
	wait = max(0, wait)
	paused := min(wait, max(0, l.clock.until()-l.now()))
	return &Error{Key: l.key, Wait: duration(wait), Paused: duration(paused), Err: reason}
}

// staleLocked reports whether the clock must be heard before w leaves at at:
// there has been no news for long, or a pause is being asked for.
func (l *Limiter) staleLocked(w *waiter, at int64) bool {
	return w.state == holding && l.remote && !l.outage.away &&
		(at-l.clock.heard > l.fresh || l.pausingLocked())
}

// minLead is how long before leaving the clock is asked for, beside the time
// that an exchange takes: a timer may fire late.
const minLead = 500 * time.Microsecond

// leadLocked returns how long before leaving the clock is asked for: so long
// that the answer comes in time, so short that it is news then.
func (l *Limiter) leadLocked() int64 {
	return l.rtt + min(l.rtt/4, l.fresh/2) + min(minLead.Microseconds(), l.fresh/2)
}

// lookLocked has w nudged at the next answer.
func (l *Limiter) lookLocked(w *waiter) {
	if !w.looked {
		w.looked, l.look = true, true
		l.lookers = append(l.lookers, w)
	}
	l.flyLocked()
}
