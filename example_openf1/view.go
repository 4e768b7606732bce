package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/pacecar-go/pacecar"
)

// How much of the past a view holds. The page has room for no more.
const (
	viewEvents = 50  // of each worker, from which the lists below are made
	viewRows   = 8   // of each list, the last ones
	viewMarks  = 600 // arrivals
)

// A view is how things stand at one moment: the answer of /state. Times are in
// seconds since the start of the run.
type view struct {
	At       float64       `json:"at"`
	Fleet    string        `json:"fleet"`
	Policy   string        `json:"policy"` // while Redis is away; empty without pacecar
	Round    int           `json:"round"`
	Done     int           `json:"done"`
	Total    int           `json:"total"`
	Failed   int           `json:"failed"`
	Over     bool          `json:"over"`     // nothing will be fetched any more
	Upstream *viewUpstream `json:"upstream"` // as it counts; null for a real one, which does not tell
	Workers  []viewWorker  `json:"workers"`
	Pauses   []viewPause   `json:"pauses"`  // the newest first, as in the lists below
	Outages  []viewOutage  `json:"outages"` // one for each worker that noticed
	News     []viewNews    `json:"news"`    // what else happened
}

// A viewUpstream is the stand-in's own count.
type viewUpstream struct {
	Requests int        `json:"requests"`
	Refused  int        `json:"refused"` // for the quota; an injected fault is not
	Rates    []viewRate `json:"rates"`
	Marks    []viewMark `json:"marks"` // arrivals of the last minute
}

// A viewRate is how full a window is that ends now.
type viewRate struct {
	Per   string `json:"per"`
	Used  int    `json:"used"`
	Limit int    `json:"limit"`
}

type viewMark struct {
	At  float64 `json:"at"`
	Met string  `json:"met"` // as in mark
}

type viewWorker struct {
	Number     int     `json:"number"`
	State      string  `json:"state"` // gone, away, paused, waiting, calling, idle
	Does       string  `json:"does"`  // the same in words
	Jobs       int     `json:"jobs"`  // in hand, of Room
	Room       int     `json:"room"`
	Waiting    int     `json:"waiting"`             // for a slot, of those
	NextSlot   float64 `json:"next_slot,omitempty"` // 0: none yet
	Calls      int     `json:"calls"`
	Limited    uint64  `json:"limited"` // answers that said that the rate was too high
	RoundTrips uint64  `json:"round_trips"`
	Degraded   uint64  `json:"degraded"` // requests decided without Redis
}

type viewPause struct {
	From   float64 `json:"from"`
	Until  float64 `json:"until"`
	By     int     `json:"by"` // the worker that got the answer; 0 if that is not known
	Reason string  `json:"reason"`
}

type viewOutage struct {
	Worker int     `json:"worker"`
	From   float64 `json:"from"`
	Until  float64 `json:"until,omitempty"` // 0: it goes on
	Err    string  `json:"err"`
}

type viewNews struct {
	At     float64 `json:"at"`
	Worker int     `json:"worker"`
	Text   string  `json:"text"`
}

// view returns how things stand at now.
func (r *report) view(now time.Time) view {
	at := func(t time.Time) float64 { return math.Round(t.Sub(r.start).Seconds()*1000) / 1000 }
	v := view{
		At:    at(now),
		Fleet: fmt.Sprintf("%d processes, %s together; upstream: %s", r.o.workers, r.o.tier, r.o.upstreamName()),
		Round: r.round, Done: r.plan.done, Total: r.plan.total, Failed: len(r.plan.failures), Over: r.over,
		Workers: []viewWorker{}, Pauses: []viewPause{}, Outages: []viewOutage{}, News: []viewNews{},
	}
	if !r.o.without {
		v.Policy = r.o.outage.String()
	}
	if r.upstream != nil {
		v.Upstream = r.upstream.view(at)
	}
	var pauses []pause
	for _, w := range r.fleet.workers {
		v.Workers = append(v.Workers, w.view(now, r, at))
		limited := ""
		for _, e := range w.events[max(0, len(w.events)-viewEvents):] {
			switch e.Kind {
			case pacecar.EventPaused:
				pauses = append(pauses, e.pause(w.number))
			case pacecar.EventDegraded:
				v.Outages = append(v.Outages, viewOutage{Worker: w.number, From: at(e.At), Err: e.Err})
			case pacecar.EventRestored:
				if k := len(v.Outages) - 1; k >= 0 && v.Outages[k].Worker == w.number {
					v.Outages[k].Until = at(e.At)
				}
			case pacecar.EventRetry:
				if e.Reason == "" || e.Reason != limited { // else the row before says enough
					v.News = append(v.News, viewNews{at(e.At), w.number, e.text()})
				}
			case pacecar.EventLimited:
				limited = e.Reason
				fallthrough
			default:
				v.News = append(v.News, viewNews{at(e.At), w.number, e.text()})
			}
		}
	}
	for _, p := range mergePauses(pauses) {
		v.Pauses = append(v.Pauses, viewPause{at(p.from), at(p.until), p.by, p.reason})
	}
	v.Pauses = newest(v.Pauses, func(p viewPause) float64 { return p.From })
	v.Outages = newest(v.Outages, func(o viewOutage) float64 { return o.From })
	v.News = newest(v.News, func(n viewNews) float64 { return n.At })
	return v
}

// newest sorts rows by time, the newest first, and cuts off what is too much.
func newest[T any](rows []T, at func(T) float64) []T {
	slices.SortStableFunc(rows, func(a, b T) int { return cmp.Compare(at(b), at(a)) })
	return rows[:min(len(rows), viewRows)]
}

// view returns how a worker stands. It takes the rest of the fleet's from r.
func (w *worker) view(now time.Time, r *report, at func(time.Time) float64) viewWorker {
	s := w.stats
	v := viewWorker{
		Number: w.number, Jobs: len(w.jobs), Room: r.fleet.concurrency, Waiting: s.Waiting, Calls: w.calls,
		Limited: s.Limited, RoundTrips: s.RoundTrips, Degraded: s.Degraded,
	}
	if s.NextSlot.After(now) {
		v.NextSlot = at(s.NextSlot)
	}
	switch {
	case w.gone && w.death != "":
		v.State, v.Does = "gone", "died: "+w.death
	case w.gone:
		v.State, v.Does = "gone", "ended"
	case s.Away && r.o.outage == pacecar.FailOpen:
		v.State, v.Does = "away", "without Redis: on its share"
	case s.Away:
		v.State, v.Does = "away", "without Redis: refuses"
	case s.PausedUntil.After(now):
		v.State, v.Does = "paused", "paused"
	case s.Waiting > 0:
		v.State, v.Does = "waiting", "waiting"
	case len(w.jobs) > 0:
		v.State, v.Does = "calling", "calling"
	default:
		v.State, v.Does = "idle", "idle"
	}
	return v
}

// view returns what the stand-in counted up to now.
func (s *standIn) view(at func(time.Time) float64) *viewUpstream {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now() // under the lock: no arrival is later
	l := &s.ledger
	second, minute := l.fill(now)
	v := &viewUpstream{
		Requests: len(l.arrivals), Refused: l.refused, Marks: []viewMark{},
		Rates: []viewRate{{"second", second, l.tier.second}, {"minute", minute, l.tier.minute}},
	}
	marks := l.lastMinute(now)
	for _, m := range marks[max(0, len(marks)-viewMarks):] {
		v.Marks = append(v.Marks, viewMark{at(m.at), m.met})
	}
	return v
}

// pause returns the pause that an event tells of. worker is who told it.
func (e event) pause(worker int) pause {
	p := pause{from: e.At, until: e.At.Add(e.Wait), reason: e.Reason}
	if e.Reason != "" {
		p.by = worker
	}
	return p
}

// text puts an event in words.
func (e event) text() string {
	ms := func(d time.Duration) string { return d.Round(time.Millisecond).String() }
	switch e.Kind {
	case pacecar.EventLimited:
		return "limited, " + e.Reason
	case pacecar.EventRetry:
		return fmt.Sprintf("retries after %s, %s", ms(e.Wait), e.Reason+e.Err)
	case pacecar.EventLate:
		return fmt.Sprintf("left %s late", ms(e.Late))
	case pacecar.EventLost:
		return "Redis lost the quota's state"
	}
	return e.Kind.String()
}
