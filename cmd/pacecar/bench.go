package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pacecar-go/pacecar"
	"github.com/redis/go-redis/v9"
)

// processes is how many processes bench plays.
const processes = 16

func checkBench(t *tool, _ []string) error {
	if t.dur < 30*time.Millisecond || t.dur > time.Minute {
		return usagef("-for: must be from 30ms to 1m: %v", t.dur)
	}
	return nil
}

// A measure is one part of bench. Its JSON is part of the command's interface.
type measure struct {
	Processes int     `json:"processes"`
	Callers   int     `json:"callers"` // in each
	Bookings  float64 `json:"bookings_per_second"`
	Calls     float64 `json:"calls_per_second"`
	P50       float64 `json:"p50_ms"` // of a booking
	P99       float64 `json:"p99_ms"`
}

// bench books slots of a quota of its own, which it removes, as fast as Redis
// books: nobody has to wait.
func bench(ctx context.Context, t *tool, _ []string) error {
	key := "bench-" + rand.Text()
	defer t.remove(key)
	if !t.json {
		fmt.Fprintf(t.out, "bookings in Redis at %s, %v in all\n\n", t.where, t.dur)
		fmt.Fprintln(t.out, "processes  callers in each  bookings/s   calls/s       p50       p99")
	}
	for _, m := range []measure{{Processes: 1, Callers: 1}, {Processes: processes, Callers: 1}, {Processes: processes, Callers: processes}} {
		if err := t.measure(ctx, key, &m); err != nil {
			return err
		}
		var err error
		if t.json {
			err = json.NewEncoder(t.out).Encode(m)
		} else {
			_, err = fmt.Fprintf(t.out, "%9d %16d %11.0f %9.0f %6.2f ms %6.2f ms\n", m.Processes, m.Callers, m.Bookings, m.Calls, m.P50, m.P99)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// nobody answers requests without sending them.
type nobody struct{}

func (nobody) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody, Request: req}, nil
}

// A gate lets calls to Redis through until it is shut.
type gate struct {
	redis.Scripter
	mu     sync.RWMutex // held for reading during a call
	isShut bool
}

var errShut = errors.New("bench has ended")

func (g *gate) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.isShut {
		return redis.NewCmdResult(nil, errShut)
	}
	return g.Scripter.EvalSha(ctx, sha, keys, args...)
}

func (g *gate) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.isShut {
		return redis.NewCmdResult(nil, errShut)
	}
	return g.Scripter.Eval(ctx, script, keys, args...)
}

// shut waits for the calls under way, and lets no other through.
func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.isShut = true
}

// fleet returns n Transports that book slots of key through rdb. away gets the
// error of the first call to Redis that failed.
func (t *tool) fleet(n int, key string, rdb redis.Scripter, away *atomic.Pointer[error]) ([]*pacecar.Transport, error) {
	var transports []*pacecar.Transport
	for range n {
		one, err := pacecar.New(pacecar.Config{
			Redis: rdb, Prefix: t.prefix, Base: nobody{}, RedisTimeout: t.timeout, Retry: pacecar.Retry{Max: -1},
			Observe: func(_ context.Context, e pacecar.Event) {
				if e.Kind == pacecar.EventDegraded {
					away.CompareAndSwap(nil, &e.Err)
				}
			},
			// No slot is ever scarce, none is booked ahead of its request, and no request is late.
			Routes: map[string]pacecar.Policy{"/": {
				Name: key, Rates: pacecar.Rates{{Limit: 1_000_000_000, Per: 10 * time.Second}}, Slack: 9 * time.Second, Lease: -1,
			}},
		})
		if err != nil {
			return nil, usageError{err}
		}
		transports = append(transports, one)
	}
	return transports, nil
}

// measure plays m's processes for a third of the time.
func (t *tool) measure(ctx context.Context, key string, m *measure) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	rdb := &gate{Scripter: t.rdb}
	defer rdb.shut() // a Transport may still be asking for the time, and would restore what is removed
	var away atomic.Pointer[error]
	transports, err := t.fleet(m.Processes, key, rdb, &away)
	if err != nil {
		return err
	}
	start := time.Now()
	deadline := start.Add(t.dur / 3)
	var mu sync.Mutex
	var took []time.Duration
	var failed error
	var wg sync.WaitGroup
	for _, one := range transports {
		for range m.Callers {
			wg.Go(func() {
				mine, err := book(ctx, one, deadline)
				if err != nil {
					cancel()
				}
				mu.Lock()
				defer mu.Unlock()
				took = append(took, mine...)
				if failed == nil {
					failed = err
				}
			})
		}
	}
	wg.Wait()
	elapsed := time.Since(start).Seconds()
	if failed != nil {
		if cause := away.Load(); cause != nil { // a refusal does not say why Redis is not available
			return *cause
		}
		return failed
	}
	calls := uint64(0)
	for _, one := range transports {
		for _, s := range one.Stats() {
			calls += s.RoundTrips
		}
	}
	slices.Sort(took)
	at := func(share float64) float64 { return took[int(share*float64(len(took)-1))].Seconds() * 1000 }
	m.Bookings, m.Calls, m.P50, m.P99 = float64(len(took))/elapsed, float64(calls)/elapsed, at(0.5), at(0.99)
	return nil
}

// book books one slot after the other, one at least, and returns how long each
// took.
func book(ctx context.Context, rt http.RoundTripper, deadline time.Time) (took []time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://bench.invalid/", nil)
	if err != nil {
		return nil, err
	}
	for begin := time.Now(); len(took) == 0 || begin.Before(deadline); {
		resp, err := rt.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		resp.Body.Close()
		end := time.Now()
		took, begin = append(took, end.Sub(begin)), end
	}
	return took, nil
}

// remove removes all that lua/state.lua names of the quota that bench used.
func (t *tool) remove(key string) {
	ctx, cancel := t.bounded(context.Background())
	defer cancel()
	for name := range strings.FieldsSeq("clock free fleet log:10s") {
		err := t.rdb.Del(ctx, t.prefixName()+":1:{"+key+"}:"+name).Err()
		if err != nil {
			fmt.Fprintf(t.err, "pacecar: the quota %s is not removed, and expires: %v\n", key, err)
			return
		}
	}
}
