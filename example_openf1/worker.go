package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/pacecar-go/pacecar"
)

// newClient is what a program does to join the fleet: one Transport on the
// Redis that all share, and an ordinary http.Client on top of it. The calls
// made with that client need to know nothing of limits.
func newClient(s settings, rdb redis.Scripter, observe func(context.Context, pacecar.Event)) (*http.Client, *pacecar.Transport, error) {
	rates, err := pacecar.ParseRates(s.Rates) // "3/s, 30/m"
	if err != nil {
		return nil, nil, err
	}
	t, err := pacecar.New(pacecar.Config{
		Redis: rdb,
		Routes: map[string]pacecar.Policy{
			s.host() + "/": {Rates: rates, Outage: s.Outage, Replicas: s.Replicas},
		},
		Base:    newBase(),
		Observe: observe,
	})
	if err != nil {
		return nil, nil, err
	}
	// No Timeout here: it would cover the wait for a slot too, and with 30 a
	// minute that can be a minute. The base bounds each attempt instead.
	return &http.Client{Transport: t}, t, nil
}

// newBase returns the transport that sends. Its time limit counts from when a
// request is sent, not from when it began to wait for its slot.
func newBase() *http.Transport {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.ResponseHeaderTimeout = 30 * time.Second
	return base
}

// redisOptions reads -redis.
func redisOptions(addr string) (*redis.Options, error) {
	o := &redis.Options{Addr: addr}
	if strings.Contains(addr, "://") {
		var err error
		if o, err = redis.ParseURL(addr); err != nil {
			return nil, errors.New("not a redis:// URL") // err may show the password
		}
	}
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return o, nil
}

// workerMain is the whole life of a worker process: settings and jobs come in
// through stdin, results and news go out through stdout. It ends when stdin
// does, so that no worker outlives its parent, however that ended.
func workerMain() int {
	// A terminal sends Ctrl-C to all of us, but it is the parent who decides.
	// And when the parent is gone, there are still slots to give back.
	signal.Ignore(os.Interrupt, syscall.SIGPIPE)
	if err := work(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "example_openf1: worker:", err)
		return 1
	}
	return 0
}

// work serves jobs from in until it ends, each in a goroutine of its own: the
// parent sees to it that there are never more than -concurrency.
func work(in io.Reader, out io.Writer) error {
	dec := json.NewDecoder(in)
	var s settings
	if err := dec.Decode(&s); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	up := newUplink(out)
	defer up.close()

	client := &http.Client{Transport: newBase()}
	stats := func() pacecar.Stats { return pacecar.Stats{} }
	if !s.Without {
		logging.Disable() // pacecar's events tell of outages; go-redis would tell of each dial
		o, err := redisOptions(s.Redis)
		if err != nil {
			return err
		}
		rdb := redis.NewClient(o)
		defer rdb.Close()
		c, t, err := newClient(s, rdb, up.observe)
		if err != nil {
			return err
		}
		client = c
		stats = func() (only pacecar.Stats) {
			for _, only = range t.Stats() { // one route to one host: one key
			}
			return only
		}
	}
	defer client.CloseIdleConnections()

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var calls sync.WaitGroup
	calls.Go(func() { up.tellUntil(ctx, stats) })
	for {
		var j job
		if dec.Decode(&j) != nil {
			break // the parent has closed the pipe, or is gone
		}
		calls.Go(func() {
			r := result{ID: j.ID}
			r.Body, r.Status, r.Err = fetch(ctx, client, s.Upstream+j.Path)
			up.tell(&r, stats())
		})
	}
	cancel()
	calls.Wait()
	up.tell(nil, stats())
	return nil
}
