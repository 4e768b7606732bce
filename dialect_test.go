package pacecar

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// The tests of what looks into bodies run in bubbles, where a look ends when
// the body does, however slow the machine is.
func TestDialects(t *testing.T) {
	const s = time.Second
	const silent, final = -1, 0 // ok false, and a pause of zero
	const secondary = `{"message": "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."}`
	const forbidden = `{"message": "Resource not accessible by integration"}`
	const broke = `{"error": {"message": "You exceeded your current quota.", "type": "insufficient_quota", "code": "insufficient_quota"}}`
	const date = "Date: Sun, 01 Mar 2026 11:50:00 GMT" // 1772365800
	for _, tt := range []struct {
		name    string
		dialect func(*http.Response) (time.Duration, bool)
		status  int
		body    string
		lines   []string
		want    time.Duration
	}{
		{"GitHub, primary, 403", GitHub, 403, "", []string{date, "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1772367600"}, 1800 * s},
		{"GitHub, primary, 429", GitHub, 429, "", []string{date, "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1772367600"}, 1800 * s},
		{"GitHub, primary, just over", GitHub, 403, "", []string{date, "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1772365800"}, adviceFloor},
		{"GitHub, primary, no reset", GitHub, 403, "", []string{"X-RateLimit-Remaining: 0"}, 60 * s},
		{"GitHub, secondary with a wait", GitHub, 403, secondary, []string{date, "Retry-After: 90", "X-RateLimit-Remaining: 4000", "X-RateLimit-Reset: 1772367600"}, 90 * s},
		{"GitHub, secondary, never the primary reset", GitHub, 403, secondary, []string{date, "X-RateLimit-Remaining: 4000", "X-RateLimit-Reset: 1772367600"}, 60 * s},
		{"GitHub, secondary, nothing remains", GitHub, 403, secondary, []string{date, "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1772367600"}, 60 * s},
		{"GitHub, secondary, body alone", GitHub, 429, secondary, nil, 60 * s},
		{"GitHub, 429 that says nothing", GitHub, 429, "", nil, 60 * s},
		{"GitHub, plain 403", GitHub, 403, forbidden, []string{date, "X-RateLimit-Remaining: 4999", "X-RateLimit-Reset: 1772367600"}, silent},
		{"GitHub, 401", GitHub, 401, "", []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1772367600"}, silent},
		{"GitHub, 200", GitHub, 200, "", []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1772367600"}, silent},

		{"Discord, header", Discord, 429, "", []string{"Retry-After: 65", "X-RateLimit-Scope: user"}, 65 * s},
		{"Discord, reset longest", Discord, 429, `{"retry_after": 1.25}`, []string{"Retry-After: 1", "X-RateLimit-Reset-After: 2.375", "X-RateLimit-Scope: shared"}, 2375 * time.Millisecond},
		{"Discord, body longest", Discord, 429, `{"message": "You are being rate limited.", "retry_after": 64.57, "global": true}`, []string{"Retry-After: 64", "X-RateLimit-Global: true", "X-RateLimit-Scope: global"}, 64570 * time.Millisecond},
		{"Discord, body alone", Discord, 429, `{"retry_after": 0.3}`, nil, 300 * time.Millisecond},
		{"Discord, banned address", Discord, 429, "<html>error code: 1015</html>", []string{"Retry-After: 3600"}, 3600 * s},
		{"Discord, body with an exponent", Discord, 429, `{"retry_after": 1e3}`, nil, silent},
		{"Discord, body below zero", Discord, 429, `{"retry_after": -3}`, nil, silent},
		{"Discord, 200 with nothing left in a bucket", Discord, 200, "", []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset-After: 5"}, silent},

		{"OpenAI, milliseconds", OpenAI, 429, `{"error": {"code": "rate_limit_exceeded"}}`, []string{"Retry-After-Ms: 1250", "Retry-After: 2"}, 1250 * time.Millisecond},
		{"OpenAI, seconds", OpenAI, 429, "", []string{"Retry-After: 2", "X-RateLimit-Reset-Tokens: 6m0s"}, 2 * s},
		{"OpenAI, resets", OpenAI, 429, "", []string{"X-RateLimit-Reset-Requests: 1s", "X-RateLimit-Reset-Tokens: 6m0s"}, 360 * s},
		{"OpenAI, one reset", OpenAI, 429, "", []string{"X-RateLimit-Reset-Requests: 120ms", "X-RateLimit-Reset-Tokens: -6m0s"}, 120 * time.Millisecond},
		{"OpenAI, reset that overflows", OpenAI, 429, "", []string{"X-RateLimit-Reset-Requests: 9999999999h"}, adviceCeiling},
		{"OpenAI, resets that are no durations", OpenAI, 429, "", []string{"X-RateLimit-Reset-Requests: 5", "X-RateLimit-Reset-Tokens: 1e3s"}, silent},
		{"OpenAI, empty account", OpenAI, 429, broke, []string{"Retry-After: 2"}, final},
		{"OpenAI, quota elsewhere in the body", OpenAI, 429, `{"error": {"message": "insufficient_quota"}}`, []string{"Retry-After: 2"}, 2 * s},
		{"OpenAI, nothing said", OpenAI, 429, `[]`, nil, silent},
		{"OpenAI, 403", OpenAI, 403, broke, nil, silent},

		{"Anthropic, 429", Anthropic, 429, "", []string{"Retry-After: 12", date, "Anthropic-RateLimit-Requests-Reset: 2026-03-01T11:51:00Z"}, 12 * s},
		{"Anthropic, overloaded", Anthropic, 529, "", []string{"Retry-After: 12"}, 12 * s},
		{"Anthropic, overloaded, nothing said", Anthropic, 529, "", []string{date, "Anthropic-RateLimit-Requests-Reset: 2026-03-01T11:51:00Z"}, silent},
		{"Anthropic, reset", Anthropic, 429, "", []string{date, "Anthropic-RateLimit-Requests-Reset: 2026-03-01T11:51:00Z"}, 60 * s},
		{"Anthropic, reset in another zone", Anthropic, 429, "", []string{date, "Anthropic-RateLimit-Requests-Reset: 2026-03-01T12:51:00+01:00"}, 60 * s},
		{"Anthropic, latest reset", Anthropic, 429, "", []string{date, "Anthropic-RateLimit-Requests-Reset: 2026-03-01T11:49:59Z", "Anthropic-RateLimit-Input-Tokens-Reset: 2026-03-01T11:50:20Z"}, 20 * s},
		{"Anthropic, 200", Anthropic, 200, "", []string{"Retry-After: 12", date, "Anthropic-RateLimit-Requests-Reset: 2026-03-01T11:51:00Z"}, silent},
		{"Anthropic, no time", Anthropic, 429, "", []string{date, "Anthropic-RateLimit-Requests-Reset: 60"}, silent},

		{"Azure, milliseconds win", Azure, 429, "", []string{"Retry-After: 9", "X-Ms-Retry-After-Ms: 800"}, 800 * time.Millisecond},
		{"Azure, 503", Azure, 503, "", []string{"Retry-After: 9", "X-Ms-Retry-After-Ms: 800", "Retry-After-Ms: 700"}, 700 * time.Millisecond},
		{"Azure, seconds", Azure, 429, "", []string{"Retry-After: 9"}, 9 * s},
		{"Azure, 202 of a long operation", Azure, 202, "", []string{"Retry-After: 9"}, silent},

		{"Slack", Slack, 429, `{"ok": false, "error": "ratelimited"}`, []string{"Retry-After: 30"}, 30 * s},
		{"Slack, nothing said", Slack, 429, "", nil, silent},
		{"Slack, 503", Slack, 503, "", []string{"Retry-After: 30"}, silent},

		{"Reddit", Reddit, 429, "", []string{"X-Ratelimit-Used: 601", "X-Ratelimit-Remaining: 0.0", "X-Ratelimit-Reset: 342"}, 342 * s},
		{"Reddit, reset alone", Reddit, 429, "", []string{"X-Ratelimit-Reset: 342"}, 342 * s},
		{"Reddit, something left", Reddit, 429, "", []string{"X-Ratelimit-Remaining: 12.0", "X-Ratelimit-Reset: 342"}, silent},
		{"Reddit, Retry-After wins", Reddit, 429, "", []string{"Retry-After: 3", "X-Ratelimit-Remaining: 0", "X-Ratelimit-Reset: 342"}, 3 * s},
		{"Reddit, 200", Reddit, 200, "", []string{"X-Ratelimit-Remaining: 0", "X-Ratelimit-Reset: 342"}, silent},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				resp := response(tt.status, tt.body, tt.lines...)
				pause, ok := tt.dialect(resp)
				if wantOK := tt.want != silent; ok != wantOK || pause != max(tt.want, 0) {
					t.Errorf("got %v, %v; want %v, %v", pause, ok, max(tt.want, 0), wantOK)
				}
				if body, err := io.ReadAll(resp.Body); string(body) != tt.body || err != nil {
					t.Errorf("the body reads %q, %v; want %q", body, err, tt.body)
				}
			})
		})
	}
}

// Without the upstream's Date its times are taken by this machine's clock.
func TestDialectsWithoutDate(t *testing.T) {
	bubble(t, func(t *testing.T) { // it is midnight, 1 January 2000
		pause, ok := GitHub(response(403, "", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 946684830"))
		if pause != 30*time.Second || !ok {
			t.Errorf("GitHub: got %v, %v; want 30s", pause, ok)
		}
		pause, ok = Anthropic(response(429, "", "Anthropic-RateLimit-Requests-Reset: 2000-01-01T00:00:30Z"))
		if pause != 30*time.Second || !ok {
			t.Errorf("Anthropic: got %v, %v; want 30s", pause, ok)
		}
	})
}

// A dialect's answer passes through the policy as it is meant.
func TestDialectThroughPolicy(t *testing.T) { bubble(t, testDialectThroughPolicy) }

func testDialectThroughPolicy(t *testing.T) {
	p := Policy{Feedback: GitHub}
	if a := p.feedback(response(403, "no"), cameAt); a != (advice{}) {
		t.Errorf("a plain 403: %+v, want nothing", a)
	}
	if a := p.feedback(response(403, "secondary rate limit"), cameAt); !a.limited || a.wait != time.Minute {
		t.Errorf("a secondary limit: %+v, want a refusal for a minute", a)
	}
	p = Policy{Feedback: OpenAI}
	if a := p.feedback(response(429, `{"error": {"code": "insufficient_quota"}}`), cameAt); !a.permanent || a.pauses() {
		t.Errorf("an empty account: %+v, want permanent", a)
	}
	if a := p.feedback(response(429, ""), cameAt); !a.limited || a.named {
		t.Errorf("a 429 that says nothing: %+v, want a refusal without a wait", a)
	}
}

// A spyBody counts what is done to it.
type spyBody struct {
	io.Reader
	closed int
}

func (b *spyBody) Close() error { b.closed++; return errSpyClosed }

var errSpyClosed = errors.New("closed")

func TestPeekBody(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", maxPeek/16)
	broken := errors.New("connection reset")
	for _, tt := range []struct {
		name string
		body io.Reader
		peek string
		all  string
		err  error
	}{
		{"short", strings.NewReader("short"), "short", "short", nil},
		{"empty", strings.NewReader(""), "", "", nil},
		{"byte by byte", iotest.OneByteReader(strings.NewReader("short")), "short", "short", nil},
		{"end with the last byte", iotest.DataErrReader(strings.NewReader("short")), "short", "short", nil},
		{"as long as is read", strings.NewReader(long), long, long, nil},
		{"longer", strings.NewReader(long + "and more"), long, long + "and more", nil},
		{"broken off", io.MultiReader(strings.NewReader("begins"), iotest.ErrReader(broken)), "begins", "begins", broken},
		{"broken off at once", iotest.ErrReader(broken), "", "", broken},
		{"broken off behind what is read", io.MultiReader(strings.NewReader(long+"x"), iotest.ErrReader(broken)), long, long + "x", broken},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				spy := &spyBody{Reader: tt.body}
				resp := &http.Response{StatusCode: 429, Body: spy, ContentLength: -1}
				if got := peekBody(resp); string(got) != tt.peek {
					t.Errorf("a look shows %d bytes, want %d", len(got), len(tt.peek))
				}
				for range 2 { // the error stays
					got, err := io.ReadAll(resp.Body)
					if string(got) != tt.all || !errors.Is(err, tt.err) {
						t.Errorf("the body reads %d bytes, %v; want %d, %v", len(got), err, len(tt.all), tt.err)
					}
					tt.all = ""
				}
				if spy.closed != 0 {
					t.Error("closed before the caller did")
				}
				if err := resp.Body.Close(); err != errSpyClosed || spy.closed != 1 {
					t.Errorf("Close: %v, %d times; want the body's own, once", err, spy.closed)
				}
			})
		})
	}
}

func TestPeekBodyTwice(t *testing.T) { bubble(t, testPeekBodyTwice) }

func testPeekBodyTwice(t *testing.T) {
	resp := response(429, "twice")
	for range 2 {
		if got := peekBody(resp); string(got) != "twice" {
			t.Errorf("got %q", got)
		}
	}
	if got, err := io.ReadAll(resp.Body); string(got) != "twice" || err != nil {
		t.Errorf("the body reads %q, %v", got, err)
	}
}

// TestDialectsLeaveOtherBodies: a body is looked into only where the status may
// be a refusal for the rate.
func TestDialectsLeaveOtherBodies(t *testing.T) {
	for _, known := range dialects {
		for _, status := range []int{101, 200, 206, 301, 401, 404, 500, 503} {
			resp := response(status, "body")
			before := resp.Body
			if known.dialect(resp); resp.Body != before {
				t.Errorf("%s looks into the body of a %d", known.name, status)
			}
		}
	}
}

func TestPeekBodyDoesNotLook(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*http.Response)
		looks  bool
	}{
		{"known length", func(*http.Response) {}, true},
		{"unknown length", func(r *http.Response) { r.ContentLength = -1 }, true},
		{"identity", func(r *http.Response) { r.Header.Set("Content-Encoding", "identity") }, true},
		{"long", func(r *http.Response) { r.ContentLength = maxPeek + 1 }, false},
		{"compressed", func(r *http.Response) { r.Header.Set("Content-Encoding", "gzip") }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				resp := response(429, "body")
				tt.change(resp)
				before := resp.Body
				got := peekBody(resp)
				if looked := got != nil; looked != tt.looks || looked != (resp.Body != before) {
					t.Errorf("looked %v, want %v; body replaced %v", looked, tt.looks, resp.Body != before)
				}
			})
		})
	}
	for _, body := range []io.ReadCloser{nil, http.NoBody} {
		resp := &http.Response{StatusCode: 429, Body: body}
		if got := peekBody(resp); got != nil || resp.Body != body {
			t.Errorf("a look at no body: %q, body replaced by %v", got, resp.Body)
		}
	}
}

// A body that hangs holds a refusal up for peekTime and no longer, and then is
// as whole as any other.
func TestPeekBodyHangs(t *testing.T) {
	open := func() (*http.Response, *io.PipeWriter) {
		r, w := io.Pipe()
		return &http.Response{StatusCode: 429, Body: r, ContentLength: -1}, w
	}
	look := func(t *testing.T, resp *http.Response) {
		t.Helper()
		start := time.Now()
		if got := peekBody(resp); got != nil || time.Since(start) != peekTime {
			t.Errorf("got %q after %v, want nothing after %v", got, time.Since(start), peekTime)
		}
	}
	t.Run("and goes on", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			resp, w := open()
			go func() {
				for _, s := range []string{"a slow", " body", " that ends"} {
					io.WriteString(w, s)
					time.Sleep(800 * time.Millisecond)
				}
				w.Close()
			}()
			look(t, resp)
			b := make([]byte, 6)
			if n, err := resp.Body.Read(b); string(b[:n]) != "a slow" || err != nil {
				t.Errorf("the first read: %q, %v", b[:n], err)
			}
			if got, err := io.ReadAll(resp.Body); string(got) != " body that ends" || err != nil {
				t.Errorf("the rest reads %q, %v", got, err)
			}
		})
	})
	t.Run("what came is read before more comes", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			resp, w := open()
			go func() {
				time.Sleep(peekTime + time.Second)
				io.WriteString(w, "one") // and then hangs again
			}()
			look(t, resp)
			b := make([]byte, 9)
			if n, err := resp.Body.Read(b); string(b[:n]) != "one" || err != nil {
				t.Errorf("the first read: %q, %v", b[:n], err)
			}
			resp.Body.Close()
		})
	})
	t.Run("and is closed", func(t *testing.T) {
		bubble(t, func(t *testing.T) { // which fails when a goroutine is left
			resp, _ := open()
			look(t, resp)
			resp.Body.Close()
			if _, err := resp.Body.Read(make([]byte, 1)); !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("read after close: %v", err)
			}
		})
	})
	t.Run("header still read", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			resp, _ := open()
			resp.Header = http.Header{"Retry-After": {"5"}}
			p := Policy{Feedback: OpenAI}
			if a := p.feedback(resp, time.Now()); !a.limited || a.wait != 5*time.Second {
				t.Errorf("got %+v, want Retry-After's 5 s", a)
			}
			resp.Body.Close()
		})
	})
}

// The look allocates by what comes, not by its bound.
func TestPeekBodyIsSmall(t *testing.T) { bubble(t, testPeekBodyIsSmall) }

func testPeekBodyIsSmall(t *testing.T) {
	if got := peekBody(response(429, "short")); cap(got) > 4*bytes.MinRead {
		t.Errorf("%d bytes for a body of 5", cap(got))
	}
}

// net/http decompresses what it asked for compressed, and leaves the length
// unknown. The look must see the text, and leave a connection that is used again.
func TestPeekBodyOverHTTP(t *testing.T) { bubble(t, testPeekBodyOverHTTP) }

func testPeekBodyOverHTTP(t *testing.T) {
	const text = `{"message": "You have exceeded a secondary rate limit."}`
	var zipped bytes.Buffer
	zip := gzip.NewWriter(&zipped)
	io.WriteString(zip, text)
	zip.Close()
	serve := func(conn net.Conn) {
		for in := bufio.NewReader(conn); ; {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			fmt.Fprintf(conn, "HTTP/1.1 403 Forbidden\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", zipped.Len(), zipped.Bytes())
		}
	}
	dials := 0
	base := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		dials++
		here, there := net.Pipe()
		go serve(there)
		return here, nil
	}}
	defer base.CloseIdleConnections()
	for range 2 {
		resp, err := (&http.Client{Transport: base}).Get("http://api.github.example/")
		if err != nil {
			t.Fatal(err)
		}
		if got := peekBody(resp); !resp.Uncompressed || string(got) != text {
			t.Errorf("a look shows %q, want %q", got, text)
		}
		if got, err := io.ReadAll(resp.Body); string(got) != text || err != nil {
			t.Errorf("the body reads %q, %v", got, err)
		}
		resp.Body.Close()
	}
	if dials != 1 {
		t.Errorf("%d connections, want the first to be used again", dials)
	}
}
