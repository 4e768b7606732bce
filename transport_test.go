package pacecar

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// plenty is a quota that no test uses up.
var plenty = Policy{Rates: MustRates("1000000/s")}

// transportOf makes a Transport. Without Routes, plenty is every host's.
func transportOf(t testing.TB, c Config) *Transport {
	t.Helper()
	if c.Routes == nil {
		c.Routes = map[string]Policy{"/": plenty}
	}
	tr, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// An upstream is a Base that answers from a script, the last reply for ever,
// and keeps what it was sent.
type upstream struct {
	replies []reply

	mu  sync.Mutex // guards what follows
	got []sent
}

// A reply is an answer or a failure.
type reply func(*http.Request) (*http.Response, error)

// sent is what arrived, and when.
type sent struct {
	at     time.Time
	host   string
	header http.Header
	body   string
}

func says(status int, body string, lines ...string) reply {
	return func(*http.Request) (*http.Response, error) { return response(status, body, lines...), nil }
}

func fails(err error) reply {
	return func(*http.Request) (*http.Response, error) { return nil, err }
}

func (u *upstream) RoundTrip(req *http.Request) (*http.Response, error) {
	s := sent{at: time.Now(), host: req.URL.Host, header: req.Header.Clone()}
	if req.Body != nil {
		b, err := io.ReadAll(req.Body)
		req.Body.Close()
		if err != nil {
			return nil, err
		}
		s.body = string(b)
	}
	u.mu.Lock()
	u.got = append(u.got, s)
	next := says(200, "fine")
	if len(u.replies) > 0 {
		next = u.replies[min(len(u.got), len(u.replies))-1]
	}
	u.mu.Unlock()
	resp, err := next(req)
	if resp != nil {
		resp.Request = req
	}
	return resp, err
}

// count returns how many requests arrived.
func (u *upstream) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.got)
}

// getURL makes a GET request.
func getURL(ctx context.Context, url string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		panic(err)
	}
	return req
}

// bodyOf reads and closes a response's body.
func bodyOf(t testing.TB, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("body: %v", err)
	}
	resp.Body.Close()
	return string(b)
}

// TestNewRefuses: every configuration that cannot work is an error of New that
// names the field.
func TestNewRefuses(t *testing.T) {
	var client *redis.Client
	var base *http.Transport
	good := Policy{Rates: MustRates("3/s")}
	route := func(change func(p *Policy)) map[string]Policy {
		p := Policy{Rates: MustRates("3/s")}
		change(&p)
		return map[string]Policy{"api.example/": p}
	}
	for _, c := range []struct {
		field string
		c     Config
	}{
		{"Routes", Config{}},
		{"Routes", Config{Routes: map[string]Policy{}}},
		{`Routes["api.example/"]: Rates`, Config{Routes: map[string]Policy{"api.example/": {}}}},
		{`Routes["api.example/"]: Rates`, Config{Routes: route(func(p *Policy) { p.Rates = Rates{{Limit: 0, Per: time.Second}} })}},
		{`Routes["api.example/"]: MaxWait`, Config{Routes: route(func(p *Policy) { p.MaxWait = -1 })}},
		{`Routes["api.example/"]: MaxPause`, Config{Routes: route(func(p *Policy) { p.MaxPause = -1 })}},
		{`Routes["api.example/"]: Slack`, Config{Routes: route(func(p *Policy) { p.Slack = -1 })}},
		{`Routes["api.example/"]: Slack`, Config{Routes: route(func(p *Policy) { p.Slack = time.Second })}},
		{`Routes["api.example/"]: Outage`, Config{Routes: route(func(p *Policy) { p.Outage = 7 })}},
		{`Routes["api.example/"]: Replicas`, Config{Routes: route(func(p *Policy) { p.Outage = FailOpen })}},
		{`Routes["api.example/"]: Replicas`, Config{Routes: route(func(p *Policy) { p.Replicas = -1 })}},
		{`Routes["api.example/"]: Replicas`, Config{Routes: route(func(p *Policy) { p.Outage, p.Replicas = FailOpen, math.MaxInt })}},
		{`Routes["api.example/"]: Name`, Config{Routes: route(func(p *Policy) { p.Name = "a#b" })}},
		{`Routes["b.example/"]: Name`, Config{Routes: map[string]Policy{
			"a.example/": {Name: "n", Rates: good.Rates}, "b.example/": {Name: "n", Rates: MustRates("4/s")},
		}}},
		{`Routes["api.example"]`, Config{Routes: map[string]Policy{"api.example": good}}}, // no path
		{`Routes["/{x}"]`, Config{Routes: map[string]Policy{"/{x}": good, "/{y}": good}}},
		{`conflicts with Routes["/x/{y}"]`, Config{Routes: map[string]Policy{"/{x}/y": good, "/x/{y}": good}}},
		{"Redis", Config{Redis: client, Routes: route(func(*Policy) {})}},
		{"Base", Config{Base: base, Routes: route(func(*Policy) {})}},
		{"Prefix", Config{Prefix: "a{b}", Routes: route(func(*Policy) {})}},
		{"Prefix", Config{Prefix: "a b", Routes: route(func(*Policy) {})}},
		{"RedisTimeout", Config{RedisTimeout: -1, Routes: route(func(*Policy) {})}},
		{"RedisTimeout", Config{RedisTimeout: 250, Routes: route(func(*Policy) {})}}, // nanoseconds
		{"Retry.MaxRetryAfter", Config{Retry: Retry{MaxRetryAfter: 60}, Routes: route(func(*Policy) {})}},
		{"Retry.MaxBackoff", Config{Retry: Retry{MaxBackoff: 30}, Routes: route(func(*Policy) {})}},
		{"Retry.MaxRetryAfter", Config{Retry: Retry{MaxRetryAfter: -1}, Routes: route(func(*Policy) {})}},
		{"Retry.MinBackoff", Config{Retry: Retry{MinBackoff: -1}, Routes: route(func(*Policy) {})}},
		{"Retry.MaxBackoff", Config{Retry: Retry{MaxBackoff: -1}, Routes: route(func(*Policy) {})}},
		{"Retry.MinBackoff", Config{Retry: Retry{MinBackoff: time.Minute}, Routes: route(func(*Policy) {})}},
	} {
		tr, err := New(c.c)
		if tr != nil || err == nil || !strings.HasPrefix(err.Error(), "pacecar: ") || !strings.Contains(err.Error(), c.field) {
			t.Errorf("got %v, %v, want an error that names %s", tr, err, c.field)
		}
	}
}

// A request that matches no route, and one without a URL, pass untouched.
func TestUnroutedPasses(t *testing.T) {
	var events []Event
	for _, max := range []int{0, -1} {
		var passed *http.Request
		tr := transportOf(t, Config{
			Routes:  map[string]Policy{"api.example/": {Rates: MustRates("1/h")}},
			Retry:   Retry{Max: max},
			Observe: func(_ context.Context, e Event) { events = append(events, e) },
			Base: roundTripFunc(func(req *http.Request) (*http.Response, error) {
				passed = req
				if req.URL == nil {
					return nil, errors.New("no URL")
				}
				return response(503, "busy", "Retry-After: 1"), nil
			}),
		})
		events = nil
		for range 3 {
			req := getURL(t.Context(), "http://other.example/")
			resp, err := tr.RoundTrip(req)
			if err != nil || resp.StatusCode != 503 || passed != req {
				t.Fatalf("got %v, %v; was untouched: %v", resp, err, passed == req)
			}
		}
		req := &http.Request{Method: "GET"}
		if resp, err := tr.RoundTrip(req); resp != nil || err == nil || passed != req {
			t.Errorf("without a URL: %v, %v", resp, err)
		}
		if len(events) != 4 || !reflect.DeepEqual(events[0], Event{Kind: EventUnrouted}) || len(tr.Stats()) != 0 {
			t.Errorf("events %v, stats %v", events, tr.Stats())
		}
		// As net/http has it: an error.
		tr.config.Base = nil
		if _, err := tr.RoundTrip(&http.Request{Method: "GET"}); err == nil {
			t.Error("no error without a URL")
		}
	}
}

// TestNested: of a Transport in a Transport, however deep, the outer one takes
// the slot and retries. A request that goes elsewhere on the way has a quota of
// its own.
func TestNested(t *testing.T) {
	bubble(t, func(t *testing.T) {
		u := &upstream{replies: []reply{says(500, ""), says(200, "")}}
		inner := transportOf(t, Config{Base: u, Routes: map[string]Policy{"/": {Rates: MustRates("1/h")}}})
		middle := roundTripFunc(func(req *http.Request) (*http.Response, error) { return inner.RoundTrip(req) })
		outer := transportOf(t, Config{Base: middle})
		resp, err := outer.RoundTrip(getURL(t.Context(), "http://api.example/"))
		if err != nil || resp.StatusCode != 200 || u.count() != 2 || len(inner.Stats()) != 0 {
			t.Errorf("got %v, %v, %d sendings, inner %v", resp, err, u.count(), inner.Stats())
		}
		u.replies = []reply{says(500, "")}
		u.got = nil
		if _, err := outer.RoundTrip(getURL(t.Context(), "http://api.example/")); err != nil || u.count() != 4 {
			t.Errorf("%d sendings and %v, want 4: one loop", u.count(), err)
		}
		u.replies = nil
		elsewhere := transportOf(t, Config{Base: roundTripFunc(func(req *http.Request) (*http.Response, error) {
			return inner.RoundTrip(getURL(req.Context(), "http://token.example/"))
		})})
		if _, err := elsewhere.RoundTrip(getURL(t.Context(), "http://api.example/")); err != nil {
			t.Error(err)
		}
		if _, ok := inner.Stats()["token.example"]; !ok {
			t.Errorf("a request to another host took no slot: %v", inner.Stats())
		}
		if outer.Unwrap() == nil || inner.Unwrap() != http.RoundTripper(u) {
			t.Error("Unwrap does not lead to Base")
		}
		if transportOf(t, Config{}).Unwrap() != http.DefaultTransport {
			t.Error("Unwrap without a Base is not the default")
		}
	})
}

// TestDefaultTransport: where http.DefaultTransport leads back to the Transport,
// the one that was there before sends, for requests with a route and without. A
// Transport on the way that has a route where the outer has none takes a slot.
func TestDefaultTransport(t *testing.T) {
	before := http.DefaultTransport
	defer func() { http.DefaultTransport = before }()
	u := &upstream{}
	http.DefaultTransport = u
	x := transportOf(t, Config{Routes: Routes{"api.example/": {Rates: MustRates("100/s")}}})
	inner := transportOf(t, Config{Routes: Routes{"free.example/": {Rates: MustRates("100/s")}}})
	sent := 0
	for name, def := range map[string]http.RoundTripper{
		"itself":            x,
		"around it":         roundTripFunc(func(r *http.Request) (*http.Response, error) { return x.RoundTrip(r.Clone(r.Context())) }),
		"around it, slower": roundTripFunc(func(r *http.Request) (*http.Response, error) { time.Sleep(time.Millisecond); return x.RoundTrip(r) }),
		"another":           inner,
	} {
		http.DefaultTransport = def
		for _, url := range []string{"http://api.example/", "http://free.example/"} {
			sent++
			req := getURL(t.Context(), url)
			if def == http.RoundTripper(inner) {
				inner.config.Base = u
			}
			resp, err := x.RoundTrip(req)
			if err != nil || u.count() != sent || resp.Request != req {
				t.Fatalf("%s, %s: %v, %d sent of %d", name, url, err, u.count(), sent)
			}
		}
	}
	if n, m := x.Stats()["api.example"].Sent, inner.Stats()["free.example"].Sent; n != 4 || m != 1 {
		t.Errorf("%d slots of 4, and %d of 1 of the inner one", n, m)
	}
}

// TestTwoDefaults: nor do two Transports that were each made the default lead in
// circles.
func TestTwoDefaults(t *testing.T) {
	before := http.DefaultTransport
	defer func() { http.DefaultTransport = before }()
	u := &upstream{}
	http.DefaultTransport = u
	depth := 0
	around := func(x *Transport) http.RoundTripper {
		return roundTripFunc(func(r *http.Request) (*http.Response, error) {
			if depth++; depth > 100 {
				t.Fatal("in circles")
			}
			return x.RoundTrip(r)
		})
	}
	for _, host := range []string{"a.example", "b.example"} {
		http.DefaultTransport = around(transportOf(t, Config{Routes: Routes{host + "/": {Rates: MustRates("9/s")}}}))
	}
	for i, host := range []string{"a.example", "b.example", "c.example"} {
		if _, err := http.DefaultTransport.RoundTrip(getURL(t.Context(), "http://"+host+"/")); err != nil || u.count() != i+1 {
			t.Errorf("%s: %v, %d sent", host, err, u.count())
		}
	}
}

// TestPanics: what a function of the caller's panics with comes through, and no
// body is left open.
func TestPanics(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]Config{
		"Feedback": {Routes: Routes{"/": {Rates: MustRates("9/s"), Feedback: func(*http.Response) (time.Duration, bool) { panic(boom) }}}},
		"Check":    {Retry: Retry{Check: func(*http.Request, *http.Response, error) (bool, bool) { panic(boom) }}},
		"Observe": {Observe: func(_ context.Context, e Event) {
			if e.Kind == EventRetry {
				panic(boom)
			}
		}},
	} {
		bubble(t, func(t *testing.T) {
			spy := &spyBody{Reader: strings.NewReader("")}
			c.Base = roundTripFunc(func(*http.Request) (*http.Response, error) {
				resp := response(500, "")
				resp.Body = spy
				return resp, nil
			})
			defer func() {
				if r := recover(); r != boom || spy.closed == 0 {
					t.Errorf("%s: recovered %v, and the body was closed %d times", name, r, spy.closed)
				}
			}()
			_, _ = transportOf(t, c).RoundTrip(getURL(t.Context(), "http://api.example/"))
		})
	}
}

// TestRefuse429: a refusal that time can lift is a response; one for cost, and
// a context's end, are errors as ever.
func TestRefuse429(t *testing.T) {
	for _, max := range []int{0, -1} {
		bubble(t, func(t *testing.T) {
			u := &upstream{}
			tr := transportOf(t, Config{
				Base: u, Refuse429: true, Retry: Retry{Max: max},
				Routes: map[string]Policy{"/": {
					Rates: MustRates("1/90s"), MaxWait: time.Second,
					Cost: func(req *http.Request) int { return len(req.URL.Path) },
				}},
			})
			if _, err := tr.RoundTrip(getURL(t.Context(), "http://api.example/")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(500 * time.Millisecond)
			body := &countedBody{Reader: strings.NewReader("x")}
			req := getURL(t.Context(), "http://api.example/?sig=SECRET")
			req.Body = body
			resp, err := tr.RoundTrip(req)
			if err != nil || resp.StatusCode != 429 || resp.Status != "429 Too Many Requests" || resp.Request != req {
				t.Fatalf("got %v, %v", resp, err)
			}
			text := bodyOf(t, resp)
			if resp.Header.Get("Retry-After") != "90" || resp.ContentLength != int64(len(text)) ||
				!strings.Contains(text, "api.example") || strings.Contains(text, "SECRET") || body.closed.Load() != 1 {
				t.Errorf("header %v, length %d, body %q, closed %d times", resp.Header, resp.ContentLength, text, body.closed.Load())
			}
			if _, err := tr.RoundTrip(getURL(t.Context(), "http://api.example/x")); !errors.Is(err, ErrCostTooHigh) {
				t.Errorf("cost: %v", err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := tr.RoundTrip(getURL(ctx, "http://api.example/")); !errors.Is(err, context.Canceled) {
				t.Errorf("context: %v", err)
			}
			if u.count() != 1 {
				t.Errorf("%d sendings", u.count())
			}
		})
	}
}

// TestStats: what one process knows of each key.
func TestStats(t *testing.T) {
	bubble(t, func(t *testing.T) {
		u := &upstream{}
		tr := transportOf(t, Config{Base: u, Routes: map[string]Policy{"/": {Rates: MustRates("1/10s"), MaxWait: time.Minute}}})
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { tr.RoundTrip(getURL(t.Context(), "http://a.example/")) })
		}
		wg.Go(func() { tr.RoundTrip(getURL(t.Context(), "http://b.example/")) })
		time.Sleep(time.Second)
		s := tr.Stats()
		if len(s) != 2 || s["a.example"].Waiting != 2 || s["b.example"].Waiting != 0 {
			t.Errorf("got %+v", s)
		}
		between(t, "the next slot", time.Until(s["a.example"].NextSlot), 9*time.Second, 9*time.Second+maxSlack)
		if !s["b.example"].NextSlot.IsZero() || s["a.example"].RoundTrips == 0 || !s["a.example"].PausedUntil.IsZero() {
			t.Errorf("got %+v", s)
		}
		wg.Wait()
		u.replies = []reply{says(429, "", "Retry-After: 120")}
		if resp, err := tr.RoundTrip(getURL(t.Context(), "http://a.example/")); err != nil || resp.StatusCode != 429 {
			t.Errorf("got %v, %v", resp, err)
		}
		if _, err := tr.RoundTrip(getURL(t.Context(), "http://a.example/")); !errors.Is(err, ErrWaitTooLong) {
			t.Errorf("got %v", err)
		}
		s = tr.Stats()
		between(t, "the pause", time.Until(s["a.example"].PausedUntil), 119*time.Second, 120*time.Second)
		if s["a.example"].Refused != 1 || s["b.example"].Refused != 0 {
			t.Errorf("got %+v", s)
		}
	})
}

// A sink is a buffer for many goroutines.
type sink struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *sink) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(b)
}

func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// go-retryablehttp#206, notifications-engine#464: no secret of a request is in a
// key, an event, a log or an error of ours.
func TestNoSecrets(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const secret = "SECRET"
		var told sink
		m := newMini()
		failure := &url.Error{Op: "Get", URL: "http://api.example/?sig=" + secret, Err: io.ErrUnexpectedEOF}
		u := &upstream{replies: []reply{
			fails(failure), fails(fmt.Errorf("wrapped: %w", failure)), says(429, secret, "Retry-After: 1", "X-Key: "+secret),
			says(500, secret), says(429, secret, "Retry-After: 3600"),
		}}
		tr := transportOf(t, Config{
			Redis: dialMini(t, m), Base: u,
			Logger:  slog.New(slog.NewTextHandler(&told, &slog.HandlerOptions{Level: slog.LevelDebug})),
			Observe: func(_ context.Context, e Event) { fmt.Fprintf(&told, "%+v\n", e) },
			Retry:   Retry{Max: 4},
			Routes: map[string]Policy{"/": {
				Rates: MustRates("10/s"), MaxWait: 10 * time.Second, Key: ByHeader("Authorization"),
			}},
		})
		req := getURL(t.Context(), "http://user:"+secret+"@api.example/"+secret+"?sig="+secret+"#"+secret)
		req.Header.Set("Authorization", "Bearer "+secret)
		if resp, err := tr.RoundTrip(req); err != nil || resp.StatusCode != 429 || u.count() != 5 {
			t.Fatalf("got %v, %v after %d sendings", resp, err, u.count())
		}
		_, err := tr.RoundTrip(req)
		if !errors.Is(err, ErrWaitTooLong) {
			t.Fatal(err)
		}
		fmt.Fprintln(&told, err, tr.Stats())
		m.Close() // Redis is away
		time.Sleep(time.Minute)
		_, err = tr.RoundTrip(req)
		if !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
		fmt.Fprintln(&told, err, tr.Stats(), m.Keys())
		for _, kind := range []string{"slot", "refused", "paused", "retry", "degraded", "api.example", "EOF"} {
			if !strings.Contains(told.String(), kind) {
				t.Errorf("nothing was told of %q", kind)
			}
		}
		for _, k := range append(m.Keys(), strings.Split(told.String(), "\n")...) {
			if strings.Contains(k, secret) {
				t.Errorf("the secret is in %s", k)
			}
		}
	})
}

// TestLimitersAreForgotten: a key for each of 100,000 tenants leaks nothing.
func TestLimitersAreForgotten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		tr := transportOf(t, Config{
			Base:   roundTripFunc(func(*http.Request) (*http.Response, error) { return response(200, ""), nil }),
			Retry:  Retry{Max: -1},
			Routes: map[string]Policy{"/": {Rates: MustRates("10/s"), Key: func(req *http.Request) string { return req.URL.Path }}},
		})
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		const rounds, workers, each, shared = 50, 8, 250, 20
		for round := range rounds {
			var wg sync.WaitGroup
			for w := range workers {
				wg.Go(func() {
					for i := range each + shared { // the last are the next worker's too
						path := fmt.Sprintf("/%d/%d", round, (w*each+i)%(workers*each))
						req := &http.Request{Method: "GET", URL: &url.URL{Scheme: "http", Host: "api.example", Path: path}}
						if _, err := tr.RoundTrip(req); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			time.Sleep(3 * time.Second) // all are idle
		}
		tr.limiters.mu.Lock()
		count := tr.limiters.count
		tr.limiters.mu.Unlock()
		if n := len(tr.Stats()); n != count || n > 3*workers*each {
			t.Errorf("%d limiters are kept, and counted as %d", n, count)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 40<<20 {
			t.Errorf("%d bytes are kept", grown)
		}
		time.Sleep(sweepEvery + time.Second)
		if n := len(tr.Stats()); n > 0 {
			t.Errorf("%d limiters are kept, though nobody has asked for long", n)
		}
	})
}

// golang/oauth2#805, go-github#4190: a redirect to another host is a request of
// its own, with a slot under that host's key; what the caller set for the first
// host does not follow.
func TestRedirectToAnotherHost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		u := &upstream{replies: []reply{says(302, "", "Location: http://files.example/1"), says(200, "")}}
		tr := transportOf(t, Config{Base: u})
		req := getURL(t.Context(), "http://api.example/")
		req.Header.Set("Authorization", "Bearer x")
		resp, err := (&http.Client{Transport: tr}).Do(req)
		if err != nil || resp.StatusCode != 200 || u.count() != 2 {
			t.Fatalf("got %v, %v after %d sendings", resp, err, u.count())
		}
		for i, want := range []sent{{host: "api.example"}, {host: "files.example"}} {
			if got := u.got[i]; got.host != want.host || (got.header.Get("Authorization") == "") != (i == 1) {
				t.Errorf("hop %d went to %s with %v", i, got.host, got.header)
			}
			if tr.Stats()[want.host].RoundTrips != 1 {
				t.Errorf("hop %d: %+v", i, tr.Stats())
			}
		}
	})
}

// opentelemetry-go-contrib#4895: an upstream that refuses before it has read a
// large body races with nobody.
func TestEarlyRefusalOfALargeBody(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789"), 8<<20/10)
	for _, proto := range wires {
		t.Run(proto, func(t *testing.T) {
			w := &wire{proto: proto, loop: true}
			var n atomic.Int32
			u, base := w.serve(t, func(rw http.ResponseWriter, r *http.Request) {
				if n.Add(1)%2 == 1 {
					rw.WriteHeader(http.StatusTooManyRequests)
					return
				}
				if got, _ := io.Copy(io.Discard, r.Body); got != int64(len(body)) {
					t.Errorf("%d bytes arrived", got)
				}
			})
			tr := w.transport(t, base)
			for range 7 {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, u, bytes.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				if resp := w.roundTrip(t, tr, req); resp.StatusCode != 200 {
					t.Errorf("got %d", resp.StatusCode)
				}
			}
		})
	}
}

// golang/go#30597, go-retryablehttp#94: a body that could be wound back is not,
// since net/http may still be reading it when the answer is there: each attempt
// has a reader of its own, which starts where the first one stood.
func TestSeekableBody(t *testing.T) {
	var bodies []string
	var n atomic.Int32
	w := &wire{proto: "HTTP/1", loop: true}
	u, base := w.serve(t, func(rw http.ResponseWriter, r *http.Request) {
		if n.Add(1) < 4 {
			rw.WriteHeader(http.StatusTooManyRequests)
			return
		}
		b, _ := io.ReadAll(r.Body)
		bodies = append(bodies, string(b))
	})
	text := strings.Repeat("0123456789", 100_000)
	file := strings.NewReader("skipped" + text)
	if _, err := file.Seek(7, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, u, file)
	if err != nil {
		t.Fatal(err)
	}
	w.roundTrip(t, w.transport(t, base), req)
	if len(bodies) != 1 || bodies[0] != text {
		t.Errorf("%d bodies arrived", len(bodies))
	}
}

// go-retryablehttp#85, #98, #237: a call that fails for good leaves alone the
// connections that other clients of its Base keep.
func TestOthersKeepTheirConnections(t *testing.T) {
	for _, proto := range wires {
		t.Run(proto, func(t *testing.T) {
			w := &wire{proto: proto, loop: true}
			u, base := w.serve(t, func(rw http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/busy" {
					rw.WriteHeader(http.StatusTooManyRequests)
				}
			})
			other := &http.Client{Transport: base}
			tr := w.transport(t, base)
			for range 3 {
				for _, rt := range []http.RoundTripper{other.Transport, tr} {
					resp := w.roundTrip(t, rt, getURL(t.Context(), u+"/busy"))
					bodyOf(t, resp)
				}
			}
			if n := w.conns.Load(); n != 1 {
				t.Errorf("%d connections", n)
			}
		})
	}
}

// caddy#7546: a connection is refused, which net/http tells after it has closed
// the body. With GetBody the request is repeated whole, without it the error is
// the result.
func TestConnectionRefused(t *testing.T) {
	for _, body := range []string{again, onlyOnce} {
		bubble(t, func(t *testing.T) {
			var got []string
			s := servePipes(t, time.Millisecond, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				got = append(got, string(b))
			}))
			dials := 0
			base := s.base(t, func(tr *http.Transport) {
				dial := tr.DialContext
				tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if dials++; dials == 1 {
						return nil, errDial
					}
					return dial(ctx, network, addr)
				}
			})
			tr := transportOf(t, Config{Base: base})
			resp, err := tr.RoundTrip(request(t.Context(), "POST", body))
			if body == onlyOnce {
				if !errors.Is(err, errDial) || len(got) != 0 || dials != 1 {
					t.Errorf("got %v, %v after %d dials", resp, err, dials)
				}
				return
			}
			if err != nil || len(got) != 1 || got[0] != body {
				t.Errorf("got %v; %q arrived", err, got)
			}
			tr.CloseIdleConnections()
		})
	}
}

// TestDeadConnection: net/http finds a kept connection dead, and sends the
// request again by itself. It tells of the second connection, and that takes a
// slot of its own.
func TestDeadConnection(t *testing.T) {
	for _, max := range []int{0, -1} {
		bubble(t, func(t *testing.T) {
			seen, slots := newTrace(), 0
			s := servePipes(t, time.Millisecond, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				seen.add(0, 1)
				if seen.len() == 2 {
					conn, _, _ := http.NewResponseController(rw).Hijack()
					conn.Close()
				}
			}))
			tr := transportOf(t, Config{
				Base: s.base(t, nil), Retry: Retry{Max: max}, Routes: map[string]Policy{"/": {Rates: MustRates("1/s")}},
				Observe: func(_ context.Context, e Event) {
					if e.Kind == EventSlot {
						slots++
					}
				},
			})
			for range 2 {
				resp, err := tr.RoundTrip(getURL(t.Context(), "http://api.example/"))
				if err != nil {
					t.Fatal(err)
				}
				bodyOf(t, resp)
			}
			if seen.len() != 3 || slots != 3 || s.dials.Load() != 2 {
				t.Errorf("%d sendings on %d connections with %d slots", seen.len(), s.dials.Load(), slots)
			}
			seen.check(t, MustRates("1/s"))
			tr.CloseIdleConnections()
		})
	}
}
