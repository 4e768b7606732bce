package sdktest

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/oauth2"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
	"google.golang.org/api/storage/v1"
	htransport "google.golang.org/api/transport/http"

	"github.com/pacecar-go/pacecar"
)

// googleSDK tries nothing again unless WithRetry says so, which uploads have.
var googleSDK = &sdk{
	name: "googleapis",
	client: func(t *testing.T, rt http.RoundTripper, url string, retries bool) func(context.Context) error {
		service := newStorage(t, rt, url)
		return func(ctx context.Context) error {
			_, err := service.Buckets.Get("b").Context(ctx).Do()
			return err
		}
	},
	answer:  `{"name": "b"}`,
	limited: `{"error": {"code": 429, "message": "rateLimitExceeded"}}`,
	wait:    map[string]string{"Retry-After": "0.1"},
	is429: func(err error) bool {
		var e *googleapi.Error
		return errors.As(err, &e) && e.Code == http.StatusTooManyRequests
	},
	own: ownRetries{down: 1, limited: 1, refused: 1, made429: 1},
}

var googleToken = oauth2.StaticTokenSource(&oauth2.Token{AccessToken: "t"})

func newStorage(t *testing.T, rt http.RoundTripper, url string) *storage.Service {
	t.Helper()
	authorized, err := htransport.NewTransport(t.Context(), rt, option.WithTokenSource(googleToken))
	if err != nil {
		t.Fatal(err)
	}
	service, err := storage.NewService(t.Context(),
		option.WithHTTPClient(&http.Client{Transport: authorized}), option.WithEndpoint(url+"/storage/v1/"))
	if err != nil {
		t.Fatal(err)
	}
	return service
}

// TestGoogleCredentials: NewTransport puts the credentials above pacecar, for
// each attempt. WithHTTPClient alone drops them without a word.
func TestGoogleCredentials(t *testing.T) {
	t.Parallel()
	st := new(stack).build(t, googleSDK, http.StatusTooManyRequests, http.StatusOK)
	if err := st.call(t.Context()); err != nil {
		t.Fatal(err)
	}
	bare, err := storage.NewService(t.Context(), option.WithTokenSource(googleToken),
		option.WithHTTPClient(&http.Client{Transport: st.asked}), option.WithEndpoint(st.url+"/storage/v1/"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err = bare.Buckets.Get("b").Context(t.Context()).Do(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range st.upstream.sendings() {
		got = append(got, s.header.Get("Authorization"))
	}
	if want := []string{"Bearer t", "Bearer t", ""}; !slices.Equal(got, want) {
		t.Errorf("Authorization was %q, want %q", got, want)
	}
}

// TestGoogleUpload: with WithRetry an upload is tried again after errors that are
// Temporary, which a refusal is not. Without it, a 429 is pacecar's.
func TestGoogleUpload(t *testing.T) {
	upload := func(ctx context.Context, service *storage.Service, retries bool) error {
		call := service.Objects.Insert("b", &storage.Object{Name: "k"}).Media(strings.NewReader("lap 1")).Context(ctx)
		if retries {
			call.WithRetry(nil, nil)
		}
		_, err := call.Do()
		return err
	}
	for _, retries := range []bool{true, false} {
		t.Run(map[bool]string{true: "WithRetry", false: "without"}[retries], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := stack{virtual: true, scarce: true}
				st.build(t, googleSDK, http.StatusOK)
				if err := st.call(t.Context()); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err := upload(ctx, newStorage(t, st.asked, st.url), retries)
				var refusal *pacecar.Error
				if !errors.As(err, &refusal) {
					t.Errorf("got %v, want a *pacecar.Error", err)
				}
				st.wantCounts(t, 2, 1) // WithRetry asks Temporary()
			})
		})
	}
	t.Run("429", func(t *testing.T) {
		t.Parallel()
		var st stack
		st.serve(t, googleSDK, http.StatusTooManyRequests, http.StatusOK)
		if err := upload(t.Context(), newStorage(t, st.asked, st.url), false); err != nil {
			t.Fatal(err)
		}
		st.wantCounts(t, 1, 2)
	})
}
