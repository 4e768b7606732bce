package main

import (
	"context"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"

	"github.com/pacecar-go/pacecar"
)

// ours is the name of the adapter that the others are compared with.
const ours = "pacecar"

// An adapter sets a limiter up as a competent user of it would.
type adapter struct {
	name  string
	about string // what is limiting, and how it is configured

	// open puts the limiter of one process around base. Nil for the limiter
	// that is not in Go.
	open func(job *workerJob, base http.RoundTripper) (http.RoundTripper, error)

	// trips are the commands, as INFO names them, of which there is one in
	// each round trip to Redis. INFO counts the commands that a script calls
	// like those that a client sends, so this cannot be read from it. cost are
	// the commands whose time is the limiter's; that of a script has in it
	// what it calls.
	trips, cost []string
}

// scripts are the trips and the cost of a limiter that calls only scripts.
var scripts = []string{"eval", "evalsha", "evalsha_ro", "fcall", "script|load", "script|exists"}

// adapters are in the order of the table.
var adapters = []adapter{
	{name: ours, about: "this library's Transport, own default settings",
		open: openPacecar, trips: scripts, cost: scripts},
	{name: "retry-after", about: "no limiter: Retry-After is obeyed, as everybody here does",
		open: func(_ *workerJob, base http.RoundTripper) (http.RoundTripper, error) { return base, nil }},
	{name: "x/time/rate", about: "golang.org/x/time/rate, burst 1, the quota divided by the number of processes",
		open: openDivided},
	{name: "script", about: "the sorted-set script that everybody writes, sleep as told, try again",
		open: openScript, trips: scripts, cost: scripts},
	{name: "redis_rate", about: "go-redis/redis_rate, PerSecond(limit), sleep as told, try again",
		open: openRedisRate(false), trips: scripts, cost: scripts},
	{name: "redis_rate-1", about: "the same with a burst of 1",
		open: openRedisRate(true), trips: scripts, cost: scripts},
	{name: "throttled", about: "throttled/throttled, GCRA with a burst of the limit, sleep as told, try again",
		// GET travels with TIME, in one pipeline.
		open: openThrottled, trips: []string{"time", "setnx", "set", "expire", "eval"},
		cost: []string{"time", "get", "setnx", "set", "expire", "eval"}},
	{name: "ulule", about: "ulule/limiter, fixed window, sleep until its reset, try again",
		open: openUlule, trips: scripts, cost: scripts},
	{name: "mennanov", about: "mennanov/limiters, leaky bucket with its race check, sleep as told",
		// A GET, and then an EVAL that calls GET once: as many GETs as trips.
		open: openMennanov, trips: []string{"get"}, cost: []string{"get", "eval"}},
	{name: "rueidislimiter", about: "redis/rueidis/rueidislimiter, fixed window, sleep until its reset, try again",
		open: openRueidis, trips: scripts, cost: scripts},
	{name: bottleneckName, about: "Bottleneck in Node, clustered through Redis, minTime, and a reservoir for a rate of whole 5 s",
		trips: scripts, cost: scripts},
}

func (a adapter) title() string { return a.name }

func adapterByName(name string) *adapter {
	for i := range adapters {
		if adapters[i].name == name {
			return &adapters[i]
		}
	}
	return nil
}

func openPacecar(job *workerJob, base http.RoundTripper) (http.RoundTripper, error) {
	policy := pacecar.Policy{Rates: job.rates()}
	if job.FailOpen {
		policy.Outage, policy.Replicas = pacecar.FailOpen, job.Processes
	}
	return pacecar.New(pacecar.Config{
		Redis:  job.redis(),
		Routes: map[string]pacecar.Policy{"/": policy},
		Base:   base,
	})
}

func (j *workerJob) redis() *redis.Client { return redis.NewClient(&redis.Options{Addr: j.Redis}) }

func (j *workerJob) rates() (rs pacecar.Rates) {
	for _, r := range j.Rates {
		rs = append(rs, pacecar.Rate{Limit: r.Limit, Per: r.Per})
	}
	return rs
}

// A wait returns when the caller may send.
type wait func(context.Context) error

// waiting is a RoundTripper that waits before each request.
type waiting struct {
	waits []wait // in this order
	base  http.RoundTripper
}

func (w *waiting) RoundTrip(req *http.Request) (*http.Response, error) {
	for _, wait := range w.waits {
		if err := wait(req.Context()); err != nil {
			return nil, err
		}
	}
	return w.base.RoundTrip(req)
}

// inSequence makes a wait for each rate, for limiters that know only one. The
// one with the shortest period comes last, so that least time passes between it
// and the sending.
func inSequence(job *workerJob, base http.RoundTripper, open func(r pacecar.Rate) (wait, error)) (http.RoundTripper, error) {
	w := &waiting{base: base}
	for _, r := range longestFirst(job.rates()) {
		wait, err := open(r)
		if err != nil {
			return nil, err
		}
		w.waits = append(w.waits, wait)
	}
	return w, nil
}

// untilAllowed asks until it is allowed, and sleeps as it is told in between.
func untilAllowed(ask func(context.Context) (allowed bool, wait time.Duration, err error)) wait {
	return func(ctx context.Context) error {
		for {
			allowed, wait, err := ask(ctx)
			if allowed || err != nil {
				return err
			}
			// Some tell a wait of zero at the edge of a window.
			if !sleep(ctx, max(wait, time.Millisecond)) {
				return ctx.Err()
			}
		}
	}
}

func openDivided(job *workerJob, base http.RoundTripper) (http.RoundTripper, error) {
	return inSequence(job, base, func(r pacecar.Rate) (wait, error) {
		share := float64(r.Limit) / r.Per.Seconds() / float64(job.Processes)
		return rate.NewLimiter(rate.Limit(share), 1).Wait, nil
	})
}

// slidingWindow is the script of countless posts, with Redis's own clock.
// KEYS[1]: the window. ARGV: limit, period in µs, a unique member. Returns how
// long to wait in µs, 0 for go.
var slidingWindow = redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local limit, per = tonumber(ARGV[1]), tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - per)
if redis.call('ZCARD', KEYS[1]) < limit then
  redis.call('ZADD', KEYS[1], now, ARGV[3])
  redis.call('PEXPIRE', KEYS[1], math.ceil(per / 1000))
  return 0
end
local oldest = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
return math.max(1, oldest[2] + per - now)
`)
