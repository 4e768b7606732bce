package main

import (
	"fmt"
	"slices"
	"time"
)

// A ledger is the stand-in's account of arrivals, and its judgement on them:
// two exact sliding windows. The window that ends with an arrival at t is
// (t - Per, t]. It takes the time of each arrival as an argument, in order.
//
// An arrival is refused when the last second holds the limit of accepted ones,
// or the last minute the limit of arrivals. So a refusal does not count
// towards the second, but does towards the minute: it is not known what the
// real service does, and this is the stricter of the likely answers. A fleet
// that keeps the quota cannot tell.
type ledger struct {
	tier     tier
	arrivals []time.Time // every one
	accepted []time.Time
	refused  int
	marks    []mark // of the last minute, and maybe of a little before
}

// A mark is an arrival, and what it met: "ok", "refused", or an injected fault.
type mark struct {
	at  time.Time
	met string
}

// A verdict is nil for an accepted arrival, and else the window that was full.
type verdict struct {
	limit      int
	unit       string // "second" or "minute"
	retryAfter int    // seconds; a constant of the service, not the time left
}

// body is what the service writes under a refusal.
func (v *verdict) body() string {
	return fmt.Sprintf(`{"detail":"Rate limit exceeded. Max %d requests/%s.","error":"Too Many Requests"}`, v.limit, v.unit)
}

// arrive enters an arrival and judges it. now must not go back.
func (l *ledger) arrive(now time.Time) *verdict {
	second, minute := l.fill(now)
	l.arrivals = append(l.arrivals, now)
	var v *verdict
	switch {
	case minute >= l.tier.minute:
		v = &verdict{limit: l.tier.minute, unit: "minute", retryAfter: 60}
	case second >= l.tier.second:
		v = &verdict{limit: l.tier.second, unit: "second", retryAfter: 1}
	default:
		l.accepted = append(l.accepted, now)
		return nil
	}
	l.refused++
	return v
}

// note enters what the arrival at now met, and forgets what is older than a
// minute.
func (l *ledger) note(now time.Time, met string) {
	l.marks = append(l.lastMinute(now), mark{now, met})
}

// lastMinute returns the marks of the minute that ends at now.
func (l *ledger) lastMinute(now time.Time) []mark {
	first := slices.IndexFunc(l.marks, func(m mark) bool { return m.at.After(now.Add(-time.Minute)) })
	if first < 0 {
		return nil
	}
	return l.marks[first:]
}

// fill returns how many arrivals count towards the windows that end at now.
func (l *ledger) fill(now time.Time) (second, minute int) {
	return since(l.accepted, now.Add(-time.Second)), since(l.arrivals, now.Add(-time.Minute))
}

// since counts the times after t, at the end of a sorted log.
func since(log []time.Time, t time.Time) int {
	n := 0
	for n < len(log) && log[len(log)-1-n].After(t) {
		n++
	}
	return n
}

// most returns the most times of a sorted log that any window of the given
// length holds.
func most(log []time.Time, per time.Duration) int {
	best, first := 0, 0
	for i, t := range log {
		for !log[first].After(t.Add(-per)) {
			first++
		}
		best = max(best, i-first+1)
	}
	return best
}

// idealTime is the least time in which n requests can leave, from idle.
func idealTime(n int, t tier) time.Duration {
	at := make([]time.Duration, n)
	for i := range at {
		if i >= t.second {
			at[i] = max(at[i], at[i-t.second]+time.Second)
		}
		if i >= t.minute {
			at[i] = max(at[i], at[i-t.minute]+time.Minute)
		}
	}
	if n == 0 {
		return 0
	}
	return at[n-1]
}
