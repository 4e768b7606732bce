package pacecar

import (
	"context"
	"log/slog"
	"time"
)

// An EventKind says what happened. String names it, in lower case.
type EventKind int

// What can happen to a request or to a key. The comment says which fields of
// [Event] are set besides Kind, Key and Route.
const (
	// EventSlot: a request left. Tier is whose slot it had, Wait how long it
	// waited, Late how much after its slot it left, at most.
	EventSlot EventKind = iota + 1

	// EventRefused: a request was refused. Wait and Err are those of the
	// [Error].
	EventRefused

	// EventUnrouted: a request matched no route and passes unlimited. Key and
	// Route are empty.
	EventUnrouted

	// EventLimited: an answer of the upstream said that the rate was too high, a
	// 429 for one. Reason says which, Wait how long it asks for, if it does.
	EventLimited

	// EventPaused: the key's clock was stopped for Wait, until Until. Reason is
	// that of the answer, or empty if another process or an [Admin] asked.
	EventPaused

	// EventRetry: an attempt failed and another follows, after Wait at least.
	// Attempt is the one that failed, Reason or Err why.
	EventRetry

	// EventLate: a request left so late that those behind it are moved, to keep
	// their distance. Late is as in EventSlot.
	EventLate

	// EventDegraded: Redis stopped answering. Err says how, Outage what is done
	// meanwhile.
	EventDegraded

	// EventRestored: Redis answers again. Wait is how long it was away, Outage
	// what was done meanwhile.
	EventRestored

	// EventRates: other rates are in force, which Rates has. Reason is "set" (by
	// SetPolicy) or "stored" (in Redis, for the fleet); or "stored ones win", when
	// SetPolicy has changed nothing for that; or "not understood", when stored ones
	// are ignored for the reason in Err.
	EventRates

	// EventLost: Redis lost the key's state, and this process or another has
	// told it what it remembers. What it may have held besides counts as used, as
	// Reason says: until Until, at the latest, requests may wait for that.
	EventLost
)

var eventNames = [...]string{"", "slot", "refused", "unrouted", "limited", "paused", "retry", "late", "degraded", "restored", "rates", "lost"}

// String returns the kind's name.
func (k EventKind) String() string {
	if k <= 0 || int(k) >= len(eventNames) {
		return "unknown"
	}
	return eventNames[k]
}

// A Tier is where a slot came from. String names it, in lower case.
type Tier int

// The tiers. The zero Tier is that of an event without a slot.
const (
	TierBucket Tier = iota + 1 // this process's local bucket: booked in Redis before, no call for this request
	TierWindow                 // the window: booked for this request, in Redis, or in memory without one
	TierShare                  // this process's share, while Redis was away
)

var tierNames = [...]string{"", "bucket", "window", "share"}

// String returns the tier's name.
func (t Tier) String() string {
	if t <= 0 || int(t) >= len(tierNames) {
		return "unknown"
	}
	return tierNames[t]
}

// An Event is one thing that happened, for metrics and traces. It holds no
// URL, header or body: nothing in it is secret.
type Event struct {
	Kind EventKind

	// Key names the quota. There may be one for each host, and one for each
	// result of [Policy].Key: as a metric's label it has no bound.
	Key string

	// Route has as many values as there are routes: the pattern in
	// Config.Routes, or the [Policy].Name where there is one. Of a [NewLimiter]
	// it is the key.
	Route string

	Tier    Tier
	Wait    time.Duration
	Late    time.Duration
	Until   time.Time
	Reason  string // one of few: of an answer, its status and the field or dialect obeyed; else as said at the kind
	Attempt int    // counts from 1
	Outage  Outage
	Rates   Rates
	Err     error
}

// Stats is what one process knows of one key. Counters start at zero when the
// process first uses the key, and again after it has been forgotten as unused.
type Stats struct {
	Route string // as in [Event]

	// Rates are those in force. RatesStored is when rates were last stored for the
	// whole fleet, or taken back; zero: never. They win over this process's own.
	Rates       Rates `json:",omitempty"` // no rates have no text
	RatesStored time.Time

	Sent       uint64 // requests that left
	LocalHits  uint64 // those of them on a slot already held, without a call to Redis
	RoundTrips uint64 // exchanges with the window: calls to Redis, failed ones too; without one, in memory
	GivenBack  uint64 // slots returned unused
	Refused    uint64 // requests refused
	Limited    uint64 // answers that said that the rate was too high, in spite of all
	Degraded   uint64 // requests that were decided without Redis during an outage

	Waiting  int       // requests waiting now
	NextSlot time.Time // when the next of them leaves; zero when none has a slot yet

	// PausedUntil is when the key's clock runs again, as far as this process
	// knows; zero when it runs.
	PausedUntil time.Time

	Late      time.Duration // how much after its slot the last request left, at most
	HeadStart time.Duration // how long before its slot a request enters Base, to have its connection ready

	// Away says that Redis did not answer the last time. A process without
	// requests stops trying after 10 seconds.
	Away bool
}

// logLevels says how loud events are logged. What may come with every request
// is for debugging: a refusal is the caller's to report.
var logLevels = [...]slog.Level{
	EventSlot:     slog.LevelDebug,
	EventRefused:  slog.LevelDebug,
	EventUnrouted: slog.LevelDebug,
	EventLimited:  slog.LevelDebug,
	EventPaused:   slog.LevelInfo,
	EventRetry:    slog.LevelDebug,
	EventLate:     slog.LevelDebug,
	EventDegraded: slog.LevelWarn,
	EventRestored: slog.LevelInfo,
	EventRates:    slog.LevelInfo,
	EventLost:     slog.LevelWarn,
}

// listeners are those who want to know of events; either may be nil.
type listeners struct {
	observe func(context.Context, Event)
	logger  *slog.Logger
}

// level says how loud e is logged.
func (e *Event) level() slog.Level {
	if e.Kind == EventRates && e.Err != nil { // somebody is not obeyed
		return slog.LevelWarn
	}
	return logLevels[e.Kind]
}

// want reports whether anybody wants to know of e.
func (ls *listeners) want(ctx context.Context, e *Event) bool {
	return ls.observe != nil || ls.logger != nil && ls.logger.Enabled(ctx, e.level())
}

// tell reports an event. ctx is that of the request, if there is one.
func (ls *listeners) tell(ctx context.Context, e Event) {
	if ls.observe != nil {
		ls.observe(ctx, e)
	}
	if level := e.level(); ls.logger != nil && ls.logger.Enabled(ctx, level) {
		ls.logger.LogAttrs(ctx, level, "pacecar: "+e.Kind.String(), e.attrs()...)
	}
}

// attrs is what is logged of an event.
func (e *Event) attrs() []slog.Attr {
	var attrs []slog.Attr
	if e.Key != "" {
		attrs = append(attrs, slog.String("key", e.Key), slog.String("route", e.Route))
	}
	if e.Tier > 0 {
		attrs = append(attrs, slog.String("tier", e.Tier.String()))
	}
	if e.Wait > 0 {
		attrs = append(attrs, slog.Duration("wait", e.Wait))
	}
	if e.Late > 0 {
		attrs = append(attrs, slog.Duration("late", e.Late))
	}
	if !e.Until.IsZero() {
		attrs = append(attrs, slog.Time("until", e.Until))
	}
	if e.Reason != "" {
		attrs = append(attrs, slog.String("reason", e.Reason))
	}
	if e.Attempt > 0 {
		attrs = append(attrs, slog.Int("attempt", e.Attempt))
	}
	if e.Kind == EventDegraded || e.Kind == EventRestored {
		attrs = append(attrs, slog.String("outage", e.Outage.String()))
	}
	if e.Rates != nil {
		attrs = append(attrs, slog.String("rates", e.Rates.String()))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.String("error", e.Err.Error()))
	}
	return attrs
}
