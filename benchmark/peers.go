package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/mennanov/limiters"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislimiter"
	"github.com/throttled/throttled/v2"
	goredisstore "github.com/throttled/throttled/v2/store/goredisstore.v9"
	ulule "github.com/ulule/limiter/v3"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"

	"github.com/pacecar-go/pacecar"
)

// keyOf names a rate in Redis.
func keyOf(r pacecar.Rate) string { return "benchmark:" + r.String() }

func longestFirst(rs pacecar.Rates) pacecar.Rates {
	slices.SortFunc(rs, func(a, b pacecar.Rate) int { return int(b.Per - a.Per) })
	return rs
}

func openScript(job *workerJob, base http.RoundTripper) (http.RoundTripper, error) {
	rdb := job.redis()
	var count atomic.Int64
	return inSequence(job, base, func(r pacecar.Rate) (wait, error) {
		return untilAllowed(func(ctx context.Context) (bool, time.Duration, error) {
			member := fmt.Sprint(job.Worker, ":", count.Add(1))
			us, err := slidingWindow.Run(ctx, rdb, []string{keyOf(r)}, r.Limit, r.Per.Microseconds(), member).Int64()
			return err == nil && us == 0, time.Duration(us) * time.Microsecond, err
		}), nil
	})
}

// openRedisRate uses a burst of the limit, as PerSecond and its siblings do, or
// of one.
func openRedisRate(smooth bool) func(*workerJob, http.RoundTripper) (http.RoundTripper, error) {
	return func(job *workerJob, base http.RoundTripper) (http.RoundTripper, error) {
		l := redis_rate.NewLimiter(job.redis())
		return inSequence(job, base, func(r pacecar.Rate) (wait, error) {
			limit := redis_rate.Limit{Rate: r.Limit, Period: r.Per, Burst: r.Limit}
			if smooth {
				limit.Burst = 1
			}
			return untilAllowed(func(ctx context.Context) (bool, time.Duration, error) {
				res, err := l.Allow(ctx, keyOf(r), limit)
				if err != nil {
					return false, 0, err
				}
				return res.Allowed > 0, res.RetryAfter, nil
			}), nil
		})
	}
}

func openThrottled(job *workerJob, base http.RoundTripper) (http.RoundTripper, error) {
	store, err := goredisstore.NewCtx(job.redis(), "")
	if err != nil {
		return nil, err
	}
	return inSequence(job, base, func(r pacecar.Rate) (wait, error) {
		quota := throttled.RateQuota{MaxRate: throttled.PerDuration(r.Limit, r.Per), MaxBurst: r.Limit - 1}
		l, err := throttled.NewGCRARateLimiterCtx(store, quota)
		if err != nil {
			return nil, err
		}
		// The default of 10 attempts to swap is too few for many callers on a
		// long way to Redis, and ends in an error.
		l.SetMaxCASAttemptsLimit(1000)
		return untilAllowed(func(ctx context.Context) (bool, time.Duration, error) {
			limited, res, err := l.RateLimitCtx(ctx, keyOf(r), 1)
			return err == nil && !limited, res.RetryAfter, err
		}), nil
	})
}

func openUlule(job *workerJob, base http.RoundTripper) (http.RoundTripper, error) {
	store, err := ululeredis.NewStore(job.redis())
	if err != nil {
		return nil, err
	}
	return inSequence(job, base, func(r pacecar.Rate) (wait, error) {
		l := ulule.New(store, ulule.Rate{Period: r.Per, Limit: int64(r.Limit)})
		return untilAllowed(func(ctx context.Context) (bool, time.Duration, error) {
			res, err := l.Get(ctx, keyOf(r))
			// Reset is cut to a whole second, so it can be over already.
			reset := max(time.Until(time.Unix(res.Reset, 0)), 100*time.Millisecond)
			return err == nil && !res.Reached, reset, err
		}), nil
	})
}

func openMennanov(job *workerJob, base http.RoundTripper) (http.RoundTripper, error) {
	rdb := job.redis()
	return inSequence(job, base, func(r pacecar.Rate) (wait, error) {
		// Room for every caller; and its race check instead of its lock, which
		// costs two more round trips and tries again only every 50 to 250 ms.
		backend := limiters.NewLeakyBucketRedis(rdb, keyOf(r), time.Hour, true)
		l := limiters.NewLeakyBucket(1<<30, r.Per/time.Duration(r.Limit), limiters.NewLockNoop(), backend,
			limiters.NewSystemClock(), limiters.NewStdLogger())
		return func(ctx context.Context) error {
			for {
				wait, err := l.Limit(ctx)
				switch {
				case errors.Is(err, limiters.ErrRaceCondition):
					continue
				case err != nil:
					return err
				}
				sleep(ctx, wait)
				return ctx.Err()
			}
		}, nil
	})
}

func openRueidis(job *workerJob, base http.RoundTripper) (http.RoundTripper, error) {
	return inSequence(job, base, func(r pacecar.Rate) (wait, error) {
		l, err := rueidislimiter.NewRateLimiter(rueidislimiter.RateLimiterOption{
			ClientOption: rueidis.ClientOption{InitAddress: []string{job.Redis}},
			Limit:        r.Limit,
			Window:       r.Per,
		})
		if err != nil {
			return nil, err
		}
		return untilAllowed(func(ctx context.Context) (bool, time.Duration, error) {
			res, err := l.Allow(ctx, keyOf(r))
			return err == nil && res.Allowed, time.Until(time.UnixMilli(res.ResetAtMs)), err
		}), nil
	})
}
