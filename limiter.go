package pacecar

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Limiter hands out the slots of one quota, for calls that are not HTTP
// requests; a [Transport] uses one for each key. Call Wait before each call.
//
// It is made by [NewLimiter], and safe for concurrent use. Callers get their
// slots in the order in which they ask, over the whole fleet.
type Limiter struct {
	key     string
	route   string        // see Event
	process string        // tells this limiter from those of other processes
	remote  bool          // exchanges with the window take time, and can fail
	timeout time.Duration // of an exchange
	listeners
	start time.Time // where this process's time begins

	mu       sync.Mutex // guards the rest; never held across an exchange with Redis, or a wait
	policy   Policy     // its Rates are those in force
	own      Rates      // those of this process
	stored   stored     // those of the fleet
	window   window
	bounds   []bound
	least    int64 // the smallest limit: no cost can be above it
	shortest int64 // the shortest period
	longest  int64 // the longest window
	slack    int64 // the smallest slack
	fresh    int64 // how old news may be when a request leaves: see lookAfter

	clock     keyClock
	heard     *answer              // the last answer; nil before the first
	queue     []*waiter            // who has no slot yet, in order
	slotted   map[*waiter]struct{} // who has one and waits for it
	lookers   []*waiter            // who must hear the clock before leaving
	look      bool                 // an exchange is wanted, even with nothing to say
	flight    *flight              // the exchange under way; nil: none
	exchanges int64                // begun so far
	from      string               // see query
	here      int64                // when to say again that this process is alive
	rtt       int64                // what an exchange takes, smoothed
	back      []span               // to give back
	late      []lateness           // to report
	pause     pauseAsk             // to ask for
	lease     lease
	backlog   backlog
	head      headStart
	memory    memory
	outage    outage
	busy      int64  // nothing heard or booked so far matters after this
	out       int    // requests in Base
	forgotten bool   // dropped by the Transport
	events    []told // to tell when mu is free
	stats     Stats
}

// NewLimiter returns the limiter of the quota named key, which every process
// that names the same key shares through rdb; a nil rdb keeps it in memory, for
// this Limiter alone. It is the quota of a Transport's route with that Name too,
// under the default [Config].Prefix. Calls to Redis are bounded by 250 ms. The
// policy's Name, Key, Cost and Feedback are of no use here and must be left out;
// MaxPause has no effect.
func NewLimiter(rdb redis.Scripter, key string, policy Policy) (*Limiter, error) {
	if key == "" {
		return nil, errors.New("pacecar: key: must not be empty")
	}
	if policy.Name != "" || policy.Key != nil || policy.Cost != nil || policy.Feedback != nil {
		return nil, errors.New("pacecar: policy: Name, Key, Cost and Feedback are for a Transport")
	}
	c := Config{Redis: rdb}
	if err := c.validate(); err != nil {
		return nil, err
	}
	if err := policy.validate(); err != nil {
		return nil, fmt.Errorf("pacecar: policy: %w", err)
	}
	return newLimiter(&c, key, key, &policy), nil
}

// newLimiter wants a valid configuration.
func newLimiter(c *Config, key, route string, policy *Policy) *Limiter {
	l := &Limiter{
		key: key, route: route, policy: *policy, remote: c.Redis != nil, timeout: c.redisTimeout(),
		listeners: listeners{c.Observe, c.Logger},
		start:     time.Now().Add(-time.Hour), // so that no time is zero
		own:       policy.Rates,
		slotted:   map[*waiter]struct{}{},
	}
	l.boundLocked()
	l.process = strconv.FormatUint(rand.Uint64(), 36)
	if l.remote {
		l.window = newShared(c.Redis, c.prefix(), key, l.bounds)
	} else {
		l.window = newLocal(l.bounds)
	}
	return l
}

// now is this process's time, in microseconds.
func (l *Limiter) now() int64 { return time.Since(l.start).Microseconds() }

// wall turns this process's time into a wall clock's.
func (l *Limiter) wall(local int64) time.Time {
	return l.start.Add(duration(local))
}

// Wait blocks until the caller may go ahead, and takes one slot. It returns an
// *[Error] when it is refused, at once where that can be known, and then
// nothing is charged: with [ErrWaitTooLong] when the slot is further away than
// the policy's MaxWait, with [context.DeadlineExceeded] when it lies beyond the
// context's deadline, with [ErrUnavailable] when Redis does not answer and the
// policy is [FailClosed] or the cost is above this process's share. A context
// that has ended already is answered with its plain error; when it ends during
// the wait, the Error wraps that, and the slot is given back.
//
// The caller must go ahead at once: the quota counts when the call leaves.
func (l *Limiter) Wait(ctx context.Context) error { return l.WaitN(ctx, 1) }

// WaitN is Wait for a call that costs n slots, all at one time. An n below one
// counts as one; one above a rate's limit is refused with [ErrCostTooHigh].
func (l *Limiter) WaitN(ctx context.Context, n int) error {
	_, err := l.wait(ctx, n)
	return err
}

// Stats returns what this process knows of the key.
func (l *Limiter) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Route, s.Rates = l.route, slices.Clone(l.policy.Rates)
	if v := l.stored.version; v > 0 {
		s.RatesStored = time.UnixMicro(v)
	}
	s.Away, s.HeadStart = l.outage.away, duration(l.head.early(0))
	for w := range l.slotted {
		if at := l.wall(l.leavesLocked(w)); s.NextSlot.IsZero() || at.Before(s.NextSlot) {
			s.NextSlot = at
		}
	}
	if until := l.clock.until(); l.clock.resume > 0 && until > l.now() {
		s.PausedUntil = l.wall(until)
	}
	return s
}

// wait is WaitN, and tells with which slot the caller leaves.
func (l *Limiter) wait(ctx context.Context, cost int) (pass, error) {
	p, err := l.enter(ctx, cost, notEarly)
	if err == nil {
		l.mu.Lock()
		l.departLocked(ctx, &p, l.now())
		l.unlock()
	}
	return p, err
}

// enter waits until the slot or, unless guess is notEarly, until the head start
// before it. errForgotten asks for another limiter.
func (l *Limiter) enter(ctx context.Context, cost int, guess int64) (pass, error) {
	if err := ctx.Err(); err != nil {
		return pass{}, err
	}
	l.mu.Lock()
	defer l.unlock()
	if l.forgotten {
		return pass{}, errForgotten
	}
	now, units, keep := l.now(), int64(max(1, cost)), l.keepLocked(ctx)
	if keep == 0 {
		if p, ok := l.hitLocked(now, units); ok {
			p.began = now
			return p, nil
		}
	}
	return l.enterLocked(ctx, newWaiter(units, keep, now), guess)
}

// enterLocked is enter for who has no slot.
func (l *Limiter) enterLocked(ctx context.Context, w *waiter, guess int64) (pass, error) {
	if err := l.tooHighLocked(w); err != nil {
		return pass{}, l.refusedLocked(ctx, err)
	}
	w.latest = forever
	if l.policy.MaxWait > 0 {
		w.latest = w.began + l.policy.MaxWait.Microseconds()
	}
	if deadline, ok := ctx.Deadline(); ok {
		if at := l.now() + time.Until(deadline).Microseconds(); at < w.latest {
			w.latest, w.byCtx = at, true
		}
	}
	l.joinLocked(w)
	return l.awaitLocked(ctx, w, guess)
}

// tooHighLocked refuses a w that costs more than there ever is.
func (l *Limiter) tooHighLocked(w *waiter) error {
	most := l.least - w.keep
	if w.units <= most {
		return nil
	}
	return l.refusal(fmt.Errorf("%w: %d slots, of %d", ErrCostTooHigh, w.units, most), 0)
}

// refusedLocked counts and tells a refusal, and returns it.
func (l *Limiter) refusedLocked(ctx context.Context, err error) error {
	l.stats.Refused++
	e := Event{Kind: EventRefused, Err: err}
	if refusal, ok := err.(*Error); ok {
		e.Wait = refusal.Wait
	}
	l.tellLocked(ctx, e)
	return err
}

// generation returns the generation of the state that was heard of last.
func (l *Limiter) generation() int64 {
	if l.heard == nil {
		return 0
	}
	return l.heard.generation
}

// A told event is one to tell, with the context of its request.
type told struct {
	ctx   context.Context
	event Event
}

// noRequest is the context of events that are not of one request.
var noRequest = context.Background()

// tellLocked keeps an event until mu is free.
func (l *Limiter) tellLocked(ctx context.Context, e Event) {
	if l.want(ctx, &e) {
		e.Key, e.Route = l.key, l.route
		l.events = append(l.events, told{ctx, e})
	}
}

// unlock gives mu up and tells what happened meanwhile.
func (l *Limiter) unlock() {
	events := l.events
	l.events = nil
	l.mu.Unlock()
	for _, e := range events {
		l.tell(e.ctx, e.event)
	}
}
