package pacecar

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// newMini returns a miniredis that lives in a synctest bubble: its time, and
// the expiry of its keys, are the bubble's.
func newMini() *miniredis.Miniredis {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	return m
}

// dialMini returns a client of m, for limiters of at most 16 keys.
func dialMini(t testing.TB, m *miniredis.Miniredis) *redis.Client {
	rdb := redis.NewClient(&redis.Options{
		Addr:       "127.0.0.1:1", // never dialled; a name would be looked up
		Dialer:     func(context.Context, string, string) (net.Conn, error) { return m.Dial() },
		PoolSize:   16, // a smaller pool than callers pools timers, which a bubble forbids
		MaxRetries: -1,
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled,
		},
	})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// A trace is what an upstream with an exact log of arrivals has seen.
type trace struct {
	mu    sync.Mutex
	start time.Time
	left  []departure
	by    map[int]int // departures of each process
}

func newTrace() *trace { return &trace{start: time.Now(), by: map[int]int{}} }

func (tr *trace) add(process int, units int64) {
	at := time.Since(tr.start).Microseconds()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.left = append(tr.left, departure{at, units})
	tr.by[process]++
}

func (tr *trace) len() int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return len(tr.left)
}

// check fails if any window of any rate holds more than its limit.
func (tr *trace) check(t testing.TB, rates Rates) {
	t.Helper()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, r := range rates {
		if most := mostIn(tr.left, r.Per.Microseconds()); most > int64(r.Limit) {
			t.Errorf("%d in one window of %v; trace of %d: %v", most, r, len(tr.left), tr.left[:min(len(tr.left), 200)])
		}
	}
}

// jain is Jain's index of fairness over the processes: 1 when all got the same.
func (tr *trace) jain() float64 {
	var sum, squares float64
	for _, n := range tr.by {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	return sum * sum / (float64(len(tr.by)) * squares)
}

// ideal is the least time in which n departures keep all rates.
func ideal(rates Rates, n int) time.Duration {
	at := make([]time.Duration, n)
	for i := range at {
		if i > 0 {
			at[i] = at[i-1]
		}
		for _, r := range rates {
			if i >= r.Limit {
				at[i] = max(at[i], at[i-r.Limit]+r.Per)
			}
		}
	}
	return at[n-1]
}

// tolerance is 1 + slack/Per + 1 % for the worst of the rates.
func tolerance(p *Policy) float64 {
	worst := 0.0
	for _, r := range p.Rates {
		worst = max(worst, float64(p.slack(r))/float64(r.Per))
	}
	return 1.01 + worst
}

// bubble runs a test in virtual time, and then lets what goes on by itself come to
// its end, probes of Redis for example: time stops when the test has returned,
// and who sleeps then would sleep for ever.
func bubble(t *testing.T, run func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(probeFor + time.Minute) })
		run(t)
	})
}

// windows runs a test on the Go window and on the script.
func windows(t *testing.T, run func(t *testing.T, connect func() redis.Scripter)) {
	t.Run("local", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			run(t, func() redis.Scripter { return nil })
		})
	})
	t.Run("script", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			m := newMini()
			run(t, func() redis.Scripter { return dialMini(t, m) })
		})
	})
}

func mustLimiter(t testing.TB, rdb redis.Scripter, key string, p Policy) *Limiter {
	t.Helper()
	l, err := NewLimiter(rdb, key, p)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestFleet runs fleets for virtual minutes, with callers that wait for their
// turn, that give up, and that are refused.
// redis_rate#24, aiolimiter#298, redisson#2931, python-telegram-bot#3772,
// redis_rate#107, bottleneck#196, xmtpd#1249, sidekiq#5315
func TestFleet(t *testing.T) {
	for _, c := range []struct {
		rates      string
		processes  int
		goroutines int
		last       time.Duration
	}{
		{"10/s, 100/20s", 3, 4, 30 * time.Minute},
		{"3/s, 30/m", 4, 3, 10 * time.Minute},
		{"20/s", 4, 16, time.Minute},
		{"1/10s", 3, 2, 10 * time.Minute},
		{"50/100ms", 3, 8, 5 * time.Second},
	} {
		t.Run(c.rates, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				m := newMini()
				p := Policy{Rates: MustRates(c.rates)}
				tr := newTrace()
				var trips uint64
				var wg sync.WaitGroup
				limiters := make([]*Limiter, c.processes)
				for i := range limiters {
					limiters[i] = mustLimiter(t, dialMini(t, m), "k", p)
					for j := range c.goroutines {
						wg.Go(func() { worker(t, limiters[i], tr, i, rand.New(rand.NewPCG(uint64(i), uint64(j))), c.last) })
					}
				}
				wg.Wait()
				took := time.Since(tr.start)
				tr.check(t, p.Rates)
				for _, l := range limiters {
					trips += l.Stats().RoundTrips
				}
				n := len(tr.left)
				best := ideal(p.Rates, n)
				t.Logf("%d in %v, %.3f of the ideal speed, %.2f round trips each, Jain %.3f",
					n, took, best.Seconds()/took.Seconds(), float64(trips)/float64(n), tr.jain())
				if float64(took) > float64(best)*tolerance(&p)+float64(2*time.Second) {
					t.Errorf("took %v, the ideal is %v", took, best)
				}
				if j := tr.jain(); j < 0.95 {
					t.Errorf("Jain's index of the processes is %.3f: %v", j, tr.by)
				}
			})
		})
	}
}

// worker is a greedy caller for a while. One call in eight gives up early.
func worker(t *testing.T, l *Limiter, tr *trace, process int, r *rand.Rand, last time.Duration) {
	for time.Since(tr.start) < last {
		ctx, cancel := context.Background(), context.CancelFunc(func() {})
		switch r.IntN(16) {
		case 0:
			ctx, cancel = context.WithTimeout(ctx, time.Duration(r.Int64N(int64(time.Second))))
		case 1:
			ctx, cancel = context.WithCancel(ctx)
			time.AfterFunc(time.Duration(r.Int64N(int64(time.Second))), cancel)
		}
		switch err := l.Wait(ctx); {
		case err == nil:
			tr.add(process, 1)
		case errors.Is(err, context.Canceled):
		case errors.Is(err, context.DeadlineExceeded):
			time.Sleep(time.Millisecond) // refused at once
		default:
			t.Error(err)
			return
		}
		cancel()
	}
}

// TestOrder: 200 waiters of 4 processes leave in the order in which they came.
// sidekiq#5991, aiolimiter#200
func TestOrder(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		p := Policy{Rates: MustRates("10/s")}
		limiters := make([]*Limiter, 4)
		for i := range limiters {
			if rdb := connect(); rdb != nil || i == 0 {
				limiters[i] = mustLimiter(t, rdb, "k", p)
			} else {
				limiters[i] = limiters[0]
			}
		}
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				if err := limiters[i%4].Wait(t.Context()); err != nil {
					t.Error(err)
				}
				mu.Lock()
				order = append(order, i/10) // those of one moment may leave in any order
				mu.Unlock()
			})
			time.Sleep(time.Millisecond)
		}
		wg.Wait()
		if !slices.IsSorted(order) {
			t.Errorf("left in the order %v", order)
		}
	})
}

// TestRoundTrips: many waiters of one process share their calls.
func TestRoundTrips(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := mustLimiter(t, dialMini(t, newMini()), "k", Policy{Rates: MustRates("20/s")})
		tr := newTrace()
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				for range 10 {
					if err := l.Wait(t.Context()); err != nil {
						t.Error(err)
					}
					tr.add(0, 1)
				}
			})
		}
		wg.Wait()
		tr.check(t, l.policy.Rates)
		trips := float64(l.Stats().RoundTrips) / float64(len(tr.left))
		t.Logf("%.2f round trips each", trips)
		if trips > 0.5 {
			t.Errorf("%.2f round trips for each of %d", trips, len(tr.left))
		}
	})
}
