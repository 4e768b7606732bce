package sdktest

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/slack-go/slack"

	"github.com/pacecar-go/pacecar"
)

// slackSDK has no retries unless it is told.
var slackSDK = &sdk{
	name: "slack-go",
	client: func(t *testing.T, rt http.RoundTripper, url string, retries bool) func(context.Context) error {
		opts := []slack.Option{
			slack.OptionHTTPClient(&http.Client{Transport: rt}),
			slack.OptionAPIURL(url + "/"),
		}
		if retries {
			opts = append(opts, slack.OptionRetry(3))
		}
		client := slack.New("xoxb-1", opts...)
		return func(ctx context.Context) error {
			_, _, err := client.PostMessageContext(ctx, "C1", slack.MsgOptionText("box, box", false))
			return err
		}
	},
	answer:  `{"ok": true, "channel": "C1", "ts": "1.0"}`,
	limited: `{"ok": false, "error": "ratelimited"}`,
	wait:    map[string]string{"Retry-After": "0"},
	reads:   pacecar.Slack,
	is429: func(err error) bool {
		var e *slack.RateLimitedError
		return errors.As(err, &e)
	},
	own: ownRetries{down: 1, limited: 4, refused: 1, made429: 2, waits: time.Hour},
}
