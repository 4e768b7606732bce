package sdktest

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/stripe/stripe-go/v85"
)

var stripeSDK = &sdk{
	name: "stripe-go",
	client: func(t *testing.T, rt http.RoundTripper, url string, retries bool) func(context.Context) error {
		config := &stripe.BackendConfig{
			HTTPClient:        &http.Client{Transport: rt},
			MaxNetworkRetries: stripe.Int64(0),
			URL:               stripe.String(url),
			LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull},
		}
		if retries {
			config.MaxNetworkRetries = nil
		}
		client := stripe.NewClient("sk_test_1", stripe.WithBackends(stripe.NewBackendsWithConfig(config)))
		return func(ctx context.Context) error {
			_, err := client.V1Customers.Create(ctx, &stripe.CustomerCreateParams{Name: stripe.String("Ayrton")})
			return err
		}
	},
	answer:  `{"id": "cus_1", "object": "customer"}`,
	limited: `{"error": {"code": "rate_limit", "message": "too many requests", "type": "invalid_request_error"}}`,
	wait:    map[string]string{"Retry-After": "0.1"},
	is429: func(err error) bool {
		var e *stripe.Error
		return errors.As(err, &e) && e.HTTPStatusCode == http.StatusTooManyRequests
	},
	own: ownRetries{down: 3, limited: 1, refused: 3, made429: 1},
}
