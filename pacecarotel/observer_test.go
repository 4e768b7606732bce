package pacecarotel_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/embedded"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/trace"

	"github.com/pacecar-go/pacecar"
	"github.com/pacecar-go/pacecar/pacecarotel"
)

const url = "https://api.example.com/v1/?token=secret-query"

// TestWaits: the histogram counts each request once, in the bucket of its
// wait, and a span tells the same.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tm := newTelemetry(t, pacecarotel.Options{})
		tr := tm.transport(pacecar.Policy{Rates: pacecar.MustRates("2/20s"), Slack: time.Second, Lease: -1}, pacecar.Config{})
		for i := range 3 {
			events, err := tm.get(t.Context(), tr, url)
			if err != nil {
				t.Fatal(err)
			}
			wait := "0"
			if i == 2 {
				wait = "21" // the period and the slack
			}
			wantEvents(t, events, "pacecar.slot "+route("pacecar.tier=window", "pacecar.wait="+wait))
		}
		m := metrics(t, tm.reader)["pacecar.wait.duration"]
		points := m.Data.(metricdata.Histogram[float64]).DataPoints
		if m.Unit != "s" || len(points) != 1 || encode(points[0].Attributes) != route("pacecar.tier=window") {
			t.Fatalf("%+v", m)
		}
		p := points[0]
		if p.Count != 3 || p.Sum != 21 || p.BucketCounts[0] != 2 || p.BucketCounts[slices.Index(p.Bounds, 30)] != 1 {
			t.Errorf("%+v", p)
		}
	})
}

// TestTiers: over a fleet's window, an outage and all, each request is counted
// under the tier whose slot it had.
func TestTiers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mini, rdb := dialMini(t)
		tm := newTelemetry(t, pacecarotel.Options{})
		sent := map[string]float64{}
		count := func(_ context.Context, e pacecar.Event) {
			if e.Kind == pacecar.EventSlot {
				sent[route("pacecar.tier="+e.Tier.String())]++
			}
		}
		tr, err := pacecar.New(pacecar.Config{
			Redis:   rdb,
			Routes:  map[string]pacecar.Policy{"api.example.com/": {Rates: pacecar.MustRates("1000/s"), Outage: pacecar.FailOpen, Replicas: 2}},
			Base:    base(fine),
			Observe: func(ctx context.Context, e pacecar.Event) { tm.Observe(ctx, e); count(ctx, e) },
		})
		if err != nil {
			t.Fatal(err)
		}
		tm.Watch(tr)
		away := func() float64 {
			return values(t, metrics(t, tm.reader)["pacecar.redis.away"])[route()]
		}
		send := func(n int) {
			for range n {
				if _, err := tm.get(t.Context(), tr, url); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Millisecond)
			}
		}
		send(200)
		if away() != 0 {
			t.Error("away with Redis there")
		}
		mini.SetError("ERR gone")
		send(200)
		if away() != 1 {
			t.Error("not away with Redis gone")
		}
		mini.SetError("")
		time.Sleep(time.Minute)
		send(200)
		time.Sleep(time.Second)
		if away() != 0 {
			t.Error("away with Redis back")
		}
		mini.FlushAll()
		send(200)

		for _, tier := range []string{"bucket", "window", "share"} {
			if sent[route("pacecar.tier="+tier)] == 0 {
				t.Errorf("nothing left by %s: the test shows less than it should", tier)
			}
		}
		tm.want("pacecar.wait.duration", sent)
		tm.want("pacecar.sent_requests", map[string]float64{route(): 800})
		tm.want("pacecar.outages", map[string]float64{route("pacecar.outage=fail_open"): 1})
		tm.want("pacecar.state_losses", map[string]float64{route(): 1})
		s := tr.Stats()["api.example.com"]
		tm.want("pacecar.local_hits", map[string]float64{route(): float64(s.LocalHits)})
		tm.want("pacecar.degraded_requests", map[string]float64{route(): float64(s.Degraded)})
		tm.want("pacecar.round_trips", map[string]float64{route(): float64(s.RoundTrips)})
		tm.want("pacecar.given_back_slots", map[string]float64{route(): float64(s.GivenBack)})
		if s.LocalHits == 0 || s.Degraded == 0 || s.GivenBack == 0 {
			t.Errorf("the test shows less than it should: %+v", s)
		}
	})
}

// TestRefused: each reason has its error.type, on the counter and on the span,
// and nothing of the error's text is told.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		why    string
		policy pacecar.Policy
		give   time.Duration // after which the caller gives up; 0: never
		dead   bool          // the caller has a deadline instead
		redis  bool          // there is one, which does not answer
		wait   string
	}{
		{why: "wait_too_long", policy: pacecar.Policy{MaxWait: time.Second}, wait: "21"},
		{why: "cost_too_high", policy: pacecar.Policy{Cost: func(*http.Request) int { return 9 }}},
		{why: "deadline", give: time.Second, dead: true, wait: "21"},
		{why: "canceled", give: time.Second, wait: "20"},
		{why: "unavailable", redis: true},
	} {
		t.Run(c.why, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tm := newTelemetry(t, pacecarotel.Options{})
				config := pacecar.Config{}
				if c.redis {
					mini, rdb := dialMini(t)
					mini.SetError("ERR gone")
					config.Redis = rdb
				}
				c.policy.Rates, c.policy.Slack = pacecar.MustRates("1/20s"), time.Second
				tr := tm.transport(c.policy, config)
				if !c.redis && c.policy.Cost == nil {
					if _, err := tm.get(t.Context(), tr, url); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithCancel(t.Context())
				if c.dead {
					ctx, cancel = context.WithTimeout(t.Context(), c.give)
				} else if c.give > 0 {
					time.AfterFunc(c.give, cancel)
				}
				defer cancel()
				events, err := tm.get(ctx, tr, url)
				if _, ok := errors.AsType[*pacecar.Error](err); !ok {
					t.Fatalf("not refused: %v", err)
				}
				tm.want("pacecar.refused_requests", map[string]float64{route("error.type=" + c.why): 1})
				attrs := []string{"error.type=" + c.why}
				if c.wait != "" {
					attrs = append(attrs, "pacecar.wait="+c.wait)
				}
				wantEvents(t, events, "pacecar.refused "+route(attrs...))
			})
		})
	}
}

// TestLimited: a 429 in spite of all is counted, with the pause that follows
// and the retry, and the span tells the whole story.
func TestLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tm := newTelemetry(t, pacecarotel.Options{})
		calls := 0
		tr := tm.transport(pacecar.Policy{Rates: pacecar.MustRates("100/s"), Lease: -1}, pacecar.Config{
			Base: base(func(req *http.Request) (*http.Response, error) {
				if calls++; calls == 1 {
					return answer(req, 429, "Retry-After", "8"), nil
				}
				return answer(req, 200), nil
			}),
		})
		go func() {
			time.Sleep(2 * time.Second)
			tm.want("pacecar.pause.remaining", map[string]float64{route(): 6})
			tm.want("pacecar.waiting_requests", map[string]float64{route(): 1})
		}()
		events, err := tm.get(t.Context(), tr, url)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		wantEvents(t, events,
			"pacecar.slot "+route("pacecar.tier=window", "pacecar.wait=0"),
			"pacecar.limited "+route("http.response.status_code=429", "pacecar.reason=retry-after", "pacecar.wait=8"),
			"pacecar.retry "+route("error.type=429", "http.request.resend_count=1", "http.response.status_code=429", "pacecar.wait=8"),
			"pacecar.slot "+route("pacecar.tier=window", "pacecar.wait=8"),
		)
		reason := route("http.response.status_code=429", "pacecar.reason=retry-after")
		tm.want("pacecar.limited_responses", map[string]float64{reason: 1})
		tm.want("pacecar.pauses", map[string]float64{reason: 1})
		tm.want("pacecar.retries", map[string]float64{route("error.type=429", "http.response.status_code=429"): 1})
		tm.want("pacecar.pause.remaining", map[string]float64{route(): 0})
		tm.want("pacecar.waiting_requests", map[string]float64{route(): 0})
	})
}

// TestRetries: what failed has few names, whatever the error says.
func TestRetries(t *testing.T) {
	dial := func(err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: err}
	}
	for _, c := range []struct {
		status int
		err    error
		want   []string
	}{
		{status: 503, want: []string{"error.type=503", "http.response.status_code=503"}},
		{status: 200, want: []string{"http.response.status_code=200"}}, // only Check wants another
		{err: dial(syscall.ECONNREFUSED), want: []string{"error.type=connect"}},
		{err: dial(&net.DNSError{Err: "no such host", Name: "secret-host"}), want: []string{"error.type=dns"}},
		{err: dial(context.DeadlineExceeded), want: []string{"error.type=timeout"}},
		{err: &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}, want: []string{"error.type=connection"}},
		{err: io.ErrUnexpectedEOF, want: []string{"error.type=connection"}},
		{err: errors.New("secret-error"), want: []string{"error.type=_OTHER"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			tm := newTelemetry(t, pacecarotel.Options{})
			calls := 0
			tr := tm.transport(pacecar.Policy{Rates: pacecar.MustRates("100/s")}, pacecar.Config{
				Retry: pacecar.Retry{Check: func(_ *http.Request, _ *http.Response, _ error) (bool, bool) { return calls == 1, true }},
				Base: base(func(req *http.Request) (*http.Response, error) {
					if calls++; calls > 1 {
						return answer(req, 200), nil
					}
					if c.err != nil {
						return nil, c.err
					}
					return answer(req, c.status), nil
				}),
			})
			events, err := tm.get(t.Context(), tr, url)
			if err != nil {
				t.Fatal(err)
			}
			tm.want("pacecar.retries", map[string]float64{route(c.want...): 1})
			retried := func(e string) bool {
				return strings.HasPrefix(e, "pacecar.retry "+strings.Join(c.want[:1], ",")) && strings.Contains(e, "http.request.resend_count=1")
			}
			if !slices.ContainsFunc(events, retried) && c.status != 200 {
				t.Errorf("%v, want %v", events, c.want)
			}
		})
	}
}

// TestLate: a connection that takes long makes a request late, and the next a
// head start.
func TestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tm := newTelemetry(t, pacecarotel.Options{})
		tr := tm.transport(pacecar.Policy{Rates: pacecar.MustRates("1/10s"), Lease: -1}, pacecar.Config{
			Base: base(func(req *http.Request) (*http.Response, error) {
				time.Sleep(250 * time.Millisecond)
				httptrace.ContextClientTrace(req.Context()).GotConn(httptrace.GotConnInfo{})
				return answer(req, 200), nil
			}),
		})
		events, err := tm.get(t.Context(), tr, url)
		if err != nil {
			t.Fatal(err)
		}
		wantEvents(t, events,
			"pacecar.late "+route("pacecar.late=0.25"),
			"pacecar.slot "+route("pacecar.late=0.25", "pacecar.tier=window", "pacecar.wait=0.25"),
		)
		tm.want("pacecar.late_requests", map[string]float64{route(): 1})
		tm.want("pacecar.head_start", map[string]float64{route(): 0.25})
	})
}

// TestUnrouted: a request of no route is counted, without a route.
func TestUnrouted(t *testing.T) {
	tm := newTelemetry(t, pacecarotel.Options{PerKey: true})
	tr := tm.transport(pacecar.Policy{Rates: pacecar.MustRates("1/s")}, pacecar.Config{})
	events, err := tm.get(t.Context(), tr, "https://elsewhere.example.com/")
	if err != nil {
		t.Fatal(err)
	}
	tm.want("pacecar.unrouted_requests", map[string]float64{"": 1})
	wantEvents(t, events)
}

// TestUnknown: a kind of event that this package does not know leaves no trace,
// and a context without a span no harm.
func TestUnknown(t *testing.T) {
	tm := newTelemetry(t, pacecarotel.Options{})
	ctx, span := tm.traces.Tracer("test").Start(t.Context(), "call")
	for _, kind := range []pacecar.EventKind{-1, 0, pacecar.EventLost + 1, 1000} {
		tm.Observe(ctx, pacecar.Event{Kind: kind, Key: "k", Route: "r"})
		tm.Observe(t.Context(), pacecar.Event{Kind: kind})
	}
	span.End()
	if m := metrics(t, tm.reader); len(m) != 0 {
		t.Errorf("metrics: %v", m)
	}
	if events := tm.spans.Ended()[0].Events(); len(events) != 0 {
		t.Errorf("events: %v", events)
	}
	tm.Observe(t.Context(), pacecar.Event{Kind: pacecar.EventSlot, Route: "r", Tier: pacecar.TierWindow})
	tm.want("pacecar.wait.duration", map[string]float64{"pacecar.route=r,pacecar.tier=window": 1})
}

// TestNotRecording: nothing is told to a span that does not record: one that is
// not sampled, or has ended.
func TestNotRecording(t *testing.T) {
	tm := newTelemetry(t, pacecarotel.Options{})
	span := &deafSpan{Span: trace.SpanFromContext(t.Context()), t: t}
	ctx := trace.ContextWithSpan(t.Context(), span)
	tm.Observe(ctx, pacecar.Event{Kind: pacecar.EventSlot, Route: "r", Tier: pacecar.TierWindow})
	if !span.asked {
		t.Error("the span was not asked")
	}
}

// A deafSpan does not record, and fails when told of an event.
type deafSpan struct {
	trace.Span
	t     *testing.T
	asked bool
}

func (s *deafSpan) IsRecording() bool { s.asked = true; return false }
func (s *deafSpan) AddEvent(name string, _ ...trace.EventOption) {
	s.t.Errorf("told of %s", name)
}

// TestNoSecrets: neither tenants nor anything of a request or an answer is
// told; with Keys the tenants' hashes are.
func TestNoSecrets(t *testing.T) {
	for _, keys := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			tm := newTelemetry(t, pacecarotel.Options{PerKey: keys})
			calls := 0
			tr := tm.transport(pacecar.Policy{
				Rates: pacecar.MustRates("5/s"), MaxWait: time.Minute, Key: pacecar.ByHeader("Authorization"),
			}, pacecar.Config{Base: base(func(req *http.Request) (*http.Response, error) {
				switch calls++; calls % 5 {
				case 1:
					return answer(req, 429, "Retry-After", "1", "X-Secret", "secret-header"), nil
				case 2:
					return nil, &net.OpError{Op: "read", Err: errors.New("secret-error")}
				}
				return answer(req, 200), nil
			})})
			for _, tenant := range []string{"secret-a", "secret-b", "secret-a"} {
				for range 7 {
					tm.get(t.Context(), tr, url, "Authorization", tenant)
				}
			}
			ended, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
			defer cancel()
			tm.get(ended, tr, url, "Authorization", "secret-a")
			all := tm.dump()
			if strings.Contains(all, "secret") || strings.Contains(all, "/v1") {
				t.Errorf("a secret was told:\n%s", all)
			}
			got := slices.Sorted(maps.Keys(values(t, metrics(t, tm.reader)["pacecar.sent_requests"])))
			want := []string{route()}
			if keys {
				want = nil
				for key := range tr.Stats() {
					want = append(want, "pacecar.key="+strings.ReplaceAll(key, "=", `\=`)+","+route())
				}
				slices.Sort(want)
			}
			if !slices.Equal(got, want) || keys && (len(got) != 2 || !strings.Contains(all, "pacecar.retry") || strings.Count(all, "pacecar.key") < 20) {
				t.Errorf("keys %v: %v, want %v\n%s", keys, got, want, all)
			}
		})
	}
}

// TestOverHTTP: on a real connection, as three lines wire it, with the global
// MeterProvider, which is set after.
func TestOverHTTP(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "fine") }))
	defer server.Close()
	o, err := pacecarotel.New(pacecarotel.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := pacecar.New(pacecar.Config{
		Routes:  map[string]pacecar.Policy{"/": {Rates: pacecar.MustRates("100/s"), Name: "any"}},
		Base:    server.Client().Transport,
		Observe: o.Observe,
	})
	if err != nil {
		t.Fatal(err)
	}
	o.Watch(tr)
	setGlobal()
	before := total(t, metrics(t, global)["pacecar.wait.duration"])
	client := &http.Client{Transport: tr}
	for range 3 {
		resp, err := client.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	m := metrics(t, global)
	waits, sent := total(t, m["pacecar.wait.duration"])-before, values(t, m["pacecar.sent_requests"])
	if waits != 3 || sent["pacecar.route=any"] != 3 {
		t.Errorf("waits: %v sent: %v, want 3", waits, sent)
	}
	if err := o.Close(); err != nil {
		t.Error(err)
	}
	if m := metrics(t, global); len(values(t, m["pacecar.sent_requests"])) != 0 {
		t.Error("Stats are read after Close")
	}
}

// The global MeterProvider is set once in a process, however often a test runs.
var (
	global    = sdkmetric.NewManualReader()
	setGlobal = sync.OnceFunc(func() {
		otel.SetMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(global)))
	})
)

// TestErrors: New names each instrument that could not be made.
func TestErrors(t *testing.T) {
	tm := newTelemetry(t, pacecarotel.Options{})
	tr := tm.transport(pacecar.Policy{Rates: pacecar.MustRates("1/s")}, pacecar.Config{})
	if _, err := tm.get(t.Context(), tr, url); err != nil {
		t.Fatal(err)
	}
	_, err := pacecarotel.New(pacecarotel.Options{MeterProvider: broken{}})
	if err == nil {
		t.Fatal("no error")
	}
	made := slices.Sorted(maps.Keys(metrics(t, tm.reader)))
	if len(made) < 10 {
		t.Fatalf("the test shows less than it should: %v", made)
	}
	for _, name := range append(made, "pacecar.retries", "pacecar.unrouted_requests") {
		if !strings.Contains(err.Error(), "no "+name+"\n") && !strings.HasSuffix(err.Error(), "no "+name) {
			t.Errorf("%s is not in: %v", name, err)
		}
	}
	if _, err := pacecarotel.New(pacecarotel.Options{MeterProvider: deaf{}}); !errors.Is(err, errDeaf) {
		t.Errorf("%v, want %v", err, errDeaf)
	}
}

// deaf makes instruments, and takes no callback.
type deaf struct{ embedded.MeterProvider }

var errDeaf = errors.New("no callbacks")

func (deaf) Meter(string, ...metric.MeterOption) metric.Meter { return deafMeter{} }

type deafMeter struct{ noop.Meter }

func (deafMeter) RegisterCallback(metric.Callback, ...metric.Observable) (metric.Registration, error) {
	return nil, errDeaf
}

// broken makes no instrument.
type broken struct{ embedded.MeterProvider }

func (broken) Meter(string, ...metric.MeterOption) metric.Meter { return brokenMeter{} }

type brokenMeter struct{ noop.Meter }

func (brokenMeter) Int64Counter(name string, _ ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return nil, errors.New("no " + name)
}

func (brokenMeter) Float64Histogram(name string, _ ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return nil, errors.New("no " + name)
}

func (brokenMeter) Int64ObservableCounter(name string, _ ...metric.Int64ObservableCounterOption) (metric.Int64ObservableCounter, error) {
	return nil, errors.New("no " + name)
}

func (brokenMeter) Int64ObservableUpDownCounter(name string, _ ...metric.Int64ObservableUpDownCounterOption) (metric.Int64ObservableUpDownCounter, error) {
	return nil, errors.New("no " + name)
}

func (brokenMeter) Int64ObservableGauge(name string, _ ...metric.Int64ObservableGaugeOption) (metric.Int64ObservableGauge, error) {
	return nil, errors.New("no " + name)
}

func (brokenMeter) Float64ObservableGauge(name string, _ ...metric.Float64ObservableGaugeOption) (metric.Float64ObservableGauge, error) {
	return nil, errors.New("no " + name)
}
