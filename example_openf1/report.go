package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/pacecar-go/pacecar"
)

// A report is what there is to tell: printed at the end, shown by -serve
// meanwhile.
type report struct {
	o        options
	round    int // of how many plans this is the last
	plan     *plan
	fleet    *fleet
	upstream *standIn       // nil for a real one
	redis    *embeddedRedis // nil for a real one, or none
	start    time.Time
	took     time.Duration
	over     bool // nothing will be fetched any more
}

// printHeading says who is about to ask whom. pg may be nil.
func printHeading(w io.Writer, o options, pg *page) {
	fmt.Fprintf(w, "fleet:    %d processes, %d calls at a time each, %s together\n", o.workers, o.concurrency, o.tier)
	fmt.Fprintf(w, "upstream: %s\n", o.upstreamName())
	switch {
	case o.without:
		fmt.Fprintln(w, "limiter:  none (-without)")
	default:
		where := "embedded"
		if o.redis != "" {
			opts, _ := redisOptions(o.redis) // checked; a URL may hold a password
			where = "at " + opts.Addr
		}
		fmt.Fprintf(w, "limiter:  pacecar; Redis %s; while it is away: %s\n", where, o.outage)
	}
	if len(o.faults) > 0 {
		fmt.Fprintf(w, "faults:   one request in ten, %s\n", strings.Join(o.faults, ", "))
	}
	if o.chaos {
		fmt.Fprintf(w, "chaos:    Redis will be killed, and be back after %v with nothing kept\n", chaosAway)
	}
	if pg != nil {
		fmt.Fprintf(w, "page:     http://%s/ until Ctrl-C\n", pg.addr)
	}
	fmt.Fprintln(w)
}

// complete reports whether everything was fetched. With -without refusals are
// what the run is for, and rounds without end are there to be interrupted.
func (r *report) complete() bool {
	return !slices.ContainsFunc(r.plan.failures, func(f failure) bool {
		refused, cut := f.status == http.StatusTooManyRequests, f.Reason == interrupted
		return !(r.o.without && refused || r.o.again() && cut)
	})
}

func (r *report) print(w io.Writer) {
	if r.o.again() {
		fmt.Fprintf(w, "round %d, and below it what was counted in all rounds:\n\n", r.round)
	}
	for _, year := range r.plan.sessionsOf {
		r.printCalendar(w, year)
	}
	r.printFailures(w)
	r.printWorkers(w)
	r.printOutage(w)
	r.printUpstream(w)
}

// printCalendar prints a season as a table.
func (r *report) printCalendar(w io.Writer, year int) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%d\tMEETING\tPLACE\tSESSIONS\tLAST SESSION (UTC)\n", year)
	n := 0
	for _, m := range r.plan.meetings {
		if m.Year != year {
			continue
		}
		n++
		count, last := "not fetched", ""
		if sessions, ok := r.plan.sessions[m.Key]; ok {
			count = fmt.Sprint(len(sessions))
			if len(sessions) > 0 {
				s := slices.MaxFunc(sessions, func(a, b session) int { return a.DateStart.Compare(b.DateStart.Time) })
				last = fmt.Sprintf("%s, %s", s.Name, s.DateStart.UTC().Format("2 Jan 15:04"))
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%s, %s\t%s\t%s\n", m.DateStart.Format("02 Jan"), m.Name, m.Location, m.Country, count, last)
	}
	if n == 0 {
		fmt.Fprintf(w, "%d: no meetings\n\n", year)
		return
	}
	t.Flush()
	fmt.Fprintln(w)
}

// printFailures prints each call that has no answer, with its reason.
func (r *report) printFailures(w io.Writer) {
	if len(r.plan.failures) == 0 {
		return
	}
	fmt.Fprintf(w, "%d of %d calls failed:\n", len(r.plan.failures), r.plan.total)
	for _, f := range r.plan.failures {
		fmt.Fprintf(w, "  %s: %s\n", f.Call, f.Reason)
	}
	for _, y := range r.plan.notAsked() {
		fmt.Fprintf(w, "  the sessions of %d were not asked for: its meetings are not known\n", y)
	}
	fmt.Fprintln(w)
}

// printWorkers prints each worker's share of the work.
func (r *report) printWorkers(w io.Writer) {
	calls := 0
	for _, k := range r.fleet.workers {
		calls += k.calls
	}
	for _, k := range r.fleet.workers {
		fmt.Fprintf(w, "worker %d: calls: %d (%.0f %%)", k.number, k.calls, 100*float64(k.calls)/float64(max(calls, 1)))
		if k.death != "" {
			fmt.Fprintf(w, "  died (%s), left %d unfinished", k.death, k.lost)
		}
		fmt.Fprintln(w)
	}
}

// printOutage says since when Redis was away, and what each worker did
// meanwhile.
func (r *report) printOutage(w io.Writer) {
	at := func(t time.Time) string { return fmt.Sprintf("%.1fs", t.Sub(r.start).Seconds()) }
	if e := r.redis; e != nil && e.back != nil {
		e.wait()
		if e.err != nil {
			fmt.Fprintf(w, "redis: killed at %s, did not come back: %v\n", at(e.killed), e.err)
		} else {
			fmt.Fprintf(w, "redis: killed at %s, back at %s with nothing kept; policy meanwhile: %s\n", at(e.killed), at(e.revived), r.o.outage)
		}
	}
	for _, k := range r.fleet.workers {
		var parts []string
		for _, e := range k.events {
			switch e.Kind {
			case pacecar.EventDegraded:
				parts = append(parts, "without Redis since "+at(e.At))
			case pacecar.EventRestored:
				parts = append(parts, "with it again since "+at(e.At))
			}
		}
		switch {
		case len(parts) > 0 && r.o.outage == pacecar.FailOpen:
			parts = append(parts, fmt.Sprintf("sent on its own share: %d", k.stats.Degraded))
		case len(parts) > 0:
			parts = append(parts, fmt.Sprintf("refused meanwhile: %d", k.stats.Degraded))
		case r.o.chaos:
			parts = append(parts, "did not notice")
		default:
			continue
		}
		fmt.Fprintf(w, "worker %d: %s\n", k.number, strings.Join(parts, ", "))
	}
}

// printUpstream prints how long it took and what the upstream counted.
func (r *report) printUpstream(w io.Writer) {
	var pauses []pause
	retries := 0
	for _, k := range r.fleet.workers {
		for _, e := range k.events {
			switch e.Kind {
			case pacecar.EventRetry:
				retries++
			case pacecar.EventPaused:
				pauses = append(pauses, e.pause(k.number))
			}
		}
	}
	if retries > 0 || len(pauses) > 0 || len(r.o.faults) > 0 {
		fmt.Fprintf(w, "retries: %d  fleet paused for: %.1fs\n", retries, pausedFor(pauses).Seconds())
	}
	sent := r.plan.done + retries
	if r.upstream == nil {
		r.printTime(w, sent)
		return
	}
	t := r.upstream.tally()
	if len(r.o.faults) > 0 {
		total := 0
		var kinds []string
		for _, kind := range slices.Sorted(maps.Keys(t.injected)) {
			total += t.injected[kind]
			kinds = append(kinds, fmt.Sprintf("%s %d", kind, t.injected[kind]))
		}
		fmt.Fprintf(w, "injected: %d (%s)\n", total, strings.Join(kinds, ", "))
	}
	r.printTime(w, t.requests)
	fmt.Fprintf(w, "upstream: requests: %d  429s: %d  most in any second: %d (limit %d)  most in any minute: %d (limit %d)\n",
		t.requests, t.refused, t.mostInSecond, r.o.tier.second, t.mostInMinute, r.o.tier.minute)
}

func (r *report) printTime(w io.Writer, requests int) {
	fmt.Fprintf(w, "took: %.1fs  at best: %.1fs for %d requests at %s\n",
		r.took.Seconds(), idealTime(requests, r.o.tier).Seconds(), requests, r.o.tier)
}

// A pause is a time for which the fleet's clock was stopped.
type pause struct {
	from, until time.Time
	by          int    // the worker that got the answer; 0 if that is not known
	reason      string // what the answer was
}

// echo is how much later than another a worker may take a pause to end that it
// has only heard of.
const echo = 100 * time.Millisecond

// mergePauses makes one of those that overlap: what each worker knows of a
// pause, mostly. It keeps the last answer.
func mergePauses(pauses []pause) []pause {
	pauses = slices.Clone(pauses)
	slices.SortFunc(pauses, func(a, b pause) int { return a.from.Compare(b.from) })
	var merged []pause
	for _, p := range pauses {
		k := len(merged) - 1
		if k >= 0 && p.reason == "" && !p.until.After(merged[k].until.Add(echo)) {
			continue
		}
		if k < 0 || p.from.After(merged[k].until) {
			merged = append(merged, p)
			continue
		}
		m := &merged[k]
		if p.until.After(m.until) {
			m.until = p.until
		}
		if p.reason != "" {
			m.by, m.reason = p.by, p.reason
		}
	}
	return merged
}

// pausedFor adds up pauses. Where they overlap the clock was stopped once.
func pausedFor(pauses []pause) time.Duration {
	var sum time.Duration
	for _, p := range mergePauses(pauses) {
		sum += p.until.Sub(p.from)
	}
	return sum
}

// write writes everything fetched to a file, elements as they came.
func (r *report) write(name string) error {
	out := struct {
		Meetings []json.RawMessage `json:"meetings"`
		Sessions []json.RawMessage `json:"sessions"`
		Failed   []failure         `json:"failed"`
	}{[]json.RawMessage{}, []json.RawMessage{}, r.plan.failures}
	for _, m := range r.plan.meetings {
		out.Meetings = append(out.Meetings, m.raw)
		for _, s := range r.plan.sessions[m.Key] {
			out.Sessions = append(out.Sessions, s.raw)
		}
	}
	if out.Failed == nil {
		out.Failed = []failure{}
	}
	b, err := json.MarshalIndent(out, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(b, '\n'), 0o644)
}
