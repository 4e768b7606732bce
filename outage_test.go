package pacecar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// A standIn is a Redis that can be killed, restarted, stopped and flushed, in a
// bubble: the ledger, which gives the script's answers, behind a network.
type standIn struct {
	rtt    time.Duration
	bounds []bound
	seed   uint64 // of its fleet's callers

	mu     sync.Mutex // guards the rest
	book   ledger
	dead   bool
	hung   chan struct{} // closed when it goes on; nil: it runs
	calls  int
	booked []departure // how many slots were booked when
}

func newStandIn(p *Policy, rtt time.Duration) *standIn {
	return &standIn{rtt: rtt, bounds: p.bounds(), book: newLedger(p.bounds())}
}

func (r *standIn) with(bounds []bound) window {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.book.rebind(bounds)
	return r
}

var errRefused = errors.New("connection refused")

// exchange is deaf to its context, as go-redis may be.
func (r *standIn) exchange(_ context.Context, q *query) (*answer, error) {
	time.Sleep(r.rtt / 2)
	a, err := r.serve(q)
	time.Sleep(r.rtt / 2)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && r.dead { // the reply is lost
		return nil, errRefused
	}
	return a, err
}

func (r *standIn) serve(q *query) (*answer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	for r.hung != nil {
		hung := r.hung
		r.mu.Unlock()
		<-hung
		r.mu.Lock()
	}
	if r.dead {
		return nil, errRefused
	}
	before := r.book.serial
	a := r.book.exchange(time.Now().UnixMicro(), q)
	if n := a.serial - before; n > 0 && q.restore == nil {
		r.booked = append(r.booked, departure{time.Now().UnixMicro(), n})
	}
	return a, nil
}

// change makes r something else, atomically.
func (r *standIn) change(f func()) { r.mu.Lock(); f(); r.mu.Unlock() }

func (r *standIn) kill()  { r.change(func() { r.dead = true }) }
func (r *standIn) flush() { r.change(func() { r.book = newLedger(r.bounds) }) }
func (r *standIn) stop()  { r.change(func() { r.hung = make(chan struct{}) }) }
func (r *standIn) cont()  { r.change(func() { close(r.hung); r.hung = nil }) }

// restart ends what kill began, with nothing kept if empty.
func (r *standIn) restart(empty bool) {
	if empty {
		r.flush()
	}
	r.change(func() { r.dead = false })
}

func (r *standIn) served() int { r.mu.Lock(); defer r.mu.Unlock(); return r.calls }

// limiter returns a process's limiter on r.
func (r *standIn) limiter(t testing.TB, p Policy) *Limiter {
	l := mustLimiter(t, nil, "k", p)
	l.window, l.remote = r, true
	return l
}

// fleet runs processes of greedy callers, who think for a while between
// requests, during scene.
func (r *standIn) fleet(t *testing.T, p Policy, processes, callers int, think time.Duration, scene func(tr *trace)) *trace {
	tr := newTrace()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range processes {
		l := r.limiter(t, p)
		for j := range callers {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(r.seed, uint64(i*callers+j)))
				pause := func() { time.Sleep(time.Duration(rnd.Int64N(int64(think + 1)))) }
				for pause(); l.Wait(ctx) == nil; pause() {
					tr.add(i, 1)
				}
			})
		}
	}
	scene(tr)
	cancel()
	wg.Wait()
	return tr
}

// TestFailOpenKeepsTheRates: Redis dies or hangs at full speed, and comes back
// empty or with all it had, three times.
// litellm#27736, httprate-redis#15, go-zero rescue limiter
func TestFailOpenKeepsTheRates(t *testing.T) {
	t.Parallel()
	for rates, seeds := range map[string]uint64{"100/s": 40, "10/s, 100/20s": 60, "4/s": 100, "50/100ms": 10} {
		t.Run(rates, func(t *testing.T) {
			during := 0
			for seed := range seeds {
				bubble(t, func(t *testing.T) {
					r := rand.New(rand.NewPCG(seed, 1))
					p := Policy{Rates: MustRates(rates), Outage: FailOpen, Replicas: 4}
					redis := newStandIn(&p, time.Duration(r.Int64N(int64(4*time.Millisecond))))
					redis.seed = seed
					think := []time.Duration{0, 0, time.Second}[r.IntN(3)]
					tr := redis.fleet(t, p, 4, 16, think, func(tr *trace) {
						for range 3 {
							time.Sleep(2*time.Second + time.Duration(r.Int64N(int64(2*time.Second))))
							begin, end := redis.kill, func() { redis.restart(r.IntN(3) > 0) }
							if r.IntN(3) == 0 {
								begin, end = redis.stop, redis.cont
							}
							begin()
							before := tr.len()
							time.Sleep(3 * time.Second)
							during += tr.len() - before
							end()
						}
						before := tr.len()
						time.Sleep(5 * time.Second)
						if tr.len() == before && rates != "10/s, 100/20s" { // which may be used up
							t.Errorf("seed %d: none left after the last outage", seed)
						}
					})
					tr.check(t, p.Rates)
				})
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
			t.Logf("%.1f left in an outage", float64(during)/float64(3*seeds))
			if during == 0 {
				t.Error("none left during the outages")
			}
		})
	}
}

// A flaky client fails while dead is set.
type flaky struct {
	redis.Scripter
	dead *atomic.Bool
}

func (f flaky) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	if f.dead.Load() {
		cmd := redis.NewCmd(ctx)
		cmd.SetErr(errRefused)
		return cmd
	}
	return f.Scripter.EvalSha(ctx, sha, keys, args...)
}

// TestFailOpenScript is TestFailOpenKeepsTheRates with the script: Redis is back
// empty 3 s after it died at full speed.
func TestFailOpenScript(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		m := newMini()
		var dead atomic.Bool
		p := Policy{Rates: MustRates("100/s"), Outage: FailOpen, Replicas: 4}
		tr := newTrace()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 4 {
			l := mustLimiter(t, flaky{dialMini(t, m), &dead}, "k", p)
			for range 16 {
				wg.Go(func() {
					for l.Wait(ctx) == nil {
						tr.add(i, 1)
					}
				})
			}
		}
		time.Sleep(3500 * time.Millisecond)
		dead.Store(true)
		time.Sleep(3 * time.Second)
		m.FlushAll()
		before := tr.len()
		dead.Store(false)
		time.Sleep(5 * time.Second)
		cancel()
		wg.Wait()
		time.Sleep(probeFor + time.Second)
		tr.check(t, p.Rates)
		if n := tr.len() - before; n < 350 {
			t.Errorf("%d left in the 5 s after the outage", n)
		}
	})
}

// TestShareBelowOne: with more processes than slots, the average is kept.
func TestShareBelowOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("2/s"), Outage: FailOpen, Replicas: 5}
		redis := newStandIn(&p, time.Millisecond)
		redis.kill()
		tr := redis.fleet(t, p, 5, 4, 0, func(*trace) { time.Sleep(time.Minute) })
		// None in the first second, then one for each process in 2.5 s.
		if n := len(tr.left); n < 105 || n > 120 {
			t.Errorf("%d left in a minute", n)
		}
		if most := mostIn(tr.left, time.Second.Microseconds()); most > 5 {
			t.Errorf("%d in a second", most)
		}
	})
}

// TestShareIsOfNoUse: a request that costs more than the share ever has is
// refused while Redis is away, and goes on when it is back.
func TestShareIsOfNoUse(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("10/s"), Outage: FailOpen, Replicas: 4}
		redis := newStandIn(&p, time.Millisecond)
		redis.kill()
		l := redis.limiter(t, p)
		if err := l.WaitN(t.Context(), 5); !errors.Is(err, ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		redis.restart(true)
		time.Sleep(time.Second)
		start := time.Now()
		if err := l.WaitN(t.Context(), 5); err != nil {
			t.Error(err)
		}
		between(t, "the wait", time.Since(start), 0, 2*time.Second)
	})
}

// TestFailClosed: from the first failed call on, requests fail within
// RedisTimeout, then at once; service is back within a second of Redis.
func TestFailClosed(t *testing.T) {
	for _, hang := range []bool{false, true} {
		t.Run(fmt.Sprint("hang ", hang), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := Policy{Rates: MustRates("100/s")}
				redis := newStandIn(&p, time.Millisecond)
				l := redis.limiter(t, p)
				burst(t, l, 1)
				time.Sleep(time.Second)
				begin, end := redis.kill, func() { redis.restart(true) }
				if hang {
					begin, end = redis.stop, redis.cont
				}
				begin()
				var back time.Time
				failed, first := 0, time.Duration(-1)
				for range 500 {
					start := time.Now()
					err := l.Wait(t.Context())
					took := time.Since(start)
					switch {
					case err == nil && back.IsZero():
						t.Fatal("no error")
					case err == nil:
						between(t, "back", time.Since(back), 0, time.Second)
						if s := l.Stats(); s.Away || s.Degraded != uint64(failed) || s.Refused != s.Degraded {
							t.Errorf("%d failed: %+v", failed, s)
						}
						return
					case !errors.Is(err, ErrUnavailable):
						t.Fatal(err)
					case first < 0:
						first = took
						between(t, "the first failure", took, 0, l.timeout)
						if !l.Stats().Away {
							t.Error("Redis is not said to be away")
						}
					default:
						between(t, "the next failures", took, 0, 0)
					}
					if failed++; failed == 300 { // 3 s later
						back = time.Now()
						end()
					}
					time.Sleep(10 * time.Millisecond)
				}
				t.Error("service never came back")
			})
		})
	}
}

// TestIdleProcessTriesFirst: after a long silence the next request finds out
// whether Redis is back, and leaves as if it had never been away.
func TestIdleProcessTriesFirst(t *testing.T) {
	for _, outage := range []Outage{FailClosed, FailOpen} {
		bubble(t, func(t *testing.T) {
			p := Policy{Rates: MustRates("100/s"), Outage: outage, Replicas: 4}
			redis := newStandIn(&p, time.Millisecond)
			l := redis.limiter(t, p)
			redis.kill()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if l.Wait(ctx) == nil {
				t.Error("left without Redis")
			}
			time.Sleep(2 * probeFor)
			redis.restart(true)
			calls := redis.served()
			time.Sleep(time.Minute)
			if n := redis.served() - calls; n != 0 {
				t.Errorf("%d calls while nobody asked", n)
			}
			between(t, outage.String(), burst(t, l, 1), 0, 5*time.Millisecond)
		})
	}
}

// TestStopped: no request is delayed by more than RedisTimeout, plus its wait in
// the share, when Redis is stopped for 3 s.
// openlinker#2019
func TestStopped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("100/s"), Outage: FailOpen, Replicas: 4}
		redis := newStandIn(&p, time.Millisecond)
		l := redis.limiter(t, p)
		var stopped time.Time
		var wg sync.WaitGroup
		request := func() { // 5 a second; the share is 25
			at := time.Since(stopped)
			wg.Go(func() {
				start := time.Now()
				if err := l.Wait(t.Context()); err != nil {
					t.Error(err)
				}
				most := time.Duration(0)
				if at < time.Hour { // the share has nothing until Redis' last slots have left the window
					most = l.timeout + 2*lookAfter + 1020*time.Millisecond - at
				}
				between(t, fmt.Sprint("at ", at), time.Since(start), 0, max(most, 10*time.Millisecond))
			})
			time.Sleep(200 * time.Millisecond)
		}
		for range 10 {
			request()
		}
		stopped = time.Now()
		redis.stop()
		for range 15 {
			request()
		}
		redis.cont()
		for range 25 {
			request()
		}
		wg.Wait()
	})
}

// TestHungCalls: each call is bounded by RedisTimeout, though the client hears
// neither its context nor the server; there is one at a time; what late replies
// bring goes back.
func TestHungCalls(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("10/s")}
		redis := newStandIn(&p, time.Millisecond)
		redis.stop()
		l := redis.limiter(t, p)
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				start := time.Now()
				if err := l.Wait(t.Context()); !errors.Is(err, ErrUnavailable) {
					t.Errorf("got %v", err)
				}
				between(t, fmt.Sprint("request ", i), time.Since(start), 0, 2*l.timeout)
			})
		}
		wg.Wait()
		time.Sleep(3 * time.Second)
		// A call, then one for each wait of 0.1, 0.2, 0.4, 0.4, ... seconds and the timeout.
		if n := redis.served(); n < 4 || n > 8 {
			t.Errorf("%d calls in 3 s", n)
		}
		redis.cont()
		time.Sleep(time.Second)
		between(t, "ten others", burst(t, redis.limiter(t, p), 10), 0, 10*time.Millisecond)
		time.Sleep(time.Second)
	})
}

// TestCancelledIsNoFailure: a request that gives up says nothing about Redis.
func TestCancelledIsNoFailure(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("10/s")}
		redis := newStandIn(&p, 200*time.Millisecond)
		l := redis.limiter(t, p)
		for range 50 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			if err := l.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			cancel()
		}
		if s := l.Stats(); s.Away || s.Degraded > 0 {
			t.Errorf("%+v", s)
		}
		time.Sleep(time.Second)
		between(t, "all ten", burst(t, redis.limiter(t, p), 10), 0, 400*time.Millisecond)
		time.Sleep(time.Second) // so far away, each may have left late, and says so
	})
}

// TestStartWithoutRedis: the first requests meet the outage policy.
func TestStartWithoutRedis(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("100/s")}
		r := newStandIn(&p, time.Millisecond)
		r.kill()
		start := time.Now()
		if err := r.limiter(t, p).Wait(t.Context()); !errors.Is(err, ErrUnavailable) || !errors.Is(err, errRefused) {
			t.Errorf("got %v", err)
		}
		between(t, "the refusal", time.Since(start), 0, 250*time.Millisecond)

		p.Outage, p.Replicas = FailOpen, 4
		tr := r.fleet(t, p, 4, 8, 0, func(*trace) { time.Sleep(5 * time.Second) })
		tr.check(t, p.Rates)
		if n := len(tr.left); n < 300 {
			t.Errorf("%d left in 5 s", n)
		}
	})
}

// TestOutageIsToldOnce: one event and one line for its beginning, and one for
// its end, however many requests it meets.
func TestOutageIsToldOnce(t *testing.T) {
	for _, outage := range []Outage{FailClosed, FailOpen} {
		bubble(t, func(t *testing.T) {
			p := Policy{Rates: MustRates("100/s"), Outage: outage, Replicas: 1}
			r := newStandIn(&p, time.Millisecond)
			l := r.limiter(t, p)
			var lines strings.Builder
			l.logger = slog.New(slog.NewTextHandler(&lines, nil))
			var mu sync.Mutex
			var told []Event
			l.observe = func(_ context.Context, e Event) {
				mu.Lock()
				defer mu.Unlock()
				if e.Kind == EventDegraded || e.Kind == EventRestored {
					told = append(told, e)
				}
			}
			r.kill()
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() { _ = l.Wait(t.Context()) })
				time.Sleep(20 * time.Millisecond)
			}
			r.restart(true)
			time.Sleep(time.Second)
			wg.Wait()
			synctest.Wait()
			if len(told) != 2 || told[0].Kind != EventDegraded || !errors.Is(told[0].Err, errRefused) ||
				told[1].Kind != EventRestored || told[0].Outage != outage {
				t.Errorf("told %+v", told)
			} else {
				between(t, "Wait", told[1].Wait, 2*time.Second, 3*time.Second)
			}
			if n := strings.Count(lines.String(), "\n"); n != 2 {
				t.Errorf("logged:\n%s", lines.String())
			}
			if s := l.Stats(); s.Degraded < 90 || s.Degraded > 100 || s.Away {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestPauseInAnOutage: what the upstream asks for is obeyed with the share too,
// and told to Redis when that is back.
func TestPauseInAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := Policy{Rates: MustRates("100/s"), Outage: FailOpen, Replicas: 1}
		r := newStandIn(&p, time.Millisecond)
		l, other := r.limiter(t, p), r.limiter(t, p)
		burst(t, other, 1)
		r.kill()
		burst(t, l, 1)
		l.pauseFor(10*time.Second, 0, "test")
		between(t, "with the share", burst(t, l, 1), 10*time.Second, 10*time.Second)
		l.pauseFor(20*time.Second, 0, "test")
		done := make(chan time.Duration)
		go func() { done <- burst(t, l, 1) }()
		time.Sleep(time.Second)
		r.restart(true)
		time.Sleep(time.Second)
		between(t, "another process", burst(t, other, 1), 17*time.Second, 18*time.Second+10*time.Millisecond)
		between(t, "back again", <-done, 20*time.Second, 21*time.Second)
	})
}

// TestFlushes: Redis forgets everything, again and again, while a fleet goes at
// full speed. No window holds more than the limit, and what the fleet had booked
// in the 20 ms before a flush.
func TestFlushes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rates string
		seeds uint64
		every time.Duration // at least: each process is heard between two losses
	}{
		{"100/s", 30, 300 * time.Millisecond},
		{"50/100ms", 4, 300 * time.Millisecond},
		{"20/s, 300/30s", 60, 3 * time.Second},
		{"7/s", 60, 10 * time.Second},
	} {
		t.Run(c.rates, func(t *testing.T) {
			exact, flushes := 0, 0
			for seed := range c.seeds {
				bubble(t, func(t *testing.T) {
					r := rand.New(rand.NewPCG(seed, 2))
					p := Policy{Rates: MustRates(c.rates), Outage: Outage(r.IntN(2)), Replicas: 4}
					redis := newStandIn(&p, time.Duration(r.Int64N(int64(4*time.Millisecond))))
					redis.seed = seed
					think := []time.Duration{0, 100 * time.Millisecond}[r.IntN(2)]
					over := int64(0)
					tr := redis.fleet(t, p, 4, 16, think, func(*trace) {
						for range 6 {
							time.Sleep(c.every + time.Duration(r.Int64N(int64(2*time.Second))))
							redis.flush()
							flushes++
							over = max(over, redis.bookedSince(20*time.Millisecond))
						}
						time.Sleep(3 * time.Second)
					})
					for _, rate := range p.Rates {
						most := mostIn(tr.left, rate.Per.Microseconds())
						if most <= int64(rate.Limit) {
							exact++
						}
						if most > int64(rate.Limit)+over {
							t.Errorf("seed %d: %d in one window of %v; %d were booked just before a flush", seed, most, rate, over)
						}
					}
				})
			}
			t.Logf("%d flushes; %d of %d traces kept the rate exactly", flushes, exact, c.seeds*uint64(len(MustRates(c.rates))))
		})
	}
}

// bookedSince returns how many slots were booked in the last d.
func (r *standIn) bookedSince(d time.Duration) (n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.booked {
		if b.at > time.Now().Add(-d).UnixMicro() {
			n += b.units
		}
	}
	return n
}

// TestFlushAll is TestFlushes with the script.
func TestFlushAll(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		m := newMini()
		p := Policy{Rates: MustRates("100/s")}
		tr := newTrace()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 4 {
			l := mustLimiter(t, dialMini(t, m), "k", p)
			for range 16 {
				wg.Go(func() {
					for l.Wait(ctx) == nil {
						tr.add(i, 1)
					}
				})
			}
		}
		for range 20 {
			time.Sleep(333 * time.Millisecond)
			m.FlushAll()
		}
		time.Sleep(5 * time.Second)
		cancel()
		wg.Wait()
		time.Sleep(time.Second)
		tr.check(t, p.Rates)
		if n := len(tr.left); n < 500 {
			t.Errorf("%d left in %v", n, time.Since(tr.start))
		}
	})
}

// TestReplyAtTheTimeout: a reply that comes at the very moment at which its
// exchange is given up is taken in or given back, and the exchange after it is
// left alone.
func TestReplyAtTheTimeout(t *testing.T) {
	left := 0
	for range 200 {
		bubble(t, func(t *testing.T) {
			p := Policy{Rates: MustRates("1000/s"), Outage: FailOpen, Replicas: 2}
			r := newStandIn(&p, (&Config{}).redisTimeout())
			tr := r.fleet(t, p, 2, 4, 100*time.Millisecond, func(*trace) { time.Sleep(3 * time.Second) })
			tr.check(t, p.Rates)
			left += tr.len()
		})
	}
	if left == 0 {
		t.Error("none left")
	}
}

// TestManyHangs: Redis hangs twelve times in a row, for so long that every process
// notices, or for so short that some do not, and again before the others have
// found that it was back. Then it has answered some and not others, which no
// share can know of: the excess is bounded by the shares.
func TestManyHangs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		least, most time.Duration
		bound       int64
	}{
		{1500 * time.Millisecond, 2500 * time.Millisecond, 20},
		{0, 1600 * time.Millisecond, 20 + 3*6},
	} {
		runs, above, worst := 60, 0, int64(0)
		for seed := range uint64(runs) {
			bubble(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 5))
				p := Policy{Rates: MustRates("20/s"), Outage: FailOpen, Replicas: 3}
				redis := newStandIn(&p, time.Duration(r.Int64N(int64(8*time.Millisecond))))
				redis.seed = seed
				tr := redis.fleet(t, p, 3, 6, time.Duration(r.Int64N(2))*time.Second, func(*trace) {
					for range 12 {
						time.Sleep(time.Duration(r.Int64N(int64(2 * time.Second))))
						redis.stop()
						time.Sleep(c.least + time.Duration(r.Int64N(int64(c.most-c.least))))
						redis.cont()
					}
					time.Sleep(5 * time.Second)
				})
				most := mostIn(tr.left, time.Second.Microseconds())
				worst = max(worst, most)
				if most > int64(p.Rates[0].Limit) {
					above++
				}
			})
		}
		t.Logf("hangs of %v to %v: above the rate in %d of %d, with %d at most", c.least, c.most, above, 12*runs, worst)
		if worst > c.bound {
			t.Errorf("%d in a window, want %d at most", worst, c.bound)
		}
	}
}

// TestSettlingEnds: also for a process that sends now and then.
func TestSettlingEnds(t *testing.T) {
	for _, gap := range []time.Duration{300, 500, 800, 1000, 1100} {
		bubble(t, func(t *testing.T) {
			p := Policy{Rates: MustRates("100/s"), Outage: FailOpen, Replicas: 10}
			r := newStandIn(&p, time.Millisecond)
			l := r.limiter(t, p)
			burst(t, l, 1)
			r.kill()
			_ = l.Wait(t.Context())
			time.Sleep(time.Second)
			r.restart(false)
			for range 20 {
				_ = l.Wait(t.Context())
				time.Sleep(gap * time.Millisecond)
			}
			l.mu.Lock()
			left := l.outage.settle - l.now()
			l.mu.Unlock()
			if left > 0 {
				t.Errorf("with a request every %d ms: settles for %d us more, after 20 requests", gap, left)
			}
		})
	}
}

// TestLateReplyEndsAnOutage: a reply that comes after it was given up, and tells
// of a new state, ends the outage; what was sent meanwhile is charged at once, not
// when others have booked.
func TestLateReplyEndsAnOutage(t *testing.T) {
	for at := 5 * time.Second; at < 5500*time.Millisecond; at += 50 * time.Millisecond {
		bubble(t, func(t *testing.T) {
			p := Policy{Rates: MustRates("4/2s"), Outage: FailOpen, Replicas: 1}
			r := newStandIn(&p, time.Millisecond)
			l := r.limiter(t, p)
			burst(t, l, 4)
			r.stop()
			for range 12 {
				go func() { _ = l.Wait(t.Context()) }()
			}
			time.Sleep(at) // the state has expired
			r.cont()
			time.Sleep(300 * time.Millisecond)
			l.mu.Lock()
			away, owed := l.outage.away, l.outage.sent
			l.mu.Unlock()
			if away || len(owed) > 0 {
				t.Errorf("after a hang of %v: away %v, not charged: %v", at, away, owed)
			}
		})
	}
}
