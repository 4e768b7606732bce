package pacecarotel_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/pacecar-go/pacecar"
	"github.com/pacecar-go/pacecar/pacecarotel"
)

// A base sends requests without a network.
type base func(*http.Request) (*http.Response, error)

func (b base) RoundTrip(req *http.Request) (*http.Response, error) { return b(req) }

// fine answers everything with 200.
func fine(req *http.Request) (*http.Response, error) { return answer(req, 200), nil }

// answer makes a response; fields are names and values of its header.
func answer(req *http.Request, status int, fields ...string) *http.Response {
	h := http.Header{}
	for f := range slices.Chunk(fields, 2) {
		h.Set(f[0], f[1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader("secret-body")), Request: req}
}

// A telemetry is an Observer with the SDK around it.
type telemetry struct {
	*pacecarotel.Observer
	t      testing.TB
	reader *sdkmetric.ManualReader
	spans  *tracetest.SpanRecorder
	traces *sdktrace.TracerProvider
}

func newTelemetry(t testing.TB, c pacecarotel.Options) *telemetry {
	t.Helper()
	tm := &telemetry{t: t, reader: sdkmetric.NewManualReader(), spans: tracetest.NewSpanRecorder()}
	c.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(tm.reader), sdkmetric.WithCardinalityLimit(0))
	tm.traces = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(tm.spans))
	o, err := pacecarotel.New(c)
	if err != nil {
		t.Fatal(err)
	}
	tm.Observer = o
	return tm
}

// transport returns a Transport with one route, "api.example.com/", that is
// observed and watched.
func (tm *telemetry) transport(p pacecar.Policy, c pacecar.Config) *pacecar.Transport {
	tm.t.Helper()
	c.Routes = map[string]pacecar.Policy{"api.example.com/": p}
	c.Observe = tm.Observe
	if c.Base == nil {
		c.Base = base(fine)
	}
	t, err := pacecar.New(c)
	if err != nil {
		tm.t.Fatal(err)
	}
	tm.Watch(t)
	return t
}

// get sends a GET within a span, and returns the span's events.
func (tm *telemetry) get(ctx context.Context, t http.RoundTripper, url string, fields ...string) ([]string, error) {
	tm.t.Helper()
	ctx, span := tm.traces.Tracer("test").Start(ctx, "call")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		tm.t.Fatal(err)
	}
	for f := range slices.Chunk(fields, 2) {
		req.Header.Set(f[0], f[1])
	}
	resp, err := t.RoundTrip(req)
	if err == nil {
		resp.Body.Close()
	}
	span.End()
	var events []string
	for _, ended := range tm.spans.Ended() {
		if ended.SpanContext().Equal(span.SpanContext()) {
			for _, e := range ended.Events() {
				events = append(events, e.Name+" "+encode(attribute.NewSet(e.Attributes...)))
			}
		}
	}
	return events, err
}

func encode(s attribute.Set) string { return s.Encoded(attribute.DefaultEncoder()) }

// metrics collects all there is.
func metrics(t testing.TB, r *sdkmetric.ManualReader) map[string]metricdata.Metrics {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	byName := map[string]metricdata.Metrics{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			byName[m.Name] = m
		}
	}
	return byName
}

// values returns a metric's values by their attributes; of a histogram the
// counts.
func values(t testing.TB, m metricdata.Metrics) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	switch data := m.Data.(type) {
	case nil:
	case metricdata.Sum[int64]:
		for _, p := range data.DataPoints {
			all[encode(p.Attributes)] = float64(p.Value)
		}
	case metricdata.Gauge[int64]:
		for _, p := range data.DataPoints {
			all[encode(p.Attributes)] = float64(p.Value)
		}
	case metricdata.Gauge[float64]:
		for _, p := range data.DataPoints {
			all[encode(p.Attributes)] = p.Value
		}
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			all[encode(p.Attributes)] = float64(p.Count)
		}
	default:
		t.Fatalf("%s: %T", m.Name, m.Data)
	}
	return all
}

// total adds a metric's values up.
func total(t testing.TB, m metricdata.Metrics) (sum float64) {
	t.Helper()
	for _, n := range values(t, m) {
		sum += n
	}
	return sum
}

// want compares a metric's values with those that are due.
func (tm *telemetry) want(name string, want map[string]float64) {
	tm.t.Helper()
	if got := values(tm.t, metrics(tm.t, tm.reader)[name]); !maps.Equal(got, want) {
		tm.t.Errorf("%s: %v, want %v", name, got, want)
	}
}

// wantEvents compares a span's events with those that are due.
func wantEvents(t testing.TB, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("events:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// route is the attribute of the route that transport makes, and more.
func route(more ...string) string {
	attrs := append(more, "pacecar.route=api.example.com/")
	slices.Sort(attrs)
	return strings.Join(attrs, ",")
}

// dialMini returns a miniredis and a client of it that live in a synctest
// bubble.
func dialMini(t testing.TB) (*miniredis.Miniredis, *redis.Client) {
	t.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{
		Addr:                     "127.0.0.1:1", // never dialled
		Dialer:                   func(context.Context, string, string) (net.Conn, error) { return m.Dial() },
		MaxRetries:               -1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	t.Cleanup(func() { rdb.Close() })
	return m, rdb
}

// dump shows all metrics and spans with everything in them.
func (tm *telemetry) dump() string {
	var s strings.Builder
	for name, m := range metrics(tm.t, tm.reader) {
		fmt.Fprintf(&s, "%s %v\n", name, values(tm.t, m))
	}
	for _, span := range tm.spans.Ended() {
		fmt.Fprintf(&s, "%s %v %v\n", span.Name(), span.Attributes(), span.Status())
		for _, e := range span.Events() {
			fmt.Fprintf(&s, "%s %s\n", e.Name, encode(attribute.NewSet(e.Attributes...)))
		}
	}
	return s.String()
}
