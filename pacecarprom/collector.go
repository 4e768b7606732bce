package pacecarprom

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pacecar-go/pacecar"
	"github.com/prometheus/client_golang/prometheus"
)

// Options configures a [Collector]. The zero value is fit for use.
type Options struct {
	// PerKey adds the label key, with Event.Key, to all series that have a
	// route. There is one key for each host of a route without a host, and for
	// each result of Policy.Key, and the series of a key stay until the process
	// ends: set it only where the keys are few.
	PerKey bool

	// Buckets are the upper bounds of the histogram of waits, in seconds and in
	// increasing order. Nil means from 1 ms to 5 minutes.
	Buckets []float64
}

// defaultBuckets reach from a local hit to the default of Policy.MaxPause.
var defaultBuckets = []float64{0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300}

// A Collector is the metrics of all Transports and Limiters of one process. It
// implements [prometheus.Collector].
//
// It is made by [New], and safe for concurrent use.
type Collector struct {
	perKey bool

	wait      *prometheus.HistogramVec
	sent      *prometheus.CounterVec
	refused   *prometheus.CounterVec
	unrouted  prometheus.Counter
	limited   *prometheus.CounterVec
	pauses    *prometheus.CounterVec
	paused    *prometheus.CounterVec
	retries   *prometheus.CounterVec
	late      *prometheus.CounterVec
	outages   *prometheus.CounterVec
	away      *prometheus.CounterVec
	lost      *prometheus.CounterVec
	degraded  *prometheus.CounterVec
	trips     *prometheus.CounterVec
	hits      *prometheus.CounterVec
	givenBack *prometheus.CounterVec
	counters  []prometheus.Collector // all of the above
	gauges    gauges

	mu     sync.RWMutex // guards what follows; not held during Stats
	quotas map[name]*quota
	pause  map[string]time.Time // until when a key is paused, by Event.Key

	sampling sync.Mutex // guards what follows; held during Stats
	sources  []*source
}

// A name is the labels that tell quotas apart. The key is empty without
// Options.PerKey.
type name struct{ route, key string }

// labels returns the values of the labels, in the order of [Collector].labels.
func (n name) labels(perKey bool, more ...string) []string {
	if perKey {
		return append([]string{n.route, n.key}, more...)
	}
	return append([]string{n.route}, more...)
}

// The values of label reason.
const (
	reasonWait        = "wait_too_long"
	reasonDeadline    = "deadline"
	reasonCanceled    = "canceled"
	reasonUnavailable = "unavailable"
	reasonCost        = "cost_too_high"
	reasonOther       = "other"
	reasonUnknown     = "unknown" // of a Limiter, which tells only how many
)

var reasons = [...]string{reasonWait, reasonDeadline, reasonCanceled, reasonUnavailable, reasonCost, reasonOther, reasonUnknown}

// reason returns the label of a refusal. [pacecar.ErrUnavailable] may wrap the
// timeout of a call to Redis, which is not the request's deadline: the sentinels
// come first.
func reason(err error) string {
	switch {
	case errors.Is(err, pacecar.ErrWaitTooLong):
		return reasonWait
	case errors.Is(err, pacecar.ErrUnavailable):
		return reasonUnavailable
	case errors.Is(err, pacecar.ErrCostTooHigh):
		return reasonCost
	case errors.Is(err, context.DeadlineExceeded):
		return reasonDeadline
	case errors.Is(err, context.Canceled):
		return reasonCanceled
	}
	return reasonOther
}

// The values of label origin: whose answer a pause comes from.
const (
	originSelf  = "self"
	originFleet = "fleet"
)

// New returns a Collector. It panics if Buckets are not in increasing order, as
// [prometheus.NewHistogram] does.
func New(opts Options) *Collector {
	c := &Collector{perKey: opts.PerKey, quotas: map[name]*quota{}, pause: map[string]time.Time{}}
	counter := func(name, help string, more ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, c.labels(more...))
		c.counters = append(c.counters, v)
		return v
	}
	wait := prometheus.HistogramOpts{
		Name:    "pacecar_wait_seconds",
		Help:    "How long requests that left had waited for their slot, in seconds, by whose slot it was. From EventSlot.",
		Buckets: slices.Clone(opts.Buckets),
	}
	if opts.Buckets == nil {
		wait.Buckets = defaultBuckets
	}
	prometheus.NewHistogram(wait) // panics here rather than at the first event
	c.wait = prometheus.NewHistogramVec(wait, c.labels("tier"))
	c.unrouted = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "pacecar_requests_unrouted_total",
		Help: "Requests that matched no route and passed unlimited. From EventUnrouted.",
	})
	c.counters = append(c.counters, c.wait, c.unrouted)
	c.sent = counter("pacecar_requests_sent_total",
		"Requests that left, each retry for itself. From EventSlot; of a Limiter, from Stats.Sent.")
	c.refused = counter("pacecar_requests_refused_total",
		"Requests that were refused a slot, by the reason. From EventRefused; of a Limiter, from Stats.Refused, reason unknown.",
		"reason")
	c.limited = counter("pacecar_answers_limited_total",
		"Answers that said that the rate was too high, 429s for one. From EventLimited.")
	c.pauses = counter("pacecar_pauses_total",
		"Pauses that began or became longer, by origin: an answer to this process (self) or to another (fleet). From EventPaused.",
		"origin")
	c.paused = counter("pacecar_pause_seconds_total",
		"Seconds for which quotas were stopped, counted in full when a pause begins or becomes longer. From EventPaused.",
		"origin")
	c.retries = counter("pacecar_retries_total",
		"Attempts that failed and were followed by another. From EventRetry.")
	c.late = counter("pacecar_requests_late_total",
		"Requests that left so late after their slot that those behind them were moved. From EventLate.")
	c.outages = counter("pacecar_outages_total",
		"Times at which Redis stopped answering. From EventDegraded.")
	c.away = counter("pacecar_outage_seconds_total",
		"Seconds for which Redis did not answer, counted when it answers again. From EventRestored.")
	c.lost = counter("pacecar_state_lost_total",
		"Times at which Redis was found to have lost a quota's state. From EventLost.")
	c.degraded = counter("pacecar_requests_degraded_total",
		"Requests that were decided without Redis during an outage. From Stats.Degraded.")
	c.trips = counter("pacecar_redis_round_trips_total",
		"Calls to Redis, or to the window in memory without one. From Stats.RoundTrips.")
	c.hits = counter("pacecar_local_hits_total",
		"Requests that left on a slot this process already held. From EventSlot; of a Limiter, from Stats.LocalHits.")
	c.givenBack = counter("pacecar_slots_given_back_total",
		"Slots that were returned unused. From Stats.GivenBack.")
	c.gauges = c.newGauges()
	return c
}

// labels returns the names of the labels of a quota's metrics.
func (c *Collector) labels(more ...string) []string {
	if c.perKey {
		return append([]string{"route", "key"}, more...)
	}
	return append([]string{"route"}, more...)
}

// Observe counts an event. Set it as [pacecar.Config].Observe, or call it from
// a function of your own that is set there. It does not block, and ignores
// kinds of events that it does not know.
func (c *Collector) Observe(_ context.Context, e pacecar.Event) {
	switch e.Kind {
	case pacecar.EventUnrouted:
		c.unrouted.Inc()
	case pacecar.EventSlot:
		q := c.quota(e.Route, e.Key)
		q.sent.Inc()
		if e.Tier == pacecar.TierBucket {
			q.hits.Inc()
		}
		q.wait.WithLabelValues(e.Tier.String()).Observe(e.Wait.Seconds())
	case pacecar.EventRefused:
		c.quota(e.Route, e.Key).refused[reason(e.Err)].Inc()
	case pacecar.EventLimited:
		c.quota(e.Route, e.Key).limited.Inc()
	case pacecar.EventPaused:
		c.observePause(e)
	case pacecar.EventRetry:
		c.quota(e.Route, e.Key).retries.Inc()
	case pacecar.EventLate:
		c.quota(e.Route, e.Key).late.Inc()
	case pacecar.EventDegraded:
		c.quota(e.Route, e.Key).outages.Inc()
	case pacecar.EventRestored:
		add(c.quota(e.Route, e.Key).away, e.Wait.Seconds())
	case pacecar.EventLost:
		c.quota(e.Route, e.Key).lost.Inc()
	}
}

// observePause counts a pause. One that makes another longer counts only the
// seconds that it adds.
func (c *Collector) observePause(e pacecar.Event) {
	q, origin := c.quota(e.Route, e.Key), originSelf
	if e.Reason == "" {
		origin = originFleet
	}
	from := e.Until.Add(-e.Wait)
	c.mu.Lock()
	for key, until := range c.pause {
		if until.Before(from) {
			delete(c.pause, key)
		}
	}
	if until, ok := c.pause[e.Key]; ok {
		from = until
	}
	if e.Until.After(from) {
		c.pause[e.Key] = e.Until
	}
	c.mu.Unlock()
	q.pauses[origin].Inc()
	add(q.paused[origin], e.Until.Sub(from).Seconds())
}

// add adds what is not negative: a Counter would panic.
func add(c prometheus.Counter, v float64) {
	if v > 0 {
		c.Add(v)
	}
}

// A quota is the counters of one name. All begin at zero together, so that the
// first of a kind shows as an increase.
type quota struct {
	wait      prometheus.ObserverVec // by tier
	sent      prometheus.Counter
	refused   map[string]prometheus.Counter // by reason
	limited   prometheus.Counter
	pauses    map[string]prometheus.Counter // by origin
	paused    map[string]prometheus.Counter
	retries   prometheus.Counter
	late      prometheus.Counter
	outages   prometheus.Counter
	away      prometheus.Counter
	lost      prometheus.Counter
	degraded  prometheus.Counter
	trips     prometheus.Counter
	hits      prometheus.Counter
	givenBack prometheus.Counter
}

// name returns the labels of a key. A label must be valid UTF-8.
func (c *Collector) name(route, key string) name {
	n := name{route: strings.ToValidUTF8(route, "\uFFFD")}
	if c.perKey {
		n.key = strings.ToValidUTF8(key, "\uFFFD")
	}
	return n
}

// quota returns the counters of a key.
func (c *Collector) quota(route, key string) *quota {
	n := c.name(route, key)
	c.mu.RLock()
	q := c.quotas[n]
	c.mu.RUnlock()
	if q != nil {
		return q
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if q = c.quotas[n]; q == nil {
		q = c.newQuota(n)
		c.quotas[n] = q
	}
	return q
}

func (c *Collector) newQuota(n name) *quota {
	one := func(v *prometheus.CounterVec) prometheus.Counter {
		return v.WithLabelValues(n.labels(c.perKey)...)
	}
	each := func(v *prometheus.CounterVec, values ...string) map[string]prometheus.Counter {
		m := map[string]prometheus.Counter{}
		for _, value := range values {
			m[value] = v.WithLabelValues(n.labels(c.perKey, value)...)
		}
		return m
	}
	labels := prometheus.Labels{"route": n.route}
	if c.perKey {
		labels["key"] = n.key
	}
	return &quota{
		wait:      c.wait.MustCurryWith(labels),
		sent:      one(c.sent),
		refused:   each(c.refused, reasons[:]...),
		limited:   one(c.limited),
		pauses:    each(c.pauses, originSelf, originFleet),
		paused:    each(c.paused, originSelf, originFleet),
		retries:   one(c.retries),
		late:      one(c.late),
		outages:   one(c.outages),
		away:      one(c.away),
		lost:      one(c.lost),
		degraded:  one(c.degraded),
		trips:     one(c.trips),
		hits:      one(c.hits),
		givenBack: one(c.givenBack),
	}
}
