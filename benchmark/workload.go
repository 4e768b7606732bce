package main

import (
	"time"

	"github.com/pacecar-go/pacecar"
)

// A workload is what is asked of every limiter alike: so many requests to one
// upstream, by callers that each have one request under way or waiting.
type workload struct {
	name  string
	about string
	quick quickness

	rates     pacecar.Rates
	processes int
	callers   int // goroutines in each process
	requests  int
	few       int // requests with -quick

	half        bool          // the first process has half of the work
	tls         bool          // HTTPS, over HTTP/1.1, so that each caller needs a connection
	rtt         time.Duration // added to the way to the upstream and back
	redisRTT    time.Duration // added to the way to Redis and back
	service     time.Duration // of the upstream, for each request
	defaultIdle bool          // keep net/http's two idle connections, not one for each caller
	foreign     time.Duration // in mid-run, somebody else's doing: the upstream refuses everything for so long
	gone        time.Duration // in mid-run, Redis is killed, and started again after so long
}

// quickness says for whom a workload is part of a quick run.
type quickness int

const (
	forNobody quickness = iota
	forPacecar
	forAll
)

// workloads are in the order of the table. Each lasts 15 windows or more. There
// are half as many requests as a window takes beyond a whole number of windows,
// so that the share does not hang on one slot lost or gained at a window's edge.
var workloads = []workload{
	{name: "plain", quick: forAll,
		about: "20/s, 4 processes of 16 callers",
		rates: pacecar.MustRates("20/s"), processes: 4, callers: 16, requests: 330, few: 210},
	{name: "cold-tls", quick: forPacecar,
		about: "TLS with cold connections, 60 ms to the upstream and 5 ms to Redis",
		rates: pacecar.MustRates("20/s"), processes: 4, callers: 16, requests: 330, few: 210,
		tls: true, rtt: 60 * time.Millisecond, redisRTT: 5 * time.Millisecond},
	{name: "half",
		about: "one process has half of the work",
		rates: pacecar.MustRates("20/s"), processes: 4, callers: 16, requests: 330, few: 210, half: true},
	{name: "two-rates",
		about: "10/s and 100/20s at once",
		rates: pacecar.MustRates("10/s, 100/20s"), processes: 4, callers: 16, requests: 350, few: 150},
	{name: "fast", quick: forPacecar,
		about: "2,000/s",
		rates: pacecar.MustRates("2000/s"), processes: 4, callers: 16, requests: 33_000, few: 13_000},
	{name: "many",
		about: "16 processes of 4 callers",
		rates: pacecar.MustRates("20/s"), processes: 16, callers: 4, requests: 330, few: 210},
	{name: "two-idle",
		about: "net/http's two idle connections, and 150 ms of service",
		rates: pacecar.MustRates("20/s"), processes: 4, callers: 16, requests: 330, few: 210,
		service: 150 * time.Millisecond, defaultIdle: true},
	{name: "foreign",
		about: "a 429 from elsewhere in mid-run: the upstream refuses everything for 2 s",
		rates: pacecar.MustRates("20/s"), processes: 4, callers: 16, requests: 330, few: 210,
		foreign: 2 * time.Second},
	{name: "outage",
		about: "Redis is killed in mid-run and comes back empty after 3 s; pacecar fails open",
		rates: pacecar.MustRates("20/s"), processes: 4, callers: 16, requests: 410, few: 210,
		gone: 3 * time.Second},
}

func (w *workload) String() string { return w.name }

// sized returns the workload with the number of requests that is to be sent.
func (w *workload) sized(quick bool) *workload {
	s := *w
	if quick {
		s.requests = s.few
	}
	return &s
}

// parts shares the requests out over the processes.
func (w *workload) parts() []int {
	parts := make([]int, w.processes)
	left, first := w.requests, 0
	if w.half && w.processes > 1 {
		parts[0] = left / 2
		left, first = left-parts[0], 1
	}
	for i := first; i < w.processes; i++ {
		parts[i] = left / (w.processes - i)
		left -= parts[i]
	}
	return parts
}

// turnaround is how long a caller is busy with a request that has left, over a
// warm connection: what no limiter can change.
func (w *workload) turnaround() time.Duration { return w.service + w.rtt }

// patience is how long a run may last.
func (w *workload) patience(ideal time.Duration) time.Duration { return 3*ideal + 20*time.Second }

// names returns the names of workloads or adapters.
func names[T interface{ title() string }](all []T) []string {
	s := make([]string, len(all))
	for i, one := range all {
		s[i] = one.title()
	}
	return s
}

func (w workload) title() string { return w.name }
