package pacecar

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A pipeServer serves HTTP over in-memory pipes, so that real connections of
// net/http work in a bubble. Setting one up takes a while.
type pipeServer struct {
	conns  chan net.Conn
	dial   time.Duration
	dials  atomic.Int64
	server http.Server
	broken atomic.Int64 // this many of the next connections die soon
}

func servePipes(t *testing.T, dial time.Duration, h http.Handler) *pipeServer {
	s := &pipeServer{conns: make(chan net.Conn), dial: dial}
	s.server.Handler = h
	go s.server.Serve(s) //nolint:errcheck // ErrServerClosed
	t.Cleanup(func() { s.server.Close() })
	return s
}

func (s *pipeServer) Accept() (net.Conn, error) {
	c, ok := <-s.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (s *pipeServer) Close() error   { close(s.conns); return nil }
func (s *pipeServer) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// base returns a transport of net/http that connects to s.
func (s *pipeServer) base(t *testing.T, change func(*http.Transport)) *http.Transport {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		s.dials.Add(1)
		select {
		case <-time.After(s.dial):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		client, server := net.Pipe()
		s.conns <- server
		if s.broken.Add(-1) >= 0 {
			time.AfterFunc(50*time.Millisecond, func() { server.Close() })
		}
		return client, nil
	}}
	if change != nil {
		change(tr)
	}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

func mustTransport(t testing.TB, c Config) *Transport {
	t.Helper()
	tr, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// get sends one request and reads the answer.
func get(ctx context.Context, rt http.RoundTripper) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://upstream.example/", nil)
	if err != nil {
		return err
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// TestColdConnections: what a strict upstream counts keeps every rate, and
// nearly all of the quota is used, when connections take long to set up, at
// first, always, or for some.
func TestColdConnections(t *testing.T) {
	for _, c := range []struct {
		name   string
		rates  string
		n      int
		speed  float64 // at least this much of the ideal
		change func(*http.Transport)
	}{
		{"kept alive", "20/s", 300, 0.95, func(tr *http.Transport) { tr.MaxIdleConnsPerHost = 100 }},
		{"net/http's two idle", "10/s, 60/10s", 200, 0.95, nil},
		{"always cold", "20/s", 300, 0.95, func(tr *http.Transport) { tr.DisableKeepAlives = true }},
		// Here requests wait for each other in Base, and leave late by that.
		{"two at a time", "10/s", 100, 0.8, func(tr *http.Transport) { tr.MaxConnsPerHost = 2 }},
		{"one at a time", "10/s", 100, 0.75, func(tr *http.Transport) { tr.MaxConnsPerHost = 1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := newMini()
				seen := newTrace()
				s := servePipes(t, 180*time.Millisecond, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					seen.add(0, 1)
					time.Sleep(30 * time.Millisecond)
				}))
				policy := Policy{Rates: MustRates(c.rates)}
				var left atomic.Int64
				left.Store(int64(c.n))
				var wg sync.WaitGroup
				var transports []*Transport
				for range 4 {
					tr := mustTransport(t, Config{
						Redis: dialMini(t, m), Base: s.base(t, c.change), Routes: map[string]Policy{"/": policy},
					})
					transports = append(transports, tr)
					for range 16 {
						wg.Go(func() {
							for left.Add(-1) >= 0 {
								if err := get(t.Context(), tr); err != nil {
									t.Error(err)
								}
							}
						})
					}
				}
				wg.Wait()
				took := time.Since(seen.start)
				seen.check(t, policy.Rates)
				speed := ideal(policy.Rates, c.n).Seconds() / took.Seconds()
				t.Logf("%.3f of the ideal speed, %d connections, %v", speed, s.dials.Load(), transports[0].Stats())
				if speed < c.speed {
					t.Errorf("%.3f of the ideal speed, want %.2f", speed, c.speed)
				}
				for _, tr := range transports {
					tr.CloseIdleConnections()
				}
			})
		})
	}
}

// A lone request whose quota is free is not held, and cold connections in a row
// do not slow the key's clock.
func TestLoneRequestIsNotHeld(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := servePipes(t, 180*time.Millisecond, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		base := s.base(t, func(tr *http.Transport) { tr.DisableKeepAlives = true })
		rdb := dialMini(t, newMini())
		tr := mustTransport(t, Config{Redis: rdb, Base: base, Routes: map[string]Policy{"/": {Rates: MustRates("5/s")}}})
		for range 20 {
			start := time.Now()
			if err := get(t.Context(), tr); err != nil {
				t.Fatal(err)
			}
			between(t, "a request", time.Since(start), 180*time.Millisecond, 181*time.Millisecond)
			time.Sleep(70 * time.Millisecond)
		}
		if head := tr.Stats()["upstream.example"].HeadStart; head < 180*time.Millisecond {
			t.Errorf("a head start of %v", head)
		}
		l, _ := tr.limiters.byKey.Load("upstream.example")
		if offset := l.(*Limiter).clock.offset; offset != 0 {
			t.Errorf("the clock was set back by %v", duration(offset))
		}
	})
}

// A Base that does not tell of connections gets no head start, and what it
// sends is not reported as late.
func TestBlindBase(t *testing.T) {
	bubble(t, func(t *testing.T) {
		seen := newTrace()
		base := roundTripFunc(func(req *http.Request) (*http.Response, error) {
			seen.add(0, 1)
			time.Sleep(100 * time.Millisecond)
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: req}, nil
		})
		var events atomic.Int64
		tr := mustTransport(t, Config{
			Redis: dialMini(t, newMini()), Base: base, Routes: map[string]Policy{"/": {Rates: MustRates("5/s")}},
			Observe: func(_ context.Context, e Event) {
				if e.Kind == EventSlot {
					events.Add(1)
				}
			},
		})
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() {
				if err := get(t.Context(), tr); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		seen.check(t, MustRates("5/s"))
		if st := tr.Stats()["upstream.example"]; st.HeadStart != 0 || st.Late > 20*time.Millisecond || events.Load() != 30 {
			t.Errorf("%+v, %d slots told of", st, events.Load())
		}
	})
}

// A context that ends while the connection is held: back at once, nothing is
// sent before its slot, and the slot goes to the next.
func TestContextEndsInTheHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		seen := newTrace()
		s := servePipes(t, 300*time.Millisecond, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { seen.add(0, 1) }))
		tr := mustTransport(t, Config{
			Redis: dialMini(t, newMini()), Base: s.base(t, nil), Routes: map[string]Policy{"/": {Rates: MustRates("1/s")}},
		})
		var held atomic.Int64
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GotConn: func(httptrace.GotConnInfo) { held.Add(1) }, // the caller's own trace goes on
		})
		if err := get(ctx, tr); err != nil { // learns that connections take 300 ms
			t.Fatal(err)
		}
		time.Sleep(800*time.Millisecond - time.Since(seen.start)) // the next slot is at 1,020 ms or later
		quick, stop := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, stop)
		start := time.Now()
		err := get(quick, tr)
		var refusal *Error
		if !errors.Is(err, context.Canceled) || !errors.As(err, &refusal) {
			t.Errorf("got %v", err)
		}
		between(t, "back", time.Since(start), 100*time.Millisecond, 101*time.Millisecond)
		synctest.Wait()
		if n := seen.len(); n != 1 {
			t.Errorf("%d were sent", n)
		}
		if err := get(t.Context(), tr); err != nil {
			t.Error(err)
		}
		between(t, "the next", time.Since(seen.start), 1300*time.Millisecond, 1700*time.Millisecond)
		seen.check(t, MustRates("1/s"))
		if held.Load() != 1 {
			t.Errorf("the caller's trace was called %d times", held.Load())
		}
		tr.CloseIdleConnections()
	})
}

// A connection that dies while it is held: the request is sent on another one,
// with a slot of its own.
func TestConnectionDiesInTheHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		seen := newTrace()
		s := servePipes(t, 300*time.Millisecond, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { seen.add(0, 1) }))
		tr := mustTransport(t, Config{
			Redis: dialMini(t, newMini()), Base: s.base(t, func(tr *http.Transport) { tr.DisableKeepAlives = true }),
			Routes: map[string]Policy{"/": {Rates: MustRates("2/s")}}, Retry: Retry{MinBackoff: time.Millisecond},
		})
		for i := range 12 {
			if i%3 == 2 {
				s.broken.Store(1)
			}
			if err := get(t.Context(), tr); err != nil {
				t.Error(err)
			}
		}
		seen.check(t, MustRates("2/s"))
	})
}

// What a connection had been told for may have been sent, whatever comes after:
// only a connection that is known to have been closed unused frees the slot.
func TestSlotAfterAnError(t *testing.T) {
	for _, c := range []struct {
		err  error
		back uint64
	}{
		{errors.New("http: server closed idle connection"), 1},
		{&net.OpError{Op: "dial", Err: errors.New("connection refused")}, 0}, // net/http has dialled again
		{io.ErrUnexpectedEOF, 0},
	} {
		bubble(t, func(t *testing.T) {
			tr := mustTransport(t, Config{
				Routes: map[string]Policy{"/": {Rates: MustRates("5/s")}}, Retry: Retry{Max: -1},
				Base: roundTripFunc(func(req *http.Request) (*http.Response, error) {
					httptrace.ContextClientTrace(req.Context()).GotConn(httptrace.GotConnInfo{Reused: true})
					return nil, c.err
				}),
			})
			if err := get(t.Context(), tr); !errors.Is(err, c.err) {
				t.Errorf("got %v", err)
			}
			if n := tr.Stats()["upstream.example"].GivenBack; n != c.back {
				t.Errorf("after %v: %d slots were given back, want %d", c.err, n, c.back)
			}
		})
	}
}

// A pause that comes while requests are held in Base is obeyed.
func TestPauseInTheHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		seen := newTrace()
		s := servePipes(t, 500*time.Millisecond, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { seen.add(0, 1) }))
		m := newMini()
		tr := mustTransport(t, Config{
			Redis: dialMini(t, m), Base: s.base(t, nil), Routes: map[string]Policy{"/": {Rates: MustRates("1/s")}},
		})
		other := mustLimiter(t, dialMini(t, m), "upstream.example", Policy{Rates: MustRates("1/s")})
		if err := get(t.Context(), tr); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() { done <- get(t.Context(), tr) }()
		time.Sleep(900*time.Millisecond - time.Since(seen.start))
		other.pauseFor(10*time.Second, 0, "test")
		time.Sleep(9900 * time.Millisecond)
		if n := seen.len(); n != 1 {
			t.Errorf("%d were sent", n)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		tr.CloseIdleConnections()
	})
}

// TestRefusedInTheHold: what is refused after it has its connection is not sent,
// whether Base is net/http's transport, speaks HTTP/2 in clear text too, or wraps it.
func TestRefusedInTheHold(t *testing.T) {
	both := func(tr *http.Transport) {
		tr.Protocols = new(http.Protocols)
		tr.Protocols.SetHTTP1(true)
		tr.Protocols.SetUnencryptedHTTP2(true)
	}
	for name, c := range map[string]struct {
		change func(*http.Transport)
		wrap   bool
	}{"bare": {}, "both protocols": {change: both}, "wrapped": {wrap: true}} {
		bubble(t, func(t *testing.T) {
			seen := newTrace()
			s := servePipes(t, 500*time.Millisecond, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { seen.add(0, 1) }))
			var base http.RoundTripper = s.base(t, c.change)
			if c.wrap {
				base = roundTripFunc(base.RoundTrip)
			}
			m := newMini()
			tr := mustTransport(t, Config{
				Redis: dialMini(t, m), Base: base, Retry: Retry{Max: -1},
				Routes: Routes{"/": {Rates: MustRates("1/s"), MaxWait: 2 * time.Second}},
			})
			other := mustLimiter(t, dialMini(t, m), "upstream.example", Policy{Rates: MustRates("1/s")})
			if err := get(t.Context(), tr); err != nil {
				t.Fatal(err)
			}
			done := make(chan error)
			go func() { done <- get(t.Context(), tr) }()
			time.Sleep(900*time.Millisecond - time.Since(seen.start))
			other.pauseFor(10*time.Second, 0, "test")
			if err := <-done; !errors.Is(err, ErrWaitTooLong) {
				t.Errorf("%s: %v", name, err)
			}
			synctest.Wait()
			if n := seen.len(); n != 1 {
				t.Errorf("%s: %d were sent", name, n)
			}
			s.server.Close()
		})
	}
}

// TestFirstConnectionFails: what becomes of the first request says nothing of
// Base: connections that come later have their head start.
func TestFirstConnectionFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := servePipes(t, 300*time.Millisecond, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		base := s.base(t, func(tr *http.Transport) { tr.DisableKeepAlives = true })
		tr := mustTransport(t, Config{Base: base, Routes: Routes{"/": {Rates: MustRates("2/s")}}, Retry: Retry{Max: -1}})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := get(ctx, tr); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		for range 3 {
			if err := get(t.Context(), tr); err != nil {
				t.Error(err)
			}
		}
		if s := tr.Stats()["upstream.example"]; s.HeadStart < 200*time.Millisecond {
			t.Errorf("%+v", s)
		}
		s.server.Close()
	})
}

// TestEndsWhileBookingAgain: a request in Base whose slot was lost leaves nothing
// behind, whether it cannot be sent or was without a connection.
func TestEndsWhileBookingAgain(t *testing.T) {
	for name, c := range map[string]struct {
		base http.RoundTripper
		ends func(*sending)
	}{
		"not sent": {&http.Transport{}, func(d *sending) { _, _ = d.done(nil, errDial) }},
		"untold":   {roundTripFunc(nil), func(d *sending) { _, _ = d.done(response(200, ""), nil) }},
	} {
		bubble(t, func(t *testing.T) {
			p := Policy{Rates: MustRates("1/10s")}
			l := newStandIn(&p, time.Millisecond).limiter(t, p)
			burst(t, l, 1)
			l.connected(micros(maxHeadStart))
			var d sending
			if err := l.begin(t.Context(), &d, c.base, "http", 1); err != nil {
				t.Fatal(err)
			}
			l.mu.Lock()
			l.againLocked(0)
			l.flyLocked()
			l.unlock()
			c.ends(&d)
			time.Sleep(5 * time.Minute)
			if s := l.Stats(); !s.NextSlot.IsZero() || !l.retire() {
				t.Errorf("%s: %+v", name, s)
			}
		})
	}
}

// TestMixedBases: no more than the quota leaves, whatever Base tells and whatever
// comes of it.
func TestMixedBases(t *testing.T) {
	registered := func(rt http.RoundTripper) http.RoundTripper {
		tr := &http.Transport{}
		tr.RegisterProtocol("h3", rt)
		return tr
	}
	for name, c := range map[string]struct {
		base  func(http.RoundTripper) http.RoundTripper
		tells int // every so many requests; 0: none
		fails bool
	}{
		"net/http, of another protocol":            {base: registered},
		"net/http, of another protocol, and fails": {base: registered, fails: true},
		"tells at first, and fails":                {tells: 1000, fails: true},
		"tells now and then":                       {tells: 7},
		"tells now and then, and fails":            {tells: 7, fails: true},
	} {
		bubble(t, func(t *testing.T) {
			seen := newTrace()
			var base http.RoundTripper = roundTripFunc(func(req *http.Request) (*http.Response, error) {
				if c.tells > 0 && seen.len()%c.tells == 0 {
					httptrace.ContextClientTrace(req.Context()).GotConn(httptrace.GotConnInfo{Reused: true})
				}
				seen.add(0, 1)
				time.Sleep(200 * time.Millisecond)
				if c.fails {
					return nil, io.ErrUnexpectedEOF
				}
				return response(200, ""), nil
			})
			if c.base != nil {
				base = c.base(base)
			}
			tr := mustTransport(t, Config{Redis: dialMini(t, newMini()), Base: base, Routes: Routes{"/": {Rates: MustRates("10/s")}}, Retry: Retry{Max: -1}})
			var wg sync.WaitGroup
			for range 50 {
				wg.Go(func() {
					url := "http://upstream.example/"
					if c.base != nil {
						url = "h3://upstream.example/"
					}
					if _, err := tr.RoundTrip(getURL(t.Context(), url)); (err != nil) != c.fails {
						t.Errorf("%s: %v", name, err)
					}
				})
			}
			wg.Wait()
			seen.check(t, MustRates("10/s"))
		})
	}
}

// TestBaseGoesOn: what Base sends after it has returned takes a slot of its own.
func TestBaseGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		seen := newTrace()
		var wg sync.WaitGroup
		tr := mustTransport(t, Config{Routes: Routes{"/": {Rates: MustRates("4/s")}}, Base: roundTripFunc(func(req *http.Request) (*http.Response, error) {
			send := func(after time.Duration) {
				time.Sleep(after)
				httptrace.ContextClientTrace(req.Context()).GotConn(httptrace.GotConnInfo{Reused: true})
				seen.add(0, 1)
			}
			send(0)
			wg.Go(func() { send(10 * time.Millisecond) }) // the slower of two
			return response(429, "", "Retry-After: 1"), nil
		}), Retry: Retry{Max: -1}})
		for range 6 {
			if err := get(t.Context(), tr); err != nil {
				t.Error(err)
			}
		}
		wg.Wait()
		seen.check(t, MustRates("4/s"))
		if n := seen.len(); n != 12 {
			t.Errorf("%d were sent", n)
		}
	})
}

// A roundTripFunc is a Base that is a function.
type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
