package pacecar

import (
	"errors"
	"sync"
)

// limiters are the limiters of a Transport, by key. Those that nobody uses are
// forgotten, so that a key for each user does not leak memory: whenever there
// are twice as many as the last time, which costs little for each new one and
// needs no goroutine.
type limiters struct {
	config *Config
	byKey  sync.Map // string to *Limiter

	mu    sync.Mutex // guards what follows, and writes to byKey and to routes' policies
	count int
	sweep int // the count at which to look next
}

// errForgotten says that a limiter was forgotten between finding and using it.
var errForgotten = errors.New("pacecar: forgotten")

// minSweep is the least number of limiters to look through.
const minSweep = 64

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
		ls.sweep = 2 * ls.count
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
	idle := l.stats.Waiting+l.out == 0 && l.flight == nil && len(l.slotted)+len(l.lease.held)+len(l.back) == 0 && l.now() > l.busy
	l.forgotten = l.forgotten || idle
	return l.forgotten
}
