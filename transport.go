package pacecar

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-retryablehttp"
)

// A Transport is an [http.RoundTripper] that takes a slot before it sends a
// request. Set it as the Transport of an http.Client, bare or inside an SDK, in
// every process of the fleet.
//
// It keeps the contract of RoundTripper: the request is not modified, its body
// is always closed, redirects are returned as they are, and a response is
// returned whatever its status, also when all retries are used up. A request
// whose context ends while it waits returns at once; http.Client.Timeout and a
// context's deadline cover the waits for slots and all attempts, so leave room
// for them. Request.Cancel, which is deprecated, does not end a wait for a slot.
//
// When a connection that was kept alive turns out to be dead, net/http may send
// a request again on its own, below this Transport. That takes a slot of its own
// where Base tells of its connections, as net/http's transport does; below
// another Base it goes uncounted. A Transport inside another one passes the
// requests of the outer on: one slot, one retry loop.
//
// It is made by [New], and safe for concurrent use.
type Transport struct {
	config Config
	listeners
	router   *router
	limiters limiters
	retrier  *retryablehttp.Client
	warned   atomic.Bool       // of a request that matches no route
	fallback http.RoundTripper // the default one when it was made
}

// New returns a Transport. It checks the configuration, and names the field
// that is wrong. It does not dial: without Redis, the first requests meet the
// policy's Outage.
func New(c Config) (*Transport, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	router, err := newRouter(c.Routes)
	if err != nil {
		return nil, err
	}
	t := &Transport{config: c, listeners: listeners{c.Observe, c.Logger}, router: router, fallback: http.DefaultTransport}
	t.limiters.config = &t.config
	t.retrier = newRetrier(&t.config.Retry)
	return t, nil
}

// RoundTrip implements [http.RoundTripper]. A refusal is an *[Error]; a context
// that had ended before is answered with its plain error.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	switch c := above(req); {
	case c == nil:
	case t.config.Base == nil && (c.slot || c.by == t):
		return t.fallback.RoundTrip(req) // http.DefaultTransport may lead back here
	case c.slot:
		return t.base().RoundTrip(req)
	}
	route, key := t.router.match(req)
	if route == nil {
		t.unrouted(req)
		return t.pass(req)
	}
	c := call{t: t, req: req, route: route, policy: route.policy.Load(), key: key}
	returned := false
	defer func() {
		if !returned { // a function of the policy's or of Retry panics: nobody else will see this body
			closeResponse(c.resp)
		}
	}()
	if c.attempt(); c.repeats() {
		c.loop()
	}
	returned = true
	return c.outcome()
}

// unrouted tells of a request that matches no route: the first one is logged
// loud, since a pattern may be wrong.
func (t *Transport) unrouted(req *http.Request) {
	t.tell(req.Context(), Event{Kind: EventUnrouted})
	if t.logger != nil && req.URL != nil && !t.warned.Swap(true) {
		t.logger.WarnContext(req.Context(), "pacecar: the first request that matches no route, and is not limited",
			slog.String("method", req.Method), slog.String("host", req.URL.Host))
	}
}

// pass sends a request that is not limited.
func (t *Transport) pass(req *http.Request) (*http.Response, error) {
	base := t.base()
	if above(req) != nil && t.config.Base == nil {
		base = t.fallback
	}
	if _, plain := base.(*http.Transport); plain || t.config.Base != nil || req.URL == nil {
		return base.RoundTrip(req)
	}
	// http.DefaultTransport may lead back here.
	ctx := &sendContext{Context: req.Context(), host: req.URL.Host, by: t}
	resp, err := base.RoundTrip(req.WithContext(ctx))
	if resp != nil {
		resp.Request = req
	}
	return resp, err
}

// A call is one RoundTrip: its attempts, and what became of the last one.
type call struct {
	t      *Transport
	req    *http.Request // the caller's; never written to
	route  *route
	policy *Policy // of the route, when the call began
	key    string

	sent   int  // attempts so far
	looped bool // by the retry loop
	final  bool // none follows
	resp   *http.Response
	err    error
	said   advice
	wait   time.Duration // from the last outcome to the next attempt, at least
	stands bool          // the key's clock stands for all of wait
	first  sending       // of the first attempt: one allocation for both
}

// attempt waits for a slot, sends the request once, and learns from the answer.
func (c *call) attempt() {
	c.sent++
	d, err := c.slot()
	if err != nil {
		c.fail(err)
		return
	}
	defer d.cancel() // nothing to do, unless something fails or panics
	req := c.req.WithContext(d.trace(c.t, c.req.URL.Host))
	if c.sent > 1 && hasBody(c.req) {
		// As late as can be: some give the same reader again, rewound, and the
		// last attempt may have gone on reading for a while.
		if req.Body, err = c.req.GetBody(); err != nil {
			c.fail(&Error{Key: c.key, Err: err})
			return
		}
	}
	closeResponse(c.resp)
	c.said, c.stands = advice{}, false
	c.resp, c.err = d.done(c.t.base().RoundTrip(req))
	switch {
	case c.err != nil && c.resp != nil: // never both
		closeResponse(c.resp)
		c.resp = nil
	case c.resp != nil:
		c.resp.Request = c.req
		c.learn(d)
	}
}

// fail ends the call with an attempt that was not sent. The response of the
// one before it is worth more than the reason.
func (c *call) fail(err error) {
	if c.sent == 1 {
		closeBody(c.req)
	}
	if c.resp != nil && c.req.Context().Err() == nil {
		c.final = true
		return
	}
	closeResponse(c.resp)
	c.resp, c.err = nil, err
}

// slot waits until the request may enter Base.
func (c *call) slot() (*sending, error) {
	d, cost := &c.first, 1
	if c.sent > 1 {
		d = new(sending)
	}
	if c.policy.Cost != nil {
		cost = c.policy.Cost(c.req)
	}
	for {
		err := c.t.limiters.get(c.key, c.route).begin(c.req.Context(), d, c.t.base(), c.req.URL.Scheme, cost)
		if err != errForgotten {
			return d, err
		}
	}
}

// learn reads what the upstream says about waiting, and stops the key's clock
// for the whole fleet if it asks for that.
func (c *call) learn(d *sending) {
	if c.resp.StatusCode == http.StatusSwitchingProtocols {
		return // not a word of HTTP follows
	}
	c.said = c.policy.feedback(c.resp, time.Now())
	if c.said.limited {
		d.l.limited(c.req.Context(), c.said)
	}
	if !c.said.pauses() {
		return
	}
	if c.wait = c.said.wait; !c.said.named {
		c.wait = c.t.config.Retry.backoff(c.sent)
	}
	pause := min(c.wait, c.policy.maxPause())
	c.stands = d.l.pauseFor(pause, d.pass.resume, c.said.reason) && pause == c.wait
}

// outcome is what RoundTrip returns.
func (c *call) outcome() (*http.Response, error) {
	refusal, refused := errors.AsType[*Error](c.err)
	if c.t.config.Refuse429 && refused && refusal.passes() && c.req.Context().Err() == nil {
		return refuse429(c.req, refusal), nil
	}
	return c.resp, c.err
}

// refuse429 makes up the response that a strict upstream might have given.
func refuse429(req *http.Request, refusal *Error) *http.Response {
	// JSON in the form that most APIs give their errors, since SDKs parse it.
	message, _ := json.Marshal(refusal.Error())
	body := `{"error":{"type":"rate_limit_error","message":` + string(message) + "}}\n"
	seconds := max(1, int64(math.Ceil(refusal.Wait.Seconds())))
	return &http.Response{
		Status:     "429 " + http.StatusText(http.StatusTooManyRequests),
		StatusCode: http.StatusTooManyRequests,
		Proto:      "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{
			"Content-Type": {"application/json"},
			"Retry-After":  {strconv.FormatInt(seconds, 10)},
		},
		Body:          io.NopCloser(strings.NewReader(body)),
		ContentLength: int64(len(body)),
		Request:       req,
	}
}

// above returns what a Transport above this one has sent the request with; nil:
// there is none.
func above(req *http.Request) *sendContext {
	c, ok := req.Context().Value(sentKey{}).(*sendContext)
	if ok && req.URL != nil && c.host == req.URL.Host {
		return c
	}
	return nil
}

// hasBody reports whether there is a body to be sent.
func hasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }

// closeBody closes the body of a request that is not handed on.
func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// closeResponse closes the body of a response that is not handed on; nil is none.
func closeResponse(resp *http.Response) {
	if resp != nil && resp.Body != nil {
		_ = resp.Body.Close()
	}
}

// base returns what sends the requests.
func (t *Transport) base() http.RoundTripper {
	switch {
	case t.config.Base != nil:
		return t.config.Base
	case http.DefaultTransport == http.RoundTripper(t):
		return t.fallback
	}
	return http.DefaultTransport
}

// CloseIdleConnections closes the idle connections of the base, if it can.
// http.Client.CloseIdleConnections calls it.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// Unwrap returns the RoundTripper that sends the requests.
func (t *Transport) Unwrap() http.RoundTripper { return t.base() }

// Stats returns what this process knows of each key it has used, but for those
// forgotten as unused.
func (t *Transport) Stats() map[string]Stats {
	stats := map[string]Stats{}
	for key, l := range t.limiters.all() {
		stats[key] = l.Stats()
	}
	return stats
}
