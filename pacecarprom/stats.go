package pacecarprom

import (
	"slices"
	"strings"
	"time"
	"weak"

	"github.com/pacecar-go/pacecar"
	"github.com/prometheus/client_golang/prometheus"
)

// A source is a Transport or Limiter whose Stats are asked at each scrape.
type source struct {
	id    any // a weak pointer: to watch does not keep alive
	stats func() (byKey map[string]pacecar.Stats, alive bool)
	told  bool // by events too
	last  map[string]pacecar.Stats
}

// Watch adds t as a source of gauges, and of the counters for which there is no
// event. A Transport that is watched already is not counted twice, and one that
// nothing else refers to is forgotten. It panics if t is nil.
func (c *Collector) Watch(t *pacecar.Transport) {
	if t == nil {
		panic("pacecarprom: Watch: the Transport is nil")
	}
	p := weak.Make(t)
	c.watch(&source{id: p, told: true, stats: func() (map[string]pacecar.Stats, bool) {
		t := p.Value()
		if t == nil {
			return nil, false
		}
		return t.Stats(), true
	}})
}

// WatchLimiter is Watch for a Limiter of [pacecar.NewLimiter], which tells no
// events: what it sent, refused and had at hand comes from Stats too, refusals
// with the reason "unknown", and what only events tell is missing. Its route is
// its key. It panics if l is nil.
func (c *Collector) WatchLimiter(l *pacecar.Limiter) {
	if l == nil {
		panic("pacecarprom: WatchLimiter: the Limiter is nil")
	}
	p := weak.Make(l)
	c.watch(&source{id: p, stats: func() (map[string]pacecar.Stats, bool) {
		l := p.Value()
		if l == nil {
			return nil, false
		}
		s := l.Stats()
		return map[string]pacecar.Stats{s.Route: s}, true
	}})
}

func (c *Collector) watch(s *source) {
	c.sampling.Lock()
	defer c.sampling.Unlock()
	if !slices.ContainsFunc(c.sources, func(other *source) bool { return other.id == s.id }) {
		c.sources = append(c.sources, s)
	}
}

// gauges are the metrics of which each scrape makes new series.
type gauges struct {
	watched, waiting, next, pause, late, head, away, slots, period *prometheus.Desc
}

func (c *Collector) newGauges() gauges {
	gauge := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, c.labels(more...), nil)
	}
	return gauges{
		watched: prometheus.NewDesc("pacecar_watched",
			"Transports and Limiters whose Stats are asked. Zero: Watch was not called, and there are no gauges.", nil, nil),
		waiting: gauge("pacecar_requests_waiting",
			"Requests that wait now. From Stats.Waiting."),
		next: gauge("pacecar_next_slot_seconds",
			"Seconds until the next of the waiting requests leaves; zero when none has a slot. From Stats.NextSlot."),
		pause: gauge("pacecar_pause_remaining_seconds",
			"Seconds until the quota's clock runs again; zero when it runs. From Stats.PausedUntil."),
		late: gauge("pacecar_late_seconds",
			"Seconds that the last request left after its slot, at most. From Stats.Late."),
		head: gauge("pacecar_head_start_seconds",
			"Seconds before its slot at which a request asks for a connection. From Stats.HeadStart."),
		away: gauge("pacecar_redis_away",
			"1 if Redis did not answer when it was last asked, else 0. It is asked when there are requests. From Stats.Away."),
		slots: gauge("pacecar_limit_slots",
			"Slots that the rate in force has in one period, for each key. From Stats.Rates.", "period"),
		period: gauge("pacecar_limit_period_seconds",
			"Length of the period of the rate in force, in seconds. From Stats.Rates.", "period"),
	}
}

// A reading is what the gauges of one name show.
type reading struct {
	waiting                 int
	next, pause, late, head time.Duration
	away                    bool
	limits                  map[time.Duration]int // by period
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, v := range c.counters {
		v.Describe(ch)
	}
	g := &c.gauges
	for _, d := range []*prometheus.Desc{g.watched, g.waiting, g.next, g.pause, g.late, g.head, g.away, g.slots, g.period} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	readings, watched := c.sample()
	for _, v := range c.counters {
		v.Collect(ch)
	}
	g := &c.gauges
	ch <- prometheus.MustNewConstMetric(g.watched, prometheus.GaugeValue, float64(watched))
	for n, r := range readings {
		gauge := func(d *prometheus.Desc, v float64, more ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, n.labels(c.perKey, more...)...)
		}
		gauge(g.waiting, float64(r.waiting))
		gauge(g.next, r.next.Seconds())
		gauge(g.pause, r.pause.Seconds())
		gauge(g.late, r.late.Seconds())
		gauge(g.head, r.head.Seconds())
		away := 0.0
		if r.away {
			away = 1
		}
		gauge(g.away, away)
		for per, limit := range r.limits {
			gauge(g.slots, float64(limit), formatPer(per))
			gauge(g.period, per.Seconds(), formatPer(per))
		}
	}
}

// sample asks all sources, adds to the counters what is new, and returns what
// the gauges show and how many sources there are.
func (c *Collector) sample() (map[name]*reading, int) {
	c.sampling.Lock()
	defer c.sampling.Unlock()
	now, readings := time.Now(), map[name]*reading{}
	c.sources = slices.DeleteFunc(c.sources, func(src *source) bool {
		stats, alive := src.stats()
		for key, s := range stats {
			c.count(src, key, &s)
			n := c.name(s.Route, key)
			r := readings[n]
			if r == nil {
				r = &reading{limits: map[time.Duration]int{}}
				readings[n] = r
			}
			r.add(&s, now)
		}
		src.last = stats
		return !alive
	})
	return readings, len(c.sources)
}

// count adds to the counters what a key has counted since the last time, or
// since it was forgotten.
func (c *Collector) count(src *source, key string, s *pacecar.Stats) {
	last := src.last[key]
	if s.Sent < last.Sent || s.Refused < last.Refused || s.LocalHits < last.LocalHits ||
		s.RoundTrips < last.RoundTrips || s.GivenBack < last.GivenBack || s.Degraded < last.Degraded {
		last = pacecar.Stats{}
	}
	q := c.quota(s.Route, key)
	q.trips.Add(float64(s.RoundTrips - last.RoundTrips))
	q.givenBack.Add(float64(s.GivenBack - last.GivenBack))
	q.degraded.Add(float64(s.Degraded - last.Degraded))
	if !src.told {
		q.sent.Add(float64(s.Sent - last.Sent))
		q.hits.Add(float64(s.LocalHits - last.LocalHits))
		q.refused[reasonUnknown].Add(float64(s.Refused - last.Refused))
	}
}

// add takes in the Stats of one key.
func (r *reading) add(s *pacecar.Stats, now time.Time) {
	r.waiting += s.Waiting
	if !s.NextSlot.IsZero() {
		r.next = max(r.next, s.NextSlot.Sub(now))
	}
	if !s.PausedUntil.IsZero() {
		r.pause = max(r.pause, s.PausedUntil.Sub(now))
	}
	r.late = max(r.late, s.Late)
	r.head = max(r.head, s.HeadStart)
	r.away = r.away || s.Away
	for _, rate := range s.Rates {
		r.limits[rate.Per] = max(r.limits[rate.Per], rate.Limit)
	}
}

// formatPer returns a period as [pacecar.Rate] writes it, with its number: "1s",
// "10s", "1m".
func formatPer(per time.Duration) string {
	_, text, _ := strings.Cut(pacecar.Rate{Limit: 1, Per: per}.String(), "/")
	if text != "" && (text[0] < '0' || text[0] > '9') {
		return "1" + text
	}
	return text
}
