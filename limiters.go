package pacecar

import (
	"errors"
	"sync"
	"time"
)

// limiters are the limiters of a Transport, by key. Those that nobody uses are
// forgotten, so that a key for each user does not leak memory: whenever there
// are twice as many as the last time, which costs little for each new one, and
// now and then while there are many.
type limiters struct {
	config *Config
	byKey  sync.Map // string to *Limiter

	mu    sync.Mutex // guards what follows, and writes to byKey and to routes' policies
	count int
	sweep int         // the count at which to look next
	timer *time.Timer // of the next look; nil: there are few
}

// errForgotten says that a limiter was forgotten between finding and using it.
var errForgotten = errors.New("pacecar: forgotten")

// minSweep is the least number of limiters to look through, and sweepEvery how
// often at least that is done while there are more.
const (
	minSweep   = 64
	sweepEvery = 10 * time.Minute
)

// get returns the limiter of a key.
func (ls *limiters) get(key string, r *route) *Limiter {
	if l, ok := ls.byKey.Load(key); ok {
		return l.(*Limiter)
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l, ok := ls.byKey.Load(key); ok {
		return l.(*Limiter)
	}
	if ls.count >= max(ls.sweep, minSweep) {
		ls.forget()
	}
	l := newLimiter(ls.config, key, r.label(), r.policy.Load())
	ls.byKey.Store(key, l)
	ls.count++
	return l
}

// forget drops the limiters that nobody uses. It requires mu.
func (ls *limiters) forget() {
	for key, l := range ls.all() {
		if l.retire() {
			ls.byKey.Delete(key)
			ls.count--
		}
	}
	ls.sweep = 2 * ls.count
	if ls.timer != nil {
		ls.timer.Stop()
		ls.timer = nil
	}
	if ls.count >= minSweep/2 {
		ls.timer = time.AfterFunc(sweepEvery, func() {
			ls.mu.Lock()
			defer ls.mu.Unlock()
			ls.forget()
		})
	}
}

// all yields the limiters there are.
func (ls *limiters) all() func(yield func(string, *Limiter) bool) {
	return func(yield func(string, *Limiter) bool) {
		ls.byKey.Range(func(key, l any) bool { return yield(key.(string), l.(*Limiter)) })
	}
}

// retire marks l as forgotten if nobody waits, nothing is under way, and no
// booking or pause it knows of still matters.
func (l *Limiter) retire() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	idle := l.stats.Waiting+l.out == 0 && l.flight == nil && len(l.slotted)+len(l.lease.held)+len(l.back) == 0 &&
		l.now() > max(l.busy, l.pause.until)
	l.forgotten = idle
	return idle
}
