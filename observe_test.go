package pacecar

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// A witness takes down the events of a Transport and what it logs.
type witness struct {
	mu     sync.Mutex
	events []Event
	ctx    []context.Context
	log    bytes.Buffer
}

func (w *witness) observe(ctx context.Context, e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events, w.ctx = append(w.events, e), append(w.ctx, ctx)
}

func (w *witness) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(p)
}

// of returns the events of a kind.
func (w *witness) of(kind EventKind) (some []Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Kind == kind {
			some = append(some, e)
		}
	}
	return some
}

// TestEvents: what matters is told, with the route, and logged; and those of a
// request come with its context.
func TestEvents(t *testing.T) {
	type mark struct{}
	const pattern = "upstream.example/"
	policy := Policy{Rates: MustRates("2/s"), Outage: FailOpen, Replicas: 1}
	for _, c := range []struct {
		kind   EventKind
		policy func(*Policy)
		answer int // of the upstream, with Retry-After: 3
		scene  func(t *testing.T, s *standIn, x *Transport, send func(host string) error)
		check  func(e Event) bool
	}{
		{kind: EventSlot, check: func(e Event) bool { return e.Tier == TierWindow && e.Wait == time.Millisecond }},
		{kind: EventRefused, policy: func(p *Policy) { p.MaxWait = time.Millisecond },
			scene: func(t *testing.T, _ *standIn, _ *Transport, send func(string) error) {
				_, _ = send("upstream.example"), send("upstream.example")
			},
			check: func(e Event) bool { return errors.Is(e.Err, ErrWaitTooLong) && e.Wait > 500*time.Millisecond }},
		{kind: EventUnrouted,
			scene: func(_ *testing.T, _ *standIn, _ *Transport, send func(string) error) { _ = send("elsewhere.example") },
			check: func(e Event) bool { return e.Key == "" && e.Route == "" }},
		{kind: EventLimited, answer: 429,
			check: func(e Event) bool { return e.Wait == 3*time.Second && e.Reason == "429 retry-after" }},
		{kind: EventPaused, answer: 429,
			check: func(e Event) bool {
				return e.Reason == "429 retry-after" && e.Wait > 2900*time.Millisecond && e.Until.After(time.Now().Add(-time.Hour))
			}},
		{kind: EventRetry, answer: 503,
			check: func(e Event) bool { return e.Attempt == 1 && e.Reason == "503 retry-after" }},
		{kind: EventLate,
			scene: func(_ *testing.T, _ *standIn, x *Transport, _ func(string) error) {
				l := x.limiters.get("upstream.example", x.router.named(pattern))
				l.mu.Lock()
				l.reportLocked(context.WithValue(context.Background(), mark{}, true), &pass{slot: span{l.clock.key(l.now()), 1}, made: l.generation()}, l.now()+30_000)
				l.unlock()
			},
			check: func(e Event) bool { return e.Late >= 30*time.Millisecond && e.Late < 40*time.Millisecond }},
		{kind: EventDegraded, scene: func(_ *testing.T, s *standIn, _ *Transport, send func(string) error) {
			s.kill()
			_ = send("upstream.example")
		},
			check: func(e Event) bool { return e.Outage == FailOpen && errors.Is(e.Err, errRefused) }},
		{kind: EventRestored, scene: func(_ *testing.T, s *standIn, _ *Transport, send func(string) error) {
			s.kill()
			_ = send("upstream.example")
			s.restart(false)
			time.Sleep(2 * time.Second)
		}, check: func(e Event) bool { return e.Wait > 0 && e.Wait < 2*time.Second }},
		{kind: EventRates, scene: func(t *testing.T, _ *standIn, x *Transport, _ func(string) error) {
			p := policy
			p.Rates = MustRates("5/s")
			if err := x.SetPolicy(pattern, p); err != nil {
				t.Error(err)
			}
		}, check: func(e Event) bool { return e.Rates.String() == "5/s" && e.Reason == "set" }},
		{kind: EventLost, scene: func(_ *testing.T, s *standIn, _ *Transport, send func(string) error) {
			s.flush()
			_, _ = send("upstream.example"), send("upstream.example")
		}, check: func(e Event) bool { return e.Reason == lostReason && !e.Until.IsZero() }},
	} {
		t.Run(c.kind.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := policy
				if c.policy != nil {
					c.policy(&p)
				}
				var w witness
				answers := []int{c.answer} // then 200
				x := transportOf(t, Config{
					Observe: w.observe,
					Logger:  slog.New(slog.NewTextHandler(&w, &slog.HandlerOptions{Level: slog.LevelDebug})),
					Routes:  map[string]Policy{pattern: p},
					Base: roundTripFunc(func(req *http.Request) (*http.Response, error) {
						resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: req}
						if len(answers) > 0 && answers[0] > 0 {
							resp.StatusCode = answers[0]
							resp.Header.Set("Retry-After", "3")
						}
						answers = nil
						return resp, nil
					}),
				})
				s := newStandIn(&p, time.Millisecond)
				l := newLimiter(&Config{Observe: w.observe, Logger: x.config.Logger}, "upstream.example", pattern, &p)
				l.window, l.remote, l.timeout = s, true, x.config.redisTimeout()
				x.limiters.byKey.Store("upstream.example", l)
				send := func(host string) error {
					ctx := context.WithValue(t.Context(), mark{}, true)
					resp, err := x.RoundTrip(getURL(ctx, "http://"+host+"/?secret=1"))
					closeResponse(resp)
					return err
				}
				if err := send("upstream.example"); err != nil {
					t.Fatal(err)
				}
				if c.scene != nil {
					c.scene(t, s, x, send)
				}
				time.Sleep(5 * time.Second)
				events := w.of(c.kind)
				if len(events) == 0 {
					t.Fatalf("not told; but %+v", w.events)
				}
				e := events[0]
				if !c.check(e) || c.kind != EventUnrouted && (e.Key != "upstream.example" || e.Route != pattern) {
					t.Errorf("told %+v", e)
				}
				for i, e := range w.events {
					ofRequest := e.Kind == EventSlot || e.Kind == EventRefused || e.Kind == EventUnrouted || e.Kind == EventLimited ||
						e.Kind == EventRetry || e.Kind == EventLate
					if has := w.ctx[i] != nil && w.ctx[i].Value(mark{}) != nil; has != ofRequest {
						t.Errorf("%v with the context of a request: %v", e.Kind, has)
					}
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				if log := w.log.String(); !strings.Contains(log, `msg="pacecar: `+c.kind.String()+`"`) || strings.Contains(log, "secret") {
					t.Errorf("logged:\n%s", log)
				}
			})
		})
	}
}

// TestTiers: an event says where its slot came from.
func TestTiers(t *testing.T) {
	var w witness
	l := leased(t)
	l.observe = w.observe
	if err := l.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("2/s"), Outage: FailOpen, Replicas: 1}
		s := newStandIn(&p, time.Millisecond)
		l := s.limiter(t, p)
		l.observe = w.observe
		for range 2 {
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.kill()
		}
	})
	var tiers []Tier
	for _, e := range w.of(EventSlot) {
		tiers = append(tiers, e.Tier)
	}
	if len(tiers) != 3 || tiers[0] != TierBucket || tiers[1] != TierWindow || tiers[2] != TierShare {
		t.Errorf("tiers %v", tiers)
	}
}
