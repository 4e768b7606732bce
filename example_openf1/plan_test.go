package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
)

// drain takes all queued jobs.
func drain(p *plan) (jobs []job) {
	for {
		j, ok := p.next()
		if !ok {
			return jobs
		}
		jobs = append(jobs, j)
	}
}

func paths(jobs []job) (paths []string) {
	for _, j := range jobs {
		paths = append(paths, j.Path)
	}
	return paths
}

func answer(format string, args ...any) result {
	return result{Status: 200, Body: json.RawMessage(fmt.Sprintf(format, args...))}
}

func TestPlan(t *testing.T) {
	p := newPlan([]int{2023, 2024}, false)
	jobs := drain(p)
	if want := []string{"/v1/meetings?year=2023", "/v1/meetings?year=2024"}; !slices.Equal(paths(jobs), want) {
		t.Fatalf("got %v, want %v", paths(jobs), want)
	}
	p.finish(jobs[1], answer(`[{"meeting_key":8,"date_start":"2024-02-01T00:00:00Z","year":2024,"extra":[1]},
		{"meeting_key":9,"date_start":"not yet fixed","year":2024}]`))
	p.finish(jobs[0], answer(`[{"meeting_key":7,"date_start":"2023-02-01T00:00:00Z","year":2023}]`))
	jobs = drain(p)
	// A date that cannot be read sorts first; it is no reason to lose the meeting.
	if want := []string{"/v1/sessions?meeting_key=9", "/v1/sessions?meeting_key=8"}; !slices.Equal(paths(jobs), want) {
		t.Fatalf("got %v, want %v", paths(jobs), want)
	}
	p.finish(jobs[0], answer(`[{"session_name":"Race"}]`))
	if p.finished() {
		t.Error("finished before its last job")
	}
	p.finish(jobs[1], answer(`[]`))
	if !p.finished() || p.done != 4 || len(p.failures) > 0 || len(p.sessions[9]) != 1 || len(p.sessions[8]) != 0 {
		t.Errorf("got %+v", p)
	}
	if got := string(p.meetings[2].raw); got != `{"meeting_key":8,"date_start":"2024-02-01T00:00:00Z","year":2024,"extra":[1]}` {
		t.Errorf("fields that the example does not know were lost: %s", got)
	}
}

func TestPlanAll(t *testing.T) {
	p := newPlan([]int{2023, 2024}, true)
	for i, j := range drain(p) {
		p.finish(j, answer(`[{"meeting_key":%d}]`, i+1))
	}
	if jobs := drain(p); len(jobs) != 2 {
		t.Errorf("got %v", paths(jobs))
	}
}

func TestPlanFailures(t *testing.T) {
	p := newPlan([]int{2023, 2024}, true)
	jobs := drain(p)
	p.finish(jobs[0], result{Status: 401, Err: "401 Unauthorized: live"})
	p.finish(jobs[1], answer(`[{"meeting_key":1},{"meeting_key":2},{"meeting_key":3}]`))
	jobs = drain(p)
	p.finish(jobs[0], answer(`{"not":"an array"}`))
	p.putBack(jobs[1])
	p.putBack(jobs[2])
	p.giveUp(interrupted)
	var reasons []string
	for _, f := range p.failures {
		reasons = append(reasons, f.Reason)
	}
	want := []string{"401 Unauthorized: live", "answer not understood: not a JSON array", interrupted, interrupted}
	if !slices.Equal(reasons, want) || !p.finished() {
		t.Errorf("got %q, want %q", reasons, want)
	}
	if got := p.notAsked(); !slices.Equal(got, []int{2023}) {
		t.Errorf("not asked: %v", got)
	}
}

func TestPlanPutBack(t *testing.T) {
	p := newPlan([]int{2023, 2024}, false)
	for try := 1; ; try++ {
		j, _ := p.next()
		if j.year != 2023 {
			if try != maxTries+1 {
				t.Errorf("given up after %d tries, want %d", try-1, maxTries)
			}
			break
		}
		p.putBack(j)
	}
	if len(p.failures) != 1 || p.done != 1 {
		t.Errorf("lost silently: %+v", p)
	}
}
