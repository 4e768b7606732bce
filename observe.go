package pacecar

import (
	"context"
	"log/slog"
	"time"
)

// An EventKind says what happened. Its text form is lower case.
type EventKind int

// What can happen to a request or to a key. The comment says which fields of
// [Event] are set besides Kind and Key.
const (
	EventSlot     EventKind = iota + 1 // a request left; Wait is how long it waited, Late how much after its slot it left, at most
	EventRefused                       // a request was refused; Wait and Err are those of the [Error]
	EventUnrouted                      // a request matched no route and passes untouched; Key is empty
	EventPaused                        // the key's clock was stopped for Wait; Reason says who asked
	EventRetry                         // an attempt failed and another follows, after Wait at least; Attempt is the one that failed, Reason or Err why
	EventDegraded                      // Redis stopped answering; Err says how, Outage what is done meanwhile
	EventRestored                      // Redis answers again; Wait is how long it was away
)

var eventNames = [...]string{"", "slot", "refused", "unrouted", "paused", "retry", "degraded", "restored"}

// String returns the kind's name.
func (k EventKind) String() string {
	if k <= 0 || int(k) >= len(eventNames) {
		return "unknown"
	}
	return eventNames[k]
}

// An Event is one thing that happened, for metrics and traces. It holds no
// URL, header or body: nothing in it is secret.
type Event struct {
	Kind    EventKind
	Key     string
	Wait    time.Duration
	Late    time.Duration
	Reason  string
	Attempt int
	Outage  Outage
	Err     error
}

// Stats is what one process knows of one key. Counters start at zero when the
// process first uses the key, and again after it has been forgotten as unused.
type Stats struct {
	LocalHits   uint64        // requests that left on a slot already held, without a call to Redis
	RoundTrips  uint64        // calls to Redis
	GivenBack   uint64        // slots returned unused
	Refused     uint64        // requests refused
	Degraded    uint64        // requests that were decided without Redis during an outage
	Waiting     int           // requests waiting now
	PausedUntil time.Time     // when the key's clock runs again, as far as this process knows; zero when it runs
	Late        time.Duration // how much after its slot the last request left, at most
	HeadStart   time.Duration // how long before its slot a request enters Base, to have its connection ready
	NextSlot    time.Time     // when the next of this process's waiting requests leaves; zero when none has a slot yet
	Away        bool          // Redis is not answering
}

// logLevels says which events are logged, and how loud. A refusal is the
// caller's to report, and at a high rate there are many.
var logLevels = map[EventKind]slog.Level{
	EventRefused:  slog.LevelDebug,
	EventRetry:    slog.LevelDebug,
	EventPaused:   slog.LevelInfo,
	EventDegraded: slog.LevelWarn,
	EventRestored: slog.LevelInfo,
}

// tell reports an event to whoever wants to know; either may be nil.
func tell(observe func(Event), logger *slog.Logger, e Event) {
	if observe != nil {
		observe(e)
	}
	level, ok := logLevels[e.Kind]
	if logger == nil || !ok || !logger.Enabled(context.Background(), level) {
		return
	}
	attrs := []slog.Attr{slog.String("key", e.Key)}
	if e.Wait > 0 {
		attrs = append(attrs, slog.Duration("wait", e.Wait))
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
	if e.Err != nil {
		attrs = append(attrs, slog.String("error", e.Err.Error()))
	}
	logger.LogAttrs(context.Background(), level, "pacecar: "+e.Kind.String(), attrs...)
}
