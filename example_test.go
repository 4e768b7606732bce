package pacecar_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/pacecar-go/pacecar"
	"github.com/redis/go-redis/v9"
)

// upstream stands in for an API, so that the examples need no network. Leave
// Base out to send requests by net/http's own transport.
type upstream struct{}

func (upstream) RoundTrip(req *http.Request) (*http.Response, error) {
	body := io.NopCloser(strings.NewReader("fine\n"))
	return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Body: body, Request: req}, nil
}

// get prints what becomes of a request.
func get(client *http.Client, url string) {
	resp, err := client.Get(url)
	if err != nil {
		fmt.Println("refused:", errors.Is(err, pacecar.ErrWaitTooLong))
		return
	}
	resp.Body.Close()
	fmt.Println(resp.Status)
}

// One host, which allows 3 requests a second and 30 a minute.
func Example() {
	t, err := pacecar.New(pacecar.Config{
		Redis: nil, // a *redis.Client shares the quota with every process that uses it
		Routes: pacecar.Routes{
			"api.openf1.org/": {Rates: pacecar.MustRates("3/s, 30/m")},
		},
		Base: upstream{},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: t}

	resp, err := client.Get("https://api.openf1.org/v1/meetings?year=2024")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
	// Output: 200 OK
}

// Several quotas: the most specific pattern has the request, and "/" has what
// is left, with a quota for each host.
func ExampleNew() {
	t, err := pacecar.New(pacecar.Config{
		Routes: pacecar.Routes{
			"api.example.com/":           {Rates: pacecar.MustRates("100/10s")},
			"POST api.example.com/":      {Rates: pacecar.MustRates("10/10s"), MaxWait: 5 * time.Second},
			"GET api.example.com/search": {Rates: pacecar.MustRates("1/m")},
			"/":                          {Rates: pacecar.MustRates("5/s")},
		},
		Base: upstream{},
		Observe: func(_ context.Context, e pacecar.Event) {
			fmt.Printf("route %-27s quota %s\n", e.Route, e.Key)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: t}

	for _, url := range []string{
		"https://api.example.com/v1/users",
		"https://api.example.com/search?q=pace",
		"https://files.example.com/logo.png",
	} {
		resp, err := client.Get(url)
		if err != nil {
			log.Fatal(err)
		}
		resp.Body.Close()
	}
	// Output:
	// route api.example.com/            quota api.example.com
	// route GET api.example.com/search  quota GET api.example.com/search
	// route /                           quota files.example.com
}

// An SDK takes a Transport through its http.Client. Its own retries are best
// turned off: two layers multiply.
func ExampleTransport_sdk() {
	type SDK struct { // stands in for the client of a real one
		HTTPClient *http.Client
		MaxRetries int
	}
	call := func(sdk *SDK) error {
		resp, err := sdk.HTTPClient.Get("https://api.example.com/v1/users")
		if err != nil {
			return fmt.Errorf("sdk: %w", err)
		}
		return resp.Body.Close()
	}

	t, err := pacecar.New(pacecar.Config{
		Routes: pacecar.Routes{
			"api.example.com/": {Rates: pacecar.MustRates("1/m"), MaxWait: time.Second},
		},
		Base: upstream{},
	})
	if err != nil {
		log.Fatal(err)
	}
	sdk := &SDK{HTTPClient: &http.Client{Transport: t}, MaxRetries: 0}

	fmt.Println(call(sdk))
	if refusal, ok := errors.AsType[*pacecar.Error](call(sdk)); ok {
		fmt.Println("refused by", refusal.Key)
	}
	// Output:
	// <nil>
	// refused by api.example.com
}

// A Limiter paces calls that are not HTTP requests.
func ExampleNewLimiter() {
	limiter, err := pacecar.NewLimiter(nil, "smtp.example.com", pacecar.Policy{
		Rates:   pacecar.MustRates("2/m"),
		MaxWait: time.Second,
	})
	if err != nil {
		log.Fatal(err)
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

// A plain function that waits for its turn, as long as ctx allows.
func ExampleLimiter_Wait() {
	limiter, err := pacecar.NewLimiter(nil, "ldap.example.com", pacecar.Policy{Rates: pacecar.MustRates("20/s")})
	if err != nil {
		log.Fatal(err)
	}
	lookUp := func(ctx context.Context, name string) (string, error) {
		if err := limiter.Wait(ctx); err != nil {
			return "", err
		}
		return "uid=" + name, nil // the call itself: it leaves now
	}

	fmt.Println(lookUp(context.Background(), "ada"))
	// Output: uid=ada <nil>
}

// Each API key has a quota of its own. The key itself goes nowhere: what is
// named in Redis, errors and metrics is a hash of it.
func ExamplePolicy_key() {
	t, err := pacecar.New(pacecar.Config{
		Routes: pacecar.Routes{
			"api.example.com/": {
				Rates:   pacecar.MustRates("1/m"),
				Key:     pacecar.ByHeader("Authorization"),
				MaxWait: time.Second,
			},
		},
		Base: upstream{},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: t}

	for _, token := range []string{"Bearer one", "Bearer two", "Bearer one"} {
		req, err := http.NewRequest(http.MethodGet, "https://api.example.com/", nil)
		if err != nil {
			log.Fatal(err)
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

// While Redis is away, a process goes on with its share: half of the quota, as
// there are at most two. Without FailOpen its requests are refused.
func ExamplePolicy_failOpen() {
	rdb := redis.NewClient(&redis.Options{ // nobody answers it
		Dialer:     func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no route to host") },
		MaxRetries: -1, DialerRetries: 1,
	})
	defer rdb.Close()
	t, err := pacecar.New(pacecar.Config{
		Redis: rdb,
		Routes: pacecar.Routes{
			"open.example.com/": {
				Rates:   pacecar.MustRates("4/m"),
				Outage:  pacecar.FailOpen,
				MaxWait: time.Second, Replicas: 2,
			},
			"closed.example.com/": {Rates: pacecar.MustRates("4/m")},
		},
		Base: upstream{},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: t}

	for range 3 {
		get(client, "https://open.example.com/")
	}
	_, err = client.Get("https://closed.example.com/")
	fmt.Println(errors.Is(err, pacecar.ErrUnavailable))
	// Output:
	// 200 OK
	// 200 OK
	// refused: true
	// true
}

// A backfill takes what others leave, here all but 2 of each 5. It would wait
// for more; with a MaxWait it is refused.
func ExampleBackground() {
	limiter, err := pacecar.NewLimiter(nil, "api.example.com", pacecar.Policy{
		Rates:   pacecar.MustRates("5/m"),
		Reserve: 2,
		MaxWait: time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	backfill := pacecar.Background(context.Background())
	for range 4 {
		fmt.Println("backfill:", limiter.Wait(backfill) == nil)
	}
	fmt.Println("user:", limiter.Wait(context.Background()) == nil)
	// Output:
	// backfill: true
	// backfill: true
	// backfill: true
	// backfill: false
	// user: true
}

// The upstream has raised its limit. The quota goes on with what it has booked.
func ExampleTransport_SetPolicy() {
	policy := pacecar.Policy{Rates: pacecar.MustRates("1/m"), MaxWait: time.Second}
	t, err := pacecar.New(pacecar.Config{
		Routes: pacecar.Routes{"api.example.com/": policy},
		Base:   upstream{},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: t}
	get(client, "https://api.example.com/")
	get(client, "https://api.example.com/")

	policy.Rates = pacecar.MustRates("2/m")
	if err := t.SetPolicy("api.example.com/", policy); err != nil {
		log.Fatal(err)
	}
	get(client, "https://api.example.com/")
	get(client, "https://api.example.com/")
	// Output:
	// 200 OK
	// refused: true
	// 200 OK
	// refused: true
}

// Observe feeds metrics. An event holds nothing secret. Route has as many values
// as there are routes, so that it can be a label as it is; Key has no bound.
func ExampleConfig_observe() {
	var mu sync.Mutex
	count := map[string]int{}
	t, err := pacecar.New(pacecar.Config{
		Routes: pacecar.Routes{
			"/": {Rates: pacecar.MustRates("2/m"), MaxWait: time.Second},
		},
		Base: upstream{},
		Observe: func(_ context.Context, e pacecar.Event) {
			mu.Lock()
			defer mu.Unlock()
			count[e.Route+" "+e.Kind.String()]++
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: t}

	for range 5 {
		if resp, err := client.Get("https://api.example.com/"); err == nil {
			resp.Body.Close()
		}
	}
	fmt.Println(count)
	// Output: map[/ refused:3 / slot:2]
}

// Why a request waits, as it could be shown to whoever asks.
func ExampleTransport_Stats() {
	t, err := pacecar.New(pacecar.Config{
		Routes: pacecar.Routes{
			"api.example.com/": {Rates: pacecar.MustRates("2/m"), MaxWait: time.Second},
		},
		Base: upstream{},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: t}
	for range 3 {
		get(client, "https://api.example.com/")
	}

	for key, s := range t.Stats() {
		fmt.Printf("%s at %v: %d sent, %d refused, %d waiting\n", key, s.Rates, s.Sent, s.Refused, s.Waiting)
	}
	// Output:
	// 200 OK
	// 200 OK
	// refused: true
	// api.example.com at 2/m: 2 sent, 1 refused, 0 waiting
}
