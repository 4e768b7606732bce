package pacecar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// An Outage is what happens to requests while Redis does not answer.
type Outage int

const (
	// FailClosed refuses requests with [ErrUnavailable]. It is the default. A
	// request that has its slot is refused if Redis does not answer when the
	// slot comes.
	FailClosed Outage = iota

	// FailOpen goes on with this process's share of the quota: each Limit
	// divided by Policy.Replicas, and where that is below one, one slot in a
	// window that is longer by as much. All shares together keep every rate; of
	// those below one only the average, so that up to Replicas requests may meet
	// in a window. As the outage begins, a rate with a period above 2 s can be
	// exceeded, once and by the shares at most. A request that costs more than the
	// share ever has is refused. What holds is in docs/outages.md.
	FailOpen
)

// String returns "fail closed" or "fail open".
func (o Outage) String() string {
	switch o {
	case FailClosed:
		return "fail closed"
	case FailOpen:
		return "fail open"
	}
	return "unknown"
}

// A Policy is the rates of one quota, and the choices that go with it. The
// zero value of every field but Rates means its default.
type Policy struct {
	// Rates are what the upstream allows, all of them at once. At least one.
	Rates Rates

	// Name names the quota in Redis, in errors and events, and routes or hosts
	// with one Name share one quota: the nodes of a cluster, say. Up to 200
	// printable bytes without "#", and not the pattern of another route. Empty:
	// the route's host, or its pattern where that says more; each host has a quota
	// of its own.
	Name string

	// Key splits the quota further, say by tenant: requests for which it
	// returns different strings have a quota each, and those for which it returns
	// none share one. The result becomes part of the name in Redis, of errors and
	// events, so it must not be a secret; [ByHeader] hashes. One over 200 bytes,
	// not in UTF-8 or with control characters is hashed too. It is called once for
	// each request, concurrently.
	Key func(*http.Request) string

	// Cost is the number of slots that a request takes; nil means one. A
	// result below one counts as one, a result above a rate's limit is refused
	// with [ErrCostTooHigh]. It is called for each attempt, retries too,
	// concurrently.
	Cost func(*http.Request) int

	// MaxWait bounds how long a request may wait for its slot. When the slot
	// is further away, the request is refused at once with [ErrWaitTooLong]
	// and nothing is charged. Before a retry, a longer wait that the upstream asks
	// for ends the call with its response. Zero: as long as the request's context
	// lives.
	MaxWait time.Duration

	// Slack is how much later than its slot a request may leave and still be
	// counted right; every window is enforced for Per + Slack. Zero means
	// Per/50 for each rate, at least 2 ms and at most 50 ms. It must be shorter
	// than every period.
	Slack time.Duration

	// Lease is the most slots that this process may hold ahead of its
	// requests. Zero lets its recent rate decide, negative turns it off: a
	// round trip for each request or batch of waiting ones.
	Lease int

	// Reserve is how many slots of each rate background work leaves free, so that
	// other requests, up to so many in a window, never wait behind it: see
	// [Background]. Zero: none; it must be below every limit.
	Reserve int

	// Outage is what happens when Redis does not answer.
	Outage Outage

	// Replicas is the most processes that use the quota at the same time. It
	// is required with FailOpen, whose share it sizes, and unused otherwise; up
	// to 100,000.
	Replicas int

	// MaxPause caps how long one answer of the upstream can stop the key for
	// the whole fleet. Zero means 5 minutes.
	MaxPause time.Duration

	// Feedback reads how long the upstream asks to wait from a response in the
	// upstream's own dialect: see [GitHub] and its siblings. ok false means
	// that the response says nothing of the kind; the standard header fields
	// are then read, as they are when Feedback is nil. With ok true, a positive
	// pause is obeyed, and a 4xx, 503 or 529 counts as refused, so that it may
	// be sent again whatever the method; a negative one has passed and counts
	// as the shortest pause, 100 ms; zero on a status of 400 or more means that
	// no wait helps: no pause and, unless Retry.Check says so, no retry; zero on
	// another status says nothing. It is called for every response but a 101,
	// concurrently; it must leave the body readable from its start and not close
	// it.
	Feedback func(*http.Response) (pause time.Duration, ok bool)
}

// Config configures a [Transport]. Only Routes is required.
type Config struct {
	// Redis holds the quotas that the fleet shares: a *redis.Client,
	// *redis.ClusterClient, *redis.Ring or failover client. Nil keeps them in
	// memory, for this Transport alone: two in one process share nothing.
	Redis redis.Scripter

	// Prefix starts the name of every key in Redis. It holds neither braces nor
	// blanks. Empty means "pacecar".
	Prefix string

	// Routes maps patterns of [http.ServeMux] to policies: an optional method,
	// an optional host, and a path, as in "POST api.example.com/v1/". The most
	// specific pattern wins, "/" matches everything, "/v1" matches that path
	// alone and "/v1/" all below it, and two patterns of which neither is more
	// specific are an error. A pattern without a host keeps one quota for each
	// host. The host is that of the request's URL, where the
	// connection goes; one without a port matches every port. A request that
	// matches no pattern passes untouched. [Routes] can be read from JSON or YAML.
	Routes Routes

	// Base sends the requests. Nil means [http.DefaultTransport], as it is at
	// the time of each request; where that leads back to this Transport, the one
	// that there was before. What Base sends of its own with a request's context may
	// take slots of its quota: it should use another.
	Base http.RoundTripper

	// Retry says which requests are sent again.
	Retry Retry

	// RedisTimeout bounds every call to Redis, whatever the client's own
	// settings are. Zero means 250 ms.
	RedisTimeout time.Duration

	// Logger, when set, is told of outages and lost state (Warn), their end,
	// pauses and other rates (Info), the first request that matches no route
	// (Warn), and all that may come with every request (Debug). No secrets.
	Logger *slog.Logger

	// Observe, when set, is called with each event: concurrently, from the
	// goroutines of requests and from the Transport's own. The context is that
	// of the request that the event is about, if there is one, for tracing. It
	// must neither block nor panic.
	Observe func(context.Context, Event)

	// Refuse429 answers what time alone would let pass ([ErrWaitTooLong],
	// [ErrUnavailable], a slot beyond the deadline) with a made-up response of
	// status 429, with a Retry-After in whole seconds, 1 where the wait is not
	// known, instead of an [Error]. For SDKs that try again after every error.
	Refuse429 bool
}

// Retry says which requests a [Transport] sends again, and when. The zero value
// is fit for use.
type Retry struct {
	// Max is the number of retries after the first attempt. Zero means 3,
	// negative none.
	Max int

	// MaxRetryAfter is the longest wait obeyed when the upstream names one. A
	// longer one is never shortened: the response is returned at once, as it is
	// above the policy's MaxWait. Zero means 1 minute.
	MaxRetryAfter time.Duration

	// MinBackoff and MaxBackoff size the wait before a retry when the upstream
	// named none: by chance between 100 ms and a bound that starts with
	// MinBackoff and doubles up to MaxBackoff (exponential, with full jitter). A
	// bound below 100 ms is the wait. Zero means 1 s, or MaxBackoff if that is
	// shorter, and 30 s.
	MinBackoff, MaxBackoff time.Duration

	// Check is for callers who know their API: it may decide whether an
	// attempt is repeated. decided false leaves it to the default, which
	// repeats what the upstream refused for its rate (429; 413 or 503 with a
	// Retry-After; what Feedback says) and what was never sent; and, if the
	// method is idempotent (RFC 9110 §9.2.2) or there is an Idempotency-Key, a
	// 408, 500, 502, 503, 504 and errors of the transport that may be gone the
	// next time. A body that cannot be sent again is never repeated, whatever
	// Check says. It must neither read nor close the response's body.
	Check func(*http.Request, *http.Response, error) (retry, decided bool)
}

// The bounds of the default slack.
const (
	minSlack = 2 * time.Millisecond
	maxSlack = 50 * time.Millisecond
)

// slack returns how late a request may leave under r.
func (p *Policy) slack(r Rate) time.Duration {
	if p.Slack > 0 {
		return p.Slack
	}
	return min(max(r.Per/50, minSlack), maxSlack)
}

// checkDuration returns an error that begins with the field's name.
func checkDuration(name string, d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("%s: must not be negative: %v", name, d)
	}
	if d > 0 && d < time.Microsecond {
		return fmt.Errorf("%s: %v is below a microsecond; a duration has a unit, as in 5*time.Second", name, d)
	}
	return nil
}

// maxReplicas bounds Policy.Replicas, so that a share's window is in range.
const maxReplicas = 100_000

// validate returns an error that begins with the field that is wrong.
func (p *Policy) validate() error {
	if err := p.Rates.validate(); err != nil {
		return fmt.Errorf("Rates: %w", err)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"MaxWait", p.MaxWait}, {"Slack", p.Slack}, {"MaxPause", p.MaxPause}} {
		if err := checkDuration(d.name, d.value); err != nil {
			return err
		}
	}
	for _, r := range p.Rates {
		if p.Reserve >= r.Limit {
			return fmt.Errorf("Reserve: %d must be below the limit of every rate, as of %v", p.Reserve, r)
		}
		if p.Slack >= r.Per {
			return fmt.Errorf("Slack: %v must be shorter than the period of every rate, as of %v", p.Slack, r)
		}
	}
	switch {
	case strings.Contains(p.Name, "#") || p.Name != printable(p.Name):
		return errors.New("Name: must be up to 200 printable bytes without #")
	case p.Outage != FailClosed && p.Outage != FailOpen:
		return fmt.Errorf("Outage: unknown value %d", int(p.Outage))
	case p.Reserve < 0:
		return fmt.Errorf("Reserve: must not be negative: %d", p.Reserve)
	case p.Replicas < 0 || p.Replicas > maxReplicas:
		return fmt.Errorf("Replicas: must be from 0 to %d: %d", maxReplicas, p.Replicas)
	case p.Outage == FailOpen && p.Replicas == 0:
		return errors.New(`Replicas: required with FailOpen ("fail open"), whose share it sizes`)
	}
	return nil
}

// maxPause returns how long one answer may stop the key.
func (p *Policy) maxPause() time.Duration { return cmp.Or(p.MaxPause, 5*time.Minute) }

func (c *Config) prefix() string { return cmp.Or(c.Prefix, "pacecar") }

func (c *Config) redisTimeout() time.Duration { return cmp.Or(c.RedisTimeout, 250*time.Millisecond) }

// validate checks all but Routes.
func (c *Config) validate() error {
	r := &c.Retry
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"RedisTimeout", c.RedisTimeout}, {"Retry.MaxRetryAfter", r.MaxRetryAfter},
		{"Retry.MinBackoff", r.MinBackoff}, {"Retry.MaxBackoff", r.MaxBackoff},
	} {
		if err := checkDuration(d.name, d.value); err != nil {
			return fmt.Errorf("pacecar: %w", err)
		}
	}
	switch {
	case isNilPointer(c.Redis):
		return errors.New("pacecar: Redis: a nil pointer; leave the field nil to go without Redis")
	case isNilPointer(c.Base):
		return errors.New("pacecar: Base: a nil pointer; leave the field nil for http.DefaultTransport")
	case strings.ContainsAny(c.Prefix, "{} \t\r\n"):
		return fmt.Errorf("pacecar: Prefix: must hold neither braces nor blanks: %q", c.Prefix)
	case r.minBackoff() > r.maxBackoff():
		return fmt.Errorf("pacecar: Retry.MinBackoff: %v is above MaxBackoff, %v", r.minBackoff(), r.maxBackoff())
	}
	return nil
}

func (r *Retry) minBackoff() time.Duration {
	return cmp.Or(r.MinBackoff, min(time.Second, r.maxBackoff()))
}

func (r *Retry) maxBackoff() time.Duration { return cmp.Or(r.MaxBackoff, 30*time.Second) }

// isNilPointer reports whether v is a non-nil interface around a nil pointer,
// which would pass for a value and panic at the first request.
func isNilPointer(v any) bool {
	r := reflect.ValueOf(v)
	return v != nil && r.Kind() == reflect.Pointer && r.IsNil()
}
