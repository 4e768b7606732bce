package pacecar

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A countedBody counts how often it was closed.
type countedBody struct {
	io.Reader
	closed atomic.Int32
}

func (b *countedBody) Close() error { b.closed.Add(1); return nil }

// The bodies of requests in tables.
const (
	noBody   = ""
	again    = "a body that can be sent again"
	onlyOnce = "a body that can not"
)

// request makes a request with one of these bodies.
func request(ctx context.Context, method, body string, lines ...string) *http.Request {
	req := getURL(ctx, "http://api.example/")
	req.Method = method
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Add(name, value)
	}
	if body != noBody {
		req.Body = &countedBody{Reader: strings.NewReader(body)}
		req.ContentLength = int64(len(body))
	}
	if body == again {
		req.GetBody = func() (io.ReadCloser, error) { return &countedBody{Reader: strings.NewReader(body)}, nil }
	}
	return req
}

var (
	errReset = &net.OpError{Op: "read", Net: "tcp", Err: os.ErrClosed}
	errDial  = &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	errCert  = &tls.CertificateVerificationError{Err: errors.New("not trusted")}
)

// TestRetried: each call meets one outcome, then an answer of 200.
func TestRetried(t *testing.T) {
	const get, post, key = "GET", "POST", "Idempotency-Key: 1"
	jitter := [2]time.Duration{100 * time.Millisecond, time.Second} // the first backoff
	exactly := func(d time.Duration) [2]time.Duration { return [2]time.Duration{d, d + maxSlack} }
	for _, c := range []struct {
		name         string
		method, body string
		header       string
		first        reply
		within       [2]time.Duration // between two attempts; zero: there is no second
	}{
		{"success", get, noBody, "", says(200, ""), [2]time.Duration{}},
		{"refused by ourselves", get, noBody, "", fails(&Error{Key: "x", Err: ErrWaitTooLong}), [2]time.Duration{}},
		{"refused by ourselves, in a chain", get, noBody, "", fails(fmt.Errorf("x: %w", &Error{Err: ErrUnavailable})), [2]time.Duration{}},

		// go-retryablehttp#169, resty#777
		{"429, GET", get, noBody, "", says(429, "", "Retry-After: 2"), exactly(2 * time.Second)},
		{"429, POST", post, noBody, "", says(429, "", "Retry-After: 2"), exactly(2 * time.Second)},
		{"429, POST with GetBody", post, again, "", says(429, "", "Retry-After: 2"), exactly(2 * time.Second)},
		{"429, a body sent once", post, onlyOnce, "", says(429, "", "Retry-After: 2"), [2]time.Duration{}},
		{"429, a body sent once, PUT", "PUT", onlyOnce, "", says(429, "", "Retry-After: 2"), [2]time.Duration{}},
		{"429 without a wait, POST", post, again, "", says(429, ""), jitter},
		{"503 with a wait, POST", post, again, "", says(503, "", "Retry-After: 2"), exactly(2 * time.Second)},
		{"503 with a wait, a body sent once", post, onlyOnce, "", says(503, "", "Retry-After: 2"), [2]time.Duration{}},
		{"413 with a wait, POST", post, again, "", says(413, "", "Retry-After: 2"), exactly(2 * time.Second)},

		{"408, GET", get, noBody, "", says(408, ""), jitter},
		{"500, GET", get, noBody, "", says(500, ""), jitter},
		{"502, HEAD", "HEAD", noBody, "", says(502, ""), jitter},
		{"503, PUT", "PUT", again, "", says(503, ""), jitter},
		{"504, DELETE", "DELETE", noBody, "", says(504, ""), jitter},
		{"500, OPTIONS", "OPTIONS", noBody, "", says(500, ""), jitter},
		{"500, no method", "", noBody, "", says(500, ""), jitter},
		{"500, PUT, a body sent once", "PUT", onlyOnce, "", says(500, ""), [2]time.Duration{}},
		{"500, POST", post, again, "", says(500, ""), [2]time.Duration{}},
		{"503, POST", post, again, "", says(503, ""), [2]time.Duration{}},
		{"500, PATCH", "PATCH", again, "", says(500, ""), [2]time.Duration{}},
		{"500, POST with a key", post, again, key, says(500, ""), jitter},
		{"503, PATCH with a key", "PATCH", again, key, says(503, ""), jitter},
		{"500 with Retry-After", get, noBody, "", says(500, "", "Retry-After: 30"), jitter}, // it has no meaning there
		{"501", get, noBody, "", says(501, ""), [2]time.Duration{}},
		{"400", get, noBody, "", says(400, ""), [2]time.Duration{}},
		{"401", get, noBody, "", says(401, "", "Retry-After: 2"), [2]time.Duration{}},
		{"403", get, noBody, "", says(403, "", "Retry-After: 2"), [2]time.Duration{}},
		{"404", get, noBody, "", says(404, ""), [2]time.Duration{}},
		{"301", get, noBody, "", says(301, "", "Retry-After: 2", "Location: /x"), [2]time.Duration{}},

		{"answer lost, GET", get, noBody, "", fails(errReset), jitter},
		{"answer lost, POST", post, again, "", fails(errReset), [2]time.Duration{}},
		{"answer lost, POST with a key", post, again, key, fails(errReset), jitter},
		{"not dialled, POST", post, again, "", fails(errDial), jitter}, // caddy#7546
		{"not dialled, POST, a body sent once", post, onlyOnce, "", fails(errDial), [2]time.Duration{}},
		{"bad scheme", get, noBody, "", fails(errors.New(`unsupported protocol scheme "gopher"`)), [2]time.Duration{}},
		{"bad header", get, noBody, "", fails(errors.New(`net/http: invalid header field name "a b"`)), [2]time.Duration{}},
		{"certificate", get, noBody, "", fails(errCert), [2]time.Duration{}},
		{"certificate, below a client", get, noBody, "", fails(&url.Error{Op: "Get", Err: errCert}), [2]time.Duration{}},

		// go-retryablehttp#247, #295, golang/go#40376, basecamp-sdk#798, kubevuln#637
		{"the longest wait", get, noBody, "", says(429, "", "Retry-After: 60"), exactly(time.Minute)},
		{"above", get, noBody, "", says(429, "", "Retry-After: 61"), [2]time.Duration{}},
		{"an hour", get, noBody, "", says(503, "", "Retry-After: 3600"), [2]time.Duration{}},
		{"overflow", get, noBody, "", says(429, "", "Retry-After: 9223372036854775807"), [2]time.Duration{}},
		{"more", get, noBody, "", says(429, "", "Retry-After: 99999999999999999999999"), [2]time.Duration{}},
		{"nothing left for an hour, on a 500", get, noBody, "", says(500, "", `RateLimit: "x";r=0;t=3600`), [2]time.Duration{}},
		// data-prepper#6928
		{"a fraction", get, noBody, "", says(429, "", "Retry-After: 0.2"), exactly(200 * time.Millisecond)},
		{"a large fraction", get, noBody, "", says(429, "", "Retry-After: 59.997"), exactly(59997 * time.Millisecond)},
		{"nothing left, on a 500", get, noBody, "", says(500, "", `RateLimit: "x";r=0;t=20`), exactly(20 * time.Second)},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				u := &upstream{replies: []reply{c.first, says(200, "second")}}
				tr := transportOf(t, Config{Base: u})
				start := time.Now()
				resp, err := tr.RoundTrip(request(t.Context(), c.method, c.body, c.header))
				if c.within == [2]time.Duration{} {
					want, wantErr := c.first(nil)
					if u.count() != 1 || !errors.Is(err, wantErr) || want != nil && resp.StatusCode != want.StatusCode {
						t.Errorf("got %v, %v after %d sendings, want the first outcome", resp, err, u.count())
					}
					if want != nil && resp.Header.Get("Retry-After") != want.Header.Get("Retry-After") {
						t.Errorf("header %v", resp.Header)
					}
					between(t, "the answer", time.Since(start), 0, 0)
					return
				}
				if err != nil || u.count() != 2 || bodyOf(t, resp) != "second" {
					t.Fatalf("got %v, %v after %d sendings, want the second outcome", resp, err, u.count())
				}
				between(t, "the retry", u.got[1].at.Sub(u.got[0].at), c.within[0], c.within[1])
				if u.got[0].body != c.body || u.got[1].body != c.body {
					t.Errorf("sent %q, then %q", u.got[0].body, u.got[1].body)
				}
			})
		})
	}
}

// A wait that the caller has no time for ends the call at once, and the
// response is whole. openfga go-sdk#378
func TestWaitIsNotShortened(t *testing.T) {
	for _, c := range []struct {
		name    string
		maxWait time.Duration
		context time.Duration
		max     time.Duration // Retry.MaxRetryAfter
		pause   time.Duration // MaxPause
		first   reply
		wait    time.Duration // zero: the first answer is returned at once
	}{
		{"deadline", 0, 50 * time.Millisecond, 0, 0, says(429, "whole", "Retry-After: 1"), 0},
		{"deadline, 503", 0, 900 * time.Millisecond, 0, 0, says(503, "whole", "Retry-After: 1"), 0},
		{"deadline, backoff", 0, 50 * time.Millisecond, 0, 0, says(500, "whole"), 0},
		{"deadline, backoff of a 429", 0, 50 * time.Millisecond, 0, 0, says(429, "whole"), 0},
		{"time enough", 0, 2 * time.Second, 0, 0, says(429, "whole", "Retry-After: 1"), time.Second},
		{"MaxWait", 2 * time.Second, 0, 0, 0, says(429, "whole", "Retry-After: 3"), 0},
		{"MaxWait, longer than the pause", 10 * time.Second, 0, 0, 5 * time.Second, says(429, "whole", "Retry-After: 30"), 0},
		{"MaxWait, enough", 4 * time.Second, 0, 0, 0, says(429, "whole", "Retry-After: 3"), 3 * time.Second},
		{"MaxRetryAfter", 0, 0, 2 * time.Second, 0, says(429, "whole", "Retry-After: 3"), 0},
		{"MaxRetryAfter, enough", 0, 0, 5 * time.Minute, 0, says(429, "whole", "Retry-After: 299.997"), 299997 * time.Millisecond},
		{"longer than the pause", 0, 0, time.Hour, time.Minute, says(429, "whole", "Retry-After: 150"), 150 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				u := &upstream{replies: []reply{c.first, says(200, "second")}}
				p := Policy{Rates: plenty.Rates, MaxWait: c.maxWait, MaxPause: c.pause}
				tr := transportOf(t, Config{
					Base: u, Retry: Retry{MaxRetryAfter: c.max}, Routes: map[string]Policy{"/": p},
				})
				ctx := t.Context()
				if c.context > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.context)
					defer cancel()
				}
				start := time.Now()
				resp, err := tr.RoundTrip(getURL(ctx, "http://api.example/"))
				if err != nil {
					t.Fatal(err)
				}
				between(t, "the answer", time.Since(start), c.wait, c.wait+maxSlack)
				if want := map[bool]string{true: "whole", false: "second"}[c.wait == 0]; bodyOf(t, resp) != want {
					t.Errorf("want the body %q", want)
				}
			})
		})
	}
}

// linkinator#681: without a wait named, waits grow, are jittered, and are capped.
func TestBackoff(t *testing.T) {
	for _, c := range []struct {
		r    Retry
		caps []time.Duration // of the first, the second, and so on; the last for ever
	}{
		{Retry{}, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 30 * time.Second}},
		{Retry{MinBackoff: time.Second, MaxBackoff: time.Second}, []time.Duration{time.Second}},
		{Retry{MinBackoff: time.Millisecond, MaxBackoff: 3 * time.Millisecond}, []time.Duration{1e6, 2e6, 3e6}},
		{Retry{MinBackoff: 1, MaxBackoff: 1}, []time.Duration{1}},
	} {
		for n := range 20 {
			most := c.caps[min(n, len(c.caps)-1)]
			least := min(adviceFloor, most)
			seen := map[time.Duration]bool{}
			var sum float64
			for range 100 {
				d := c.r.backoff(n + 1)
				if d < least || d > most {
					t.Fatalf("%+v: %v before attempt %d, want %v to %v", c.r, d, n+2, least, most)
				}
				seen[d] = true
				sum += float64(d)
			}
			if most > 10*least && (len(seen) < 50 || sum < 20*float64(most) || sum > 80*float64(most)) {
				t.Errorf("%+v: %d different waits before attempt %d, %v in all", c.r, len(seen), n+2, time.Duration(sum))
			}
		}
	}
	if d := (&Retry{MaxBackoff: math.MaxInt64}).backoff(1000); d < adviceFloor {
		t.Errorf("%v before the thousandth retry", d)
	}
}

// go-retryablehttp#156, #179, Lilypad#420: when the attempts are used up, the
// last response is the result, and nobody speaks of it.
func TestExhausted(t *testing.T) {
	var told bytes.Buffer
	log.SetOutput(&told)
	defer log.SetOutput(os.Stderr)
	for _, c := range []struct {
		max, attempts int
		status        int
	}{{0, 4, 500}, {0, 4, 429}, {1, 2, 429}, {7, 8, 503}, {-1, 1, 500}, {-1, 1, 429}} {
		bubble(t, func(t *testing.T) {
			const text = `{"error": "slow down"}`
			bodies := []*countedBody{}
			u := &upstream{replies: []reply{func(*http.Request) (*http.Response, error) {
				resp := response(c.status, "")
				bodies = append(bodies, &countedBody{Reader: strings.NewReader(text)})
				resp.Body = bodies[len(bodies)-1]
				return resp, nil
			}}}
			var events []Event
			tr := transportOf(t, Config{Base: u, Retry: Retry{Max: c.max}, Observe: func(_ context.Context, e Event) {
				if e.Kind == EventRetry {
					events = append(events, e)
				}
			}})
			resp, err := tr.RoundTrip(getURL(t.Context(), "http://api.example/"))
			if err != nil || resp.StatusCode != c.status || u.count() != c.attempts || len(events) != c.attempts-1 {
				t.Fatalf("%+v: got %v, %v after %d sendings and %d events", c, resp, err, u.count(), len(events))
			}
			for i, e := range events {
				if e.Attempt != i+1 || e.Key != "api.example" {
					t.Errorf("event %d: %+v", i, e)
				}
			}
			if got := bodyOf(t, resp); got != text {
				t.Errorf("the last body reads %q", got)
			}
			for i, b := range bodies {
				if b.closed.Load() != 1 {
					t.Errorf("body %d was closed %d times", i, b.closed.Load())
				}
			}
		})
	}
	if told.Len() > 0 {
		t.Errorf("the standard library's log got %q", told.String())
	}
}

// TestCheck: Retry.Check decides, or leaves it; but a body that cannot be sent
// again, a refusal of ours, an ended context and a wait too long are not its
// to decide.
func TestCheck(t *testing.T) {
	type decision struct{ retry, decided bool }
	yes, no, leave := decision{true, true}, decision{false, true}, decision{true, false}
	for _, c := range []struct {
		name         string
		method, body string
		first        reply
		check        decision
		attempts     int
		asked        int
	}{
		{"yes, 404", "POST", again, says(404, ""), yes, 2, 2},
		{"yes, answer lost", "POST", again, fails(errReset), yes, 2, 2},
		{"no, 500", "GET", noBody, says(500, ""), no, 1, 1},
		{"no, 429", "GET", noBody, says(429, "", "Retry-After: 1"), no, 1, 1},
		{"no, not dialled", "GET", noBody, fails(errDial), no, 1, 1},
		{"undecided, 404", "GET", noBody, says(404, ""), leave, 1, 1},
		{"undecided, 500", "GET", noBody, says(500, ""), leave, 2, 2},
		{"a body sent once", "PUT", onlyOnce, says(500, ""), yes, 1, 0},
		{"refused by ourselves", "GET", noBody, fails(&Error{Err: ErrUnavailable}), yes, 1, 0},
		{"wait too long", "GET", noBody, says(429, "", "Retry-After: 3600"), yes, 1, 1},
		{"101", "GET", noBody, says(101, ""), yes, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				u := &upstream{replies: []reply{c.first, says(200, "")}}
				asked := 0
				req := request(t.Context(), c.method, c.body)
				tr := transportOf(t, Config{Base: u, Retry: Retry{Check: func(r *http.Request, resp *http.Response, err error) (bool, bool) {
					if asked++; r != req || (resp == nil) == (err == nil) {
						t.Errorf("asked of %v, %v, %v", r, resp, err)
					}
					if asked == 2 {
						return false, true
					}
					return c.check.retry, c.check.decided
				}}})
				_, _ = tr.RoundTrip(req)
				if u.count() != c.attempts || asked != c.asked {
					t.Errorf("%d sendings, asked %d times", u.count(), asked)
				}
			})
		})
	}
}

// A body that GetBody fails to give again cannot be sent again: the response
// that would have been retried is the result, and the slot goes back.
func TestGetBodyFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		u := &upstream{replies: []reply{says(429, "whole", "Retry-After: 1")}}
		req := request(t.Context(), "POST", again)
		req.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("the file is gone") }
		tr := transportOf(t, Config{Base: u})
		resp, err := tr.RoundTrip(req)
		if err != nil || resp.StatusCode != 429 || bodyOf(t, resp) != "whole" || u.count() != 1 {
			t.Errorf("got %v, %v after %d sendings", resp, err, u.count())
		}
		for _, stats := range tr.Stats() {
			if stats.GivenBack != 1 {
				t.Errorf("%d slots were given back", stats.GivenBack)
			}
		}
	})
}

// A GetBody that panics keeps no slot, and does not keep the limiter from being
// forgotten.
func TestGetBodyPanics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		u := &upstream{replies: []reply{says(429, "", "Retry-After: 1")}}
		req := request(t.Context(), "POST", again)
		req.GetBody = func() (io.ReadCloser, error) { panic("GetBody") }
		tr := transportOf(t, Config{Base: u})
		func() {
			defer func() {
				if r := recover(); r != "GetBody" {
					t.Errorf("recovered %v", r)
				}
			}()
			_, _ = tr.RoundTrip(req)
		}()
		for _, l := range tr.limiters.all() {
			l.mu.Lock()
			if l.out != 0 || l.stats.GivenBack != 1 {
				t.Errorf("%d are in Base, %d slots were given back", l.out, l.stats.GivenBack)
			}
			l.mu.Unlock()
		}
	})
}

// When there is no slot for a retry, the last response is the result.
func TestNoSlotForRetry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		u := &upstream{replies: []reply{says(503, "whole")}}
		tr := transportOf(t, Config{Base: u, Routes: map[string]Policy{
			"/": {Rates: MustRates("1/m"), MaxWait: 10 * time.Second},
		}})
		resp, err := tr.RoundTrip(getURL(t.Context(), "http://api.example/"))
		if err != nil || resp.StatusCode != 503 || bodyOf(t, resp) != "whole" || u.count() != 1 {
			t.Errorf("got %v, %v after %d sendings", resp, err, u.count())
		}
	})
}

// What is left of a refusal, if it is long or does not come, keeps no connection
// from others while the retry waits.
func TestRefusalKeepsNoConnection(t *testing.T) {
	for _, c := range []struct {
		name string
		rest func(rw http.ResponseWriter, r *http.Request)
	}{
		{"short", func(rw http.ResponseWriter, _ *http.Request) { rw.Write(make([]byte, drainBytes-1)) }},
		{"long", func(rw http.ResponseWriter, _ *http.Request) { rw.Write(make([]byte, 100<<10)) }},
		{"hanging", func(rw http.ResponseWriter, r *http.Request) {
			rw.(http.Flusher).Flush()
			<-r.Context().Done()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				refused := false
				s := servePipes(t, time.Millisecond, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/told" && !refused {
						refused = true
						rw.Header().Set("Retry-After", "20")
						rw.WriteHeader(http.StatusTooManyRequests)
						c.rest(rw, r)
					}
				}))
				tr := transportOf(t, Config{
					Base: s.base(t, func(tr *http.Transport) { tr.MaxConnsPerHost = 1 }),
					Routes: map[string]Policy{"/": {
						Rates: plenty.Rates, Key: func(req *http.Request) string { return req.URL.Path },
					}},
				})
				start := time.Now()
				var wg sync.WaitGroup
				wg.Go(func() {
					resp, err := tr.RoundTrip(getURL(t.Context(), "http://api.example/told"))
					if err != nil || resp.StatusCode != 200 {
						t.Errorf("got %v, %v", resp, err)
						return
					}
					bodyOf(t, resp)
					between(t, "the retry", time.Since(start), 20*time.Second, 20*time.Second+2*maxSlack)
				})
				time.Sleep(time.Second)
				resp, err := tr.RoundTrip(getURL(t.Context(), "http://api.example/other"))
				if err != nil {
					t.Fatal(err)
				}
				bodyOf(t, resp)
				between(t, "another key's request", time.Since(start), time.Second, time.Second+maxSlack)
				wg.Wait()
				tr.CloseIdleConnections()
			})
		})
	}
}

// A Base that is not net/http's may give no body, or nothing at all.
func TestOddBases(t *testing.T) {
	for _, max := range []int{0, -1} {
		bubble(t, func(t *testing.T) {
			tr := transportOf(t, Config{Retry: Retry{Max: max}, Base: &upstream{replies: []reply{
				func(*http.Request) (*http.Response, error) { return &http.Response{StatusCode: 503}, nil },
			}}})
			if resp, err := tr.RoundTrip(getURL(t.Context(), "http://api.example/")); err != nil || resp.StatusCode != 503 {
				t.Errorf("got %v, %v", resp, err)
			}
			tr.config.Base = roundTripFunc(func(*http.Request) (*http.Response, error) { return nil, nil })
			if resp, err := tr.RoundTrip(getURL(t.Context(), "http://api.example/")); resp != nil || err != nil {
				t.Errorf("got %v, %v", resp, err)
			}
			tr.config.Base = roundTripFunc(func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 200}, errReset
			})
			if resp, err := tr.RoundTrip(getURL(t.Context(), "http://api.example/")); resp != nil || !errors.Is(err, errReset) {
				t.Errorf("got %v, %v", resp, err)
			}
		})
	}
}

// aws-sdk-go-v2#1665: that one key's upstream fails all day takes nothing from
// the retries of another.
func TestRetriesOfKeysAreTheirOwn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var good atomic.Int32
		tr := transportOf(t, Config{Base: roundTripFunc(func(req *http.Request) (*http.Response, error) {
			if req.URL.Host == "bad.example" {
				return response(503, "", "Retry-After: 30"), nil
			}
			if good.Add(1)%3 != 0 {
				return response(500, ""), nil
			}
			return response(200, ""), nil
		})})
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				for ctx.Err() == nil {
					_, _ = tr.RoundTrip(getURL(ctx, "http://bad.example/"))
				}
			})
		}
		for range 24 * 60 {
			start := time.Now()
			resp, err := tr.RoundTrip(getURL(t.Context(), "http://good.example/"))
			if err != nil || resp.StatusCode != 200 {
				t.Errorf("got %v, %v", resp, err)
			}
			between(t, "two retries", time.Since(start), 200*time.Millisecond, 3*time.Second)
			time.Sleep(time.Minute - time.Since(start))
		}
		stop()
		wg.Wait()
	})
}

// golang/go#78156: a timer that is due already when a goroutine of a synctest
// bubble waits for it may end the process under the race detector. The loop,
// whose timer is not ours, must not make one where the limiter does the waiting.
func TestLoopSleepsBetweenAttempts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		replies := []*http.Response{response(429, "", "Retry-After: 2"), response(500, ""), response(200, "")}
		tr := transportOf(t, Config{Base: roundTripFunc(func(*http.Request) (*http.Response, error) {
			resp := replies[0]
			replies = replies[1:]
			return resp, nil
		})})
		var slept []time.Duration
		backoff := tr.retrier.Backoff
		tr.retrier.Backoff = func(least, most time.Duration, n int, resp *http.Response) time.Duration {
			slept = append(slept, backoff(least, most, n, resp))
			return slept[len(slept)-1]
		}
		resp, err := tr.RoundTrip(getURL(t.Context(), "http://api.example/"))
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("got %v, %v", resp, err)
		}
		if len(slept) != 2 || slept[0] != 1 || slept[1] < 1 {
			t.Errorf("the loop slept %v, want 1ns for the pause, and the backoff", slept)
		}
	})
}

// zeros is an endless body.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// go-retryablehttp#145: a stream that cannot be sent again goes out once, and
// through no memory of ours.
func TestStreamsAreNotKept(t *testing.T) {
	const size = 1 << 30
	var got int64
	attempts := 0
	tr := transportOf(t, Config{Base: roundTripFunc(func(req *http.Request) (*http.Response, error) {
		attempts++
		buf := make([]byte, 1<<20)
		for n, err := 0, error(nil); err == nil; got += int64(n) {
			n, err = req.Body.Read(buf)
		}
		req.Body.Close()
		return response(429, "", "Retry-After: 1"), nil
	})})
	body := &countedBody{Reader: io.LimitReader(zeros{}, size)}
	req := getURL(t.Context(), "http://api.example/")
	req.Method, req.Body, req.ContentLength = "PUT", body, size
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	resp, err := tr.RoundTrip(req)
	runtime.ReadMemStats(&after)
	if err != nil || resp.StatusCode != 429 || attempts != 1 || got != size || body.closed.Load() != 1 {
		t.Errorf("got %v, %v; %d sendings of %d bytes, closed %d times", resp, err, attempts, got, body.closed.Load())
	}
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 4<<20 {
		t.Errorf("%d bytes were allocated", grown)
	}
}

// go-retryablehttp#145: a call whose body is a pipe that nobody writes to is
// back at once when it is cancelled, and lets go of the pipe: while it is sent,
// and while it waits for its slot.
func TestPipeAndCancel(t *testing.T) {
	for _, waits := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			tr := transportOf(t, Config{
				Base: roundTripFunc(func(req *http.Request) (*http.Response, error) {
					go io.Copy(io.Discard, req.Body)
					<-req.Context().Done()
					req.Body.Close()
					return nil, req.Context().Err()
				}),
				Routes: map[string]Policy{"/": {Rates: MustRates("1/h")}},
			})
			if waits { // somebody else has the slot
				base := tr.config.Base
				tr.config.Base = &upstream{}
				if _, err := tr.RoundTrip(getURL(t.Context(), "http://api.example/")); err != nil {
					t.Error(err)
				}
				tr.config.Base = base
			}
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			out, in := io.Pipe()
			req := getURL(ctx, "http://api.example/")
			req.Method, req.Body = "POST", out
			start := time.Now()
			_, err := tr.RoundTrip(req)
			if _, refused := errors.AsType[*Error](err); refused != waits || !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			between(t, "return", time.Since(start), time.Second, time.Second)
			if _, err := in.Write([]byte("x")); err != io.ErrClosedPipe {
				t.Errorf("the pipe is still read from: %v", err)
			}
		})
	}
}
