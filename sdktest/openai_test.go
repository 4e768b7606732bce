package sdktest

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/pacecar-go/pacecar"
)

var openaiSDK = &sdk{
	name: "openai-go",
	client: func(t *testing.T, rt http.RoundTripper, url string, retries bool) func(context.Context) error {
		opts := []option.RequestOption{
			option.WithHTTPClient(&http.Client{Transport: rt}),
			option.WithBaseURL(url),
			option.WithAPIKey("k"),
		}
		if !retries {
			opts = append(opts, option.WithMaxRetries(0))
		}
		client := openai.NewClient(opts...)
		return func(ctx context.Context) error {
			_, err := client.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{
				Model:    "m",
				Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("box, box")},
			})
			return err
		}
	},
	answer:  `{"id": "c", "object": "chat.completion", "choices": []}`,
	limited: `{"error": {"code": "rate_limit_exceeded", "message": "too many requests"}}`,
	wait:    map[string]string{"retry-after-ms": "50"},
	reads:   pacecar.OpenAI,
	is429: func(err error) bool {
		var e *openai.Error
		return errors.As(err, &e) && e.StatusCode == http.StatusTooManyRequests
	},
	own: ownRetries{down: 3, limited: 3, refused: 3, made429: 1},
}
