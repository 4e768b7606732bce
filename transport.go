package pacecar

import (
	"errors"
	"net/http"
)

// A Transport is an [http.RoundTripper] that takes a slot before it sends a
// request. Set it as the Transport of an http.Client, bare or inside an SDK, in
// every process of the fleet.
//
// It keeps the contract of RoundTripper: the request is not modified, its body
// is always closed, redirects are returned as they are, and a response is
// returned whatever its status. A request whose context ends while it waits
// returns at once; http.Client.Timeout and a context's deadline cover the wait
// for the slot too, so leave room for it.
//
// When a connection turns out to be dead, net/http may send a request again on
// its own, below this Transport and without a slot.
//
// It is safe for concurrent use.
type Transport struct {
	config   Config
	router   *router
	limiters limiters
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
	t := &Transport{config: c, router: router}
	t.limiters.config = &t.config
	return t, nil
}

// RoundTrip implements [http.RoundTripper]. A refusal is an *[Error].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	route, key := t.router.match(req)
	if route == nil {
		t.tell(Event{Kind: EventUnrouted})
		return t.base().RoundTrip(req)
	}
	return t.attempt(req, route, key)
}

// attempt waits for a slot and sends the request once.
func (t *Transport) attempt(req *http.Request, route *route, key string) (*http.Response, error) {
	cost := 1
	if route.policy.Cost != nil {
		cost = route.policy.Cost(req)
	}
	if _, err := t.wait(req, route, key, cost); err != nil {
		closeBody(req)
		return nil, err
	}
	resp, err := t.base().RoundTrip(req)
	if err != nil && resp != nil { // never both
		_ = resp.Body.Close()
		resp = nil
	}
	return resp, err
}

// wait takes a slot.
func (t *Transport) wait(req *http.Request, route *route, key string, cost int) (pass, error) {
	for {
		p, err := t.limiters.get(key, &route.policy).wait(req.Context(), cost)
		if !errors.Is(err, errForgotten) {
			return p, err
		}
	}
}

// closeBody closes the body of a request that is not handed on.
func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// base returns what sends the requests.
func (t *Transport) base() http.RoundTripper {
	if t.config.Base != nil {
		return t.config.Base
	}
	return http.DefaultTransport
}

func (t *Transport) tell(e Event) { tell(t.config.Observe, t.config.Logger, e) }

// CloseIdleConnections closes the idle connections of the base, if it can.
// http.Client.CloseIdleConnections calls it.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// Unwrap returns the RoundTripper that sends the requests.
func (t *Transport) Unwrap() http.RoundTripper { return t.base() }

// Stats returns what this process knows of each key it has used.
func (t *Transport) Stats() map[string]Stats {
	stats := map[string]Stats{}
	for key, l := range t.limiters.all() {
		stats[key] = l.Stats()
	}
	return stats
}
