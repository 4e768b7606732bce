package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pacecar-go/pacecar"
)

func TestPausedFor(t *testing.T) {
	t0 := time.Unix(0, 0)
	at := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	lasts := func(from, wait int) pause { return pause{from: at(from), until: at(from + wait)} }
	for _, tt := range []struct {
		name   string
		pauses []pause
		want   int // seconds
	}{
		{"none", nil, 0},
		{"one", []pause{lasts(0, 2)}, 2},
		{"apart, in disorder", []pause{lasts(10, 1), lasts(0, 2)}, 3},
		{"overlapping", []pause{lasts(0, 2), lasts(1, 2)}, 3},
		{"an echo", []pause{lasts(0, 2), {from: at(2).Add(1), until: at(2).Add(echo)}}, 2},
		{"one within another", []pause{lasts(0, 5), lasts(1, 1)}, 5},
	} {
		if got := pausedFor(tt.pauses); got != time.Duration(tt.want)*time.Second {
			t.Errorf("%s: %v, want %d s", tt.name, got, tt.want)
		}
	}
}

// smallReport is of a run in which most things went wrong that can.
func smallReport() report {
	start := time.Unix(1e9, 0)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	p := newPlan([]int{2023, 2024}, true)
	jobs := drain(p)
	p.finish(jobs[0], answer(`[{"meeting_key":1,"meeting_name":"Test","location":"Here","country_name":"There","year":2023,
		"date_start":"2023-02-23T07:00:00Z"},{"meeting_key":2,"meeting_name":"Second","year":2023,"date_start":"2023-03-01T00:00:00Z"}]`))
	p.finish(jobs[1], result{Status: 401, Err: "401 Unauthorized: live"})
	jobs = drain(p)
	p.finish(jobs[0], answer(`[{"session_name":"Race","date_start":"2023-02-25T15:00:00Z"},{"session_name":"Practice 1","date_start":"2023-02-23T07:00:00Z"}]`))
	p.putBack(jobs[1])
	p.giveUp("no worker is left")

	f := &fleet{workers: []*worker{
		{number: 1, calls: 3, stats: pacecar.Stats{Degraded: 2, Waiting: 2, NextSlot: at(9)}, events: []event{
			{Kind: pacecar.EventDegraded, At: at(3)}, {Kind: pacecar.EventRestored, At: at(5)},
			{Kind: pacecar.EventRetry, At: at(6)}, {Kind: pacecar.EventPaused, At: at(6), Wait: time.Second},
		}},
		{number: 2, calls: 1, death: "signal: killed", lost: 1, gone: true, stats: pacecar.Stats{Waiting: 1, Away: true}},
	}}
	return report{
		o:    options{tier: tiers["free"], chaos: true, faults: []string{"429"}, outage: pacecar.FailOpen},
		plan: p, fleet: f, start: start, took: 8 * time.Second,
		upstream: newStandIn(tiers["free"], newFaults(nil, 0)),
		redis:    &embeddedRedis{killed: at(2), revived: at(4), back: closed()},
	}
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func TestReport(t *testing.T) {
	var b strings.Builder
	r := smallReport()
	r.print(&b)
	const want = `2023    MEETING  PLACE        SESSIONS     LAST SESSION (UTC)
23 Feb  Test     Here, There  2            Race, 25 Feb 15:00
01 Mar  Second   ,            not fetched  

2024: no meetings

2 of 4 calls failed:
  GET /v1/meetings?year=2024: 401 Unauthorized: live
  GET /v1/sessions?meeting_key=2: no worker is left
  the sessions of 2024 were not asked for: its meetings are not known

worker 1: calls: 3 (75 %)
worker 2: calls: 1 (25 %)  died (signal: killed), left 1 unfinished
redis: killed at 2.0s, back at 4.0s with nothing kept; policy meanwhile: fail open
worker 1: without Redis since 3.0s, with it again since 5.0s, sent on its own share: 2
worker 2: did not notice
retries: 1  fleet paused for: 1.0s
injected: 0 ()
took: 8.0s  at best: 0.0s for 0 requests at 3/s, 30/m
upstream: requests: 0  429s: 0  most in any second: 0 (limit 3)  most in any minute: 0 (limit 30)
`
	if got := b.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestReportWrite(t *testing.T) {
	name := filepath.Join(t.TempDir(), "out.json")
	r := smallReport()
	if err := r.write(name); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Meetings, Sessions []record
		Failed             []failure
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Meetings) != 2 || len(got.Sessions) != 2 || len(got.Failed) != 2 || got.Failed[0].Reason != "401 Unauthorized: live" {
		t.Errorf("got %+v", got)
	}
}

// Rounds without end are there to be interrupted.
func TestReportInterrupted(t *testing.T) {
	for _, tt := range []struct {
		o    options
		want bool
	}{
		{options{}, false},
		{options{serve: ":0"}, true},
		{options{serve: ":0", upstream: "https://example.org"}, false},
	} {
		p := newPlan([]int{2024}, false)
		p.giveUp(interrupted)
		if r := (report{o: tt.o, plan: p}); r.complete() != tt.want {
			t.Errorf("%+v: %v", tt.o, !tt.want)
		}
	}
}

// With -without, 429s are what the run is for. Anything else is a failure.
func TestReportComplete(t *testing.T) {
	for _, tt := range []struct {
		without bool
		status  int
		want    bool
	}{{false, 429, false}, {true, 429, true}, {true, 503, false}, {true, 0, false}} {
		p := newPlan([]int{2024}, false)
		p.finish(drain(p)[0], result{Status: tt.status, Err: "no"})
		r := report{o: options{without: tt.without}, plan: p}
		if got := r.complete(); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

func TestProgressLine(t *testing.T) {
	r := smallReport()
	now := r.start.Add(8500 * time.Millisecond)
	want := "4 of 4 done, 3 waiting, next slot in 0.5s, Redis is away for worker 2"
	if got := progressLine(now, r.plan, r.fleet); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
