package pacecar

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// patient is a RedisTimeout for tests that must not take a busy machine for an
// outage.
const patient = 10 * time.Second

// An engine is what a fleet shares its quotas through.
type engine struct {
	servers []*server // each of which is to hold some of the quotas
	connect func() redis.UniversalClient
}

// enginePolicy has a slack that covers what a busy machine does to a goroutine.
var enginePolicy = Policy{Rates: MustRates("50/400ms"), Slack: 100 * time.Millisecond}

// TestEngines has three processes share quotas through every kind of Redis.
func TestEngines(t *testing.T) {
	for name, start := range map[string]func(*testing.T) *engine{
		"standalone": startStandalone,
		"ring":       startRing,
		"cluster":    startCluster,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := start(t)
			f := newEngineFleet(t, e, enginePolicy, 6, patient)
			f.run(func() {
				for _, q := range f.quotas {
					eventually(t, "four windows are used", func() bool { return q.trace.len() >= 200 })
				}
			})
			for _, s := range e.servers {
				rdb := s.client()
				stats, err := rdb.Info(t.Context(), "commandstats").Result()
				rdb.Close()
				if err != nil || !strings.Contains(stats, "cmdstat_zadd:") {
					t.Errorf("%s has booked no slot: %v", s.addr, err)
				}
			}
		})
	}
}

// TestEngineSentinel kills the master of a fleet in the middle of its work.
func TestEngineSentinel(t *testing.T) {
	t.Parallel()
	w := startWatched(t)
	p := enginePolicy
	p.Outage, p.Replicas = FailOpen, 3
	f := newEngineFleet(t, &engine{connect: func() redis.UniversalClient {
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: watchedName, SentinelAddrs: []string{w.sentinel.addr},
		})
	}}, p, 3, 2*time.Second)
	f.run(func() {
		f.await("the window is used", func(m *member) bool { return m.booked.Load() > 20 })
		w.master.kill()
		f.await("work goes on", func(m *member) bool { return m.shared.Load() > 0 })
		w.failOver()
		f.await("the new master is used", func(m *member) bool { return m.since.Load() > 20 })
	})
	for _, q := range f.quotas {
		for i, m := range q.members {
			if s := m.limiter.Stats(); s.Away {
				t.Errorf("%s, process %d: %+v", q.name, i, s)
			}
		}
	}
}

func startStandalone(t *testing.T) *engine {
	s := startRedis(t)
	return &engine{[]*server{s}, func() redis.UniversalClient {
		return redis.NewClient(&redis.Options{Addr: s.addr})
	}}
}

func startRing(t *testing.T) *engine {
	a, b := startRedis(t), startRedis(t)
	return &engine{[]*server{a, b}, func() redis.UniversalClient {
		return redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": a.addr, "b": b.addr}})
	}}
}

// startCluster starts three masters that have a third of the hash slots each.
func startCluster(t *testing.T) *engine {
	needRedis(t)
	const shards, hashSlots = 3, 16384
	var servers []*server
	var addrs []string
	ctx := t.Context()
	for i := range shards {
		s := startServer(t, &server{addr: freeAddr(t), args: []string{
			"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"}})
		servers, addrs = append(servers, s), append(addrs, s.addr)
		rdb := s.client()
		defer rdb.Close()
		first, next := i*hashSlots/shards, (i+1)*hashSlots/shards
		if err := rdb.ClusterAddSlotsRange(ctx, first, next-1).Err(); err != nil {
			t.Fatal(err)
		}
		if err := rdb.ClusterMeet(ctx, "127.0.0.1", strconv.Itoa(servers[0].port())).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range servers {
		rdb := s.client()
		defer rdb.Close()
		eventually(t, "the cluster is ready", func() bool {
			info, err := rdb.ClusterInfo(ctx).Result()
			return err == nil && strings.Contains(info, "cluster_state:ok")
		})
	}
	return &engine{servers, func() redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	}}
}

// An engineFleet is three processes' limiters for some quotas.
type engineFleet struct {
	t      *testing.T
	rates  Rates
	quotas []*quota
}

type quota struct {
	name    string
	trace   *trace
	members []*member
}

// A member is one process's limiter for one quota.
type member struct {
	limiter  *Limiter
	restored atomic.Bool  // Redis was away, and has been found again
	booked   atomic.Int64 // departures on slots of Redis
	shared   atomic.Int64 // on slots of the share
	since    atomic.Int64 // on slots of Redis since it was restored
}

// newEngineFleet has them wait for Redis for so long.
func newEngineFleet(t *testing.T, e *engine, p Policy, quotas int, timeout time.Duration) *engineFleet {
	f := &engineFleet{t: t, rates: p.Rates}
	for i := range quotas {
		f.quotas = append(f.quotas, &quota{name: fmt.Sprint("engine-", i), trace: newTrace()})
	}
	for range 3 {
		rdb := e.connect()
		t.Cleanup(func() { rdb.Close() })
		for _, q := range f.quotas {
			m := &member{}
			m.limiter = newLimiter(&Config{Redis: rdb, RedisTimeout: timeout, Observe: func(_ context.Context, e Event) {
				if e.Kind == EventRestored {
					m.restored.Store(true)
				}
			}}, q.name, q.name, &p)
			q.members = append(q.members, m)
		}
	}
	return f
}

// await waits until it is so for every process and quota.
func (f *engineFleet) await(what string, is func(*member) bool) {
	f.t.Helper()
	for _, q := range f.quotas {
		for i, m := range q.members {
			eventually(f.t, fmt.Sprintf("%s (%s, process %d)", what, q.name, i), func() bool { return is(m) })
		}
	}
}

// run has four greedy callers in each process while during runs, and checks
// what left.
func (f *engineFleet) run(during func()) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	var wg sync.WaitGroup
	stop := func() {
		cancel()
		wg.Wait()
	}
	defer stop()
	for _, q := range f.quotas {
		for i, m := range q.members {
			for range 4 {
				wg.Go(func() {
					for m.depart(ctx, f.t, q.trace, i) {
					}
				})
			}
		}
	}
	during()
	stop()
	for _, q := range f.quotas {
		q.trace.check(f.t, f.rates)
		most := mostIn(q.trace.left, f.rates[0].Per.Microseconds())
		f.t.Logf("%s: %d in all, at most %d in %v", q.name, len(q.trace.left), most, f.rates[0].Per)
	}
}

// depart takes a slot and leaves. What the machine delays for longer than the
// slack is recorded at the slack's end: nothing is promised of it, and it must
// not fail a test that it has no part in.
func (m *member) depart(ctx context.Context, t *testing.T, tr *trace, process int) bool {
	p, err := m.limiter.wait(ctx, 1)
	at := time.Since(tr.start).Microseconds()
	if err != nil {
		if ctx.Err() == nil {
			t.Error(err)
		}
		return false
	}
	if p.share {
		m.shared.Add(1)
	} else {
		m.booked.Add(1)
		if m.restored.Load() {
			m.since.Add(1)
		}
		l := m.limiter
		l.mu.Lock()
		late := l.clock.key(l.now()) - p.slot.slot
		l.mu.Unlock()
		at -= max(0, late-l.slack)
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.left = append(tr.left, departure{at, 1})
	tr.by[process]++
	return true
}
