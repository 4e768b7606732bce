package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A redisServer is a redis-server of our own, that keeps nothing on disk.
type redisServer struct {
	addr  string
	dir   string
	rdb   *redis.Client
	cmd   *exec.Cmd // nil: not running
	spent commandStats
}

// commandStats are calls and time by command, as INFO commandstats has them.
type commandStats map[string]commandStat

type commandStat struct{ calls, micros int64 }

func (s commandStats) add(more commandStats) {
	for name, m := range more {
		s[name] = commandStat{s[name].calls + m.calls, s[name].micros + m.micros}
	}
}

// of sums up some commands.
func (s commandStats) of(names []string) (sum commandStat) {
	for _, name := range names {
		sum.calls += s[name].calls
		sum.micros += s[name].micros
	}
	return sum
}

// startRedis starts a redis-server on a free port.
func startRedis(ctx context.Context) (*redisServer, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "pacecar-benchmark-")
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	s := &redisServer{addr: listener.Addr().String(), dir: dir, spent: commandStats{}}
	_ = listener.Close() // the port is free now, and still when the server wants it, if all goes well
	s.rdb = redis.NewClient(&redis.Options{Addr: s.addr})
	if err := s.start(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// start starts the server, empty, and waits until it answers.
func (s *redisServer) start(ctx context.Context) error {
	host, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		return err
	}
	cmd := exec.Command("redis-server", "--bind", host, "--port", port, "--save", "", "--appendonly", "no", "--dir", s.dir)
	if err := cmd.Start(); err != nil {
		return err
	}
	s.cmd = cmd
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		err := s.rdb.Ping(ctx).Err()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return fmt.Errorf("redis-server: %w", err)
		}
	}
}

// kill kills the server, after a look at its statistics, which die with it.
func (s *redisServer) kill(ctx context.Context) error {
	stats, err := s.stats(ctx)
	s.spent.add(stats)
	s.stop()
	return err
}

func (s *redisServer) stop() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// close ends the server and removes its folder.
func (s *redisServer) close() {
	s.stop()
	_ = s.rdb.Close()
	_ = os.RemoveAll(s.dir)
}

func (s *redisServer) stats(ctx context.Context) (commandStats, error) {
	text, err := s.rdb.Info(ctx, "commandstats").Result()
	return parseCommandStats(text), err
}

// parseCommandStats reads lines such as
// cmdstat_evalsha:calls=12,usec=345,usec_per_call=28.75,...
func parseCommandStats(text string) commandStats {
	stats := commandStats{}
	for line := range strings.Lines(text) {
		name, fields, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "cmdstat_"), ":")
		if !ok {
			continue
		}
		var s commandStat
		for field := range strings.SplitSeq(fields, ",") {
			key, value, _ := strings.Cut(field, "=")
			n, _ := strconv.ParseInt(value, 10, 64)
			switch key {
			case "calls":
				s.calls = n
			case "usec":
				s.micros = n
			}
		}
		stats[name] = s
	}
	return stats
}
