package main

import (
	"context"
	"encoding/json"
	"io"
	"net/url"
	"sync"
	"time"

	"github.com/pacecar-go/pacecar"
)

// workerEnv makes the program a worker. An environment variable, because it
// works for a test binary too.
const workerEnv = "PACECAR_EXAMPLE_WORKER"

// What goes through the pipes: first settings, then jobs, one a line, from the
// parent to a worker; messages, one a line, from the worker to the parent.

// settings is what a worker is told at its start.
type settings struct {
	Upstream string // scheme and host
	Redis    string
	Rates    string
	Without  bool // without pacecar
	Outage   pacecar.Outage
	Replicas int
}

// host returns the upstream's host as a route names it.
func (s settings) host() string {
	u, err := url.Parse(s.Upstream)
	if err != nil {
		return ""
	}
	return u.Host
}

// A message is what a worker has to say.
type message struct {
	Result *result `json:",omitempty"`
	Stats  pacecar.Stats
	Events []event `json:",omitempty"`
}

// An event is a [pacecar.Event] that can travel, with its time.
type event struct {
	Kind   pacecar.EventKind
	At     time.Time
	Wait   time.Duration `json:",omitempty"`
	Late   time.Duration `json:",omitempty"`
	Reason string        `json:",omitempty"`
	Err    string        `json:",omitempty"`
}

// An uplink is the way from a worker to its parent.
type uplink struct {
	messages chan message
	sent     chan struct{} // closed when the last message is out

	mu     sync.Mutex
	events []event // not told yet
}

func newUplink(w io.Writer) *uplink {
	u := &uplink{messages: make(chan message), sent: make(chan struct{})}
	go func() {
		defer close(u.sent)
		enc := json.NewEncoder(w)
		for m := range u.messages {
			_ = enc.Encode(m) // if it fails the parent is gone, and stdin says so too
		}
	}()
	return u
}

// close ends the uplink. Nothing may be told after it.
func (u *uplink) close() {
	close(u.messages)
	<-u.sent
}

// observe takes note of an event. It is called from within requests, so it
// leaves the telling to others.
func (u *uplink) observe(_ context.Context, e pacecar.Event) {
	switch e.Kind {
	case pacecar.EventLimited, pacecar.EventPaused, pacecar.EventRetry, pacecar.EventLate,
		pacecar.EventDegraded, pacecar.EventRestored, pacecar.EventLost:
	default:
		return // every request has its slot event; the parent has no use for them
	}
	ev := event{Kind: e.Kind, At: time.Now(), Wait: e.Wait, Late: e.Late, Reason: e.Reason}
	if e.Err != nil {
		ev.Err = e.Err.Error()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.events = append(u.events, ev)
}

// tell sends what is new, and a result if r is not nil.
func (u *uplink) tell(r *result, s pacecar.Stats) {
	u.mu.Lock()
	events := u.events
	u.events = nil
	u.mu.Unlock()
	u.messages <- message{Result: r, Stats: s, Events: events}
}

// tellUntil tells ten times a second how things stand, until ctx ends.
func (u *uplink) tellUntil(ctx context.Context, stats func() pacecar.Stats) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			u.tell(nil, stats())
		}
	}
}
