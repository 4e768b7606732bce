package pacecarotel

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/pacecar-go/pacecar"
)

// scope names what the metrics come from.
const scope = "github.com/pacecar-go/pacecar/pacecarotel"

// waitBounds are the advised upper bounds of the histogram's buckets, in
// seconds: from a slot at hand to the longest default pause.
var waitBounds = []float64{0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300}

// Options configures an [Observer]. The zero value is fit for use.
type Options struct {
	// MeterProvider takes the metrics. Nil means the global one, also one that
	// is set later.
	MeterProvider metric.MeterProvider

	// PerKey adds the attribute pacecar.key, with Event.Key, to metrics and span
	// events. There is one key for each host of a route without a host, and for
	// each result of Policy.Key, and the Observer remembers the totals of each
	// for as long as it lives: set it only where keys are few.
	PerKey bool
}

// An Observer turns pacecar's events and statistics into metrics and span
// events. One is enough for a process, and the metrics of two with one
// MeterProvider collide.
//
// It is made by [New], and safe for concurrent use.
type Observer struct {
	perKey bool

	waits    metric.Float64Histogram
	refused  metric.Int64Counter
	unrouted metric.Int64Counter
	limited  metric.Int64Counter
	pauses   metric.Int64Counter
	retries  metric.Int64Counter
	late     metric.Int64Counter
	outages  metric.Int64Counter
	losses   metric.Int64Counter

	waiting      metric.Int64ObservableUpDownCounter
	paused       metric.Float64ObservableGauge
	away         metric.Int64ObservableGauge
	headStart    metric.Float64ObservableGauge
	counters     [len(counters)]metric.Int64ObservableCounter
	registration metric.Registration

	mu      sync.Mutex // guards the rest; held while Stats are read, so that none is older than the last
	watched map[any]*source
	totals  map[series]counts
}

// New returns an Observer. It returns the errors of all instruments that could
// not be made.
func New(opts Options) (*Observer, error) {
	if opts.MeterProvider == nil {
		opts.MeterProvider = otel.GetMeterProvider()
	}
	o := &Observer{perKey: opts.PerKey, watched: map[any]*source{}, totals: map[series]counts{}}
	meter := opts.MeterProvider.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL))
	if err := errors.Join(o.makeForEvents(meter), o.makeForStats(meter)); err != nil {
		return nil, fmt.Errorf("pacecarotel: %w", err)
	}
	return o, nil
}

// makeForEvents makes the instruments that events are recorded with.
func (o *Observer) makeForEvents(m metric.Meter) error {
	waits, err := m.Float64Histogram("pacecar.wait.duration", metric.WithUnit("s"),
		metric.WithDescription("How long requests waited for their slots, each attempt by itself."),
		metric.WithExplicitBucketBoundaries(waitBounds...))
	o.waits = waits
	errs := []error{err}
	for _, c := range []struct {
		counter                 *metric.Int64Counter
		name, unit, description string
	}{
		{&o.refused, "pacecar.refused_requests", "{request}", "Requests that were refused and not sent."},
		{&o.unrouted, "pacecar.unrouted_requests", "{request}", "Requests that matched no route and passed unlimited."},
		{&o.limited, "pacecar.limited_responses", "{response}", "Responses that said that the rate was too high, in spite of all."},
		{&o.pauses, "pacecar.pauses", "{pause}", "Times that a key's clock was stopped, as this process heard of it."},
		{&o.retries, "pacecar.retries", "{retry}", "Attempts that failed and were followed by another."},
		{&o.late, "pacecar.late_requests", "{request}", "Requests that left so late that those behind them were moved."},
		{&o.outages, "pacecar.outages", "{outage}", "Times that Redis stopped answering, for each key."},
		{&o.losses, "pacecar.state_losses", "{loss}", "Times that Redis lost a key's state, as this process saw it."},
	} {
		*c.counter, err = m.Int64Counter(c.name, metric.WithUnit(c.unit), metric.WithDescription(c.description))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Observe records an event. It is for [pacecar.Config.Observe], as it is or
// called by a function that does more. It neither blocks nor panics. Events of
// unknown kinds are ignored.
func (o *Observer) Observe(ctx context.Context, e pacecar.Event) {
	status, reason := splitReason(e.Reason)
	switch e.Kind {
	case pacecar.EventSlot:
		tier := attribute.String("pacecar.tier", e.Tier.String())
		o.waits.Record(ctx, e.Wait.Seconds(), metric.WithAttributes(o.attributes(e, tier)...))
		o.addEvent(ctx, e, tier, seconds("pacecar.wait", e.Wait), positive("pacecar.late", e.Late))
	case pacecar.EventRefused:
		why := semconv.ErrorTypeKey.String(refusalType(e.Err))
		o.count(ctx, o.refused, e, why)
		o.addEvent(ctx, e, why, positive("pacecar.wait", e.Wait))
	case pacecar.EventUnrouted:
		o.count(ctx, o.unrouted, e)
	case pacecar.EventLimited:
		o.count(ctx, o.limited, e, status, reason)
		o.addEvent(ctx, e, status, reason, positive("pacecar.wait", e.Wait))
	case pacecar.EventPaused:
		o.count(ctx, o.pauses, e, status, reason)
	case pacecar.EventRetry:
		why := retryType(status, e.Err)
		o.count(ctx, o.retries, e, status, why)
		o.addEvent(ctx, e, status, why, semconv.HTTPRequestResendCount(e.Attempt), positive("pacecar.wait", e.Wait))
	case pacecar.EventLate:
		o.count(ctx, o.late, e)
		o.addEvent(ctx, e, seconds("pacecar.late", e.Late))
	case pacecar.EventDegraded:
		o.count(ctx, o.outages, e, attribute.String("pacecar.outage", outageName(e.Outage)))
	case pacecar.EventLost:
		o.count(ctx, o.losses, e)
	}
}

// count adds one to a counter.
func (o *Observer) count(ctx context.Context, c metric.Int64Counter, e pacecar.Event, attrs ...attribute.KeyValue) {
	c.Add(ctx, 1, metric.WithAttributes(o.attributes(e, attrs...)...))
}

// addEvent tells an event on the request's span, if that is recorded.
func (o *Observer) addEvent(ctx context.Context, e pacecar.Event, attrs ...attribute.KeyValue) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.AddEvent("pacecar."+e.Kind.String(), trace.WithAttributes(o.attributes(e, attrs...)...))
	}
}
