package pacecar

import (
	"net/http"
	"testing"
)

// fixed is a Base that costs nothing, to see what is added to it.
type fixed struct{ resp *http.Response }

func newFixed() *fixed {
	return &fixed{&http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/plain"}}, Body: http.NoBody}}
}

func (f *fixed) RoundTrip(*http.Request) (*http.Response, error) { return f.resp, nil }

// plain is what any wrapper does at least: it sends a copy of the request.
type plain struct{ base http.RoundTripper }

func (p plain) RoundTrip(req *http.Request) (*http.Response, error) {
	return p.base.RoundTrip(req.WithContext(req.Context()))
}

// variants are Bases, and Transports on them that have to wait for nothing.
func variants(t testing.TB) map[string]http.RoundTripper {
	base := newFixed()
	routes := map[string]Policy{"api.example/": plenty}
	return map[string]http.RoundTripper{
		"base":    base,
		"wrapper": plain{base},
		"no loop": transportOf(t, Config{Base: base, Routes: routes, Retry: Retry{Max: -1}}),
		"loop":    transportOf(t, Config{Base: base, Routes: routes}),
	}
}

// sendOn sends one request that succeeds at once.
func sendOn(t testing.TB, rt http.RoundTripper, req *http.Request) {
	if resp, err := rt.RoundTrip(req); err != nil || resp.StatusCode != 200 {
		t.Fatalf("got %v, %v", resp, err)
	}
}

// BenchmarkTransport is what a Transport adds to a request that succeeds at
// once, with the window in memory: take off what "base" costs. "wrapper" is
// what hardly any transport can do without.
func BenchmarkTransport(b *testing.B) {
	all := variants(b)
	for _, name := range []string{"base", "wrapper", "no loop", "loop"} {
		b.Run(name, func(b *testing.B) {
			req := getURL(b.Context(), "http://api.example/v1/meetings?year=2024")
			b.ReportAllocs()
			for b.Loop() {
				sendOn(b, all[name], req)
			}
		})
	}
}

// TestRetryLoopAllocations: the retry loop adds nothing to a request that
// succeeds at once.
func TestRetryLoopAllocations(t *testing.T) {
	all := variants(t)
	req := getURL(t.Context(), "http://api.example/v1/meetings?year=2024")
	allocs := func(name string) float64 {
		return testing.AllocsPerRun(200, func() { sendOn(t, all[name], req) })
	}
	if with, without := allocs("loop"), allocs("no loop"); with > without {
		t.Errorf("%v allocations, %v without the loop", with, without)
	}
}
