package sdktest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/pacecar-go/pacecar"
)

// awsSDK asks an error for RetryableError, which is false of a *pacecar.Error,
// before it tries again: compare own.down and own.refused.
var awsSDK = &sdk{
	name: "aws-sdk-go-v2",
	client: func(t *testing.T, rt http.RoundTripper, url string, retries bool) func(context.Context) error {
		client := newS3(rt, url, retries)
		return func(ctx context.Context) error {
			out, err := client.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String("b"), Key: aws.String("k")})
			if err != nil {
				return err
			}
			defer out.Body.Close()
			_, err = io.Copy(io.Discard, out.Body)
			return err
		}
	},
	answer:  `lap 1`,
	limited: `<Error><Code>SlowDown</Code><Message>reduce your request rate</Message></Error>`,
	wait:    map[string]string{"Retry-After": "0.1"},
	is429: func(err error) bool {
		var e *awshttp.ResponseError
		return errors.As(err, &e) && e.HTTPStatusCode() == http.StatusTooManyRequests
	},
	own: ownRetries{down: 3, limited: 3, refused: 1, made429: 3},
}

func newS3(rt http.RoundTripper, url string, retries bool) *s3.Client {
	options := s3.Options{
		HTTPClient:   &http.Client{Transport: rt},
		Retryer:      aws.NopRetryer{},
		BaseEndpoint: aws.String(url),
		Region:       "eu-west-1",
		UsePathStyle: true,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "a", SecretAccessKey: "s"}, nil
		}),
	}
	if retries {
		options.Retryer = nil
	}
	return s3.New(options)
}

// TestAWSBody: the client's bodies have no GetBody, so pacecar sends each once.
// Only the client's own retries can repeat it; then pacecar should have none, so
// that they do not multiply elsewhere.
func TestAWSBody(t *testing.T) {
	for _, c := range []struct {
		name    string
		retries bool
		max     int
		sent    int
		ok      bool
	}{
		{"NopRetryer", false, 0, 1, false},
		{"own retries", true, -1, 2, true},
		{"both", true, 0, 2, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := stack{virtual: true, config: pacecar.Config{Retry: pacecar.Retry{Max: c.max}}}
				st.serve(t, awsSDK, http.StatusTooManyRequests, http.StatusOK)
				_, err := newS3(st.asked, st.url, c.retries).PutObject(t.Context(), &s3.PutObjectInput{
					Bucket: aws.String("b"), Key: aws.String("k"), Body: strings.NewReader("lap 1"),
				})
				if (err == nil) != c.ok || !c.ok && !awsSDK.is429(err) {
					t.Errorf("got %v", err)
				}
				st.wantCounts(t, c.sent, c.sent)
				for i, s := range st.upstream.sendings() {
					if s.body != "lap 1" {
						t.Errorf("sending %d has the body %q", i, s.body)
					}
				}
			})
		})
	}
}

// TestAWSSignature: what pacecar sends again is what was signed before the wait;
// the client's own retry signs anew. AWS takes a signature for five minutes.
func TestAWSSignature(t *testing.T) {
	for _, c := range []struct {
		name    string
		retries bool
		max     int
		anew    bool
	}{
		{"NopRetryer", false, 0, false},
		{"own retries", true, -1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow := *awsSDK
				slow.wait = map[string]string{"Retry-After": "30"}
				st := stack{virtual: true, retries: c.retries, config: pacecar.Config{Retry: pacecar.Retry{Max: c.max}}}
				st.build(t, &slow, http.StatusTooManyRequests, http.StatusOK)
				if err := st.call(t.Context()); err != nil {
					t.Fatal(err)
				}
				sent := st.upstream.sendings()
				if len(sent) != 2 {
					t.Fatalf("%d requests arrived, want 2", len(sent))
				}
				if d := sent[1].at.Sub(sent[0].at); d < 30*time.Second {
					t.Errorf("sent again after %v, want 30s", d)
				}
				first, second := sent[0].header.Get("Authorization"), sent[1].header.Get("Authorization")
				if first == "" || (first != second) != c.anew {
					t.Errorf("signed anew: %v, want %v", first != second, c.anew)
				}
			})
		})
	}
}
