package sdktest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"

	"github.com/pacecar-go/pacecar"
)

// azureSDK asks an error whether it is errorinfo.NonRetriable, as
// *pacecar.Error is, before it tries again: compare own.down and own.refused.
var azureSDK = &sdk{
	name: "azcore",
	client: func(t *testing.T, rt http.RoundTripper, url string, retries bool) func(context.Context) error {
		retry := policy.RetryOptions{MaxRetries: -1}
		if retries {
			retry.MaxRetries = 0
		}
		pipeline := newPipeline(rt, retry)
		return func(ctx context.Context) error {
			req, err := runtime.NewRequest(ctx, http.MethodPost, url+"/laps")
			if err != nil {
				return err
			}
			if err = runtime.MarshalAsJSON(req, map[string]int{"lap": 1}); err != nil {
				return err
			}
			resp, err := pipeline.Do(req)
			if err != nil {
				return err
			}
			if !runtime.HasStatusCode(resp, http.StatusOK) {
				return runtime.NewResponseError(resp)
			}
			return nil
		}
	},
	answer:  `{}`,
	limited: `{"error": {"code": "TooManyRequests", "message": "too many requests"}}`,
	wait:    map[string]string{"x-ms-retry-after-ms": "50"},
	reads:   pacecar.Azure,
	is429: func(err error) bool {
		var e *azcore.ResponseError
		return errors.As(err, &e) && e.StatusCode == http.StatusTooManyRequests
	},
	own: ownRetries{down: 4, limited: 4, refused: 1, made429: 1},
}

func newPipeline(rt http.RoundTripper, retry policy.RetryOptions) runtime.Pipeline {
	return runtime.NewPipeline("sdktest", "v1.0.0", runtime.PipelineOptions{}, &policy.ClientOptions{
		Transport: &http.Client{Transport: rt},
		Retry:     retry,
	})
}

// TestAzureFile: azcore's GetBody gives the body itself, rewound, and whoever
// sends it closes it. So a file is sent again once, and then the second 429 is
// final. streaming.NopCloser keeps it open.
func TestAzureFile(t *testing.T) {
	for _, c := range []struct {
		name   string
		wrap   func(*os.File) io.ReadSeekCloser
		sent   int
		status int
	}{
		{"file", func(f *os.File) io.ReadSeekCloser { return f }, 2, http.StatusTooManyRequests},
		{"NopCloser", func(f *os.File) io.ReadSeekCloser { return streaming.NopCloser(f) }, 3, http.StatusOK},
	} {
		t.Run(c.name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "laps")
			if err := os.WriteFile(name, []byte("lap 1"), 0o600); err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				file, err := os.Open(name)
				if err != nil {
					t.Fatal(err)
				}
				defer file.Close()
				st := stack{virtual: true}
				st.serve(t, azureSDK, http.StatusTooManyRequests, http.StatusTooManyRequests, http.StatusOK)
				pipeline := newPipeline(st.asked, policy.RetryOptions{MaxRetries: -1})
				req, err := runtime.NewRequest(t.Context(), http.MethodPut, st.url+"/laps")
				if err != nil {
					t.Fatal(err)
				}
				if err = req.SetBody(c.wrap(file), "text/plain"); err != nil {
					t.Fatal(err)
				}
				resp, err := pipeline.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				if resp.StatusCode != c.status {
					t.Errorf("got status %d, want %d", resp.StatusCode, c.status)
				}
				st.wantCounts(t, 1, c.sent)
			})
		})
	}
}
