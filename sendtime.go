package pacecar

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

// What counts is when a request leaves, and one that has to set up a connection
// leaves much later than it enters Base. Where Base tells when it has a
// connection (httptrace's GotConn; net/http's does, for HTTP/1 and HTTP/2), a
// request enters Base before its slot, by as much as connections took to set up
// of late, and is held there until its slot. So a cold connection costs no
// lateness, and a request whose slot has come is not held at all.

// maxHeadStart bounds how long a connection is held unused.
const maxHeadStart = time.Second

// A headStart is what a limiter has learnt of how Base sends.
type headStart struct {
	told  bool  // Base has told of a connection
	blind bool  // Base has sent without telling since
	setup int64 // what it took to set up a connection of late
}

// learn takes in how long a connection took to set up: the longest counts, and
// fades.
func (h *headStart) learn(took int64) {
	h.setup = min(max(took, h.setup-(h.setup-took)/8), maxHeadStart.Microseconds())
}

// early returns how long before its slot a request enters Base; guess, before Base
// has told of a connection.
func (h *headStart) early(guess int64) int64 {
	switch {
	case h.blind:
		return 0
	case h.told:
		return h.setup
	}
	return guess
}

// notEarly is the guess for a call that does not enter Base before its slot.
const notEarly = -1

// tells reports whether base is known to tell of its connections: net/http's
// transport is, but for protocols that were registered with it.
func tells(base http.RoundTripper) bool {
	_, ok := base.(*http.Transport)
	return ok
}

// guessEarly returns the head start of requests to a Base that has not told yet:
// the most where it is known to, so that first connections are there in time, too.
func guessEarly(base http.RoundTripper, scheme string) int64 {
	if tells(base) && (scheme == "http" || scheme == "https") {
		return maxHeadStart.Microseconds()
	}
	return 0
}

// A sending follows one attempt through Base to the moment at which it
// leaves.
type sending struct {
	l    *Limiter
	ctx  sendContext
	base http.RoundTripper
	cost int
	hook httptrace.ClientTrace

	mu      sync.Mutex // guards what follows; not held while waiting
	pass    pass
	entered int64
	left    bool  // departLocked has told of it
	conns   int   // connections that Base has told of
	err     error // why it must not leave
	over    bool  // Base has returned
}

// begin takes a slot for a request that is about to enter Base, and has d, which
// is new, follow it.
func (l *Limiter) begin(ctx context.Context, d *sending, base http.RoundTripper, scheme string, cost int) error {
	p, err := l.enter(ctx, cost, guessEarly(base, scheme))
	if err != nil {
		return err
	}
	d.l, d.base, d.cost, d.pass, d.entered = l, base, cost, p, l.now()
	d.ctx.Context = ctx
	l.mu.Lock()
	l.out++
	if l.head.blind && p.waiter == nil {
		d.left = true
		l.departLocked(ctx, &d.pass, d.entered)
	}
	l.unlock()
	return nil
}

// trace returns the context with which the request enters Base. It tells a
// Transport within that t has a slot for host.
func (d *sending) trace(t *Transport, host string) context.Context {
	d.ctx.by, d.ctx.slot, d.ctx.host = t, true, host
	d.hook.GotConn = d.gotConn
	return httptrace.WithClientTrace(&d.ctx, &d.hook)
}

// gotConn is called when Base has a connection for the request, and holds it
// until the request may leave. A second call for one request means that Base
// sends it again, on a connection that was found dead; one after Base has returned,
// that it sends something of its own. Both take another slot.
func (d *sending) gotConn(info httptrace.GotConnInfo) {
	d.mu.Lock()
	d.conns++
	p, left, again, over, err := d.pass, d.left, d.conns > 1, d.over, d.err
	d.mu.Unlock()

	l, ctx := d.l, d.ctx.Context
	took := l.now() - d.entered
	if info.Reused || again || over {
		took = 0
	}
	l.connected(took)
	switch {
	case err != nil:
	case over:
		p, err = l.wait(context.WithoutCancel(ctx), d.cost)
	case again:
		p, err = l.wait(ctx, d.cost)
	default:
		p, err = l.depart(ctx, p, left)
	}

	d.mu.Lock()
	if !d.over {
		d.pass, d.left, d.err = p, true, err
	}
	d.mu.Unlock()
	if err != nil { // there is no other way to keep Base from sending it
		d.ctx.abort()
		if info.Conn != nil && !d.multiplexed(info.Conn) {
			_ = info.Conn.Close()
		}
	}
}

// connected takes in that Base has told of a connection, which took so long to set
// up; 0: not known.
func (l *Limiter) connected(took int64) {
	l.mu.Lock()
	defer l.unlock()
	h := &l.head
	if !h.told || h.blind {
		h.told, h.blind = true, false
		for w := range l.slotted { // they have a head start now
			w.nudge()
		}
	}
	if took > 0 {
		h.learn(took)
	}
}

// depart waits for what is left until the slot of p, which Base has a
// connection for, and tells that it leaves, unless left says that it has.
func (l *Limiter) depart(ctx context.Context, p pass, left bool) (pass, error) {
	l.mu.Lock()
	defer l.unlock()
	var err error
	switch {
	case p.waiter != nil:
		p, err = l.awaitLocked(ctx, p.waiter, notEarly)
	case !p.share && l.tooLateLocked(p.slot, l.now()):
		l.giveBackLocked(p.slot, p.made)
		p, err = l.enterLocked(ctx, newWaiter(p.slot.units, l.keepLocked(ctx), p.began), notEarly)
	}
	switch {
	case err != nil:
	case left:
		l.reportLocked(ctx, &p, l.now())
	default:
		l.departLocked(ctx, &p, l.now())
	}
	return p, err
}

// done takes in what came of the request, and returns it.
func (d *sending) done(resp *http.Response, err error) (*http.Response, error) {
	d.mu.Lock()
	d.over = true
	p, left, told, refusal := d.pass, d.left, d.conns > 0, d.err
	d.mu.Unlock()
	d.l.mu.Lock()
	d.l.out--
	d.l.mu.Unlock()
	switch {
	case !told:
		d.untold(p, left, err)
	case err != nil && refusal == nil && closedUnused(err):
		// The connection died in the hold. After any other error, a failed dial
		// too, the request may have been written to a connection before.
		d.l.mu.Lock()
		d.l.unpassLocked(p)
		d.l.unlock()
	}
	if err != nil && refusal != nil {
		return resp, refusal
	}
	return resp, err
}

// untold takes in that Base is done with the request and has told of no
// connection: it had none, or it does not tell.
func (d *sending) untold(p pass, left bool, err error) {
	l := d.l
	l.mu.Lock()
	defer l.unlock()
	if err != nil && !left && (unsent(err) || l.head.told && tells(d.base)) { // it did not leave
		l.unpassLocked(p)
		return
	}
	if err == nil || !l.head.told { // after an error, one that has told may have had none
		l.head.blind = true
	}
	switch w := p.waiter; {
	case w == nil:
	case w.state == queued: // its slot was lost, and it books no other
		w.state = gone
		l.sentLocked(span{d.entered, w.units})
		l.flyLocked()
		p = pass{began: w.began, share: true}
	default:
		p = l.leaveLocked(w, d.entered)
	}
	if !left {
		l.departLocked(d.ctx.Context, &p, d.entered)
	}
}

// unpassLocked gives back the slot of a pass that nobody left with.
func (l *Limiter) unpassLocked(p pass) {
	if w := p.waiter; w != nil {
		if w.state == holding || w.state == sharing { // else it books again, after a loss say
			l.dropLocked(w)
		}
		w.state = gone
	} else if !p.share {
		l.giveBackLocked(p.slot, p.made)
	}
}

// cancel gives the slot back: the request does not enter Base, or Base panicked.
func (d *sending) cancel() {
	d.mu.Lock()
	over, p, told := d.over, d.pass, d.conns > 0
	d.over = true
	d.mu.Unlock()
	if over {
		return
	}
	d.l.mu.Lock()
	defer d.l.unlock()
	d.l.out--
	if !told {
		d.l.unpassLocked(p)
	}
}

// A sendContext is the context of a request that a Transport has sent on. It can
// end on its own, without what a derived context costs: one that is cancelled for
// good would cut off the response's body, and one that is not would stay with its
// parent.
type sendContext struct {
	context.Context
	by      *Transport
	slot    bool   // there is one
	host    string // of the request
	aborted atomic.Bool
}

// closedDone is the Done channel of what has ended.
var closedDone = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func (c *sendContext) abort() { c.aborted.Store(true) }

func (c *sendContext) Done() <-chan struct{} {
	if c.aborted.Load() {
		return closedDone
	}
	return c.Context.Done()
}

func (c *sendContext) Err() error {
	if c.aborted.Load() {
		return context.Canceled
	}
	return c.Context.Err()
}

func (c *sendContext) Value(key any) any {
	if key == (sentKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// sentKey is the context key of the innermost sendContext.
type sentKey struct{}

// multiplexed reports whether a connection carries other requests too: HTTP/2
// looks at the context before it sends, and must not lose its connection. In clear
// text it is taken for HTTP/1, which does not, where it is not sure.
func (d *sending) multiplexed(conn any) bool {
	if c, ok := conn.(interface{ ConnectionState() tls.ConnectionState }); ok {
		return c.ConnectionState().NegotiatedProtocol == "h2"
	}
	t, ok := d.base.(*http.Transport)
	return ok && t.Protocols != nil && t.Protocols.UnencryptedHTTP2() && !t.Protocols.HTTP1()
}
