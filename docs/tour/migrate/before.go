// Package migrate holds the code of docs/migrate.md, so that it compiles.
package migrate

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"golang.org/x/time/rate"
)

// BeforeRedisRate waits with redis_rate.
func BeforeRedisRate(ctx context.Context, limiter *redis_rate.Limiter, req *http.Request) (*http.Response, error) {
	for {
		res, err := limiter.Allow(ctx, "api.example.com", redis_rate.PerSecond(10))
		if err != nil {
			return nil, err
		}
		if res.Allowed > 0 {
			return http.DefaultClient.Do(req)
		}
		time.Sleep(res.RetryAfter)
	}
}

// 60 a minute, divided by 4 processes.
var share = rate.NewLimiter(rate.Every(4*time.Second), 1)

// BeforeTimeRate waits with a part of the quota.
func BeforeTimeRate(ctx context.Context, req *http.Request) (*http.Response, error) {
	if err := share.Wait(ctx); err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(req)
}

// BeforeSleep sleeps between calls.
func BeforeSleep(urls []string, use func(*http.Response)) error {
	for _, url := range urls {
		resp, err := http.Get(url)
		if err != nil {
			return err
		}
		use(resp)
		time.Sleep(350 * time.Millisecond) // 3 a second
	}
	return nil
}

// BeforeRetry sleeps as a 429 says.
func BeforeRetry(req *http.Request) (*http.Response, error) {
	for attempt := 1; ; attempt++ {
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode != http.StatusTooManyRequests || attempt == 4 {
			return resp, err
		}
		resp.Body.Close()
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		time.Sleep(time.Duration(seconds) * time.Second)
	}
}
