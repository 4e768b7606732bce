package pacecar

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A server is a redis-server that a test started.
type server struct {
	t      testing.TB
	addr   string
	args   []string
	config string // the file of a Sentinel, which takes no other arguments
	mu     sync.Mutex
	cmd    *exec.Cmd
}

// startRedis starts redis-server on a free port, keeping nothing on disk. It
// skips the test where there is no redis-server, unless
// PACECAR_REQUIRE_REDIS=1.
func startRedis(t testing.TB, args ...string) *server {
	t.Helper()
	needRedis(t)
	return startServer(t, &server{addr: freeAddr(t), args: args})
}

func startServer(t testing.TB, s *server) *server {
	t.Helper()
	s.t = t
	s.start()
	t.Cleanup(s.kill)
	return s
}

func needRedis(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("PACECAR_REQUIRE_REDIS") == "1" {
			t.Fatal("PACECAR_REQUIRE_REDIS=1, and there is no redis-server on PATH")
		}
		t.Skip("no redis-server on PATH; PACECAR_REQUIRE_REDIS=1 makes this a failure")
	}
}

// given are the addresses that freeAddr has returned.
var given sync.Map

// freeAddr returns an address whose port is free, and the one 10,000 above it, for
// the bus of a cluster. Both are below those that systems give to clients, so that
// a server that is started again finds its own free.
func freeAddr(t testing.TB) string {
	t.Helper()
	for range 1000 {
		port := 12_000 + rand.IntN(10_000)
		addr := localAddr(port)
		if _, again := given.LoadOrStore(addr, true); !again && isFree(addr) && isFree(localAddr(port+10_000)) {
			return addr
		}
	}
	t.Fatal("no free port")
	return ""
}

func localAddr(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

func isFree(addr string) bool {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// start starts the server, or starts it again with nothing kept.
func (s *server) start() {
	s.t.Helper()
	host, port, _ := strings.Cut(s.addr, ":")
	args := append([]string{"--bind", host, "--port", port, "--save", "", "--appendonly", "no",
		"--dir", s.t.TempDir(), "--enable-debug-command", "yes"}, s.args...)
	if s.config != "" {
		args = []string{s.config, "--sentinel"}
	}
	cmd := exec.Command("redis-server", args...)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	s.cmd = cmd
	s.mu.Unlock()
	rdb := s.client()
	defer rdb.Close()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		info, err := rdb.Info(context.Background(), "server").Result()
		if err == nil && strings.Contains(info, fmt.Sprintf("process_id:%d\r\n", cmd.Process.Pid)) {
			return
		}
		if time.Now().After(deadline) {
			s.kill()
			s.t.Fatalf("this redis-server does not answer: %v\n%s\n%s", err, info, out.String())
		}
	}
}

// kill ends the server by its own process id, without a farewell.
func (s *server) kill() {
	s.mu.Lock()
	cmd := s.cmd
	s.cmd = nil
	s.mu.Unlock()
	if cmd != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

func (s *server) client() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: s.addr, MaxRetries: -1})
}

// port returns the server's port as a number.
func (s *server) port() int {
	_, p, _ := net.SplitHostPort(s.addr)
	n, _ := strconv.Atoi(p)
	return n
}

// eventually waits until what is true, which it must be soon.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not true after 20 s: %s", what)
		}
	}
}

// watchedName is what the Sentinel of a watched calls its master.
const watchedName = "mymaster"

// watched is a master with a replica, and a Sentinel that has the replica take its
// place when it is told to: left to itself, it would take anything from half a
// second to two.
type watched struct{ master, replica, sentinel *server }

func startWatched(t testing.TB) *watched {
	t.Helper()
	w := &watched{master: startRedis(t, "--repl-diskless-sync-delay", "0")}
	port := strconv.Itoa(w.master.port())
	w.replica = startRedis(t, "--replicaof", "127.0.0.1", port)
	rdb := w.replica.client()
	defer rdb.Close()
	eventually(t, "the replica has its master's data", func() bool {
		info, err := rdb.Info(t.Context(), "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up")
	})

	dir := t.TempDir()
	s := &server{addr: freeAddr(t), config: filepath.Join(dir, "sentinel.conf")}
	config := fmt.Sprintf(`bind 127.0.0.1
port %d
dir %s
sentinel monitor %[3]s 127.0.0.1 %[4]s 1
sentinel down-after-milliseconds %[3]s 60000
sentinel failover-timeout %[3]s 5000
`, s.port(), dir, watchedName, port)
	if err := os.WriteFile(s.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	w.sentinel = startServer(t, s)
	watch := w.watcher()
	defer watch.Close()
	eventually(t, "the sentinel knows the replica", func() bool {
		replicas, err := watch.Replicas(t.Context(), watchedName).Result()
		return err == nil && len(replicas) == 1 && replicas[0]["flags"] == "slave"
	})
	return w
}

func (w *watched) watcher() *redis.SentinelClient {
	return redis.NewSentinelClient(&redis.Options{Addr: w.sentinel.addr})
}

// failOver has the Sentinel notice that the master is gone, and waits until the
// replica has taken its place. That must not have been without a master for ten
// times as long as the Sentinel waits.
func (w *watched) failOver() {
	t := w.replica.t
	t.Helper()
	watch := w.watcher()
	defer watch.Close()
	if err := watch.Set(context.Background(), watchedName, "down-after-milliseconds", "2000").Err(); err != nil {
		t.Fatal(err)
	}
	rdb := w.replica.client()
	defer rdb.Close()
	eventually(t, "the replica is a master", func() bool {
		role, err := rdb.Do(context.Background(), "role").Slice()
		return err == nil && len(role) > 0 && role[0] == "master"
	})
}
