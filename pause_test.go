package pacecar

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// A moody upstream refuses the nth request, and then, for as long as it has
// said, all that arrive after that answer.
type moody struct {
	nth     int
	wait    time.Duration
	latency time.Duration
	seen    *trace

	mu       sync.Mutex // guards what follows
	arrived  int
	answered time.Time // when the first refusal went out
	after    []time.Time
	refused  int
}

// serve returns a status, and what Retry-After says.
func (m *moody) serve() (status int, retryAfter string) {
	now := time.Now()
	m.seen.add(0, 1)
	m.mu.Lock()
	m.arrived++
	refuse := m.arrived == m.nth
	if refuse {
		m.answered = now.Add(m.latency)
	}
	until := m.answered.Add(m.wait)
	if !m.answered.IsZero() && now.After(m.answered) {
		m.after = append(m.after, now)
		refuse = now.Before(until)
	}
	if refuse {
		m.refused++
	}
	m.mu.Unlock()
	time.Sleep(m.latency)
	if !refuse {
		return http.StatusOK, ""
	}
	return http.StatusTooManyRequests, strconv.Itoa(int(math.Ceil(time.Until(until).Seconds())))
}

func (m *moody) RoundTrip(*http.Request) (*http.Response, error) {
	status, wait := m.serve()
	return response(status, "", "Retry-After: "+wait), nil
}

func (m *moody) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	status, wait := m.serve()
	if wait != "" {
		w.Header().Set("Retry-After", wait)
	}
	w.WriteHeader(status)
}

// effect-smol#2311, octokit plugin-throttling#629: 20 requests wait in each of
// three processes, and one is told to wait for 5 s. Nobody leaves before that,
// but for who is out already, or within the time after which each process looks
// at the clock; then they leave spaced as before. One more is refused at most.
func TestRefusalStopsTheFleet(t *testing.T) {
	for _, rates := range []string{"10/s", "4/s, 100/m", "1/500ms", "20/s"} {
		for _, max := range []int{0, -1} {
			for _, wired := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, retries %d, net/http %v", rates, max, wired), func(t *testing.T) {
					bubble(t, func(t *testing.T) { refuseFleet(t, MustRates(rates), max, wired) })
				})
			}
		}
	}
}

func refuseFleet(t *testing.T, rates Rates, max int, wired bool) {
	u := &moody{nth: 15, wait: 5 * time.Second, latency: 30 * time.Millisecond, seen: newTrace()}
	var pipes *pipeServer
	if wired {
		pipes = servePipes(t, 20*time.Millisecond, u)
	}
	m := newMini()
	var wg sync.WaitGroup
	var transports []*Transport
	for range 3 {
		c := Config{
			Redis: dialMini(t, m), Base: u, Retry: Retry{Max: max},
			Routes: map[string]Policy{"/": {Rates: rates}},
		}
		if wired {
			c.Base = pipes.base(t, func(tr *http.Transport) { tr.MaxIdleConnsPerHost = 20 })
		}
		tr := transportOf(t, c)
		transports = append(transports, tr)
		for range 20 {
			wg.Go(func() {
				resp, err := tr.RoundTrip(getURL(t.Context(), "http://api.example/"))
				if err != nil || max == 0 && resp.StatusCode != 200 {
					t.Errorf("got %v, %v", resp, err)
					return
				}
				bodyOf(t, resp)
			})
		}
	}
	wg.Wait()
	took := time.Since(u.seen.start)
	u.seen.check(t, rates)
	if u.refused < 1 || u.refused > 2 || len(u.after) < 40 {
		t.Errorf("%d refusals; %d arrived after the first", u.refused, len(u.after))
	}
	for _, at := range u.after {
		if since := at.Sub(u.answered); since > lookAfter && since < u.wait {
			t.Errorf("one left %v after the answer", since)
		}
	}
	p := Policy{Rates: rates}
	most := float64(ideal(rates, len(u.seen.left)))*tolerance(&p) + float64(u.wait+time.Second+100*time.Millisecond)
	between(t, "all", took, u.wait, time.Duration(most))
	for _, tr := range transports {
		tr.CloseIdleConnections()
	}
}

// nirn-proxy: what one process is told, the next request of another obeys,
// whether that process has used the key before or not.
func TestRefusalIsHeardByOthers(t *testing.T) {
	for _, used := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			m := newMini()
			refusing, fine := &upstream{replies: []reply{says(429, "", "Retry-After: 30")}}, &upstream{}
			told := transportOf(t, Config{Redis: dialMini(t, m), Base: refusing, Retry: Retry{Max: -1}})
			other := transportOf(t, Config{Redis: dialMini(t, m), Base: fine})
			if used {
				if _, err := other.RoundTrip(getURL(t.Context(), "http://api.example/")); err != nil {
					t.Error(err)
				}
				time.Sleep(lookAfter)
			}
			start := time.Now()
			if resp, err := told.RoundTrip(getURL(t.Context(), "http://api.example/")); err != nil || resp.StatusCode != 429 {
				t.Errorf("got %v, %v", resp, err)
			}
			synctest.Wait()
			if _, err := other.RoundTrip(getURL(t.Context(), "http://api.example/")); err != nil {
				t.Error(err)
			}
			between(t, "the other", time.Since(start), 30*time.Second, 30*time.Second+maxSlack)
		})
	}
}

// pausedBy sends one request without retries, and returns how long the next one
// waits.
func pausedBy(t *testing.T, rdb redis.Scripter, p Policy, first reply) time.Duration {
	t.Helper()
	u := &upstream{replies: []reply{first, says(200, "")}}
	p.Rates = plenty.Rates
	tr := transportOf(t, Config{Redis: rdb, Base: u, Retry: Retry{Max: -1}, Routes: map[string]Policy{"/": p}})
	start := time.Now()
	if _, err := tr.RoundTrip(getURL(t.Context(), "http://api.example/")); err != nil {
		t.Error(err)
	}
	between(t, "the answer", time.Since(start), 0, 0)
	if _, err := tr.RoundTrip(getURL(t.Context(), "http://api.example/")); err != nil {
		t.Error(err)
	}
	return time.Since(start)
}

// TestPauses: what stops a key, and for how long.
func TestPauses(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name        string
		policy      Policy
		first       reply
		least, most time.Duration
	}{
		{"fine", Policy{}, says(200, ""), 0, 0},
		{"429", Policy{}, says(429, "", "Retry-After: 5"), 5 * s, 5 * s},
		{"429 without a wait", Policy{}, says(429, ""), 100 * time.Millisecond, s}, // the backoff
		{"503", Policy{}, says(503, "", "Retry-After: 5"), 5 * s, 5 * s},
		{"503 without a wait", Policy{}, says(503, ""), 0, 0},
		{"500", Policy{}, says(500, "", "Retry-After: 5"), 0, 0},
		{"200, nothing left", Policy{}, says(200, "", `RateLimit: "x";r=0;t=7`), 7 * s, 7 * s},
		{"200, nothing left, older", Policy{}, says(200, "", "RateLimit-Remaining: 0", "RateLimit-Reset: 7"), 7 * s, 7 * s},
		{"200, one left", Policy{}, says(200, "", `RateLimit: "x";r=1;t=7`), 0, 0},
		{"401", Policy{}, says(401, "", "Retry-After: 5", `RateLimit: "x";r=0;t=7`), 0, 0},
		{"403", Policy{}, says(403, "", "Retry-After: 5", `RateLimit: "x";r=0;t=7`), 0, 0},
		{"403 of GitHub's, of permission", Policy{Feedback: GitHub}, says(403, "Must have admin rights"), 0, 0},
		{"403 of GitHub's, of a limit", Policy{Feedback: GitHub}, says(403, "a secondary rate limit"), 60 * s, 60 * s},
		// CLIProxyAPI#4725, sentry-native#1744
		{"six days", Policy{}, says(429, "", "Retry-After: 561635"), 300 * s, 300 * s},
		{"six days, MaxPause", Policy{MaxPause: 10 * s}, says(429, "", "Retry-After: 561635"), 10 * s, 10 * s},
		{"for ever", Policy{}, says(429, "", "Retry-After: 99999999999999999999"), 300 * s, 300 * s},
	} {
		t.Run(c.name, func(t *testing.T) {
			windows(t, func(t *testing.T, connect func() redis.Scripter) {
				between(t, "the pause", pausedBy(t, connect(), c.policy, c.first), c.least, c.most+maxSlack)
			})
		})
	}
}

// CLIProxyAPI#4725, sentry-native#1744 once more, and whatever else is too
// long for the caller: with the loop on, he gets the response at once and
// whole, and the key is paused for the others.
func TestWaitTooLongPausesTheOthers(t *testing.T) {
	for _, c := range []struct {
		name     string
		maxWait  time.Duration
		deadline time.Duration
		after    string
		paused   time.Duration
	}{
		{"cap", 0, 0, "90", 90 * time.Second},
		{"six days", 0, 0, "561635", 300 * time.Second},
		{"deadline", 0, time.Second, "20", 20 * time.Second},
		{"MaxWait", 15 * time.Second, 0, "20", 20 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			windows(t, func(t *testing.T, connect func() redis.Scripter) {
				u := &upstream{replies: []reply{says(429, "whole", "Retry-After: "+c.after), says(200, "")}}
				tr := transportOf(t, Config{
					Redis: connect(), Base: u, Routes: map[string]Policy{"/": {Rates: plenty.Rates, MaxWait: c.maxWait}},
				})
				ctx := t.Context()
				if c.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				start := time.Now()
				resp, err := tr.RoundTrip(getURL(ctx, "http://api.example/"))
				if err != nil || resp.StatusCode != 429 || resp.Header.Get("Retry-After") != c.after || bodyOf(t, resp) != "whole" {
					t.Errorf("got %v, %v", resp, err)
				}
				between(t, "the answer", time.Since(start), 0, 0)
				if c.maxWait > 0 {
					time.Sleep(c.paused - c.maxWait + time.Millisecond)
				}
				resp, err = tr.RoundTrip(getURL(t.Context(), "http://api.example/"))
				if err != nil || resp.StatusCode != 200 || u.count() != 2 {
					t.Errorf("got %v, %v", resp, err)
				}
				between(t, "the other", time.Since(start), c.paused, c.paused+maxSlack)
			})
		})
	}
}

// crossplane provider-upjet-github#318: a key that is paused for an hour
// refuses a context of 100 ms at once, by an error that names the key and the
// time, and sends nothing.
func TestPausedKeyRefusesAtOnce(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		u := &upstream{replies: []reply{says(429, "", "Retry-After: 3600")}}
		tr := transportOf(t, Config{
			Redis: connect(), Base: u, Routes: map[string]Policy{"/": {Rates: plenty.Rates, MaxPause: time.Hour}},
		})
		if _, err := tr.RoundTrip(getURL(t.Context(), "http://api.example/")); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := tr.RoundTrip(getURL(ctx, "http://api.example/"))
		between(t, "the refusal", time.Since(start), 0, 0)
		refusal, ok := errors.AsType[*Error](err)
		if !ok || !errors.Is(err, context.DeadlineExceeded) || refusal.Key != "api.example" || u.count() != 1 {
			t.Fatalf("got %v after %d sendings", err, u.count())
		}
		between(t, "Wait", refusal.Wait, time.Hour-maxSlack, time.Hour+maxSlack)
		if text := err.Error(); !strings.Contains(text, "api.example") || !strings.Contains(text, "1h0m0s") {
			t.Errorf("the text is %q", text)
		}
	})
}

// golang/go#36820: http.Client.Timeout covers the wait for a slot, and shows as
// a timeout.
func TestClientTimeoutCoversTheWait(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		client := &http.Client{Timeout: 50 * time.Millisecond, Transport: transportOf(t, Config{
			Redis: connect(), Base: &upstream{}, Routes: map[string]Policy{"/": {Rates: MustRates("1/10s")}},
		})}
		resp, err := client.Get("http://api.example/")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		start := time.Now()
		_, err = client.Get("http://api.example/")
		outer, ok := errors.AsType[*url.Error](err)
		if !ok || !outer.Timeout() || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		between(t, "back", time.Since(start), 0, 100*time.Millisecond)
	})
}

// go-github#4584: an SDK that calls RoundTrip itself knows no Timeout of
// http.Client; then MaxWait is the bound.
func TestMaxWaitBoundsADirectCall(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		u := &upstream{}
		tr := transportOf(t, Config{
			Redis: connect(), Base: u, Routes: map[string]Policy{"/": {Rates: MustRates("1/h"), MaxWait: time.Second}},
		})
		start := time.Now()
		if _, err := tr.RoundTrip(getURL(context.Background(), "http://api.example/")); err != nil {
			t.Error(err)
		}
		if _, err := tr.RoundTrip(getURL(context.Background(), "http://api.example/")); !errors.Is(err, ErrWaitTooLong) {
			t.Errorf("got %v", err)
		}
		between(t, "both", time.Since(start), 0, 0)
	})
}

// An answer to a request that was sent before the last pause cannot lengthen
// that pause; but the request itself waits as it was told.
func TestStaleAnswer(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		slow := func(d time.Duration, next reply) reply {
			return func(req *http.Request) (*http.Response, error) { time.Sleep(d); return next(req) }
		}
		u := &upstream{replies: []reply{
			slow(time.Second, says(429, "", "Retry-After: 5")),
			slow(2*time.Second, says(429, "", "Retry-After: 50")),
			says(200, ""),
		}}
		tr := transportOf(t, Config{Redis: connect(), Base: u})
		start := time.Now()
		var wg sync.WaitGroup
		for _, want := range []time.Duration{6 * time.Second, 52 * time.Second} {
			wg.Go(func() {
				if resp, err := tr.RoundTrip(getURL(t.Context(), "http://api.example/")); err != nil || resp.StatusCode != 200 {
					t.Errorf("got %v, %v", resp, err)
				}
				between(t, "a retry", time.Since(start), want, want+maxSlack)
			})
			synctest.Wait()
		}
		time.Sleep(3 * time.Second)
		between(t, "the pause", time.Until(tr.Stats()["api.example"].PausedUntil), 2990*time.Millisecond, 3*time.Second)
		if _, err := tr.RoundTrip(getURL(t.Context(), "http://api.example/")); err != nil {
			t.Error(err)
		}
		between(t, "another", time.Since(start), 6*time.Second, 6*time.Second+maxSlack)
		wg.Wait()
	})
}

// TestPauseIsNotForgotten: a pause that Redis never heard of outlives the time
// after which limiters that nobody uses are forgotten.
func TestPauseIsNotForgotten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var away atomic.Bool
		sent := 0
		tr := transportOf(t, Config{
			Redis: flaky{dialMini(t, newMini()), &away},
			Base: roundTripFunc(func(req *http.Request) (*http.Response, error) {
				if req.URL.Path == "/a" {
					sent++
					return response(429, "", "Retry-After: 3000"), nil
				}
				return response(200, ""), nil
			}),
			Routes: Routes{"/": {
				Rates: MustRates("1/s"), Outage: FailOpen, Replicas: 1, MaxWait: time.Second, MaxPause: time.Hour,
				Key: func(req *http.Request) string { return req.URL.Path },
			}},
			Retry: Retry{Max: -1},
		})
		get := func(path string) error {
			_, err := tr.RoundTrip(getURL(t.Context(), "http://api.example"+path))
			return err
		}
		for i := range 2 * minSweep {
			if err := get(fmt.Sprint("/", i)); err != nil {
				t.Fatal(err)
			}
		}
		away.Store(true)
		for sent == 0 {
			_ = get("/a")
			time.Sleep(500 * time.Millisecond)
		}
		time.Sleep(sweepEvery + time.Minute)
		for range 5 {
			if err := get("/a"); !errors.Is(err, ErrWaitTooLong) || sent != 1 {
				t.Errorf("got %v, and %d were sent in a pause of 50 minutes", err, sent)
			}
			time.Sleep(time.Second)
		}
	})
}
