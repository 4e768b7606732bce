package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/pacecar-go/pacecar"
	"github.com/redis/go-redis/v9"
)

// oldest is the first version of Redis on which a script may ask for the time
// and then write, as pacecar's do.
const oldest = 5

// connect sets rdb, where and admin, or says why Redis cannot be used.
func (t *tool) connect(ctx context.Context) error {
	addrs, o, err := t.options()
	if err != nil {
		return err
	}
	t.where, t.tls = strings.Join(addrs, ","), o.TLSConfig != nil
	if len(addrs) > 1 {
		t.rdb = clusterClient(addrs, o)
	} else {
		t.rdb = redis.NewClient(o)
	}
	if t.admin, err = pacecar.NewAdmin(t.rdb, t.prefix); err != nil {
		return usageError{err}
	}
	ctx, cancel := t.bounded(ctx)
	defer cancel()
	info, err := t.rdb.Info(ctx).Result()
	if err != nil && !isReply(err) { // not every user may ask for it
		return t.explain(err)
	}
	if v := infoField(info, "redis_version"); v != "" {
		major, _, _ := strings.Cut(v, ".")
		if n, err := strconv.Atoi(major); err == nil && n < oldest {
			return fmt.Errorf("Redis at %s is version %s: pacecar needs %d.0 or later", t.where, v, oldest)
		}
	}
	if len(addrs) == 1 && infoField(info, "cluster_enabled") == "1" {
		t.rdb.Close()
		t.rdb = clusterClient(addrs, o)
		if t.admin, err = pacecar.NewAdmin(t.rdb, t.prefix); err != nil {
			return err
		}
	}
	return nil
}

// options reads -redis. The error shows nothing of a URL, which may hold a
// password.
func (t *tool) options() (addrs []string, o *redis.Options, err error) {
	spec := t.redis
	if spec == "" {
		spec = "localhost"
	}
	for part := range strings.SplitSeq(spec, ",") {
		part = strings.TrimSpace(part)
		one := &redis.Options{Addr: part}
		if strings.Contains(part, "://") {
			if one, err = redis.ParseURL(part); err != nil {
				reason := ": " + err.Error()
				if _, isURL := errors.AsType[*url.Error](err); isURL {
					reason = ""
				}
				return nil, nil, usagef("-redis, or REDIS_URL: not a URL of Redis%s", reason)
			}
		} else if _, port, err := net.SplitHostPort(part); err != nil || strings.Contains(port, "/") {
			if part == "" || strings.ContainsAny(part, "@/ ") {
				return nil, nil, usagef("-redis, or REDIS_URL: neither host:port nor a URL such as rediss://user:password@host:6379/0")
			}
			one.Addr = net.JoinHostPort(strings.Trim(part, "[]"), "6379")
		}
		if o == nil {
			o = one
		}
		addrs = append(addrs, one.Addr)
	}
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = t.timeout, t.timeout, t.timeout
	o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true
	o.PoolSize = 2 * processes // for bench
	return addrs, o, nil
}

func clusterClient(addrs []string, o *redis.Options) redis.UniversalClient {
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: addrs, Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig, Protocol: o.Protocol,
		DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
		DialerRetries: o.DialerRetries, ContextTimeoutEnabled: true, PoolSize: o.PoolSize,
	})
}

func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// isReply reports whether Redis itself answered with the error.
func isReply(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

// An explained error says what to do about its cause.
type explained struct {
	text  string
	cause error
}

func (e *explained) Error() string { return e.text + " (" + strings.TrimSpace(e.cause.Error()) + ")" }
func (e *explained) Unwrap() error { return e.cause }

// replies are what Redis refuses with, by the first word.
var replies = map[string]string{
	"NOAUTH":      "Redis at %s wants a password: -redis redis://:PASSWORD@HOST:PORT, or REDIS_URL",
	"WRONGPASS":   "Redis at %s does not take this user and password",
	"NOPERM":      noPermission,
	"LOADING":     "Redis at %s is loading its data: try again soon",
	"READONLY":    "Redis at %s is a replica: name its master",
	"MASTERDOWN":  "Redis at %s is a replica without a master: name another",
	"MOVED":       "Redis at %s is of a Cluster: name several of its servers, separated by commas",
	"CLUSTERDOWN": "the Cluster at %s is not whole",
	"OOM":         "Redis at %s is full: it has reached its maxmemory",
	"MISCONF":     "Redis at %s takes no writes, since it cannot save",
	"NOREPLICAS":  "Redis at %s takes no writes, for lack of replicas",
	"BUSY":        "Redis at %s is busy with a script of somebody's",
}

// noPermission is also for what a script may not do, of which Redis says ERR.
const noPermission = "Redis at %s does not let this user do it: SECURITY.md has the commands and names that it needs"

// explain says what to do about an error of Redis or of the network.
func (t *tool) explain(err error) error {
	var text string
	_, mistake := errors.AsType[usageError](err)
	_, done := errors.AsType[*explained](err)
	reply, isRedis := errors.AsType[redis.Error](err)
	_, isNet := errors.AsType[net.Error](err)
	_, isTLS := errors.AsType[tls.RecordHeaderError](err)
	switch {
	case done, mistake, errors.Is(err, pacecar.ErrUnknownKey), errors.Is(err, context.Canceled):
		return err
	case isTLS:
		text = fmt.Sprintf("Redis at %s speaks no TLS: redis:// instead of rediss://", t.where)
	case errors.Is(err, context.DeadlineExceeded), isNet && isTimeout(err):
		text = fmt.Sprintf("no answer from Redis at %s within %v", t.where, t.timeout)
		if t.tls {
			text += "; without TLS it is redis:// instead of rediss://"
		}
	case isRedis:
		word, _, _ := strings.Cut(reply.Error(), " ")
		form, ok := replies[word]
		switch {
		case ok:
			text = fmt.Sprintf(form, t.where)
		case strings.Contains(reply.Error(), "The user executing the script can't"):
			text = fmt.Sprintf(noPermission, t.where)
		case strings.Contains(reply.Error(), "non deterministic"):
			text = fmt.Sprintf("Redis at %s is too old: pacecar needs version %d.0 or later", t.where, oldest)
		default:
			return err
		}
	case isNet:
		text = fmt.Sprintf("cannot reach Redis at %s; -redis or REDIS_URL says where it is", t.where)
	case errors.Is(err, io.EOF):
		text = fmt.Sprintf("Redis at %s ended the connection: is it Redis, and without TLS (else rediss://)?", t.where)
	case strings.Contains(err.Error(), "redis: can't parse"):
		text = fmt.Sprintf("what answers at %s is not Redis", t.where)
	default:
		return err
	}
	return &explained{text, err}
}

func isTimeout(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}
