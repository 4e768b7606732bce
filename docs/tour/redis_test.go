package tour

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// need skips the test where a program is missing, unless PACECAR_REQUIRE_name=1.
func need(t *testing.T, program, name string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		if os.Getenv("PACECAR_REQUIRE_"+name) == "1" {
			t.Fatalf("PACECAR_REQUIRE_%s=1, and there is no %s on PATH", name, program)
		}
		t.Skipf("no %s on PATH; PACECAR_REQUIRE_%s=1 makes this a failure", program, name)
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

// startRedis starts a redis-server that ends with the test, and returns a client
// of its default user.
func startRedis(t *testing.T) *redis.Client {
	t.Helper()
	need(t, "redis-server", "REDIS")
	addr := freeAddr(t)
	host, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command("redis-server", "--bind", host, "--port", port, "--save", "", "--dir", t.TempDir())
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	rdb := redis.NewClient(&redis.Options{Addr: addr, DialerRetries: 1})
	t.Cleanup(func() { rdb.Close() })
	for deadline := time.Now().Add(10 * time.Second); rdb.Ping(t.Context()).Err() != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("redis-server does not answer\n%s", out.String())
		}
	}
	return rdb
}
