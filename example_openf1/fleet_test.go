package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// The test binary is the workers' program too.
func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		os.Exit(workerMain())
	}
	// With -race a process else waits a second before it exits.
	os.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0")
	os.Exit(m.Run())
}

// testOptions are a run of one season, 24 calls, under a quota that it does not
// reach: so nothing here depends on the speed of the machine.
func testOptions(t *testing.T) options {
	return options{
		workers: 2, concurrency: 4, years: []int{2023}, tier: vast,
		out: filepath.Join(t.TempDir(), "out.json"),
	}
}

func TestWholeRun(t *testing.T) {
	o := testOptions(t)
	var b bytes.Buffer
	complete, err := fetchAll(t.Context(), o, &b)
	if err != nil || !complete {
		t.Fatalf("complete %v, error %v:\n%s", complete, err, b.String())
	}
	for _, want := range []string{"Monaco Grand Prix", "worker 2: calls: ", "upstream: requests: 24  429s: 0  ", "wrote "} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
	out, err := os.ReadFile(o.out)
	if err != nil || bytes.Count(out, []byte(`"session_key"`)) != 113 || bytes.Count(out, []byte(`"meeting_name"`)) != 23 {
		t.Errorf("the file lacks something: %d bytes, %v", len(out), err)
	}
}

func TestWithout(t *testing.T) {
	o := testOptions(t)
	o.without, o.tier = true, tier{second: 1000, minute: 5}
	var b bytes.Buffer
	complete, err := fetchAll(t.Context(), o, &b)
	if err != nil || !complete {
		t.Fatalf("complete %v, error %v:\n%s", complete, err, b.String())
	}
	for _, want := range []string{"19 of 24 calls failed", "429 Too Many Requests: Rate limit exceeded. Max 5 requests/minute.",
		"upstream: requests: 24  429s: 19"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
}

func TestUnwritableFile(t *testing.T) {
	o := testOptions(t)
	o.out = filepath.Join(o.out, "not a directory")
	var b bytes.Buffer
	if _, err := fetchAll(t.Context(), o, &b); err == nil || b.Len() > 0 {
		t.Errorf("fetched first: error %v, %s", err, b.String())
	}
}

// start starts a fleet without pacecar: these tests are of the processes.
func start(t *testing.T, upstream string) *fleet {
	f, err := startFleet(2, 4, settings{Upstream: upstream, Without: true})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// holding is an upstream with ten meetings. It answers no question for sessions
// before it is released.
func holding(t *testing.T) (url string, release func()) {
	released := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/sessions" {
			select {
			case <-released:
			case <-r.Context().Done():
			}
			fmt.Fprint(w, "[]")
			return
		}
		var keys []string
		for i := range 10 {
			keys = append(keys, fmt.Sprintf(`{"meeting_key":%d}`, i+1))
		}
		fmt.Fprintf(w, "[%s]", strings.Join(keys, ","))
	}))
	t.Cleanup(srv.Close)
	return srv.URL, sync.OnceFunc(func() { close(released) })
}

func TestDeadWorkerLosesNothing(t *testing.T) {
	url, release := holding(t)
	f, p := start(t, url), newPlan([]int{2023}, false)
	f.work(t.Context(), p, func() {
		w := f.workers[0]
		switch {
		case w.gone:
			release()
		case len(w.jobs) > 0 && p.done > 0:
			_ = w.cmd.Process.Kill()
		}
	})
	f.stop(p)
	if p.done != 11 || len(p.failures) > 0 || len(p.sessions) != 10 {
		t.Errorf("%d of %d done, failures %v", p.done, p.total, p.failures)
	}
	if w := f.workers[0]; w.death != "signal: killed" || w.lost != 4 {
		t.Errorf("worker 1: death %q, lost %d", w.death, w.lost)
	}
	if w := f.workers[1]; w.death != "" || w.calls < 10 {
		t.Errorf("worker 2: death %q, calls %d", w.death, w.calls)
	}
}

func TestNoWorkerLeft(t *testing.T) {
	url, _ := holding(t)
	f, p := start(t, url), newPlan([]int{2023}, false)
	f.work(t.Context(), p, func() {
		for _, w := range f.workers {
			if p.done > 0 {
				_ = w.cmd.Process.Kill()
			}
		}
	})
	f.stop(p)
	if !p.finished() || len(p.failures) != 10 || p.failures[0].Reason != "no worker is left" {
		t.Errorf("%d of %d done, failures %v", p.done, p.total, p.failures)
	}
}

func TestInterrupt(t *testing.T) {
	url, _ := holding(t)
	f, p := start(t, url), newPlan([]int{2023}, false)
	ctx, cancel := context.WithCancel(t.Context())
	f.work(ctx, p, func() {
		if p.done > 0 {
			cancel()
		}
	})
	f.stop(p)
	if !p.finished() || len(p.meetings) != 10 || len(p.failures) != 10 {
		t.Errorf("%d of %d done, %d meetings, failures %v", p.done, p.total, len(p.meetings), p.failures)
	}
	for _, fail := range p.failures {
		if fail.Reason != interrupted {
			t.Errorf("%s: %s", fail.Call, fail.Reason)
		}
	}
	for _, w := range f.workers {
		if w.cmd.ProcessState == nil || w.death != "" {
			t.Errorf("worker %d: %v, death %q", w.number, w.cmd.ProcessState, w.death)
		}
	}
}
