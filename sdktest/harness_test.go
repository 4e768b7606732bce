package sdktest

import (
	"cmp"
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pacecar-go/pacecar"
)

// An upstream answers with the given statuses in turn, the last one for ever.
// It is a server's handler, and in virtual time a transport.
type upstream struct {
	sdk      *sdk
	statuses []int
	header   http.Header // of every answer

	mu   sync.Mutex
	seen []sending
}

// A sending is a request as it arrived.
type sending struct {
	at     time.Time
	host   string
	header http.Header
	body   string
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	u.mu.Lock()
	status := u.statuses[min(len(u.seen), len(u.statuses)-1)]
	u.seen = append(u.seen, sending{time.Now(), r.Host, r.Header.Clone(), string(body)})
	u.mu.Unlock()

	answer := u.sdk.answer
	maps.Copy(w.Header(), u.header)
	if status == http.StatusTooManyRequests {
		for name, value := range u.sdk.wait {
			w.Header().Set(name, value)
		}
		answer = u.sdk.limited
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, answer)
}

// RoundTrip makes the upstream a transport without a network.
func (u *upstream) RoundTrip(req *http.Request) (*http.Response, error) {
	in := req.Clone(req.Context())
	in.Host = cmp.Or(in.Host, in.URL.Host)
	if in.Body == nil {
		in.Body = http.NoBody
	}
	defer in.Body.Close()
	w := httptest.NewRecorder()
	u.ServeHTTP(w, in)
	resp := w.Result()
	resp.Request = req
	return resp, nil
}

func (u *upstream) sendings() []sending {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.seen)
}

// A counter counts the round trips that are asked of next.
type counter struct {
	next http.RoundTripper
	n    atomic.Int64
}

func (c *counter) RoundTrip(req *http.Request) (*http.Response, error) {
	c.n.Add(1)
	return c.next.RoundTrip(req)
}

// down is a transport to an upstream that is not there.
type down struct{}

func (down) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
}

// A stack is a client on pacecar on an upstream. The zero values of the first
// fields are what most tests want.
type stack struct {
	base    http.RoundTripper // nil: to the upstream
	virtual bool              // without a network, in a bubble of testing/synctest
	retries bool              // the client's own
	scarce  bool              // a slot an hour, and nobody waits
	config  pacecar.Config    // Routes and Base are filled in

	upstream *upstream
	asked    *counter // what the client asks of pacecar
	url      string   // the server's
	call     func(context.Context) error
}

// build makes the client of st.
func (st *stack) build(t *testing.T, s *sdk, statuses ...int) *stack {
	t.Helper()
	st.serve(t, s, statuses...)
	st.call = s.client(t, st.asked, st.url, st.retries)
	return st
}

// serve makes all but the client.
func (st *stack) serve(t *testing.T, s *sdk, statuses ...int) {
	t.Helper()
	st.upstream = &upstream{sdk: s, statuses: statuses}
	st.url = "http://api.test"
	switch {
	case st.base != nil:
	case st.virtual:
		st.base = st.upstream
	default:
		server := httptest.NewServer(st.upstream)
		t.Cleanup(server.Close)
		st.base, st.url = server.Client().Transport, server.URL
	}
	policy := pacecar.Policy{Rates: pacecar.MustRates("1000/s"), Feedback: s.reads}
	if st.scarce {
		policy.Rates, policy.MaxWait = pacecar.MustRates("1/h"), time.Millisecond
	}
	st.config.Routes = map[string]pacecar.Policy{"/": policy}
	st.config.Base = st.base
	limited, err := pacecar.New(st.config)
	if err != nil {
		t.Fatal(err)
	}
	st.asked = &counter{next: limited}
}

// wantCounts fails the test unless the client asked for so many round trips,
// and so many requests were sent.
func (st *stack) wantCounts(t *testing.T, asked, sent int) {
	t.Helper()
	if n := int(st.asked.n.Load()); n != asked {
		t.Errorf("the client asked for %d round trips, want %d", n, asked)
	}
	if n := len(st.upstream.sendings()); n != sent {
		t.Errorf("%d requests arrived, want %d", n, sent)
	}
}
