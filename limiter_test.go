package pacecar

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// burst takes n slots at once and returns how long the last one waited.
func burst(t *testing.T, l *Limiter, n int) time.Duration {
	t.Helper()
	start := time.Now()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if err := l.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}

// between fails unless d lies between the two, both included.
func between(t *testing.T, what string, d, least, most time.Duration) {
	t.Helper()
	if d < least || d > most {
		t.Errorf("%s: %v, want between %v and %v", what, d, least, most)
	}
}

// A refusal names the key and the wait, at once, and is charged nothing: not
// by the rate that refuses, nor by the others.
// redis_rate#107, self-limiters, LiteLLM v3, envoyproxy ratelimit#440
func TestRefusal(t *testing.T) {
	for _, c := range []struct {
		name    string
		maxWait time.Duration
		timeout time.Duration
		cost    int
		want    error
		wait    time.Duration
		isTime  bool
	}{
		{"MaxWait", time.Second, 0, 1, ErrWaitTooLong, 60 * time.Second, false},
		{"deadline, golang/go#54541", 0, time.Second, 1, context.DeadlineExceeded, 60 * time.Second, true},
		{"the earlier counts", time.Second, 2 * time.Second, 1, ErrWaitTooLong, 60 * time.Second, false},
		{"cost", 0, 0, 4, ErrCostTooHigh, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			windows(t, func(t *testing.T, connect func() redis.Scripter) {
				rdb := connect()
				rates := MustRates("30/s, 3/m")
				l := mustLimiter(t, rdb, "k", Policy{Rates: rates, MaxWait: c.maxWait})
				burst(t, l, 3)
				start := time.Now()
				for range 100 {
					ctx := t.Context()
					if c.timeout > 0 {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, c.timeout)
						defer cancel()
					}
					err := l.WaitN(ctx, c.cost)
					var refusal *Error
					if !errors.As(err, &refusal) || !errors.Is(err, c.want) || refusal.Key != "k" {
						t.Fatalf("got %v, want %v for k", err, c.want)
					}
					if refusal.Timeout() != c.isTime {
						t.Errorf("Timeout() is %v", refusal.Timeout())
					}
					between(t, "Wait", refusal.Wait, c.wait, c.wait+100*time.Millisecond)
				}
				between(t, "refusals", time.Since(start), 0, 10*time.Millisecond)
				if n := l.Stats().Refused; n != 100 {
					t.Errorf("counted %d refusals", n)
				}
				// The 4th goes a window after the first.
				patient := l
				if rdb != nil {
					patient = mustLimiter(t, rdb, "k", Policy{Rates: rates})
				} else {
					patient.policy.MaxWait = 0
				}
				between(t, "the 4th", burst(t, patient, 1), 60*time.Second, 60*time.Second+100*time.Millisecond)
			})
		})
	}
}

// kubernetes#108342: the plain error of a context that has ended before; one
// that says more, and still is the context's, when it ends during the wait.
func TestContext(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		l := mustLimiter(t, connect(), "k", Policy{Rates: MustRates("1/m")})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := l.Wait(ctx); err != context.Canceled {
			t.Errorf("got %v", err)
		}
		burst(t, l, 1) // nothing was taken
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		start := time.Now()
		err := l.Wait(ctx)
		var refusal *Error
		if !errors.As(err, &refusal) || !errors.Is(err, context.Canceled) || refusal.Timeout() {
			t.Errorf("got %v", err)
		}
		between(t, "Wait", refusal.Wait, 50*time.Second, 51*time.Second)
		between(t, "return", time.Since(start), 10*time.Second, 10*time.Second)
	})
}

// cadence#6030, cross-media-measurement#4444: 100 waiters that give up do not
// delay the next one, whoever waits behind them.
func TestCancelledWaitersLeaveNoGap(t *testing.T) {
	for _, behind := range []int{0, 1, 5} {
		windows(t, func(t *testing.T, connect func() redis.Scripter) {
			l := mustLimiter(t, connect(), "k", Policy{Rates: MustRates("1/s")})
			burst(t, l, 1)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() {
					if err := l.Wait(ctx); !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
			tr := newTrace()
			for range behind {
				wg.Go(func() {
					if err := l.Wait(t.Context()); err != nil {
						t.Error(err)
					}
					tr.add(0, 1)
				})
			}
			synctest.Wait()
			cancel()
			synctest.Wait()
			between(t, "the next", burst(t, l, 1), 900*time.Millisecond, 1030*time.Millisecond)
			tr.add(0, 1)
			wg.Wait()
			tr.check(t, l.policy.Rates)
		})
	}
}

// self-limiters (TTL 30 s): bookings count as long as they matter.
// throttled: a window that is half over lets through what is left of it.
func TestBookingsOutliveSilence(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		rdb := connect()
		l := mustLimiter(t, rdb, "k", Policy{Rates: MustRates("1/10s")})
		ctx, cancel := context.WithCancel(t.Context())
		for range 20 {
			go l.Wait(ctx) //nolint:errcheck // they stay until the end
		}
		time.Sleep(40 * time.Second)
		other := l
		if rdb != nil {
			other = mustLimiter(t, rdb, "k", l.policy)
		}
		between(t, "behind 200 s of bookings", burst(t, other, 1), 155*time.Second, 165*time.Second)
		cancel()
		synctest.Wait()

		l = mustLimiter(t, connect(), "burst", Policy{Rates: MustRates("1000/2s")})
		tr := newTrace()
		for _, n := range []int{600, 600} {
			burst(t, l, n)
			for range n {
				tr.add(0, 1)
			}
			time.Sleep(1050 * time.Millisecond)
		}
		// The second burst ended when the first had left the window.
		between(t, "two bursts", time.Since(tr.start), 3050*time.Millisecond, 3200*time.Millisecond)
	})
}

// ulule, mennanov: who asks too often still lets all of the quota be used.
func TestRefusalsLeaveTheQuotaWhole(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		l := mustLimiter(t, connect(), "k", Policy{Rates: MustRates("10/s"), MaxWait: time.Millisecond})
		tr := newTrace()
		for time.Since(tr.start) < 3*time.Second {
			if l.Wait(t.Context()) == nil {
				tr.add(0, 1)
			}
			time.Sleep(2 * time.Millisecond)
		}
		tr.check(t, l.policy.Rates)
		if n := len(tr.left); n < 29 {
			t.Errorf("%d of 30 were used", n)
		}
	})
}

// discord-api-docs#5144: jitter on the way, up to the slack, does not make N+1
// of N at the receiver.
func TestSlackCoversJitter(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		l := mustLimiter(t, connect(), "k", Policy{Rates: MustRates("5/s")})
		tr := newTrace()
		var wg sync.WaitGroup
		for i := range 100 {
			burst(t, l, 1)
			wg.Go(func() {
				time.Sleep(time.Duration(i%3) * 10 * time.Millisecond) // to 20 ms
				tr.add(0, 1)
			})
		}
		wg.Wait()
		tr.check(t, l.policy.Rates)
	})
}

// effect-smol#2311, octokit plugin-throttling#629, nirn-proxy: when one is told
// to wait, nobody leaves meanwhile, in any process; then they leave in order
// and spaced as before.
func TestPauseStopsTheFleet(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		p := Policy{Rates: MustRates("10/s")}
		limiters := []*Limiter{mustLimiter(t, connect(), "k", p)}
		for rdb := connect(); rdb != nil && len(limiters) < 3; rdb = connect() {
			limiters = append(limiters, mustLimiter(t, rdb, "k", p))
		}
		tr := newTrace()
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				if err := limiters[i%len(limiters)].Wait(t.Context()); err != nil {
					t.Error(err)
				}
				tr.add(0, 1)
			})
		}
		time.Sleep(2500 * time.Millisecond)
		before := tr.len()
		limiters[0].pauseFor(5*time.Second, 0, "test")
		limiters[0].pauseFor(3*time.Second, 0, "test") // the longest wins
		time.Sleep(lookAfter)
		out := tr.len() - before // were out already
		between(t, "paused until", time.Until(limiters[0].Stats().PausedUntil), 4900*time.Millisecond, 5*time.Second)
		time.Sleep(4900 * time.Millisecond)
		if n := tr.len() - before; n != out || out > 10 {
			t.Errorf("%d left during the pause, and %d before it was heard of", n-out, out)
		}
		limiters[0].pauseFor(time.Hour, 0, "test") // asked by a request of before the pause
		wg.Wait()
		tr.check(t, p.Rates)
		between(t, "all", time.Since(tr.start), 10*time.Second, 5200*time.Millisecond+6*time.Second)
	})
}

// PyrateLimiter#55, go-zero#4072, sourcegraph#56826: processes whose clocks are
// an hour apart share a quota as others do.
func TestClientClocksDoNotMatter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMini()
		p := Policy{Rates: MustRates("10/s")}
		tr := newTrace()
		var wg sync.WaitGroup
		for i := range 3 {
			l := mustLimiter(t, dialMini(t, m), "k", p)
			l.start = l.start.Add(time.Duration(i-1) * time.Hour / 2)
			wg.Go(func() {
				for range 50 {
					if err := l.Wait(t.Context()); err != nil {
						t.Error(err)
					}
					tr.add(i, 1)
				}
			})
		}
		wg.Wait()
		tr.check(t, p.Rates)
		between(t, "150", time.Since(tr.start), 14*time.Second, 14500*time.Millisecond)
	})
}

// redisson#5487, bottleneck updateSettings: limits that differ in the fleet
// never let through more than the larger, and nothing is stuck or reset.
func TestLimitsChangeInHalfOfTheFleet(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMini()
		tr := newTrace()
		var wg sync.WaitGroup
		for i, rates := range []string{"5/s", "8/s", "8/s, 100/m"} {
			l := mustLimiter(t, dialMini(t, m), "k", Policy{Rates: MustRates(rates)})
			wg.Go(func() {
				for time.Since(tr.start) < 20*time.Second {
					if err := l.Wait(t.Context()); err != nil {
						t.Error(err)
					}
					tr.add(i, 1)
				}
			})
		}
		wg.Wait()
		tr.check(t, MustRates("8/s"))
		if len(tr.left) < 100 || len(tr.by) != 3 {
			t.Errorf("%d left, by process %v", len(tr.left), tr.by)
		}
	})
}

// bottleneck#194, #197: a process that dies with slots booked costs those
// slots, and nothing else.
func TestProcessDiesWithSlots(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMini()
		p := Policy{Rates: MustRates("10/s")}
		dead := mustLimiter(t, dialMini(t, m), "k", p)
		for range 20 {
			if _, err := dead.window.exchange(t.Context(), &query{asks: []ask{{count: 1, cost: 1, longest: -1}}}); err != nil {
				t.Fatal(err)
			}
		}
		between(t, "the next", burst(t, mustLimiter(t, dialMini(t, m), "k", p), 1), 2*time.Second, 2100*time.Millisecond)
	})
}

// bottleneck#118: SCRIPT FLUSH in mid-run goes unnoticed.
func TestScriptFlush(t *testing.T) {
	rdb := startRedis(t).client()
	defer rdb.Close()
	p := Policy{Rates: MustRates("50/200ms"), Slack: 150 * time.Millisecond}
	m := &member{limiter: newLimiter(&Config{Redis: rdb, RedisTimeout: patient}, "k", "k", &p)}
	tr := newTrace()
	for i := range 200 {
		if i%20 == 0 {
			if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if !m.depart(t.Context(), t, tr, 0) {
			return
		}
	}
	tr.check(t, p.Rates)
}

// A log stays small whatever the limit, and everything expires.
func TestMemoryInRedis(t *testing.T) {
	rdb := startRedis(t).client()
	defer rdb.Close()
	w := newShared(rdb, "pacecar", "k", (&Policy{Rates: MustRates("1000000/24h, 100000/s")}).bounds())
	for range 3000 {
		if _, err := w.exchange(t.Context(), &query{asks: []ask{{count: 100, cost: 1, longest: -1}}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range rdb.Keys(t.Context(), "*").Val() {
		size, err := rdb.MemoryUsage(t.Context(), key).Result()
		if err != nil || size > 150_000 { // a thousand entries, and what is not swept yet
			t.Errorf("%s takes %d bytes, %v", key, size, err)
		}
		if ttl := rdb.TTL(t.Context(), key).Val(); ttl < 24*time.Hour || ttl > 25*time.Hour {
			t.Errorf("%s expires in %v", key, ttl)
		}
	}
}

// wurk#92: all keys of a call are under one hash tag, whatever the key's text.
func TestKeysInRedis(t *testing.T) {
	for _, key := range []string{"api.example.com", "a{b}c", "}", "{", "a b\r\n", "%7b", strings.Repeat("x", 1<<20)} {
		w := newShared(nil, "pacecar", key, (&Policy{Rates: MustRates("3/s, 30/m")}).bounds())
		for _, k := range w.keys {
			open, shut := strings.Index(k, "{"), strings.Index(k, "}")
			if open < 0 || shut < open+2 || strings.Count(k, "{")+strings.Count(k, "}") != 2 || len(k) > 400 ||
				strings.ContainsAny(k, " \r\n") || !strings.HasPrefix(k, "pacecar:1:{") {
				t.Errorf("key %.40q gives %.80q", key, k)
			}
			if k[:shut] != w.keys[0][:shut] {
				t.Errorf("%q and %q differ in their tags", k, w.keys[0])
			}
		}
	}
	if redisName("a b") == redisName("a%20b") {
		t.Error("two keys have one name")
	}
}

// Bad input is refused at once, by the name of the field.
func TestNewLimiterRefuses(t *testing.T) {
	good := MustRates("1/s")
	var none *redis.Client
	for _, c := range []struct {
		want   string
		rdb    redis.Scripter
		key    string
		policy Policy
	}{
		{"key", nil, "", Policy{Rates: good}},
		{"Rates", nil, "k", Policy{}},
		{"Redis", none, "k", Policy{Rates: good}},
		{"MaxWait", nil, "k", Policy{Rates: good, MaxWait: -1}},
		{"MaxPause", nil, "k", Policy{Rates: good, MaxPause: -1}},
		{"Slack", nil, "k", Policy{Rates: good, Slack: -1}},
		{"Slack", nil, "k", Policy{Rates: good, Slack: time.Second}},
		{"Outage", nil, "k", Policy{Rates: good, Outage: 7}},
		{"Replicas", nil, "k", Policy{Rates: good, Outage: FailOpen}},
		{"Replicas", nil, "k", Policy{Rates: good, Replicas: -1}},
		{"Key, Cost and Feedback", nil, "k", Policy{Rates: good, Key: ByHeader("X")}},
	} {
		if l, err := NewLimiter(c.rdb, c.key, c.policy); err == nil || l != nil ||
			!strings.HasPrefix(err.Error(), "pacecar: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want an error about %s, got %v", c.want, err)
		}
	}
}

// A farRedis is a Redis that is so far away, each way.
type farRedis struct {
	redis.Scripter
	way func() time.Duration
}

func (f farRedis) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	time.Sleep(f.way())
	c := f.Scripter.EvalSha(ctx, sha, keys, args...)
	time.Sleep(f.way())
	return c
}

// A process far from Redis keeps the rates with one near it, though it cannot
// tell how old an answer is, and so does one whose news take now this long and
// now that.
func TestNearAndFar(t *testing.T) {
	for _, c := range []struct {
		rates  string
		way    time.Duration
		random bool
	}{
		{"3/s", 15 * time.Millisecond, false}, {"10/s", 40 * time.Millisecond, false},
		{"3/s, 30/m", 100 * time.Millisecond, false}, {"3/s, 30/m", 100 * time.Millisecond, true},
		{"5/200ms", 20 * time.Millisecond, true}, {"10/500ms", 100 * time.Millisecond, true},
		{"5/50ms", 3 * time.Millisecond, true},
	} {
		t.Run(c.rates+" "+c.way.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := newMini()
				p := Policy{Rates: MustRates(c.rates)}
				r := rand.New(rand.NewPCG(1, uint64(c.way)))
				var mu sync.Mutex
				tr := newTrace()
				var wg sync.WaitGroup
				for i := range 2 {
					way := func() time.Duration {
						if c.random {
							mu.Lock()
							defer mu.Unlock()
							return time.Duration(r.Int64N(int64(c.way)))
						}
						return time.Duration(i) * c.way
					}
					l := mustLimiter(t, farRedis{dialMini(t, m), way}, "k", p)
					for range 4 {
						wg.Go(func() {
							for time.Since(tr.start) < 10*time.Second {
								if err := l.Wait(t.Context()); err != nil {
									t.Error(err)
								}
								tr.add(i, 1)
							}
						})
					}
				}
				wg.Wait()
				time.Sleep(time.Second) // what is on its way comes
				tr.check(t, p.Rates)
			})
		})
	}
}

// A client that sends a call again, since its reply was lost, gives nothing back
// twice: the slot would be sold twice.
func TestCallsSentTwice(t *testing.T) {
	windows(t, func(t *testing.T, connect func() redis.Scripter) {
		l := mustLimiter(t, connect(), "k", Policy{Rates: MustRates("1/s")})
		exchange := func(q query) *answer {
			t.Helper()
			a, err := l.window.exchange(t.Context(), &q)
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		a := exchange(query{asks: []ask{{count: 4, cost: 1, longest: -1}}})
		back := query{generation: a.generation, process: "p", seq: 1, back: []span{{a.runs[1].slot, 1}}}
		exchange(back)
		exchange(back)
		again := exchange(query{asks: []ask{{count: 2, cost: 1, longest: -1}}})
		if len(again.runs) != 2 || again.runs[0].slot != a.runs[1].slot || again.runs[1].slot <= a.runs[3].slot {
			t.Errorf("booked %v, gave back the second, and got %v", a.runs, again.runs)
		}
	})
}

// An answer that always takes longer than half of the period finds its slot
// still to come, the second time.
func TestSlowAnswers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var slow atomic.Bool
		way := func() time.Duration {
			if slow.Load() {
				return 70 * time.Millisecond
			}
			return 0
		}
		l := mustLimiter(t, farRedis{dialMini(t, newMini()), way}, "k", Policy{Rates: MustRates("10/100ms")})
		burst(t, l, 1)
		slow.Store(true)
		between(t, "one call", burst(t, l, 1), 0, 2*time.Second)
		time.Sleep(time.Second)
	})
}
