package sdktest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-github/v92/github"

	"github.com/pacecar-go/pacecar"
)

// githubSDK never tries again. It does keep books of the API's headers, and
// refuses calls by them, which the advice turns off: pacecar waits instead.
var githubSDK = &sdk{
	name: "go-github",
	client: func(t *testing.T, rt http.RoundTripper, url string, retries bool) func(context.Context) error {
		client := newGitHub(t, rt, url, github.WithDisableRateLimitCheck())
		return func(ctx context.Context) error {
			_, _, err := client.Repositories.Get(ctx, "o", "r")
			return err
		}
	},
	answer:  `{"id": 1}`,
	limited: `{"message": "API rate limit exceeded"}`,
	wait:    map[string]string{"Retry-After": "0.1"},
	reads:   pacecar.GitHub,
	is429: func(err error) bool {
		var e *github.ErrorResponse
		return errors.As(err, &e) && e.Response.StatusCode == http.StatusTooManyRequests
	},
	own: ownRetries{down: 1, limited: 1, refused: 1, made429: 1},
}

func newGitHub(t *testing.T, rt http.RoundTripper, url string, opts ...github.ClientOptionsFunc) *github.Client {
	t.Helper()
	opts = append(opts, github.WithHTTPClient(&http.Client{Transport: rt}), github.WithURLs(&url, nil))
	client, err := github.NewClient(opts...)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestGitHubArchiveLink: go-github asks the transport itself for an archive's
// link, which is the Location of a 302. A transport that follows redirects gives
// it none (go-retryablehttp#128).
func TestGitHubArchiveLink(t *testing.T) {
	t.Parallel()
	var st stack
	st.serve(t, githubSDK, http.StatusFound)
	const link = "https://codeload.test/o/r/legacy.tar.gz"
	st.upstream.header = http.Header{"Location": {link}}
	url, _, err := newGitHub(t, st.asked, st.url).Repositories.GetArchiveLink(
		t.Context(), "o", "r", github.Tarball, nil, 0)
	if err != nil || url.String() != link {
		t.Errorf("got %v, %v; want %s", url, err, link)
	}
	st.wantCounts(t, 1, 1)
}

// TestGitHubArchiveLinkRefused: called like that, there is no http.Client to
// time out; MaxWait bounds the wait (go-github#4584).
func TestGitHubArchiveLinkRefused(t *testing.T) {
	t.Parallel()
	st := stack{scarce: true}
	st.serve(t, githubSDK, http.StatusOK)
	client := newGitHub(t, st.asked, st.url)
	if _, _, err := client.Repositories.Get(t.Context(), "o", "r"); err != nil {
		t.Fatal(err)
	}
	_, _, err := client.Repositories.GetArchiveLink(t.Context(), "o", "r", github.Tarball, nil, 0)
	var refusal *pacecar.Error
	if !errors.As(err, &refusal) {
		t.Errorf("got %v, want a *pacecar.Error", err)
	}
	st.wantCounts(t, 2, 1)
}

// TestGitHubRateLimitCheck: after an answer with nothing remaining, go-github
// fails calls until the reset without sending; WithDisableRateLimitCheck leaves
// that to pacecar.
func TestGitHubRateLimitCheck(t *testing.T) {
	t.Parallel()
	for _, off := range []bool{false, true} {
		var st stack
		st.serve(t, githubSDK, http.StatusOK)
		st.upstream.header = http.Header{
			"X-Ratelimit-Remaining": {"0"},
			"X-Ratelimit-Reset":     {fmt.Sprint(time.Now().Add(time.Hour).Unix())},
		}
		var opts []github.ClientOptionsFunc
		if off {
			opts = append(opts, github.WithDisableRateLimitCheck())
		}
		client := newGitHub(t, st.asked, st.url, opts...)
		if _, _, err := client.Repositories.Get(t.Context(), "o", "r"); err != nil {
			t.Fatal(err)
		}
		_, _, err := client.Repositories.Get(t.Context(), "o", "r")
		var local *github.RateLimitError
		if errors.As(err, &local) == off {
			t.Errorf("check off: %v: the second call gave %v", off, err)
		}
		sent := 1
		if off {
			sent = 2
		}
		st.wantCounts(t, sent, sent)
	}
}
