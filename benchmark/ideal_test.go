package main

import (
	"slices"
	"testing"
	"time"

	"github.com/pacecar-go/pacecar"
)

func TestIdeal(t *testing.T) {
	rates := pacecar.MustRates
	for _, test := range []struct {
		name string
		w    workload
		span time.Duration
		last time.Duration // the wait of the last request
	}{
		{"within one window",
			workload{rates: rates("20/s"), processes: 4, callers: 5, requests: 20}, 0, 0},
		{"one more",
			workload{rates: rates("20/s"), processes: 3, callers: 7, requests: 21}, time.Second, time.Second},
		{"callers in a loop", // the two leave at once, and ask again at once
			workload{rates: rates("2/s"), processes: 1, callers: 2, requests: 6}, 2 * time.Second, time.Second},
		{"two rates", // 10 at 0, 10 at 1 s, and then none until 20 s
			workload{rates: rates("10/s, 20/20s"), processes: 2, callers: 15, requests: 30}, 20 * time.Second, 20 * time.Second},
		{"service bounds the speed",
			workload{rates: rates("100/s"), processes: 1, callers: 1, requests: 11, service: 100 * time.Millisecond}, time.Second, 0},
		{"the way there does, too",
			workload{rates: rates("100/s"), processes: 1, callers: 1, requests: 11, rtt: 100 * time.Millisecond}, time.Second, 0},
		{"refused for others' doing", // the third would leave at 1 s
			workload{rates: rates("2/s"), processes: 1, callers: 4, requests: 4, foreign: 2 * time.Second}, 3 * time.Second, 3 * time.Second},
		{"nothing to do",
			workload{rates: rates("2/s"), processes: 1, callers: 4}, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			run := ideal(&test.w)
			if run.span != test.span || len(run.waits) != test.w.requests {
				t.Errorf("%v and %d waits, want %v and %d", run.span, len(run.waits), test.span, test.w.requests)
			}
			if n := len(run.waits); n > 0 && run.waits[n-1] != test.last {
				t.Errorf("the last waits %v, want %v", run.waits[n-1], test.last)
			}
		})
	}
}

func TestParts(t *testing.T) {
	for _, test := range []struct {
		requests, processes int
		half                bool
		want                []int
	}{
		{10, 4, false, []int{2, 2, 3, 3}},
		{10, 3, true, []int{5, 2, 3}},
		{3, 1, true, []int{3}},
	} {
		w := workload{requests: test.requests, processes: test.processes, half: test.half}
		if got := w.parts(); !slices.Equal(got, test.want) {
			t.Errorf("%d over %d, half %v: %v, want %v", test.requests, test.processes, test.half, got, test.want)
		}
	}
}

// Every workload lasts 15 windows of its shortest rate or more, even at best.
func TestWorkloadsAreLongEnough(t *testing.T) {
	for i := range workloads {
		w := &workloads[i]
		shortest := w.rates[0].Per
		for _, r := range w.rates {
			shortest = min(shortest, r.Per)
		}
		if span := ideal(w).span; span < 15*shortest {
			t.Errorf("%s: %v, less than 15 times %v", w.name, span, shortest)
		}
	}
}
