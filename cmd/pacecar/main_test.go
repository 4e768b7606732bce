package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/pacecar-go/pacecar"
	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silence{})
	os.Exit(m.Run())
}

// A result is what one run of the command did.
type result struct {
	code     int
	out, err string
}

// command runs the command on the Redis at addr.
func (r *result) run(ctx context.Context, in string, terminal bool, env string, args ...string) {
	var out, errOut bytes.Buffer
	t := &tool{in: strings.NewReader(in), out: &out, err: &errOut, terminal: func(any) bool { return terminal }}
	r.code = t.main(ctx, args, env)
	r.out, r.err = out.String(), errOut.String()
}

func run(t *testing.T, env string, args ...string) result {
	t.Helper()
	var r result
	r.run(t.Context(), "", false, env, args...)
	return r
}

// want fails unless the command ended so, with all of texts in its output.
func (r result) want(t *testing.T, code int, texts ...string) result {
	t.Helper()
	if r.code != code {
		t.Errorf("exit status %d, want %d:\n%s%s", r.code, code, r.out, r.err)
	}
	for _, text := range texts {
		if !strings.Contains(r.out+r.err, text) {
			t.Errorf("no %q in:\n%s%s", text, r.out, r.err)
		}
	}
	return r
}

// startRedis starts a redis-server on a free port, keeping nothing on disk. It
// skips the test where there is none, unless PACECAR_REQUIRE_REDIS=1.
func startRedis(t *testing.T, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		if os.Getenv("PACECAR_REQUIRE_REDIS") == "1" {
			t.Fatal("PACECAR_REQUIRE_REDIS=1, and there is no redis-server on PATH")
		}
		t.Skip("no redis-server on PATH; PACECAR_REQUIRE_REDIS=1 makes this a failure")
	}
	addr := freeAddr(t)
	host, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command(path, append([]string{"--bind", host, "--port", port, "--save", "", "--appendonly", "no",
		"--dir", t.TempDir()}, args...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return addr
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// servers runs a test on miniredis and on a real Redis.
func servers(t *testing.T, test func(t *testing.T, addr string)) {
	t.Run("miniredis", func(t *testing.T) { test(t, miniredis.RunT(t).Addr()) })
	t.Run("redis-server", func(t *testing.T) { test(t, startRedis(t)) })
}

// A process is one of a fleet: a Transport that sends nothing anywhere.
type process struct {
	transport *pacecar.Transport
	rdb       *redis.Client
}

func newProcess(t *testing.T, addr, name, rates string) *process {
	t.Helper()
	p := &process{rdb: redis.NewClient(&redis.Options{Addr: addr})}
	t.Cleanup(func() { p.rdb.Close() })
	var err error
	p.transport, err = pacecar.New(pacecar.Config{
		Redis: p.rdb, Base: nobody{}, RedisTimeout: 10 * time.Second,
		Routes: map[string]pacecar.Policy{"/": {Name: name, Rates: pacecar.MustRates(rates)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// send sends one request, and gives up after d: it returns whether it left.
func (p *process) send(t *testing.T, d time.Duration) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := p.transport.RoundTrip(req)
	if err == nil {
		resp.Body.Close()
		return true
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	return false
}

// Two processes and the command: a pause stops both, its end lets them go, and
// rates that are set hold for both.
func TestSteersAFleet(t *testing.T) {
	servers(t, func(t *testing.T, addr string) {
		fleet := []*process{newProcess(t, addr, "api", "1000/s"), newProcess(t, addr, "api", "1000/s")}
		both := func(what string, want bool) {
			t.Helper()
			for i, p := range fleet {
				if got := p.send(t, 20*time.Second); got != want {
					t.Errorf("%s: process %d sends: %v", what, i, got)
				}
			}
		}
		both("at first", true)
		run(t, addr, "pause", "api", "1h").want(t, exitOK, "api: paused until ", "for 1h0m0s")
		both("paused", false) // at once: the slot is beyond the deadline
		run(t, addr, "status", "api").want(t, exitOK, "paused:     until ")
		run(t, addr, "pause", "api", "1m").want(t, exitOK, "a longer pause was in force")
		run(t, addr, "resume", "api").want(t, exitOK, "api: not paused")
		both("resumed", true)

		run(t, addr, "set", "api", "2/h,", "100/d").want(t, exitOK, "api: set to 2/h, 100/d")
		both("set lower: what was booked counts", false)
		run(t, addr, "status").want(t, exitOK, "2/h ", "4 of 2", "100/d ", "4 of 100", "processes:  2")
		run(t, addr, "reset", "api", "-yes").want(t, exitOK, "api: nothing is booked")
		both("reset", true)
		both("and used up", false)
		run(t, addr, "set", "api", "default").want(t, exitOK, "each process goes back to its own rates")
		both("back to their own", true)
		run(t, addr, "status", "api").want(t, exitOK, "1000/s", "back to the processes' own rates")
	})
}

// bookSlots books n slots of a quota, as a fleet does.
func bookSlots(t *testing.T, addr, name, rates string, n int) {
	t.Helper()
	p := newProcess(t, addr, name, rates)
	for range n {
		if !p.send(t, 20*time.Second) {
			t.Fatal("not sent")
		}
	}
}

func TestJSON(t *testing.T) {
	servers(t, func(t *testing.T, addr string) {
		bookSlots(t, addr, "b", "5/h, 9/d", 3)
		bookSlots(t, addr, "a", "5/h", 1)
		r := run(t, addr, "status", "-json").want(t, exitOK)
		lines := strings.Split(strings.TrimSpace(r.out), "\n")
		if len(lines) != 2 {
			t.Fatalf("got %q", r.out)
		}
		var got struct {
			Key   string
			Now   time.Time
			Rates []struct {
				Rate  string
				Limit int
				Per   float64 `json:"per_seconds"`
				Used  int
			}
			Ahead, Booked int
			Paused        *time.Time `json:"paused_until"`
		}
		if err := json.Unmarshal([]byte(lines[1]), &got); err != nil {
			t.Fatal(err)
		}
		if got.Key != "b" || got.Booked != 3 || got.Paused != nil || got.Now.IsZero() || len(got.Rates) != 2 ||
			got.Rates[1].Rate != "9/d" || got.Rates[1].Used != 3 || got.Rates[1].Per != 86400 || got.Rates[1].Limit != 9 {
			t.Errorf("%s: %+v", lines[1], got)
		}
		r = run(t, addr, "pause", "b", "10m", "-json").want(t, exitOK)
		if err := json.Unmarshal([]byte(r.out), &got); err != nil {
			t.Fatal(err)
		}
		if d := got.Paused.Sub(got.Now); d > 10*time.Minute || d < 5*time.Minute {
			t.Errorf("paused for %v", d)
		}
		run(t, addr, "status", "nothing", "-json").want(t, exitUnknownKey)
	})
}

func TestWatch(t *testing.T) {
	servers(t, func(t *testing.T, addr string) {
		run(t, addr, "watch", "-n", "2", "-every", "100ms").want(t, exitOK, "no quotas\n")
		bookSlots(t, addr, "api", "5/h", 3)
		r := run(t, addr, "watch", "-n", "3", "-every", "100ms", "api").want(t, exitOK, " api  5/h: 3  ahead: 0  processes: ")
		if n := strings.Count(r.out, "\n"); n != 3 || strings.Contains(r.out, "\x1b") {
			t.Errorf("%d lines, want 3 plain ones: %q", n, r.out)
		}
		r.run(t.Context(), "", true, addr, "watch", "-n", "2", "-every", "100ms")
		r.want(t, exitOK, "\x1b[H", "1 quotas at "+addr, "3 of 5")
		run(t, addr, "watch", "nothing").want(t, exitUnknownKey)

		// An interrupt is how it ends.
		ctx, cancel := context.WithCancel(t.Context())
		read, write := io.Pipe()
		done := make(chan int)
		go func() {
			c := &tool{out: write, err: io.Discard, terminal: func(any) bool { return false }}
			done <- c.main(ctx, []string{"watch", "-every", "1m"}, addr)
		}()
		if _, err := bufio.NewReader(read).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		cancel()
		if code := <-done; code != exitOK {
			t.Errorf("exit status %d", code)
		}
	})
}

// A watch goes on when Redis goes away and comes back.
func TestWatchOutage(t *testing.T) {
	m := miniredis.RunT(t)
	bookSlots(t, m.Addr(), "api", "5/h", 3)
	read, write := io.Pipe()
	lines := bufio.NewReader(read)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		c := &tool{out: write, err: write, terminal: func(any) bool { return false }}
		c.main(ctx, []string{"watch", "-every", "100ms"}, m.Addr())
		write.Close()
	})
	until := func(text string) {
		t.Helper()
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("no %q: %v", text, err)
			}
			if strings.Contains(line, text) {
				return
			}
		}
	}
	until("5/h: 3")
	m.SetError("LOADING Redis is loading the dataset in memory")
	until("is loading its data")
	m.SetError("")
	until("5/h: 3")
	cancel()
	go io.Copy(io.Discard, read)
	wg.Wait()
}

func TestUnknownKey(t *testing.T) {
	servers(t, func(t *testing.T, addr string) {
		for _, args := range [][]string{{"status"}, {"pause"}, {"resume"}, {"reset", "-yes"}, {"set"}} {
			args = append(args, "api.openfl.org")
			switch args[0] {
			case "pause":
				args = append(args, "1s")
			case "set":
				args = append(args, "1/s")
			}
			run(t, addr, args...).want(t, exitUnknownKey, `"api.openfl.org": no such quota in Redis at `)
		}
		for _, name := range []string{"api.openf1.org", "POST api.openf1.org/v1/", "unlike", "other"} {
			bookSlots(t, addr, name, "9/h", 1)
		}
		r := run(t, addr, "status", "api.openfl.org").want(t, exitUnknownKey, `it has "api.openf1.org"`)
		if strings.Contains(r.err, "unlike") || strings.Contains(r.err, "other") {
			t.Error(r.err)
		}
		run(t, addr, "status", "openf1").want(t, exitUnknownKey, `it has "api.openf1.org", "POST api.openf1.org/v1/"`)
		run(t, addr, "status", "-prefix", "another", "unlike").want(t, exitUnknownKey, `prefix "another"`)

		run(t, addr, "set", "next", "1/s").want(t, exitUnknownKey, "-new sets it all the same")
		run(t, addr, "set", "-new", "next", "1/s").want(t, exitOK, "next: set to 1/s")
		run(t, addr, "set", "next", "default").want(t, exitOK, "next: forgotten")
		run(t, addr, "status", "next").want(t, exitUnknownKey)
		run(t, addr, "set", "-new", "next/", "1/s").want(t, exitOK, "next/: set to 1/s")
		run(t, addr, "set", "-new", "next", "1/s").want(t, exitOK, `nothing uses "next" yet; there is "next/"`)
		run(t, addr, "set", "next/", "default").want(t, exitOK)
		run(t, addr, "pause", "next", "1h").want(t, exitOK)
		run(t, addr, "set", "next", "default").want(t, exitOK, "each process goes back to its own rates")
		run(t, addr, "status", "next").want(t, exitOK, "paused:")
	})
}

// Names are found as they are written in the configuration, and shown without
// what a terminal would obey.
func TestNames(t *testing.T) {
	servers(t, func(t *testing.T, addr string) {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		defer rdb.Close()
		long := strings.Repeat("long name/", 30)
		for _, name := range []string{"a b {c} 100%", long, "\x1b]0;evil\a\n", "-dash"} {
			l, err := pacecar.NewLimiter(rdb, name, pacecar.Policy{Rates: pacecar.MustRates("9/h")})
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			r := run(t, addr, "status", "--", name).want(t, exitOK, "1 of 9", shown(name))
			all := run(t, addr, "status").want(t, exitOK, "1 of 9")
			if strings.ContainsAny(r.out+all.out, "\x1b\a") {
				t.Errorf("%q shows as %q", name, r.out+all.out)
			}
			run(t, addr, "resume", "--", name).want(t, exitOK)
		}
		bad := run(t, addr, "status", "\x1b]0;evil\a").want(t, exitUnknownKey)
		if strings.ContainsAny(bad.err, "\x1b\a") {
			t.Errorf("%q", bad.err)
		}
	})
}

func TestReset(t *testing.T) {
	addr := miniredis.RunT(t).Addr()
	bookSlots(t, addr, "api", "3/h", 3)
	run(t, addr, "reset", "api").want(t, exitUsage, "-yes")
	for answer, want := range map[string]int{"": exitFailure, "n\n": exitFailure, "\n": exitFailure} {
		var r result
		r.run(t.Context(), answer, true, addr, "reset", "api")
		r.want(t, want, "forget what is booked", "nothing was done")
		run(t, addr, "status").want(t, exitOK, "3 of 3")
	}
	var r result
	r.run(t.Context(), "y\n", true, addr, "reset", "api")
	r.want(t, exitOK, "api: nothing is booked")
	run(t, addr, "status").want(t, exitOK, "0 of 3")
}

func TestBench(t *testing.T) {
	servers(t, func(t *testing.T, addr string) {
		run(t, addr, "bench", "-for", "100ms", "-prefix", "mine").want(t, exitOK, "bookings/s")
		r := run(t, addr, "bench", "-for", "100ms", "-json").want(t, exitOK)
		lines := strings.Split(strings.TrimSpace(r.out), "\n")
		for _, line := range lines {
			var m measure
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatal(err)
			}
			if m.Bookings <= 0 || m.Calls <= 0 || m.Calls > 3*m.Bookings || m.P50 <= 0 || m.P99 < m.P50 {
				t.Errorf("%+v", m)
			}
		}
		if len(lines) != 3 {
			t.Errorf("got %q", r.out)
		}
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		defer rdb.Close()
		if keys, err := rdb.Keys(t.Context(), "*").Result(); err != nil || len(keys) > 0 {
			t.Errorf("left over: %v, %v", keys, err)
		}
	})
	run(t, freeAddr(t), "bench").want(t, exitFailure, "cannot reach Redis")
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		text string
	}{
		{"", exitUsage, "which command?"},
		{"-h", exitOK, "usage: pacecar COMMAND"},
		{"help", exitOK, "usage: pacecar COMMAND"},
		{"status -help", exitOK, "usage: pacecar COMMAND"},
		{"stats", exitUsage, `no command "stats"`},
		{"status a b", exitUsage, "wrong number of arguments: status [KEY]"},
		{"resume", exitUsage, "wrong number of arguments: resume KEY: end a pause"},
		{"pause api", exitUsage, "wrong number of arguments: pause KEY DURATION"},
		{"pause api 30", exitUsage, `the duration "30" is not like 30s`},
		{"pause api soon", exitUsage, `the duration "soon" is not like 30s`},
		{"pause api 0s", exitUsage, `below 1ms; resume ends a pause`},
		{"pause api -- -5s", exitUsage, `below 1ms; resume ends a pause`},
		{"pause api -5s", exitUsage, `below 1ms; resume ends a pause`},
		{"set api -5/s", exitUsage, "is not a whole number"},
		{"version", exitOK, "pacecar "},
		{"pause api 9000h", exitUsage, "above 366 days"},
		{"set api", exitUsage, "wrong number of arguments: set KEY RATES"},
		{"set api 3", exitUsage, `no "/" between limit and period`},
		{"set api 3/s, 3/s", exitUsage, "the same period"},
		{"set api none", exitUsage, `no "/" between limit and period`},
		{"status -yes", exitUsage, "status has no flag -yes"},
		{"status -bogus", exitUsage, "-bogus"},
		{"status -timeout 0s", exitUsage, "-timeout: must be above zero"},
		{"status -timeout 5", exitUsage, "-timeout: a duration is like 500ms"},
		{"watch -every 1ms", exitUsage, "-every: must be at least 100ms"},
		{"watch -n -1", exitUsage, "-n: must not be negative"},
		{"bench -for 2h", exitUsage, "-for: must be from 30ms to 1m"},
		{"status -prefix {", exitUsage, "Prefix"},
		{"status -redis http://127.0.0.1:6379", exitUsage, "invalid URL scheme"},
		{"status -redis user@host", exitUsage, "neither host:port nor a URL"},
		{"status -redis a:1/3", exitUsage, "neither host:port nor a URL such as rediss://"},
		{"status -redis a:1,", exitUsage, "neither host:port nor a URL"},
	} {
		r := run(t, "127.0.0.1:1", strings.Fields(c.args)...)
		if r.want(t, c.code, c.text); t.Failed() {
			t.Fatalf("of %q", c.args)
		}
	}
	run(t, "127.0.0.1:1", "status", "").want(t, exitUsage, "KEY is empty")
}

// A password never shows, however wrong the URL.
func TestPasswordIsNotShown(t *testing.T) {
	closed := freeAddr(t)
	for _, spec := range []string{
		"redis://u:geheim@" + closed, "redis://u:geheim@127.0.0.1:x", "redis://u:ge%zzgeheim@h", "http://u:geheim@h",
		"redis://:geheim@[::1", "u:geheim@host:1", "redis://u:geheim@" + closed + "?nope=1",
	} {
		r := run(t, spec, "status")
		if r.code == exitOK || strings.Contains(r.out+r.err, "geheim") {
			t.Errorf("%s: %d\n%s%s", spec, r.code, r.out, r.err)
		}
	}
}

// A server is one that answers each command by a fixed text.
func fakeServer(t *testing.T, answer func(command string) string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				in := bufio.NewReader(c)
				for {
					var words, size int
					if _, err := fmt.Fscanf(in, "*%d\r\n", &words); err != nil {
						return
					}
					var command string
					for i := range words {
						if _, err := fmt.Fscanf(in, "$%d\r\n", &size); err != nil {
							return
						}
						word := make([]byte, size+2)
						if _, err := io.ReadFull(in, word); err != nil {
							return
						}
						if i == 0 {
							command = strings.ToLower(string(word[:size]))
						}
					}
					if _, err := io.WriteString(c, answer(command)); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

func bulk(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }

// What goes wrong with Redis is said in words that help.
func TestErrors(t *testing.T) {
	says := func(text string) string { // to all but the greeting
		return fakeServer(t, func(command string) string {
			switch command {
			case "hello":
				return "-ERR unknown command\r\n"
			case "client":
				return "+OK\r\n"
			}
			return text
		})
	}
	tooOld := fakeServer(t, func(command string) string {
		if command == "info" {
			return bulk("# Server\r\nredis_version:4.0.14\r\n")
		}
		return "-ERR unknown command\r\n"
	})
	hung, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close()
	for _, c := range []struct {
		name, addr, want string
	}{
		{"refused", freeAddr(t), "cannot reach Redis at 127.0.0.1:"},
		{"no such host", "redis.invalid:6379", "cannot reach Redis at redis.invalid:6379"},
		{"hung", hung.Addr().String(), "no answer from Redis at " + hung.Addr().String() + " within "},
		{"hung, TLS", "rediss://" + hung.Addr().String(), "no answer from Redis at "},
		{"too old", tooOld, "is version 4.0.14: pacecar needs 5.0 or later"},
		{"too old, and does not say so", says("-ERR Write commands not allowed after non deterministic commands\r\n"), "is too old"},
		{"not Redis", says("HTTP/1.1 400 Bad Request\r\n"), "is not Redis"},
		{"NOPERM", says("-NOPERM this user has no permissions\r\n"), "does not let this user do it"},
		{"NOAUTH", says("-NOAUTH Authentication required.\r\n"), "wants a password"},
		{"LOADING", says("-LOADING Redis is loading the dataset in memory\r\n"), "is loading its data"},
		{"READONLY", says("-READONLY You can't write against a read only replica.\r\n"), "is a replica: name its master"},
		{"OOM", says("-OOM command not allowed\r\n"), "is full: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			start := time.Now()
			for _, args := range [][]string{{"status"}, {"pause", "api", "1s"}, {"watch"}, {"reset", "api", "-yes"}} {
				run(t, c.addr, append(args, "-timeout", "300ms")...).want(t, exitFailure, c.want)
			}
			if d := time.Since(start); d > 20*time.Second {
				t.Errorf("took %v", d)
			}
		})
	}
}

// A real Redis refuses for real reasons.
func TestErrorsOfRedis(t *testing.T) {
	addr := startRedis(t, "--requirepass", "secret")
	run(t, addr, "status").want(t, exitFailure, "wants a password")
	run(t, "redis://:wrong@"+addr, "status").want(t, exitFailure, "does not take this user and password")
	run(t, "redis://:secret@"+addr, "status").want(t, exitOK)
	rdb := redis.NewClient(&redis.Options{Addr: addr, Password: "secret"})
	defer rdb.Close()
	if err := rdb.Do(t.Context(), "acl", "setuser", "few", "on", ">few", "~*", "+ping").Err(); err != nil {
		t.Fatal(err)
	}
	run(t, "redis://few:few@"+addr, "status").want(t, exitFailure, "does not let this user do it")
	// All that SECURITY.md says an Admin's user needs, and the version.
	rights := "acl setuser ops on >ops ~pacecar:1:* -@all +eval +evalsha +time +del +hget +hmget +hset +hdel +persist +pexpire " +
		"+zadd +zscore +zrange +zrangebyscore +zrevrangebyscore +zrem +zremrangebyrank +zremrangebyscore " +
		"+hgetall +hlen +zcard +zcount +scan +info"
	var words []any
	for _, word := range strings.Fields(rights) {
		words = append(words, word)
	}
	if err := rdb.Do(t.Context(), words...).Err(); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		"set -new api 1/s", "pause api 1m", "status", "resume api", "reset -yes api", "set api default", "bench -for 30ms",
	} {
		run(t, "redis://ops:ops@"+addr, strings.Fields(args)...).want(t, exitOK)
	}
	if err := rdb.Do(t.Context(), "acl", "setuser", "ops", "-zadd").Err(); err != nil {
		t.Fatal(err)
	}
	run(t, "redis://ops:ops@"+addr, "bench", "-for", "30ms").want(t, exitFailure, "does not let this user do it")
	replica := startRedis(t, "--replicaof", "127.0.0.1", strings.Split(freeAddr(t), ":")[1])
	run(t, replica, "set", "-new", "api", "1/s").want(t, exitFailure, "is a replica")
	run(t, "rediss://"+addr, "status", "-timeout", "300ms").want(t, exitFailure, "redis:// instead of rediss://")
}

// Of a Cluster, one server is enough to find all quotas.
func TestCluster(t *testing.T) {
	addr := startRedis(t, "--cluster-enabled", "yes")
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	if err := rdb.ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if info, err := rdb.ClusterInfo(t.Context()).Result(); err == nil && strings.Contains(info, "cluster_state:ok") {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(info, err)
		}
	}
	for _, spec := range []string{addr, "redis://" + addr, addr + "," + addr} {
		run(t, spec, "set", "-new", "api", "1/s").want(t, exitOK)
		run(t, spec, "pause", "api", "1m").want(t, exitOK)
		run(t, spec, "status").want(t, exitOK, "api\n", "0 of 1", "paused:")
	}
}

func TestNearest(t *testing.T) {
	keys := []string{"api.github.com", "api.openf1.org", "api.stripe.com", "GET api.github.com/search/", "x"}
	for name, want := range map[string]string{
		"api.github.co":  `"api.github.com"`,
		"API.GITHUB.COM": `"api.github.com"`,
		"openf1":         `"api.openf1.org"`,
		"nothing alike":  "",
	} {
		got := strings.Join(nearest(name, keys), ", ")
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("nearest(%q) is %s, want %s", name, got, want)
		}
	}
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "", 3}, {"", "abc", 3}, {"kitten", "sitting", 3}, {"abc", "abc", 0}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("distance(%q, %q) is %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestText(t *testing.T) {
	now := time.Date(2026, 11, 30, 15, 4, 0, 0, time.Local)
	s := &pacecar.Status{
		Key: "api.openf1.org\n", Now: now, Ahead: 14, Last: now.Add(4240 * time.Millisecond), Processes: 2, Booked: 1234,
		Rates: []pacecar.RateUse{
			{Rate: pacecar.Rate{Limit: 3, Per: time.Second}, Used: 2}, {Rate: pacecar.Rate{Limit: 30, Per: time.Minute}, Used: 45},
		},
		PausedUntil: now.Add(26 * time.Hour), Set: pacecar.MustRates("3/s, 30/m"), SetAt: now.Add(-time.Minute),
	}
	const want = `api.openf1.org\n
  3/s   [####################..........]  2 of 3
  30/m  [##############################]  45 of 30
  ahead:      14, the last in 4.2s
  paused:     until 2026-12-01 17:04:00, 26h0m0s more
  set:        3/s, 30/m, at 15:03:00
  processes:  2
  booked:     1234 in all

`
	if got := text(s); got != want {
		t.Errorf("got\n%s", got)
	}
	for _, c := range []struct{ used, limit, hashes int }{
		{0, 5, 0}, {1, 1_000_000_000, 1}, {999, 1000, 29}, {1000, 1000, 30}, {2000, 1000, 30},
	} {
		if got := strings.Count(bar(c.used, c.limit), "#"); got != c.hashes || len(bar(c.used, c.limit)) != 32 {
			t.Errorf("%d of %d: %s", c.used, c.limit, bar(c.used, c.limit))
		}
	}
}
