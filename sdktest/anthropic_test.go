package sdktest

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"

	"github.com/pacecar-go/pacecar"
)

var anthropicSDK = &sdk{
	name: "anthropic-sdk-go",
	client: func(t *testing.T, rt http.RoundTripper, url string, retries bool) func(context.Context) error {
		opts := []option.RequestOption{
			option.WithoutEnvironmentDefaults(),
			option.WithHTTPClient(&http.Client{Transport: rt}),
			option.WithBaseURL(url),
			option.WithAPIKey("k"),
		}
		if !retries {
			opts = append(opts, option.WithMaxRetries(0))
		}
		client := anthropic.NewClient(opts...)
		return func(ctx context.Context) error {
			_, err := client.Messages.New(ctx, anthropic.MessageNewParams{
				Model:     "m",
				MaxTokens: 1,
				Messages:  []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("box, box"))},
			})
			return err
		}
	},
	answer:  `{"id": "m", "type": "message", "role": "assistant", "content": []}`,
	limited: `{"type": "error", "error": {"type": "rate_limit_error", "message": "too many requests"}}`,
	wait:    map[string]string{"retry-after-ms": "50"},
	reads:   pacecar.Anthropic,
	is429: func(err error) bool {
		var e *anthropic.Error
		return errors.As(err, &e) && e.StatusCode == http.StatusTooManyRequests
	},
	own: ownRetries{down: 3, limited: 3, refused: 3, made429: 2, waits: time.Hour},
}
