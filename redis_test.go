package pacecar

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A server is a redis-server that a test started.
type server struct {
	t    testing.TB
	addr string
	args []string
	mu   sync.Mutex
	cmd  *exec.Cmd
}

// startRedis starts redis-server on a free port, keeping nothing on disk. It
// skips the test where there is no redis-server, unless
// PACECAR_REQUIRE_REDIS=1.
func startRedis(t testing.TB, args ...string) *server {
	t.Helper()
	needRedis(t)
	s := &server{t: t, addr: freeAddr(t), args: args}
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

func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// start starts the server, or starts it again with nothing kept.
func (s *server) start() {
	s.t.Helper()
	host, port, _ := strings.Cut(s.addr, ":")
	args := append([]string{"--bind", host, "--port", port, "--save", "", "--appendonly", "no",
		"--dir", s.t.TempDir(), "--enable-debug-command", "yes"}, s.args...)
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
		err := rdb.Ping(context.Background()).Err()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.kill()
			s.t.Fatalf("redis-server does not answer: %v\n%s", err, out.String())
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
