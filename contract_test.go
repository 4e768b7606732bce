package pacecar

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestContract is what net/http promises its callers on behalf of a
// RoundTripper, clause by clause, with the retry loop on and off, and over each
// wire where the clause touches it.
//
// What cannot be kept from below: net/http sends a request again by itself when
// a connection that was kept alive turns out to be dead. [Transport] says so, and
// TestDeadConnection shows it.
func TestContract(t *testing.T) {
	for _, clause := range []struct {
		name  string
		check func(*testing.T, *wire)
		wires []string // none: it touches no wire
	}{
		{"01 safe for concurrent use", testConcurrentUse, wires},
		{"02 a response whatever its status", testResponseWhateverStatus, wires},
		{"03 never a response and an error", testNeverBoth, nil},
		{"04 the request is not modified", testRequestNotModified, wires},
		{"05 the body is closed", testBodyClosed, nil},
		{"06 no redirects, cookies, credentials", testNothingOfAClient, wires},
		{"07 the context is honoured", testContextHonoured, nil},
		{"08 Timeout of url.Error", testTimeout, nil},
		{"09 GetBody", testGetBody, wires},
		{"10 length, NoBody, Trailer, Host", testLengthTrailerHost, wires},
		{"11 a 101 can write", testSwitchingProtocols, wires[:2]}, // HTTP/2 has none
		{"12 response trailers", testResponseTrailers, wires},
		{"13 the body outlives RoundTrip", testBodyOutlives, wires},
		{"14 resp.Request is the caller's", testResponseRequest, wires},
		{"15 CloseIdleConnections", testCloseIdle, nil},
		{"16 connections are used again", testConnectionsReused, wires},
		{"17 returns at the headers", testReturnsAtHeaders, wires},
	} {
		for _, loop := range []bool{true, false} {
			if clause.wires == nil {
				t.Run(fmt.Sprintf("%s/loop %v", clause.name, loop), func(t *testing.T) { clause.check(t, &wire{loop: loop}) })
			}
			for _, proto := range clause.wires {
				t.Run(fmt.Sprintf("%s/loop %v, %s", clause.name, loop, proto), func(t *testing.T) {
					clause.check(t, &wire{proto: proto, loop: loop})
				})
			}
		}
	}
}

var wires = []string{"HTTP/1", "TLS", "HTTP/2"}

// A wire is a way to reach a server.
type wire struct {
	proto string
	loop  bool
	conns atomic.Int32 // connections made
}

// serve starts a server, and returns its URL and a base that reaches it.
func (w *wire) serve(t *testing.T, h http.HandlerFunc) (string, *http.Transport) {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			w.conns.Add(1)
		}
	}
	if w.proto == "HTTP/1" {
		srv.Start()
	} else {
		srv.EnableHTTP2 = w.proto == "HTTP/2"
		srv.StartTLS()
	}
	t.Cleanup(srv.Close)
	base := srv.Client().Transport.(*http.Transport)
	t.Cleanup(base.CloseIdleConnections)
	return srv.URL, base
}

// transport makes a Transport on base that hardly backs off.
func (w *wire) transport(t *testing.T, base http.RoundTripper, policies ...Policy) *Transport {
	c := Config{Base: base, Retry: Retry{Max: w.attempts() - 1, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond}}
	if !w.loop {
		c.Retry.Max = -1
	}
	for _, p := range policies {
		c.Routes = map[string]Policy{"/": p}
	}
	return transportOf(t, c)
}

// attempts is how often a request is sent whose answer is retried every time.
func (w *wire) attempts() int {
	if w.loop {
		return 4
	}
	return 1
}

// roundTrip wants an answer over the wire that w names.
func (w *wire) roundTrip(t *testing.T, rt http.RoundTripper, req *http.Request) *http.Response {
	t.Helper()
	resp, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if want := map[bool]int{true: 2, false: 1}[w.proto == "HTTP/2"]; resp.ProtoMajor != want || (resp.TLS != nil) != (w.proto != "HTTP/1") {
		t.Errorf("the answer came by %s, TLS %v", resp.Proto, resp.TLS != nil)
	}
	return resp
}

// put makes a request that may be repeated, with a body that can be.
func put(ctx context.Context, url, body string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	return req
}

func testConcurrentUse(t *testing.T, w *wire) {
	var n atomic.Int32
	u, base := w.serve(t, func(rw http.ResponseWriter, r *http.Request) {
		if w.loop && n.Add(1)%10 == 0 {
			rw.WriteHeader(500)
		}
		io.Copy(rw, r.Body)
	})
	base.MaxConnsPerHost, base.MaxIdleConnsPerHost = 10, 10 // handshakes take long
	tr := w.transport(t, base, Policy{Rates: plenty.Rates, Key: ByHeader("Tenant")})
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			for j := range 3 {
				text := fmt.Sprintf("%d/%d", i, j)
				req := put(t.Context(), u, text)
				req.Header.Set("Tenant", fmt.Sprint(i%7))
				resp, err := tr.RoundTrip(req)
				if err != nil {
					t.Error(err)
					return
				}
				if got := bodyOf(t, resp); got != text {
					t.Errorf("the answer to %s is %s", text, got)
				}
			}
		})
	}
	wg.Wait()
	if keys := len(tr.Stats()); keys != 7 {
		t.Errorf("%d keys", keys)
	}
}

func testResponseWhateverStatus(t *testing.T, w *wire) {
	var sendings atomic.Int32
	u, base := w.serve(t, func(rw http.ResponseWriter, r *http.Request) {
		sendings.Add(1)
		var status int
		fmt.Sscanf(r.URL.Path, "/%d", &status)
		rw.WriteHeader(status)
		fmt.Fprintf(rw, "body of %d", status)
	})
	tr := w.transport(t, base)
	for status, want := range map[int]int{200: 1, 201: 1, 307: 1, 400: 1, 401: 1, 403: 1, 404: 1, 408: 4, 429: 4, 500: 4, 501: 1, 503: 4, 599: 1} {
		sendings.Store(0)
		resp := w.roundTrip(t, tr, getURL(t.Context(), fmt.Sprintf("%s/%d", u, status)))
		if text := bodyOf(t, resp); resp.StatusCode != status || text != fmt.Sprintf("body of %d", status) {
			t.Errorf("%d became %d with the body %q", status, resp.StatusCode, text)
		}
		if want = min(want, w.attempts()); int(sendings.Load()) != want {
			t.Errorf("%d was sent %d times, want %d", status, sendings.Load(), want)
		}
	}
}

func testNeverBoth(t *testing.T, w *wire) {
	var bodies []*countedBody
	tr := w.transport(t, roundTripFunc(func(*http.Request) (*http.Response, error) {
		bodies = append(bodies, &countedBody{Reader: strings.NewReader("text")})
		return &http.Response{StatusCode: 200, Body: bodies[len(bodies)-1]}, errReset
	}))
	if resp, err := tr.RoundTrip(getURL(t.Context(), "http://api.example/")); resp != nil || !errors.Is(err, errReset) {
		t.Errorf("got %v, %v", resp, err)
	}
	for _, b := range bodies {
		if b.closed.Load() != 1 {
			t.Errorf("one of %d bodies was closed %d times", len(bodies), b.closed.Load())
		}
	}
}

// fields are the exported fields of a request, as they are now.
func fields(req *http.Request) map[string]any {
	m := map[string]any{"Context()": req.Context()}
	v := reflect.ValueOf(*req)
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.IsExported() {
			m[f.Name] = v.Field(i).Interface()
		}
	}
	u := *req.URL
	m["URL"], m["Header"], m["Trailer"] = u, req.Header.Clone(), req.Trailer.Clone()
	m["GetBody"] = reflect.ValueOf(req.GetBody).Pointer()
	return m
}

// opentelemetry-go-contrib#3969, dd-trace-go#1090
func testRequestNotModified(t *testing.T, w *wire) {
	for _, status := range []int{200, 500} {
		u, base := w.serve(t, func(rw http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			rw.WriteHeader(status)
		})
		req := put(t.Context(), u+"/a%2Fb?q=1", "text")
		req.Header = http.Header{"X-Several": {"1", "2"}, "Authorization": {"Bearer x"}}
		req.TransferEncoding = []string{"identity"}
		req.Trailer = http.Header{"X-Sum": {"3"}}
		req.ContentLength = -1 // for the trailer
		req.Close = status == 500
		req.Host = "host.example"
		req.Form, req.PostForm = url.Values{"a": {"b"}}, url.Values{"c": {"d"}}
		before := fields(req)
		w.roundTrip(t, w.transport(t, base), req)
		for name, was := range before {
			if is := fields(req)[name]; !reflect.DeepEqual(is, was) {
				t.Errorf("%s was %v, and is %v", name, was, is)
			}
		}
	}
}

// golang/oauth2#269
func testBodyClosed(t *testing.T, w *wire) {
	for _, c := range []struct {
		name   string
		policy Policy
		reply  reply
		used   bool // but for those of the attempts, no slot is left
		ended  bool // the context, before
		ends   bool // the context, during the wait
		away   bool // Redis
		sent   int  // with the loop on
		bare   bool // no GetBody
	}{
		{name: "sent", sent: 1},
		{name: "refused upstream", reply: says(429, "", "Retry-After: 1"), sent: 4},
		{name: "not dialled", reply: fails(errDial), sent: 4},
		{name: "cannot be sent again", reply: says(429, "", "Retry-After: 1"), sent: 1, bare: true},
		{name: "a context that has ended", ended: true},
		{name: "wait too long", policy: Policy{MaxWait: time.Second}, used: true},
		{name: "cost", policy: Policy{Cost: func(*http.Request) int { return 100 }}},
		{name: "a context that ends", used: true, ends: true},
		{name: "Redis is away", away: true},
		{name: "a context that ends before the retry", reply: says(429, "", "Retry-After: 1"), ends: true, sent: 1},
		{name: "a context that ends in the backoff", reply: says(408, "", "Retry-After: 1"), ends: true, sent: 1},
		{name: "a retry refused", policy: Policy{MaxWait: time.Second}, reply: says(500, ""), sent: 1, used: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				u := &upstream{}
				c.policy.Rates = MustRates("10/h")
				config := w.transport(t, u).config
				config.Retry.MinBackoff, config.Retry.MaxBackoff = 0, 0
				if c.away {
					m := newMini()
					m.SetError("LOADING")
					config.Redis = dialMini(t, m)
				}
				config.Routes = map[string]Policy{"/": c.policy}
				tr := transportOf(t, config)
				for i := 0; c.used && i < 10-c.sent; i++ {
					if _, err := tr.RoundTrip(getURL(t.Context(), "http://api.example/")); err != nil {
						t.Fatal(err)
					}
				}
				u.got, u.replies = nil, []reply{c.reply}
				if c.reply == nil {
					u.replies = nil
				}
				ctx, end := context.WithCancel(t.Context())
				if c.ended {
					end()
				}
				if c.ends {
					time.AfterFunc(50*time.Millisecond, end)
				}
				bodies := []*countedBody{{Reader: strings.NewReader("text")}}
				req := getURL(ctx, "http://api.example/")
				req.Method, req.Body = http.MethodPut, bodies[0]
				if !c.bare {
					req.GetBody = func() (io.ReadCloser, error) {
						bodies = append(bodies, &countedBody{Reader: strings.NewReader("text")})
						return bodies[len(bodies)-1], nil
					}
				}
				resp, err := tr.RoundTrip(req)
				if end(); (resp == nil) == (err == nil) {
					t.Errorf("got %v, %v", resp, err)
				}
				if want := min(c.sent, w.attempts()); u.count() != want {
					t.Errorf("%d sendings, want %d", u.count(), want)
				}
				for i, b := range bodies {
					if n := b.closed.Load(); n != 1 {
						t.Errorf("body %d of %d was closed %d times", i+1, len(bodies), n)
					}
				}
			})
		})
	}
}

// go-retryablehttp#128, confluentinc cli#2231, go-github's GetArchiveLink: a
// redirect is the caller's, also of one who calls RoundTrip himself.
func testNothingOfAClient(t *testing.T, w *wire) {
	var got []*http.Request
	u, base := w.serve(t, func(rw http.ResponseWriter, r *http.Request) {
		got = append(got, r)
		http.SetCookie(rw, &http.Cookie{Name: "session", Value: "1"})
		http.Redirect(rw, r, "/archive", http.StatusFound)
	})
	tr := w.transport(t, base)
	for i := range 2 {
		req := getURL(t.Context(), strings.Replace(u, "://", "://user:password@", 1))
		resp := w.roundTrip(t, tr, req)
		if resp.StatusCode != 302 || resp.Header.Get("Location") != "/archive" || len(got) != i+1 {
			t.Errorf("got %v after %d sendings", resp, len(got))
		}
		if h := got[i].Header; h.Get("Authorization") != "" || h.Get("Cookie") != "" || h.Get("Referer") != "" {
			t.Errorf("sent %v", h)
		}
	}
	client := &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Get(u)
	if err != nil || resp.StatusCode != 302 || len(got) != 3 {
		t.Errorf("got %v, %v after %d sendings", resp, err, len(got))
	}
	resp.Body.Close()
}

func testContextHonoured(t *testing.T, w *wire) {
	for _, c := range []struct {
		name  string
		reply reply
		rates string
		after time.Duration // when the context ends
		sent  int
		ours  bool // what ended is a wait of ours
	}{
		{"ended", nil, "2/h", 0, 0, false},
		{"while it waits for a slot", nil, "1/h", 10 * time.Second, 0, true},
		{"in Base", func(req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			return nil, req.Context().Err()
		}, "2/h", 10 * time.Second, 1, false},
		{"in the backoff", says(500, ""), "2/h", 50 * time.Millisecond, 1, true},
		{"in a pause", says(429, "", "Retry-After: 20"), "3/h", 10 * time.Second, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				u := &upstream{}
				tr := w.transport(t, u, Policy{Rates: MustRates(c.rates)})
				tr.config.Retry.MinBackoff, tr.config.Retry.MaxBackoff = time.Second, time.Second
				if _, err := tr.RoundTrip(getURL(t.Context(), "http://api.example/")); err != nil {
					t.Fatal(err)
				}
				if u.got = nil; c.reply != nil {
					u.replies = []reply{c.reply}
				}
				ctx, cancel := context.WithCancel(t.Context())
				if c.after == 0 {
					cancel()
				} else {
					time.AfterFunc(c.after, cancel)
				}
				start := time.Now()
				_, err := tr.RoundTrip(getURL(ctx, "http://api.example/"))
				if c.sent > 0 && c.ours && !w.loop {
					return // nothing is waited for
				}
				_, ours := errors.AsType[*Error](err)
				if !errors.Is(err, context.Canceled) || ours != c.ours || u.count() != c.sent {
					t.Errorf("got %v after %d sendings", err, u.count())
				}
				between(t, "back", time.Since(start), c.after, c.after)
				if c.after > 0 {
					return
				}
				if _, err := tr.RoundTrip(getURL(t.Context(), "http://api.example/")); err != nil {
					t.Error(err)
				}
				between(t, "the slot that was not taken", time.Since(start), 0, 0)
			})
		})
	}
}

func testTimeout(t *testing.T, w *wire) {
	for _, c := range []struct {
		name    string
		timeout time.Duration
		cancel  time.Duration
		maxWait time.Duration
		want    bool
	}{
		{"Timeout", time.Second, 0, 0, true},
		{"cancelled", 0, time.Second, 0, false},
		{"MaxWait", 0, 0, time.Second, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				tr := w.transport(t, &upstream{}, Policy{Rates: MustRates("1/h"), MaxWait: c.maxWait})
				client := &http.Client{Transport: tr, Timeout: c.timeout}
				ctx, cancel := context.WithCancel(t.Context())
				if resp, err := client.Do(getURL(ctx, "http://api.example/")); err != nil {
					t.Fatal(err)
				} else {
					resp.Body.Close()
				}
				if c.cancel > 0 {
					time.AfterFunc(c.cancel, cancel)
				}
				_, err := client.Do(getURL(ctx, "http://api.example/"))
				outer, ok := errors.AsType[*url.Error](err)
				if !ok || outer.Timeout() != c.want {
					t.Errorf("Timeout() of %v is not %v", err, c.want)
				}
				if _, ok := errors.AsType[*Error](err); !ok {
					t.Errorf("got %v", err)
				}
				cancel()
			})
		})
	}
}

// philippta/trip#1, handy#32
func testGetBody(t *testing.T, w *wire) {
	text := strings.Repeat("0123456789", 10_000)
	var got []string
	u, base := w.serve(t, func(rw http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = append(got, fmt.Sprint(string(b) == text, r.ContentLength))
		if len(got) < 3 {
			rw.WriteHeader(http.StatusTooManyRequests)
		}
	})
	var readers []io.ReadCloser
	tr := w.transport(t, roundTripFunc(func(req *http.Request) (*http.Response, error) {
		if req.GetBody == nil {
			t.Error("GetBody is gone: net/http cannot send the request again")
		}
		readers = append(readers, req.Body)
		return base.RoundTrip(req)
	}))
	req := put(t.Context(), u, text)
	req.Method = http.MethodPost
	w.roundTrip(t, tr, req)
	want := min(3, w.attempts())
	if len(got) != want || len(readers) != want {
		t.Fatalf("got %v", got)
	}
	for i := range want {
		if got[i] != "true 100000" || i > 0 && readers[i] == readers[i-1] {
			t.Errorf("attempt %d: the same bytes and the length: %s", i+1, got[i])
		}
	}
}

// A trailing body fills in a trailer of its request when it ends.
type trailing struct {
	io.Reader
	trailer http.Header
}

func (b *trailing) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		b.trailer.Set("X-Sum", "42")
	}
	return n, err
}

func (b *trailing) Close() error { return nil }

func testLengthTrailerHost(t *testing.T, w *wire) {
	var got []string
	u, base := w.serve(t, func(rw http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = append(got, fmt.Sprintf("%s %d %q %q", r.Host, r.ContentLength, b, r.Trailer.Get("X-Sum")))
		rw.WriteHeader(500)
	})
	for _, c := range []struct {
		name   string
		change func(req *http.Request)
		want   string
	}{
		{"a body", func(*http.Request) {}, `host.example 4 "text" ""`},
		{"NoBody", func(req *http.Request) {
			req.Body, req.GetBody, req.ContentLength = http.NoBody, nil, 0
		}, `host.example 0 "" ""`},
		{"none", func(req *http.Request) { req.Body, req.GetBody, req.ContentLength = nil, nil, 0 }, `host.example 0 "" ""`},
		{"a trailer", func(req *http.Request) {
			req.Trailer = http.Header{"X-Sum": nil}
			req.GetBody = func() (io.ReadCloser, error) {
				return &trailing{strings.NewReader("text"), req.Trailer}, nil
			}
			req.Body, _ = req.GetBody()
			req.ContentLength = -1
		}, `host.example -1 "text" "42"`},
	} {
		got = nil
		req := put(t.Context(), u, "text")
		req.Host = "host.example"
		c.change(req)
		w.roundTrip(t, w.transport(t, base), req)
		if len(got) != w.attempts() {
			t.Errorf("%s: %d sendings", c.name, len(got))
		}
		for _, s := range got {
			if s != c.want {
				t.Errorf("%s: the server saw %s, want %s", c.name, s, c.want)
			}
		}
	}
}

func testSwitchingProtocols(t *testing.T, w *wire) {
	u, base := w.serve(t, func(rw http.ResponseWriter, r *http.Request) {
		conn, buf, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\nRetry-After: 60\r\n\r\n")
		line, _ := buf.ReadString('\n')
		io.WriteString(conn, line)
	})
	tr := w.transport(t, base, Policy{Rates: plenty.Rates, Feedback: func(*http.Response) (time.Duration, bool) {
		t.Error("asked of a 101")
		return time.Hour, true
	}})
	tr.config.Retry.Check = func(*http.Request, *http.Response, error) (bool, bool) { return true, true }
	req := getURL(t.Context(), u)
	req.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"echo"}}
	resp := w.roundTrip(t, tr, req)
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if resp.StatusCode != 101 || !ok || resp.Request != req {
		t.Fatalf("got %d with a body of %T", resp.StatusCode, resp.Body)
	}
	io.WriteString(conn, "hello\n")
	if b, _ := io.ReadAll(conn); string(b) != "hello\n" || w.conns.Load() != 1 {
		t.Errorf("the other protocol said %q on connection %d", b, w.conns.Load())
	}
}

func testResponseTrailers(t *testing.T, w *wire) {
	for _, status := range []int{200, 403} { // one of them is looked into
		u, base := w.serve(t, func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Trailer", "X-Sum")
			rw.WriteHeader(status)
			io.WriteString(rw, "text")
			rw.(http.Flusher).Flush()
			rw.Header().Set("X-Sum", "42")
		})
		resp := w.roundTrip(t, w.transport(t, base, Policy{Rates: plenty.Rates, Feedback: GitHub}), getURL(t.Context(), u))
		if text := bodyOf(t, resp); text != "text" || resp.Trailer.Get("X-Sum") != "42" {
			t.Errorf("%d: body %q, trailer %v", status, text, resp.Trailer)
		}
	}
}

func testBodyOutlives(t *testing.T, w *wire) {
	const size = 4 << 20 // more than is buffered on the way
	u, base := w.serve(t, func(rw http.ResponseWriter, _ *http.Request) {
		for range size >> 12 {
			rw.Write(make([]byte, 1<<12))
		}
	})
	resp := w.roundTrip(t, w.transport(t, base), getURL(t.Context(), u))
	if err := resp.Request.Context().Err(); err != nil {
		t.Error(err)
	}
	if n, err := io.Copy(io.Discard, resp.Body); n != size || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// golang/go#39533
func testResponseRequest(t *testing.T, w *wire) {
	var n atomic.Int32
	u, base := w.serve(t, func(rw http.ResponseWriter, _ *http.Request) {
		if n.Add(1) < 3 {
			rw.WriteHeader(503)
		}
	})
	req := getURL(t.Context(), u)
	if resp := w.roundTrip(t, w.transport(t, base), req); resp.Request != req || int(n.Load()) != min(3, w.attempts()) {
		t.Errorf("after %d sendings the response is that of the request: %v", n.Load(), resp.Request == req)
	}
}

// A closer is a Base that counts the calls of CloseIdleConnections.
type closer struct {
	upstream
	calls int
}

func (c *closer) CloseIdleConnections() { c.calls++ }

// opentelemetry-go-contrib#3543, kubernetes#104844, keda#7902
func testCloseIdle(t *testing.T, w *wire) {
	for _, r := range []reply{says(200, ""), says(500, ""), fails(errReset)} {
		spy := &closer{upstream: upstream{replies: []reply{r}}}
		client := &http.Client{Transport: w.transport(t, spy)}
		if resp, err := client.Get("http://api.example/"); err == nil {
			resp.Body.Close()
		}
		if spy.calls != 0 {
			t.Errorf("called %d times in a round trip", spy.calls)
		}
		if client.CloseIdleConnections(); spy.calls != 1 {
			t.Errorf("called %d times", spy.calls)
		}
	}
	w.transport(t, &upstream{}).CloseIdleConnections() // has none
}

// ocm-sdk-go#804, go-retryablehttp#85, #98, #237: what is left of a refusal is
// read to the end if that is short, and cut off otherwise.
func testConnectionsReused(t *testing.T, w *wire) {
	for _, c := range []struct {
		name    string
		refusal func(rw http.ResponseWriter, r *http.Request)
		used    bool // again, by HTTP/1
	}{
		{"short", func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "slow down") }, true},
		{"in pieces", func(rw http.ResponseWriter, _ *http.Request) {
			for range 4 {
				io.WriteString(rw, "slow down")
				rw.(http.Flusher).Flush()
			}
		}, true},
		{"long", func(rw http.ResponseWriter, _ *http.Request) { rw.Write(make([]byte, 100<<10)) }, false},
		{"endless", func(rw http.ResponseWriter, _ *http.Request) {
			for err := error(nil); err == nil; {
				_, err = rw.Write(make([]byte, 1<<10))
			}
		}, false},
		{"hanging", func(rw http.ResponseWriter, r *http.Request) {
			rw.(http.Flusher).Flush()
			<-r.Context().Done()
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var n atomic.Int32
			w.conns.Store(0)
			u, base := w.serve(t, func(rw http.ResponseWriter, r *http.Request) {
				if n.Add(1)%2 == 0 {
					return
				}
				rw.WriteHeader(http.StatusTooManyRequests)
				c.refusal(rw, r)
			})
			base.MaxConnsPerHost = 1 // whoever keeps a connection stops the next attempt
			tr := w.transport(t, base)
			for range 3 {
				resp := w.roundTrip(t, tr, getURL(t.Context(), u))
				if !w.loop {
					readAhead(resp, drainBytes, drainTime)
				} else if resp.StatusCode != 200 {
					t.Errorf("got %d", resp.StatusCode)
				}
				resp.Body.Close()
			}
			if conns := w.conns.Load(); (conns == 1) != (c.used || w.proto == "HTTP/2") {
				t.Errorf("%d connections", conns)
			}
		})
	}
}

func testReturnsAtHeaders(t *testing.T, w *wire) {
	for _, status := range []int{200, 400, 404, 501} {
		release := make(chan struct{})
		u, base := w.serve(t, func(rw http.ResponseWriter, _ *http.Request) {
			rw.WriteHeader(status)
			rw.(http.Flusher).Flush()
			<-release
			io.WriteString(rw, "text")
		})
		resp := w.roundTrip(t, w.transport(t, base, Policy{Rates: plenty.Rates, Feedback: GitHub}), getURL(t.Context(), u))
		close(release)
		if text := bodyOf(t, resp); text != "text" {
			t.Errorf("the body reads %q", text)
		}
	}
	// What is looked into is whole, below and above the bound of the look.
	for _, size := range []int{100, maxPeek - 1, maxPeek, maxPeek + 1, 3 * maxPeek} {
		text := bytes.Repeat([]byte("0123456789"), size/10+1)[:size]
		u, base := w.serve(t, func(rw http.ResponseWriter, r *http.Request) {
			rw.WriteHeader(403)
			for i := 0; i < size; i += 10_000 {
				rw.Write(text[i:min(size, i+10_000)])
			}
		})
		resp := w.roundTrip(t, w.transport(t, base, Policy{Rates: plenty.Rates, Feedback: GitHub}), getURL(t.Context(), u))
		if got := bodyOf(t, resp); got != string(text) {
			t.Errorf("%d of %d bytes are left", len(got), size)
		}
	}
}
