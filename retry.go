package pacecar

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-retryablehttp"
)

// The loop is go-retryablehttp's Client.Do: it counts, and sleeps as the
// context allows. What it would do to requests and responses breaks the contract
// of RoundTripper (redirects, credentials, bodies read into memory, errors for
// responses), so it never sees one: it sends a request of ours without content,
// whose context carries the call, and each answer is an empty 200. The call
// makes the real attempts and keeps the real outcome. The first is made before
// the loop, which most calls never enter.

// callKey is the context key under which the loop carries the call.
type callKey struct{}

func callOf(ctx context.Context) *call { return ctx.Value(callKey{}).(*call) }

// newRetrier returns the loop.
func newRetrier(r *Retry) *retryablehttp.Client {
	return &retryablehttp.Client{
		HTTPClient: &http.Client{Transport: attempts{}},
		RetryMax:   r.max(),
		CheckRetry: func(ctx context.Context, _ *http.Response, _ error) (bool, error) {
			c := callOf(ctx)
			return c.sent == 1 || c.repeats(), nil // of the first, RoundTrip has asked
		},
		Backoff: func(_, _ time.Duration, _ int, resp *http.Response) time.Duration {
			return callOf(resp.Request.Context()).clear()
		},
		ErrorHandler: func(resp *http.Response, err error, _ int) (*http.Response, error) { return resp, err },
	}
}

// attempts is the transport of the loop: a round trip is an attempt. It has no
// CloseIdleConnections: the loop would call it after each failure.
type attempts struct{}

func (attempts) RoundTrip(req *http.Request) (*http.Response, error) {
	c := callOf(req.Context())
	if c.looped { // else it stands for the first
		c.attempt()
	}
	c.looped = true
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: req}, nil
}

// nowhere is where the loop's request goes.
var nowhere = &url.URL{Scheme: "http", Host: "pacecar.invalid", Path: "/"}

// loop makes attempts after the first until one is final.
func (c *call) loop() {
	ctx := context.WithValue(c.req.Context(), callKey{}, c)
	r := (&http.Request{Method: http.MethodGet, URL: nowhere, Header: http.Header{}}).WithContext(ctx)
	_, err := c.t.retrier.Do(&retryablehttp.Request{Request: r})
	if err != nil { // the context ended between two attempts
		closeResponse(c.resp)
		c.resp, c.err = nil, &Error{Key: c.key, Err: cmp.Or(c.req.Context().Err(), err)}
	}
}

// repeats decides whether another attempt follows.
func (c *call) repeats() bool {
	_, refused := errors.AsType[*Error](c.err)
	switch {
	case c.final, refused, c.sent > c.t.config.Retry.max(), c.req.Context().Err() != nil:
		return false
	case hasBody(c.req) && c.req.GetBody == nil:
		return false
	case c.resp != nil && c.resp.StatusCode == http.StatusSwitchingProtocols:
		return false
	}
	retry := c.repeatable()
	if check := c.t.config.Retry.Check; check != nil {
		if r, decided := check(c.req, c.resp, c.err); decided {
			retry = r
		}
	}
	return retry && c.worthwhile()
}

// repeatable is the default of Retry.Check.
func (c *call) repeatable() bool {
	switch {
	case c.err != nil:
		return (unsent(c.err) || idempotent(c.req)) && passing(c.err)
	case c.resp == nil || c.said.permanent:
		return false
	case c.said.limited:
		return true
	}
	switch c.resp.StatusCode {
	case http.StatusRequestTimeout, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return idempotent(c.req)
	}
	return false
}

// worthwhile reports whether the wait before the next attempt may be waited. It
// is never shortened: a longer one ends the call.
func (c *call) worthwhile() bool {
	r := &c.t.config.Retry
	switch {
	case !c.said.pauses():
		c.wait = r.backoff(c.sent)
	case c.said.named && c.wait > cmp.Or(r.MaxRetryAfter, time.Minute):
		return false
	case c.policy.MaxWait > 0 && c.wait > c.policy.MaxWait:
		return false
	}
	deadline, ok := c.req.Context().Deadline()
	return !ok || c.wait < time.Until(deadline)
}

// clear makes way for the next attempt, and returns how long to sleep before
// it asks for a slot. Of a wait for which the key's clock stands, the limiter
// takes care.
//
// The sleep is never zero: in a bubble of testing/synctest, a timer that is due
// when it is waited for breaks the race detector (golang/go#78156).
func (c *call) clear() time.Duration {
	reason := c.said.reason
	if reason == "" && c.resp != nil {
		reason = strconv.Itoa(c.resp.StatusCode)
	}
	c.t.tell(c.req.Context(), Event{Kind: EventRetry, Key: c.key, Route: c.route.label(), Attempt: c.sent, Wait: c.wait, Reason: reason, Err: bare(c.err)})
	if c.resp != nil && c.resp.Body != nil && c.resp.Body != http.NoBody && !readWhole(c.resp) {
		closeResponse(c.resp)
		c.resp = nil
	}
	if c.stands {
		return 1
	}
	return max(c.wait, 1)
}

// bare returns err without what it may show: the URL, query and all, that the error
// of an http.Client in Base has, and the line of a header that cannot be read.
func bare(err error) error {
	var outer *url.Error
	for errors.As(err, &outer) {
		err = outer.Err
	}
	if _, ok := errors.AsType[textproto.ProtocolError](err); ok {
		return errMalformed
	}
	return err
}

var errMalformed = errors.New("malformed response")

// max returns how many attempts may follow the first.
func (r *Retry) max() int { return max(0, cmp.Or(r.Max, 3)) }

// backoff returns a wait before the attempt after the nth: exponential, with
// full jitter, but no hot loop.
func (r *Retry) backoff(n int) time.Duration {
	d, most := r.minBackoff(), r.maxBackoff()
	for ; n > 1 && d <= most/2; n-- {
		d *= 2
	}
	if n > 1 {
		d = most
	}
	return max(min(adviceFloor, d), rand.N(d))
}

// The bounds on reading what is left of a response, to keep its connection.
const (
	drainBytes = 8 << 10
	drainTime  = 50 * time.Millisecond
)

// readWhole takes a short body into memory, and reports whether it is all there.
// Its connection is free for others then, and the response can still be returned
// if no other follows. One that is longer, or does not come, must be closed, so
// that it keeps no connection while the retry waits.
func readWhole(resp *http.Response) bool {
	readAhead(resp, drainBytes, drainTime)
	return resp.Body.(*peekedBody).ended()
}

// idempotent reports whether req may be sent twice: by its method (RFC 9110
// §9.2.2), or because the caller says so with an Idempotency-Key.
func idempotent(req *http.Request) bool {
	return slices.Contains(idempotentMethods, req.Method) || req.Header.Get("Idempotency-Key") != ""
}

var idempotentMethods = []string{"", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace,
	http.MethodPut, http.MethodDelete}

// unsent reports whether err came before a byte of the request was sent: no
// connection could be made, or the one that was kept alive was closed unused.
func unsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" || closedUnused(err)
}

// closedUnused reports whether the upstream closed a connection that was kept
// alive before the request was written to it, which net/http tells by words
// alone.
func closedUnused(err error) bool {
	return strings.HasSuffix(err.Error(), "http: server closed idle connection")
}

// passing reports whether err may be gone the next time: not a bad scheme or
// header, nor a certificate that is not trusted.
func passing(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return false
	}
	retry, _ := retryablehttp.DefaultRetryPolicy(context.Background(), nil, &url.Error{Err: err})
	return retry
}
