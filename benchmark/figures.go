package main

import (
	"slices"
	"time"

	"github.com/pacecar-go/pacecar"
)

// A result is one row: what was measured, and the log that it comes from.
type result struct {
	workload *workload
	adapter  *adapter
	note     string // what a reader of the row must know, such as why there is none
	measured bool
	log      log
	figures
}

// figures are computed from the upstream's log, the workers' reports and the
// statistics of Redis.
type figures struct {
	accepted int           // requests that succeeded
	ideal    time.Duration // from the first arrival to the last, at best
	took     time.Duration // from the first arrival to the last that was accepted, or all the time there was
	share    float64       // of the ideal speed
	refused  int           // 429s, over the quota
	foreign  int           // 429s, for somebody else's doing
	worst    float64       // most arrivals in any window, refused ones too, over the limit
	calls    float64       // round trips to Redis for each request
	micros   float64       // time of Redis's for each request
	p50, p99 time.Duration // of the waits, over that of the ideal's
	jain     float64       // index of the processes, while all had work
	errors   int           // failures that the workers saw
}

// figuresOf computes everything but Redis's part.
func figuresOf(w *workload, l *log, reports []workerReport) (f figures) {
	best := ideal(w)
	f.ideal = best.span
	for _, status := range l.Status {
		switch status {
		case accepted:
			f.accepted++
		case refused:
			f.refused++
		case foreign:
			f.foreign++
		}
	}
	f.took = span(l)
	if f.accepted < w.requests { // given up
		f.took = w.patience(best.span)
	}
	if f.took > 0 {
		f.share = float64(f.accepted) / float64(w.requests) * f.ideal.Seconds() / f.took.Seconds()
	}
	f.worst = worst(w.rates, l.At)
	f.jain = jain(whileAllWork(l, w.processes))
	var waits []time.Duration
	for _, r := range reports {
		f.errors += r.Errors
		for _, us := range r.Micros {
			waits = append(waits, time.Duration(us)*time.Microsecond-w.turnaround())
		}
	}
	f.p50 = percentile(waits, 50) - percentile(best.waits, 50)
	f.p99 = percentile(waits, 99) - percentile(best.waits, 99)
	return f
}

// span returns the time from the first arrival to the last that was accepted.
func span(l *log) time.Duration {
	for i, status := range slices.Backward(l.Status) {
		if status == accepted {
			return l.At[i] - l.At[0]
		}
	}
	return 0
}

// mostIn returns the most arrivals in any window of length per: half open, so
// that two arrivals per apart are not in one. The times are in order.
func mostIn(per time.Duration, at []time.Duration) (most int) {
	first := 0
	for i, t := range at {
		for t-at[first] >= per {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// worst returns the most arrivals in any window over the limit, of the rate for
// which it is largest.
func worst(rates pacecar.Rates, at []time.Duration) (ratio float64) {
	for _, r := range rates {
		ratio = max(ratio, float64(mostIn(r.Per, at))/float64(r.Limit))
	}
	return ratio
}

// whileAllWork returns how many requests of each process were accepted until
// the first of them had its last one accepted.
func whileAllWork(l *log, processes int) []int {
	last := make([]time.Duration, processes)
	for i, status := range l.Status {
		if status == accepted {
			last[l.Worker[i]] = l.At[i]
		}
	}
	counts := make([]int, processes)
	for i, status := range l.Status {
		if status == accepted && l.At[i] <= slices.Min(last) {
			counts[l.Worker[i]]++
		}
	}
	return counts
}

// jain returns Jain's index of fairness: 1 when all have the same, 1/n when one
// has everything. (R. Jain, D. Chiu, W. Hawe, DEC-TR-301, 1984.)
func jain(counts []int) float64 {
	var sum, squares float64
	for _, c := range counts {
		sum += float64(c)
		squares += float64(c) * float64(c)
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(counts)) * squares)
}

// percentile returns the smallest value that p percent of all do not exceed,
// zero of none.
func percentile(all []time.Duration, p int) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	rank := (len(sorted)*p + 99) / 100 // rounded up
	return sorted[max(rank, 1)-1]
}
