package main

import (
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// chaosAway is how long -chaos keeps Redis away.
const chaosAway = 2 * time.Second

// embeddedRedis is a Redis inside this process, on a port of this machine.
type embeddedRedis struct {
	addr string

	once   sync.Once     // of outage
	back   chan struct{} // closed when the outage is over; nil if there was none
	server *miniredis.Miniredis

	killed, revived time.Time
	err             error // why it did not come back
}

func startRedis() (*embeddedRedis, error) {
	m, err := newRedis("127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &embeddedRedis{addr: m.Addr(), server: m}, nil
}

func newRedis(addr string) (*miniredis.Miniredis, error) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true) // else nothing ever expires
	return m, m.StartAddr(addr)
}

// outage kills the server, and in the background starts another at the same
// address that knows nothing. Calls after the first do nothing.
func (e *embeddedRedis) outage(d time.Duration) {
	e.once.Do(func() {
		e.back = make(chan struct{})
		e.killed = time.Now()
		go func() {
			defer close(e.back)
			e.server.Close()
			time.Sleep(d)
			if e.server, e.err = newRedis(e.addr); e.err == nil {
				e.revived = time.Now()
			}
		}()
	})
}

// wait returns when no outage is going on any more.
func (e *embeddedRedis) wait() {
	if e.back != nil {
		<-e.back
	}
}

func (e *embeddedRedis) stop() {
	e.wait()
	e.server.Close()
}
