package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pacecar-go/pacecar"
)

// A served run is the program with -serve, in this process.
type servedRun struct {
	t    *testing.T
	url  string // of the page
	stop context.CancelFunc
	out  string // what was printed; valid after wait

	complete bool
	err      error
	done     chan struct{}
}

func startServed(t *testing.T, o options) *servedRun {
	t.Helper()
	o.serve = "127.0.0.1:0"
	ctx, cancel := context.WithCancel(t.Context())
	s := &servedRun{t: t, stop: cancel, done: make(chan struct{})}
	pr, pw := io.Pipe()
	go func() {
		s.complete, s.err = fetchAll(ctx, o, pw)
		pw.Close()
	}()
	url := make(chan string, 1)
	go func() {
		defer close(s.done)
		defer close(url)
		for lines := bufio.NewScanner(pr); lines.Scan(); {
			if f := strings.Fields(lines.Text()); len(f) > 1 && f[0] == "page:" {
				url <- f[1]
			}
			s.out += lines.Text() + "\n"
		}
	}()
	t.Cleanup(func() { s.wait() })
	if s.url = <-url; s.url == "" {
		t.Fatalf("no page: %v", s.err)
	}
	return s
}

// wait ends the run as Ctrl-C does.
func (s *servedRun) wait() {
	s.stop()
	<-s.done
}

func (s *servedRun) state() view {
	s.t.Helper()
	resp, err := http.Get(s.url + "state")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var v view
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		s.t.Fatal(err)
	}
	return v
}

// until waits for a state such as ok wants.
func (s *servedRun) until(what string, ok func(view) bool) view {
	s.t.Helper()
	for deadline := time.Now().Add(80 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		v := s.state()
		if ok(v) {
			return v
		}
		if time.Now().After(deadline) {
			b, _ := json.MarshalIndent(v, "", " ")
			s.t.Fatalf("not seen: %s; at last\n%s", what, b)
		}
	}
}

// The stand-in is asked again and again. Ctrl-C is no failure.
func TestServeAgain(t *testing.T) {
	o := testOptions(t)
	s := startServed(t, o)
	v := s.until("a second round", func(v view) bool { return v.Round == 2 && v.Done > 0 })
	if v.Upstream.Requests < 24 || len(v.Workers) != 2 || v.Over {
		t.Errorf("state %+v", v)
	}
	s.wait()
	if s.err != nil || !s.complete || !regexp.MustCompile(`(?m)^round \d, and below it`).MatchString(s.out) {
		t.Errorf("complete %v, error %v:\n%s", s.complete, s.err, s.out)
	}
	if out, err := os.ReadFile(o.out); err != nil || bytes.Count(out, []byte(`"session_key"`)) != 113 {
		t.Errorf("the file lacks something: %d bytes, %v", len(out), err)
	}
	if resp, err := http.Get(s.url); err == nil {
		resp.Body.Close()
		t.Error("the page is still there")
	}
}

// A real upstream is asked only once, and then the page stays up.
func TestServeOnce(t *testing.T) {
	up := newStandIn(vast, newFaults(nil, 0))
	srv := httptest.NewServer(up)
	t.Cleanup(srv.Close)
	o := testOptions(t)
	o.upstream = srv.URL
	s := startServed(t, o)
	v := s.until("the end", func(v view) bool { return v.Over })
	if v.Upstream != nil || v.Round != 1 || v.Done != 24 || v.Total != 24 || v.Workers[0].Does != "ended" {
		t.Errorf("state %+v", v)
	}
	s.wait()
	if s.err != nil || !s.complete || !strings.Contains(s.out, "the page stays up until Ctrl-C\n") {
		t.Errorf("complete %v, error %v:\n%s", s.complete, s.err, s.out)
	}
	if n := up.tally().requests; n != 24 {
		t.Errorf("%d requests, want 24", n)
	}
}

func TestServeAddressTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"-serve", l.Addr().String()}, &stdout, &stderr)
	if code != 1 || !strings.Contains(stderr.String(), l.Addr().String()) || stdout.Len() > 0 {
		t.Errorf("exit code %d: %s%s", code, stdout.String(), stderr.String())
	}
}

func TestPageHeaders(t *testing.T) {
	h := new(page).handler()
	if w := get(h, "/"); w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Security-Policy"), "default-src 'none'") {
		t.Errorf("page: %d %v", w.Code, w.Header())
	}
	if w := get(h, "/state"); w.Code != 200 || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("state: %d %v", w.Code, w.Header())
	}
	if w := get(h, "/other"); w.Code != 404 {
		t.Errorf("other: %d", w.Code)
	}
}

func TestView(t *testing.T) {
	r := smallReport()
	w := r.fleet.workers[0]
	w.events = append(w.events,
		event{Kind: pacecar.EventPaused, At: w.events[3].At.Add(500 * time.Millisecond), Wait: time.Second, Reason: "429 retry-after"},
		event{Kind: pacecar.EventLate, At: w.events[3].At, Late: 20 * time.Millisecond})
	r.fleet.workers = append(r.fleet.workers, &worker{number: 3, jobs: map[int]job{7: {}}, events: []event{
		{Kind: pacecar.EventDegraded, At: r.start.Add(4 * time.Second), Err: "refused"}}, stats: pacecar.Stats{Away: true}})
	v := r.view(r.start.Add(8500 * time.Millisecond))
	if v.At != 8.5 || v.Done != 4 || v.Failed != 2 || v.Policy != "fail open" {
		t.Errorf("got %+v", v)
	}
	if want := []viewPause{{6, 7.5, 1, "429 retry-after"}}; !slices.Equal(v.Pauses, want) {
		t.Errorf("pauses %+v, want %+v", v.Pauses, want)
	}
	if want := []viewOutage{{3, 4, 0, "refused"}, {1, 3, 5, ""}}; !slices.Equal(v.Outages, want) {
		t.Errorf("outages %+v, want %+v", v.Outages, want)
	}
	if want := []viewNews{{6, 1, "retries after 0s, "}, {6, 1, "left 20ms late"}}; !slices.Equal(v.News, want) {
		t.Errorf("news %+v, want %+v", v.News, want)
	}
	for i, want := range []string{"waiting", "died: signal: killed", "without Redis: on its share"} {
		if v.Workers[i].Does != want {
			t.Errorf("worker %d: %+v, want %s", i+1, v.Workers[i], want)
		}
	}
	if w := v.Workers[0]; w.NextSlot != 9 || w.Waiting != 2 || w.Calls != 3 {
		t.Errorf("worker 1: %+v", w)
	}
}
