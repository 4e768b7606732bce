//go:build unix

package pacecar

import (
	"context"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// TestChaos breaks Redis in every way under a fleet of real processes at full
// speed, and then checks every window of what their upstream got.
func TestChaos(t *testing.T) {
	if os.Getenv("PACECAR_CHAOS") != "1" {
		t.Skip("takes most of a minute; PACECAR_CHAOS=1 runs it")
	}
	needRedis(t)
	for _, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"kill", chaosKill},
		{"kill, fail closed", chaosKillClosed},
		{"stop", chaosStop},
		{"sentinel", chaosSentinel},
		{"cut", chaosCut},
		{"out of memory", chaosMemory},
		{"flush", chaosFlush},
		{"evict", chaosEvict},
		{"script flush", chaosScriptFlush},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t)
		})
	}
}

// always allows the limit in every window.
func always(int64) int { return chaosLimit }

// chaosAway is how long Redis is away.
const chaosAway = 4 * time.Second

func chaosKill(t *testing.T) {
	s := startRedis(t)
	f := startChaos(t, chaosOrder{Redis: s.addr, Outage: FailOpen})
	killed := f.mark("killed")
	s.kill()
	time.Sleep(chaosAway)
	s.start()
	back := f.mark("started with nothing kept")
	time.Sleep(4 * time.Second)
	f.check(always)
	f.waits(killed, back)
}

func chaosKillClosed(t *testing.T) {
	s := startRedis(t)
	f := startChaos(t, chaosOrder{Redis: s.addr, Outage: FailClosed})
	killed := f.mark("killed")
	s.kill()
	time.Sleep(chaosAway)
	away := f.mark("about to be started")
	s.start()
	back := f.mark("started with nothing kept")
	time.Sleep(4 * time.Second)
	f.check(always)

	f.mu.Lock()
	defer f.mu.Unlock()
	known := killed + 2*time.Second.Microseconds() // to all
	first := int64(0)
	for _, c := range f.calls {
		if c.left > known && c.left < away {
			t.Errorf("worker %d: a request left at %s", c.worker, f.at(c.left))
		}
		if c.left > away && (first == 0 || c.left < first) {
			first = c.left
		}
	}
	refused, longest := 0, int64(0)
	for _, n := range f.notes {
		if began := n.At - n.Took; n.What == "unavailable" && began > known && n.At < away {
			refused++
			longest = max(longest, n.Took)
		}
	}
	t.Logf("%d refused in %v at most; the first left %v after Redis was back", refused, duration(longest), duration(first-back))
	if longest := duration(longest); refused == 0 || longest > 2*time.Second {
		t.Errorf("%d were refused while Redis was away, in up to %v", refused, longest)
	}
	if duration(first-back) > 3*time.Second {
		t.Errorf("the first left %v after Redis was back", duration(first-back))
	}
}

func chaosStop(t *testing.T) {
	s := startRedis(t)
	f := startChaos(t, chaosOrder{Redis: s.addr, Outage: FailOpen})
	signal := func(sig syscall.Signal) {
		if err := s.cmd.Process.Signal(sig); err != nil {
			t.Error(err)
		}
	}
	stopped := f.mark("SIGSTOP")
	signal(syscall.SIGSTOP)
	time.Sleep(chaosAway)
	signal(syscall.SIGCONT)
	going := f.mark("SIGCONT")
	time.Sleep(4 * time.Second)
	f.check(always)
	f.waits(stopped, going)
}

func chaosSentinel(t *testing.T) {
	w := startWatched(t)
	f := startChaos(t, chaosOrder{Redis: w.sentinel.addr, Sentinel: true, Outage: FailOpen})
	killed := f.mark("master killed")
	w.master.kill()
	time.Sleep(chaosAway)
	w.failOver()
	back := f.mark("replica promoted")
	time.Sleep(4 * time.Second)
	f.check(always)
	f.waits(killed, back)
}

func chaosCut(t *testing.T) {
	s := startRedis(t)
	p := startCutter(t, s.addr)
	f := startChaos(t, chaosOrder{Redis: p.addr, Outage: FailOpen})
	for range 4 {
		f.mark("the next reply is cut")
		p.cuts.Store(1)
		time.Sleep(300 * time.Millisecond)
	}
	cut := f.mark("every reply is cut")
	p.cuts.Store(1 << 30)
	time.Sleep(chaosAway)
	p.cuts.Store(0)
	whole := f.mark("no reply is cut")
	time.Sleep(4 * time.Second)
	f.check(always)
	f.waits(cut, whole)
}

func chaosMemory(t *testing.T) {
	s := startRedis(t)
	f := startChaos(t, chaosOrder{Redis: s.addr, Outage: FailOpen})
	full := f.mark("out of memory")
	s.set("maxmemory", "1")
	time.Sleep(chaosAway)
	s.set("maxmemory", "0")
	free := f.mark("memory enough")
	time.Sleep(4 * time.Second)
	f.check(always)
	f.waits(full, free)
}

func chaosScriptFlush(t *testing.T) {
	s := startRedis(t)
	f := startChaos(t, chaosOrder{Redis: s.addr, Outage: FailOpen})
	rdb := s.client()
	defer rdb.Close()
	for range 10 {
		f.mark("SCRIPT FLUSH")
		if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	time.Sleep(time.Second)
	f.check(always)
}

func chaosFlush(t *testing.T) {
	s := startRedis(t)
	f := startChaos(t, chaosOrder{Redis: s.addr, Outage: FailOpen})
	chaosLose(t, f, s, func(c context.Context, p redis.Pipeliner) { p.FlushAll(c) })
}

func chaosEvict(t *testing.T) {
	s := startRedis(t)
	s.set("maxmemory-policy", "allkeys-lru")
	f := startChaos(t, chaosOrder{Redis: s.addr, Outage: FailOpen})
	rdb := s.client()
	defer rdb.Close()
	number := func(section, name string) int {
		info, err := rdb.InfoMap(t.Context(), section).Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, fields := range info {
			if n, err := strconv.Atoi(fields[name]); err == nil {
				return n
			}
		}
		t.Fatalf("Redis tells no %s", name)
		return 0
	}
	less := 100 // of memory: some of the keys must go, or all
	chaosLose(t, f, s, func(c context.Context, p redis.Pipeliner) {
		p.ConfigSet(c, "maxmemory", strconv.Itoa(number("memory", "used_memory")-less))
		p.Ping(c)
		p.ConfigSet(c, "maxmemory", "0")
		less *= 10
	})
	if n := number("stats", "evicted_keys"); n == 0 {
		t.Error("nothing was evicted")
	}
}

// chaosLose makes Redis lose state again and again. No window may have more over
// the limit than was booked in the 50 ms before.
func chaosLose(t *testing.T, f *chaosFleet, s *server, lose func(context.Context, redis.Pipeliner)) {
	const fresh = 50 * time.Millisecond
	type loss struct{ at, booked int64 }
	var losses []loss
	rdb := s.client()
	defer rdb.Close()
	ctx := t.Context()
	clock := newShared(rdb, (&Config{}).prefix(), "chaos", nil).keys[0]
	for range 5 {
		before, err := rdb.HGet(ctx, clock, "serial").Int64()
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(fresh)
		p := rdb.Pipeline() // which Redis runs without a break
		serial := p.HGet(ctx, clock, "serial")
		lose(ctx, p)
		at := f.mark("state lost")
		if _, err := p.Exec(ctx); err != nil {
			t.Fatal(err)
		}
		after, _ := serial.Int64()
		losses = append(losses, loss{at, after - before})
		time.Sleep(chaosPer * 6 / 5)
	}
	time.Sleep(time.Second)
	t.Logf("booked just before each loss: %v", losses)
	f.check(func(from int64) int {
		n := chaosLimit
		for _, l := range losses {
			if from > l.at-chaosPer.Microseconds() && from < l.at+2*chaosPer.Microseconds() {
				n += int(l.booked)
			}
		}
		return n
	})
}

// set sets a parameter.
func (s *server) set(name, value string) {
	s.t.Helper()
	rdb := s.client()
	defer rdb.Close()
	if err := rdb.ConfigSet(context.Background(), name, value).Err(); err != nil {
		s.t.Fatal(err)
	}
}

// A cutter is a proxy before a server, and cuts the connection in the middle of
// a reply, as often as it is told.
type cutter struct {
	addr string
	cuts atomic.Int64 // to come
}

func startCutter(t *testing.T, to string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	c := &cutter{addr: l.Addr().String()}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				client.Close()
				continue
			}
			go c.copy(server, client, false)
			go c.copy(client, server, true)
		}
	}()
	return c
}

// copy passes on what one side says, and closes both when that ends.
func (c *cutter) copy(to, from net.Conn, replies bool) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if replies && c.cuts.Add(-1) >= 0 {
			_, _ = to.Write(buf[:n/2])
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
