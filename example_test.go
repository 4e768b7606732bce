package pacecar_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/pacecar-go/pacecar"
)

// upstream stands in for an API, so that the examples need no network. Leave
// Base out to send requests by net/http's own transport.
type upstream struct{}

func (upstream) RoundTrip(req *http.Request) (*http.Response, error) {
	body := io.NopCloser(strings.NewReader("fine\n"))
	return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Body: body, Request: req}, nil
}

func ExampleNew() {
	t, err := pacecar.New(pacecar.Config{
		Redis: nil, // a *redis.Client shares the quotas with every process that uses it
		Routes: map[string]pacecar.Policy{
			"api.openf1.org/":       {Rates: pacecar.MustRates("3/s, 30/m")},
			"POST api.example.com/": {Rates: pacecar.MustRates("100/10s"), MaxWait: 5 * time.Second},
		},
		Base: upstream{},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: t}

	resp, err := client.Get("https://api.openf1.org/v1/meetings?year=2024")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
	// Output: 200 OK
}

// A Limiter paces calls that are not HTTP requests.
func ExampleNewLimiter() {
	limiter, err := pacecar.NewLimiter(nil, "smtp.example.com", pacecar.Policy{
		Rates:   pacecar.MustRates("2/m"),
		MaxWait: time.Second,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, mail := range []string{"first", "second", "third"} {
		if err := limiter.Wait(context.Background()); errors.Is(err, pacecar.ErrWaitTooLong) {
			fmt.Println(mail, "not sent:", pacecar.ErrWaitTooLong)
			continue
		}
		fmt.Println(mail, "sent")
	}
	// Output:
	// first sent
	// second sent
	// third not sent: the wait for a slot is too long
}

// Each API key has a quota of its own. The key itself goes nowhere: what is
// named in Redis, errors and metrics is a hash of it.
func ExamplePolicy_key() {
	t, err := pacecar.New(pacecar.Config{
		Routes: map[string]pacecar.Policy{
			"api.example.com/": {
				Rates:   pacecar.MustRates("1/m"),
				Key:     pacecar.ByHeader("Authorization"),
				MaxWait: time.Second,
			},
		},
		Base: upstream{},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: t}

	for _, token := range []string{"Bearer one", "Bearer two", "Bearer one"} {
		req, err := http.NewRequest(http.MethodGet, "https://api.example.com/", nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		req.Header.Set("Authorization", token)
		resp, err := client.Do(req)
		if refusal, ok := errors.AsType[*pacecar.Error](err); ok {
			fmt.Println("refused; the next slot is in about", refusal.Wait.Round(time.Minute))
			continue
		}
		resp.Body.Close()
		fmt.Println(resp.Status)
	}
	// Output:
	// 200 OK
	// 200 OK
	// refused; the next slot is in about 1m0s
}

// Observe feeds metrics. An event holds nothing secret, so that its Key and Kind
// can be labels as they are.
func ExampleConfig_observe() {
	var mu sync.Mutex
	count := map[string]int{}
	t, err := pacecar.New(pacecar.Config{
		Routes: map[string]pacecar.Policy{
			"/": {Rates: pacecar.MustRates("2/m"), MaxWait: time.Second},
		},
		Base: upstream{},
		Observe: func(_ context.Context, e pacecar.Event) {
			mu.Lock()
			defer mu.Unlock()
			count[e.Key+" "+e.Kind.String()]++
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: t}

	for range 5 {
		if resp, err := client.Get("https://api.example.com/"); err == nil {
			resp.Body.Close()
		}
	}
	fmt.Println(count)
	// Output: map[api.example.com refused:3 api.example.com slot:2]
}
