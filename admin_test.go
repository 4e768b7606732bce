package pacecar

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// A steered is a fleet of two processes, and an Admin beside it.
type steered struct {
	t     *testing.T
	admin *Admin
	fleet []*Limiter
	left  *trace
	wg    sync.WaitGroup
}

// steer runs a test on a fleet, in virtual time.
func steer(t *testing.T, rates string, run func(*testing.T, *steered)) {
	bubble(t, func(t *testing.T) {
		m := newMini()
		s := &steered{t: t, admin: mustAdmin(t, dialMini(t, m), ""), left: newTrace()}
		for range 2 {
			s.fleet = append(s.fleet, mustLimiter(t, dialMini(t, m), "api", Policy{Rates: MustRates(rates)}))
		}
		run(t, s)
		s.wg.Wait()
	})
}

func mustAdmin(t testing.TB, rdb redis.UniversalClient, prefix string) *Admin {
	t.Helper()
	a, err := NewAdmin(rdb, prefix)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// callers has n callers take their slots, half in each process, and returns
// when all have asked.
func (s *steered) callers(n int) {
	for i := range n {
		s.wg.Go(func() {
			if err := s.fleet[i%2].Wait(s.t.Context()); err != nil {
				s.t.Error(err)
			}
			s.left.add(i%2, 1)
		})
		synctest.Wait()
	}
}

func (s *steered) status() *Status {
	s.t.Helper()
	st, err := s.admin.Status(s.t.Context(), "api")
	if err != nil {
		s.t.Fatal(err)
	}
	return st
}

// want compares what the status says: use of each rate, ahead, booked.
func (s *steered) want(used []int, ahead int, booked int64) *Status {
	s.t.Helper()
	st := s.status()
	var got []int
	for _, r := range st.Rates {
		got = append(got, r.Used)
	}
	if !slices.Equal(got, used) || st.Ahead != ahead || st.Booked != booked || st.Key != "api" {
		s.t.Errorf("%+v: used %v, want %v, %d ahead, %d booked", *st, got, used, ahead, booked)
	}
	if st.Last.IsZero() != (ahead == 0) {
		s.t.Errorf("%d ahead, the last at %v", st.Ahead, st.Last)
	}
	return st
}

func TestAdminStatus(t *testing.T) {
	steer(t, "30/m, 3/s", func(t *testing.T, s *steered) {
		s.callers(8)
		st := s.want([]int{3, 3}, 5, 8)
		between(t, "the last", st.Last.Sub(st.Now), 2*time.Second, 2*time.Second+2*maxSlack)
		if got := fmt.Sprint(st.Rates[0].Rate, " ", st.Rates[1].Rate); got != "3/s 30/m" {
			t.Errorf("rates %s", got)
		}
		if st.Processes != 2 || !st.PausedUntil.IsZero() || st.Set != nil || !st.SetAt.IsZero() {
			t.Errorf("%+v", *st)
		}
		time.Sleep(1100 * time.Millisecond)
		s.want([]int{3, 6}, 2, 8)
		s.wg.Wait()
		s.want([]int{2, 8}, 0, 8)
		time.Sleep(2 * time.Second)
		s.want([]int{0, 8}, 0, 8)
		time.Sleep(2 * time.Minute)
		if _, err := s.admin.Status(t.Context(), "api"); !errors.Is(err, ErrUnknownKey) {
			t.Errorf("after two minutes: %v", err)
		}
	})
}

func TestAdminPause(t *testing.T) {
	steer(t, "3/s", func(t *testing.T, s *steered) {
		ctx, start := t.Context(), time.Now()
		s.callers(9) // three leave now, in a second, and in two
		time.Sleep(500 * time.Millisecond)
		until, err := s.admin.Pause(ctx, "api", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		st := s.want([]int{3}, 6, 9)
		if !st.PausedUntil.Equal(until) || until.Sub(st.Now) != time.Minute {
			t.Errorf("until %v, the status says %+v", until, *st)
		}
		between(t, "the last", st.Last.Sub(st.Now), 61500*time.Millisecond, 61500*time.Millisecond+2*maxSlack)

		// A shorter one does not cut it short.
		if again, err := s.admin.Pause(ctx, "api", time.Second); err != nil || !again.Equal(until) {
			t.Errorf("until %v, %v", again, err)
		}
		time.Sleep(30 * time.Second)
		if n := s.left.len(); n != 3 {
			t.Errorf("%d left in the pause", n)
		}
		if longer, err := s.admin.Pause(ctx, "api", time.Minute); err != nil || longer.Sub(until) != 30*time.Second {
			t.Errorf("until %v after %v, %v", longer, until, err)
		}
		time.Sleep(10 * time.Second)
		if err := s.admin.Resume(ctx, "api"); err != nil {
			t.Fatal(err)
		}
		if st := s.status(); !st.PausedUntil.IsZero() {
			t.Errorf("%+v", *st)
		}
		s.wg.Wait() // 40 s of pause; a process hears of its end when it asks next, within a second
		between(t, "all", time.Since(start), 42*time.Second, 43*time.Second+2*maxSlack)
		s.left.check(t, MustRates("3/s"))
		if err := s.admin.Resume(ctx, "api"); err != nil {
			t.Error(err)
		}
	})
}

func TestAdminReset(t *testing.T) {
	steer(t, "3/s, 3/h", func(t *testing.T, s *steered) {
		s.callers(3)
		time.Sleep(time.Second)
		if _, err := s.admin.Pause(t.Context(), "api", time.Hour); err != nil {
			t.Fatal(err)
		}
		if err := s.admin.Reset(t.Context(), "api"); err != nil {
			t.Fatal(err)
		}
		if st := s.want([]int{0, 0}, 0, 3); !st.PausedUntil.IsZero() {
			t.Errorf("%+v", *st)
		}
		start := time.Now()
		s.callers(3)
		s.wg.Wait()
		between(t, "three more", time.Since(start), 0, time.Second)
		s.want([]int{3, 3}, 0, 6)
	})
}

func TestAdminSetRates(t *testing.T) {
	steer(t, "2/s", func(t *testing.T, s *steered) {
		ctx := t.Context()
		s.callers(4)
		s.wg.Wait()
		for _, c := range []struct {
			rates Rates
			each  time.Duration // the least and most time of ten more
			most  time.Duration
		}{
			{MustRates("10/s, 10/10s"), 0, 11 * time.Second},
			{MustRates("1/s"), 9 * time.Second, 12 * time.Second},
			{nil, 4 * time.Second, 6 * time.Second},
		} {
			before := s.status()
			if err := s.admin.SetRates(ctx, "api", c.rates); err != nil {
				t.Fatal(err)
			}
			if st := s.status(); st.Set.String() != c.rates.String() || !st.SetAt.After(before.SetAt) {
				t.Errorf("%+v", *st)
			}
			start := time.Now()
			s.callers(10)
			s.wg.Wait()
			between(t, c.rates.String(), time.Since(start), c.each, c.most)
			want := c.rates
			if want == nil {
				want = MustRates("2/s")
			}
			var got Rates
			for _, r := range s.status().Rates {
				got = append(got, r.Rate)
			}
			if got.String() != want.String() {
				t.Errorf("in force are %v, want %v", got, want)
			}
		}
	})
}

// Rates can be set before the fleet starts, and taken back where nothing has
// used them, with nothing left over.
func TestAdminSetsBeforeTheFleet(t *testing.T) {
	steer(t, "100/s", func(t *testing.T, s *steered) {
		ctx := t.Context()
		if err := s.admin.SetRates(ctx, "api", MustRates("1/s")); err != nil {
			t.Fatal(err)
		}
		if st := s.want([]int{0}, 0, 0); st.Rates[0].Rate != (Rate{1, time.Second}) {
			t.Errorf("%+v", *st)
		}
		if _, err := s.admin.Pause(ctx, "api", 10*time.Second); err != nil {
			t.Error(err)
		}
		start := time.Now()
		s.callers(3)
		s.wg.Wait()
		between(t, "three", time.Since(start), 12*time.Second, 13*time.Second)

		if err := s.admin.SetRates(ctx, "typo", MustRates("1/s")); err != nil {
			t.Fatal(err)
		}
		if err := s.admin.SetRates(ctx, "typo", nil); err != nil {
			t.Fatal(err)
		}
		if _, err := s.admin.Status(ctx, "typo"); !errors.Is(err, ErrUnknownKey) {
			t.Errorf("got %v", err)
		}
	})
}

// The version of stored rates grows, whatever the server's clock does.
func TestSetVersionGrows(t *testing.T) {
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr(), MaxRetries: -1})
	defer rdb.Close()
	a := mustAdmin(t, rdb, "")
	last := time.Time{}
	for _, now := range []time.Time{time.Unix(1000, 0), time.Unix(1000, 0), time.Unix(10, 0), time.Unix(2000, 0)} {
		m.SetTime(now)
		if err := a.SetRates(t.Context(), "api", MustRates("1/s")); err != nil {
			t.Fatal(err)
		}
		s, err := a.Status(t.Context(), "api")
		if err != nil || !s.SetAt.After(last) || s.SetAt.Before(now) {
			t.Fatalf("%+v, %v", s, err)
		}
		last = s.SetAt
	}
	if ttl := m.TTL("pacecar:1:{api}:clock"); ttl != 0 {
		t.Errorf("expires in %v", ttl)
	}
}

// Rates that were stored by a later version, in a form that this one does not
// know, are an error, and can be set anew.
func TestStoredRatesNotUnderstood(t *testing.T) {
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr(), MaxRetries: -1})
	defer rdb.Close()
	a, ctx := mustAdmin(t, rdb, ""), t.Context()
	for _, rates := range []Rates{nil, MustRates("1/s")} {
		m.HSet("pacecar:1:{api}:clock", "policy", "5", "rates", "9/fortnight", "serial", "1")
		if _, err := a.Status(ctx, "api"); err == nil || !strings.Contains(err.Error(), `stored rates "9/fortnight"`) {
			t.Errorf("got %v", err)
		}
		if _, err := a.Pause(ctx, "api", time.Minute); err != nil {
			t.Error(err)
		}
		if err := a.SetRates(ctx, "api", rates); err != nil {
			t.Error(err)
		}
		if s, err := a.Status(ctx, "api"); err != nil || s.Set.String() != rates.String() || s.PausedUntil.IsZero() {
			t.Errorf("%+v, %v", s, err)
		}
	}
}

// What the status counts is what was booked: histories of random bookings, with
// pauses, under up to three rates.
func TestStatusCounts(t *testing.T) {
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 1))
		bubble(t, func(t *testing.T) {
			rdb := dialMini(t, newMini())
			a := mustAdmin(t, rdb, "")
			rates := slices.Clone(MustRates("5/s, 20/10s, 300/m")[:1+rng.IntN(3)])
			w := newShared(rdb, "pacecar", "api", (&Policy{Rates: rates}).bounds())
			var slots []int64
			for range 60 {
				time.Sleep(time.Duration(rng.IntN(700)) * time.Millisecond)
				q := &query{process: "p", asks: []ask{{count: 1 + rng.Int64N(4), cost: 1, longest: -1}}}
				if rng.IntN(10) == 0 {
					q.pause, q.paused = 1_000_000, 1<<60
				}
				answer, err := w.exchange(t.Context(), q)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range answer.runs {
					for range r.count {
						slots = append(slots, r.slot)
					}
				}
				count := func(after, upto int64) (n int) {
					for _, s := range slots {
						if after < s && s <= upto {
							n++
						}
					}
					return n
				}
				s, err := a.Status(t.Context(), "api")
				if err != nil {
					t.Fatal(err)
				}
				key := answer.key()
				if want := count(key, 1<<62); s.Ahead != want {
					t.Fatalf("seed %d: %d ahead, want %d", seed, s.Ahead, want)
				}
				if want := slots[len(slots)-1] + answer.offset; s.Ahead > 0 && s.Last.UnixMicro() != want {
					t.Fatalf("seed %d: the last at %d, want %d", seed, s.Last.UnixMicro(), want)
				}
				for _, r := range s.Rates {
					if want := count(key-r.Per.Microseconds(), key); r.Used != want {
						t.Fatalf("seed %d: %d of %v used, want %d", seed, r.Used, r, want)
					}
				}
				if len(s.Rates) != len(rates) || s.Booked != int64(len(slots)) {
					t.Fatalf("seed %d: %+v", seed, *s)
				}
			}
		})
	}
}

// Slots that were given back and wait for a new owner are not in the line.
func TestStatusLeavesOutSpares(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rdb := dialMini(t, newMini())
		w := newShared(rdb, "pacecar", "api", (&Policy{Rates: MustRates("1/s")}).bounds())
		a, err := w.exchange(t.Context(), &query{process: "p", asks: []ask{{count: 4, cost: 1, longest: -1}}})
		if err != nil {
			t.Fatal(err)
		}
		back := &query{generation: a.generation, process: "p", seq: 1, back: []span{{a.runs[1].slot, 1}}}
		if _, err := w.exchange(t.Context(), back); err != nil {
			t.Fatal(err)
		}
		s, err := mustAdmin(t, rdb, "").Status(t.Context(), "api")
		if err != nil || s.Ahead != 2 || s.Rates[0].Used != 1 {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

func TestAdminUnknownKey(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, m := t.Context(), newMini()
		a := mustAdmin(t, dialMini(t, m), "")
		_, status := a.Status(ctx, "api")
		_, pause := a.Pause(ctx, "api", time.Second)
		for name, err := range map[string]error{
			"Status": status, "Pause": pause, "Resume": a.Resume(ctx, "api"), "Reset": a.Reset(ctx, "api"),
			"SetRates": a.SetRates(ctx, "api", nil),
		} {
			if !errors.Is(err, ErrUnknownKey) || !strings.Contains(err.Error(), `"api"`) {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, d := range []time.Duration{-1, 0, time.Microsecond, maxPer + 1} {
			if _, err := a.Pause(ctx, "api", d); err == nil || errors.Is(err, ErrUnknownKey) {
				t.Errorf("a pause of %v: %v", d, err)
			}
		}
		if err := a.SetRates(ctx, "api", Rates{}); err == nil || errors.Is(err, ErrUnknownKey) {
			t.Errorf("no rates: %v", err)
		}
		if keys := m.Keys(); len(keys) > 0 {
			t.Errorf("left over: %v", keys)
		}
	})
}

func TestNewAdminRefuses(t *testing.T) {
	for _, c := range []struct {
		rdb    redis.UniversalClient
		prefix string
	}{{nil, ""}, {(*redis.Client)(nil), ""}, {&redis.Client{}, "{"}, {&redis.Client{}, "a b"}} {
		if _, err := NewAdmin(c.rdb, c.prefix); err == nil {
			t.Errorf("no error for %v, %q", c.rdb, c.prefix)
		}
	}
}

// Keys returns the names that are escaped in Redis as they were given, and takes
// them, and the short form of long ones. Of another prefix it knows nothing.
func TestAdminKeys(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, m := t.Context(), newMini()
		rdb := dialMini(t, m)
		long := strings.Repeat("long {name} ", 30)
		names := []string{"api.example.com", "a b", "{}", "100%", "%20", "}:clock", "\x1b[31m\n", "\xff", "ü", "POST a/b #c", long}
		for _, prefix := range []string{"", "a*", "a", "ab"} {
			a := mustAdmin(t, rdb, prefix)
			for _, name := range names {
				w := newShared(rdb, a.prefix, name+prefix, (&Policy{Rates: MustRates("1/h")}).bounds())
				if _, err := w.exchange(ctx, &query{process: "p", asks: []ask{{count: 1, cost: 1}}}); err != nil {
					t.Fatal(err)
				}
			}
			keys, err := a.Keys(ctx)
			if err != nil || len(keys) != len(names) || !slices.IsSorted(keys) {
				t.Fatalf("prefix %q: %q, %v", prefix, keys, err)
			}
			for _, name := range names {
				if name != long && !slices.Contains(keys, name+prefix) {
					t.Errorf("prefix %q: no %q among %q", prefix, name+prefix, keys)
				}
			}
			for _, key := range append(keys, long+prefix) {
				if s, err := a.Status(ctx, key); err != nil || s.Booked != 1 {
					t.Errorf("prefix %q, %q: %+v, %v", prefix, key, s, err)
				}
			}
		}
	})
}

// TestAdminEngines finds and steers the quotas of every kind of Redis.
func TestAdminEngines(t *testing.T) {
	for name, start := range map[string]func(*testing.T) *engine{
		"standalone": startStandalone,
		"ring":       startRing,
		"cluster":    startCluster,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := start(t).connect()
			defer rdb.Close()
			a := mustAdmin(t, rdb, "")
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			var names []string
			for i := range 20 {
				name := fmt.Sprintf("quota %02d", i)
				names = append(names, name)
				w := newShared(rdb, "pacecar", name, (&Policy{Rates: MustRates("1/h, 1/s")}).bounds())
				if _, err := w.exchange(ctx, &query{process: "p", asks: []ask{{count: 3, cost: 1, longest: -1}}}); err != nil {
					t.Fatal(err)
				}
			}
			if keys, err := a.Keys(ctx); err != nil || !slices.Equal(keys, names) {
				t.Errorf("%q, %v", keys, err)
			}
			for _, name := range names {
				if _, err := a.Pause(ctx, name, time.Minute); err != nil {
					t.Fatal(err)
				}
				if err := a.SetRates(ctx, name, MustRates("7/s")); err != nil {
					t.Fatal(err)
				}
				s, err := a.Status(ctx, name)
				if err != nil || s.Ahead != 2 || s.Booked != 3 || s.PausedUntil.IsZero() || s.Set.String() != "7/s" {
					t.Fatalf("%+v, %v", s, err)
				}
				if err := errors.Join(a.Resume(ctx, name), a.Reset(ctx, name)); err != nil {
					t.Fatal(err)
				}
				if s, err := a.Status(ctx, name); err != nil || s.Ahead != 0 || !s.PausedUntil.IsZero() {
					t.Fatalf("%+v, %v", s, err)
				}
			}
		})
	}
}

// TestResumeNearTheEnd: who has just heard when a pause ends leaves by that. It is
// not ended so shortly before.
func TestResumeNearTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, p, tr := newMini(), Policy{Rates: MustRates("10/s")}, newTrace()
		a, err := NewAdmin(dialMini(t, m), "")
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		send := func(l *Limiter, n int) {
			for range n {
				wg.Go(func() {
					if err := l.Wait(t.Context()); err != nil {
						t.Error(err)
					}
					tr.add(0, 1)
				})
			}
		}
		one, other := mustLimiter(t, dialMini(t, m), "k", p), mustLimiter(t, dialMini(t, m), "k", p)
		burst(t, one, 1)
		time.Sleep(2 * time.Second)
		if _, err := a.Pause(t.Context(), "k", 5*time.Second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4960 * time.Millisecond)
		send(other, 7) // hears that it ends in 40 ms
		time.Sleep(5 * time.Millisecond)
		if err := a.Resume(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		send(one, 13)
		wg.Wait()
		tr.check(t, p.Rates)
	})
}

// TestProcessesLeaveNothing: what the state keeps of processes goes when they have
// gone, and with rates that were set, which stay, when nobody uses the quota.
func TestProcessesLeaveNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rdb := dialMini(t, newMini())
		a, err := NewAdmin(rdb, "")
		if err != nil {
			t.Fatal(err)
		}
		fields := func() (n int) {
			for field := range rdb.HGetAll(t.Context(), "pacecar:1:{k}:clock").Val() {
				if strings.HasPrefix(field, "p:") {
					n++
				}
			}
			return n
		}
		for range 20 {
			l := mustLimiter(t, rdb, "k", Policy{Rates: MustRates("1/s, 1000/d")})
			burst(t, l, 1)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			time.AfterFunc(100*time.Millisecond, cancel)
			_ = l.Wait(ctx) // and gives its slot back
			time.Sleep(2 * time.Minute)
			if n := fields(); n > 2 {
				t.Fatalf("of %d processes something is kept", n)
			}
		}
		if err := a.SetRates(t.Context(), "k", MustRates("2/s")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(72 * time.Hour)
		burst(t, mustLimiter(t, rdb, "k", Policy{Rates: MustRates("1/s")}), 1)
		if s, err := a.Status(t.Context(), "k"); err != nil || s.Booked != 1 || s.Set.String() != "2/s" || fields() > 0 {
			t.Errorf("%+v, %v, and of %d processes something is kept", s, err, fields())
		}
	})
}
