package migrate

import (
	"context"
	"net/http"
	"time"

	"github.com/pacecar-go/pacecar"
	"github.com/redis/go-redis/v9"
)

// AfterRedisRate returns a client that waits. What is left of a call is client.Do(req).
func AfterRedisRate(rdb *redis.Client) (*http.Client, error) {
	t, err := pacecar.New(pacecar.Config{
		Redis: rdb,
		Routes: pacecar.Routes{
			"api.example.com/": {Rates: pacecar.MustRates("10/s")},
		},
	})
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: t}, nil
}

// AfterTimeRate returns a limiter with the whole quota.
func AfterTimeRate(rdb *redis.Client) (*pacecar.Limiter, error) {
	return pacecar.NewLimiter(rdb, "api.example.com", pacecar.Policy{
		Rates:    pacecar.MustRates("60/m"),
		Outage:   pacecar.FailOpen, // while Redis is away, as before:
		Replicas: 4,                // the quota, divided by 4 processes
	})
}

// AfterTimeRateCall waits with it.
func AfterTimeRateCall(ctx context.Context, limiter *pacecar.Limiter, req *http.Request) (*http.Response, error) {
	if err := limiter.Wait(ctx); err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(req)
}

// AfterSleep has a client whose Transport holds "3/s".
func AfterSleep(client *http.Client, urls []string, use func(*http.Response)) error {
	for _, url := range urls {
		resp, err := client.Get(url)
		if err != nil {
			return err
		}
		use(resp)
	}
	return nil
}

// AfterRetry returns a client that tries again. What is left of a call is one client.Do(req).
func AfterRetry(rdb *redis.Client) (*http.Client, error) {
	t, err := pacecar.New(pacecar.Config{
		Redis:  rdb,
		Routes: pacecar.Routes{"api.example.com/": {Rates: pacecar.MustRates("10/s")}},
		Retry:  pacecar.Retry{Max: 3, MaxRetryAfter: time.Minute}, // the defaults
	})
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: t}, nil
}
