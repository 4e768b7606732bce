package sdktest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/elastic/elastic-transport-go/v8/elastictransport"

	"github.com/pacecar-go/pacecar"
)

// elasticSDK hands every response to its caller as it is; its error for a
// status is the test's own, in the way of go-elasticsearch.
var elasticSDK = &sdk{
	name: "elastic-transport-go",
	client: func(t *testing.T, rt http.RoundTripper, addr string, retries bool) func(context.Context) error {
		var opts []elastictransport.Option
		if !retries {
			opts = append(opts, elastictransport.WithDisableRetry())
		}
		client := newElastic(t, rt, opts, addr)
		return func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/laps/_search", nil)
			if err != nil {
				return err
			}
			resp, err := client.Perform(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return elasticStatus(resp.StatusCode)
			}
			return nil
		}
	},
	answer:  `{}`,
	limited: `{"error": {"type": "es_rejected_execution_exception"}, "status": 429}`,
	wait:    map[string]string{"Retry-After": "0.1"},
	is429: func(err error) bool {
		var e elasticStatus
		return errors.As(err, &e) && e == http.StatusTooManyRequests
	},
	own: ownRetries{down: 4, limited: 1, refused: 4, made429: 1},
}

type elasticStatus int

func (s elasticStatus) Error() string { return fmt.Sprintf("elastic: status %d", int(s)) }

func newElastic(t *testing.T, rt http.RoundTripper, opts []elastictransport.Option, nodes ...string) *elastictransport.Client {
	t.Helper()
	urls := make([]*url.URL, len(nodes))
	for i, node := range nodes {
		var err error
		if urls[i], err = url.Parse(node); err != nil {
			t.Fatal(err)
		}
	}
	opts = append(opts, elastictransport.WithURLs(urls...), elastictransport.WithTransport(rt))
	client, err := elastictransport.NewClient(opts...)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestElasticNodes: the route "/" gives each node a quota of its own, and the
// client takes a refusal for a broken node, which it leaves out for a minute.
// Refuse429 leaves the node alone.
func TestElasticNodes(t *testing.T) {
	t.Parallel()
	for _, made429 := range []bool{false, true} {
		u := &upstream{sdk: elasticSDK, statuses: []int{http.StatusOK}}
		st := stack{base: u, scarce: true, config: pacecar.Config{Refuse429: made429}}
		st.serve(t, elasticSDK)
		client := newElastic(t, st.asked,
			[]elastictransport.Option{elastictransport.WithDisableRetry(), elastictransport.WithMetrics()},
			"http://a.test", "http://b.test")
		for call := range 3 {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/laps/_search", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Perform(req)
			switch {
			case call < 2 || made429:
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
			case err == nil:
				t.Error("the third call was not refused")
			}
		}
		sent := u.sendings()
		if len(sent) != 2 || sent[0].host == sent[1].host {
			t.Errorf("got %d sendings, want one to each node", len(sent))
		}
		metrics, err := client.Metrics()
		if err != nil {
			t.Fatal(err)
		}
		dead := 0
		for _, c := range metrics.Connections {
			if c.(elastictransport.ConnectionMetric).IsDead {
				dead++
			}
		}
		if want := map[bool]int{false: 1, true: 0}[made429]; dead != want {
			t.Errorf("Refuse429 %v: %d nodes are taken for dead, want %d", made429, dead, want)
		}
	}
}

// TestElasticBody: with its retries disabled the client leaves a body as it is,
// so pacecar sends one without GetBody once. With retries for nothing it gives
// each body a GetBody.
func TestElasticBody(t *testing.T) {
	t.Parallel()
	never := func(*http.Request, error) bool { return false }
	for _, c := range []struct {
		name   string
		opts   []elastictransport.Option
		status int
		sent   int
	}{
		{"disabled", []elastictransport.Option{elastictransport.WithDisableRetry()}, http.StatusTooManyRequests, 1},
		{"for nothing", []elastictransport.Option{
			elastictransport.WithRetryOnError(never), elastictransport.WithRetryOnStatus(0),
		}, http.StatusOK, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var st stack
			st.serve(t, elasticSDK, http.StatusTooManyRequests, http.StatusOK)
			client := newElastic(t, st.asked, c.opts, st.url)
			// MultiReader, so that net/http does not know the body and sets no GetBody.
			body := io.MultiReader(strings.NewReader(`{"lap": 1}`))
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/laps/_doc", body)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Perform(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != c.status {
				t.Errorf("got status %d, want %d", resp.StatusCode, c.status)
			}
			st.wantCounts(t, 1, c.sent)
		})
	}
}
