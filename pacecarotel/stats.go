package pacecarotel

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/pacecar-go/pacecar"
)

// counters are the counters of Stats that no event tells of.
var counters = [...]struct {
	name, unit, description string
	value                   func(*pacecar.Stats) uint64
}{
	{"pacecar.sent_requests", "{request}", "Requests that left.",
		func(s *pacecar.Stats) uint64 { return s.Sent }},
	{"pacecar.local_hits", "{request}", "Requests that left on a slot already held, without a round trip.",
		func(s *pacecar.Stats) uint64 { return s.LocalHits }},
	{"pacecar.degraded_requests", "{request}", "Requests that were decided without Redis during an outage.",
		func(s *pacecar.Stats) uint64 { return s.Degraded }},
	{"pacecar.round_trips", "{call}", "Calls to Redis; without Redis, exchanges with the window in memory.",
		func(s *pacecar.Stats) uint64 { return s.RoundTrips }},
	{"pacecar.given_back_slots", "{slot}", "Slots that were returned unused.",
		func(s *pacecar.Stats) uint64 { return s.GivenBack }},
}

// counts are values of counters.
type counts [len(counters)]uint64

// A level is what Stats say of now, of all keys of a series: the sum of those
// who wait, and the most of the rest.
type level struct {
	waiting   int
	away      bool
	paused    time.Duration
	headStart time.Duration
}

// countsOf returns the counters of each key.
func countsOf(stats map[string]pacecar.Stats) map[string]counts {
	all := make(map[string]counts, len(stats))
	for key, s := range stats {
		var now counts
		for i, c := range counters {
			now[i] = c.value(&s)
		}
		all[key] = now
	}
	return all
}

// A source is a Transport or a Limiter whose Stats are read.
type source struct {
	stats func() map[string]pacecar.Stats
	seen  map[string]counts // of each key, as last read
}

// Watch has the Stats of t read at each collection. It counts from now on, until
// stop is called, which reads them once more and lets go of t; what was counted
// stays in the totals. Watching t again before that changes nothing. It panics
// if t is nil.
func (o *Observer) Watch(t *pacecar.Transport) (stop func()) {
	if t == nil {
		panic("pacecarotel: Watch: nil Transport")
	}
	return o.watch(t, t.Stats)
}

// WatchLimiter is Watch for a Limiter made by [pacecar.NewLimiter], whose route
// is its key. Such a Limiter tells no events, so that it has no others of the
// metrics. It panics if l is nil.
func (o *Observer) WatchLimiter(l *pacecar.Limiter) (stop func()) {
	if l == nil {
		panic("pacecarotel: WatchLimiter: nil Limiter")
	}
	return o.watch(l, func() map[string]pacecar.Stats {
		s := l.Stats()
		return map[string]pacecar.Stats{s.Route: s}
	})
}

// watch reads the Stats of who.
func (o *Observer) watch(who any, stats func() map[string]pacecar.Stats) (stop func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.watched[who]
	if w == nil {
		w = &source{stats, countsOf(stats())}
		o.watched[who] = w
	}
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.watched[who] == w {
			o.readLocked(w, map[series]level{})
			delete(o.watched, who)
		}
	}
}

// Close ends the metrics that are read from Stats. Events are recorded still.
func (o *Observer) Close() error { return o.registration.Unregister() }

// makeForStats makes the instruments that Stats are read for.
func (o *Observer) makeForStats(m metric.Meter) error {
	var errs [4]error
	o.waiting, errs[0] = m.Int64ObservableUpDownCounter("pacecar.waiting_requests", metric.WithUnit("{request}"),
		metric.WithDescription("Requests that wait for their slots now."))
	o.paused, errs[1] = m.Float64ObservableGauge("pacecar.pause.remaining", metric.WithUnit("s"),
		metric.WithDescription("How long the key's clock still stands; of several keys, the longest."))
	o.away, errs[2] = m.Int64ObservableGauge("pacecar.redis.away", metric.WithUnit("1"),
		metric.WithDescription("1 if the last call to Redis failed, else 0. An idle process does not call again."))
	o.headStart, errs[3] = m.Float64ObservableGauge("pacecar.head_start", metric.WithUnit("s"),
		metric.WithDescription("How long before its slot a request is given to Base, to have its connection ready; of several keys, the longest."))
	err := errors.Join(errs[:]...)
	observables := []metric.Observable{o.waiting, o.paused, o.away, o.headStart}
	for i, c := range counters {
		made, e := m.Int64ObservableCounter(c.name, metric.WithUnit(c.unit), metric.WithDescription(c.description))
		o.counters[i] = made
		observables = append(observables, made)
		err = errors.Join(err, e)
	}
	if err != nil {
		return err
	}
	o.registration, err = m.RegisterCallback(o.collect, observables...)
	return err
}

// collect observes all that is read from Stats. A series stays, once there: it
// is at rest when none of its keys is in use.
func (o *Observer) collect(_ context.Context, to metric.Observer) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	levels := map[series]level{}
	for _, w := range o.watched {
		o.readLocked(w, levels)
	}
	for s, total := range o.totals {
		with, now := metric.WithAttributes(s.attributes(0)...), levels[s]
		away := int64(0)
		if now.away {
			away = 1
		}
		to.ObserveInt64(o.waiting, int64(now.waiting), with)
		to.ObserveFloat64(o.paused, now.paused.Seconds(), with)
		to.ObserveInt64(o.away, away, with)
		to.ObserveFloat64(o.headStart, now.headStart.Seconds(), with)
		for i, n := range total {
			to.ObserveInt64(o.counters[i], int64(n), with)
		}
	}
	return nil
}

// readLocked adds what w has counted since it was last read to the totals, and
// what it says of now to levels.
//
// The counters of a key start again at zero after it was forgotten as unused.
// They were if one has gone down, or if the key was missing last time; then all
// of them count from zero. So a total never goes down. It misses what a key
// counted between the last reading and being forgotten, and, of a key that by
// the next reading has come back and counted no less than before, the old
// count.
func (o *Observer) readLocked(w *source, levels map[series]level) {
	stats := w.stats()
	seen := countsOf(stats)
	for key, s := range stats {
		at := o.seriesOf(s.Route, key)
		total := o.totals[at]
		for i, n := range since(w.seen[key], seen[key]) {
			total[i] += n
		}
		o.totals[at] = total

		l := levels[at]
		l.waiting += s.Waiting
		l.away = l.away || s.Away
		l.headStart = max(l.headStart, s.HeadStart)
		if !s.PausedUntil.IsZero() {
			l.paused = max(l.paused, time.Until(s.PausedUntil))
		}
		levels[at] = l
	}
	w.seen = seen
}

// since returns what was counted between two readings.
func since(before, now counts) counts {
	for i := range now {
		if now[i] < before[i] {
			return now
		}
	}
	for i := range now {
		now[i] -= before[i]
	}
	return now
}
