package sdktest

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pacecar-go/pacecar"
)

// An sdk is one client under test. Its fields are its line in docs/sdks.md.
type sdk struct {
	name string

	// client returns one call of the client, whose requests go through rt to
	// the server at url. With retries false its own retries are off, as
	// docs/sdks.md advises. With retries true they are on: the default, or
	// where the default is none, an option of the client.
	client func(t *testing.T, rt http.RoundTripper, url string, retries bool) func(context.Context) error

	// The bodies of a 200 and of a 429.
	answer, limited string

	// wait is how the API names a wait on a 429, and reads, the policy's
	// Feedback, is the dialect that it is written in.
	wait  map[string]string
	reads func(*http.Response) (time.Duration, bool)

	// is429 reports whether err is the client's own error for a 429.
	is429 func(err error) bool

	// own is how often one call of the client asks for a round trip while its
	// own retries are on: what it takes to have none.
	own ownRetries
}

type ownRetries struct {
	down    int // nobody listens at the address, each time
	limited int // the upstream answers 429, each time
	refused int // pacecar refuses, each time
	made429 int // pacecar refuses with Config.Refuse429, each time

	// waits is how long the client at least sleeps on a made-up 429, which names
	// an hour. After an hour the next round trip has its slot, and succeeds.
	waits time.Duration
}

var sdks = []*sdk{
	anthropicSDK, awsSDK, azureSDK, elasticSDK, githubSDK, googleSDK, openaiSDK, slackSDK, stripeSDK, vaultSDK,
}

// each runs f for all clients at the same time.
func each(t *testing.T, f func(t *testing.T, s *sdk)) {
	for _, s := range sdks {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			f(t, s)
		})
	}
}

// TestCall: a call is one sending.
func TestCall(t *testing.T) {
	each(t, func(t *testing.T, s *sdk) {
		st := new(stack).build(t, s, http.StatusOK)
		if err := st.call(t.Context()); err != nil {
			t.Fatal(err)
		}
		st.wantCounts(t, 1, 1)
	})
}

// TestRetry: a 429 and then a 200 are two sendings of the same bytes, the second
// by pacecar and after the wait, and the client knows of one.
func TestRetry(t *testing.T) {
	each(t, func(t *testing.T, s *sdk) {
		st := new(stack).build(t, s, http.StatusTooManyRequests, http.StatusOK)
		if err := st.call(t.Context()); err != nil {
			t.Fatal(err)
		}
		st.wantCounts(t, 1, 2)
		if t.Failed() {
			return
		}
		sent := st.upstream.sendings()
		if sent[0].body != sent[1].body {
			t.Errorf("the bodies differ: %q, %q", sent[0].body, sent[1].body)
		}
		// Every wait of this table is 50 or 100 ms, which pacecar takes for 100.
		if d := sent[1].at.Sub(sent[0].at); d < 90*time.Millisecond {
			t.Errorf("sent again after %v, before the wait of 100 ms", d)
		}
	})
}

// TestRefusal: a call that is refused gives pacecar's error, and sends nothing.
func TestRefusal(t *testing.T) {
	each(t, func(t *testing.T, s *sdk) {
		st := (&stack{scarce: true}).build(t, s, http.StatusOK)
		if err := st.call(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := st.call(t.Context())
		var refusal *pacecar.Error
		if !errors.As(err, &refusal) || !errors.Is(err, pacecar.ErrWaitTooLong) {
			t.Fatalf("the client returned %T %v, want a *pacecar.Error", err, err)
		}
		if refusal.Wait < 59*time.Minute || refusal.Key == "" {
			t.Errorf("the refusal lost its wait or key: %+v", refusal)
		}
		st.wantCounts(t, 2, 1)
	})
}

// TestRefuse429: with Config.Refuse429 the client takes a refusal for its API's
// own 429, and sends nothing.
func TestRefuse429(t *testing.T) {
	each(t, func(t *testing.T, s *sdk) {
		st := (&stack{scarce: true, config: pacecar.Config{Refuse429: true}}).build(t, s, http.StatusOK)
		if err := st.call(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := st.call(t.Context())
		if !s.is429(err) {
			t.Errorf("the client returned %T %v, want its own error for a 429", err, err)
		}
		st.wantCounts(t, 2, 1)
	})
}

// TestOwnRetries: without the advice of docs/sdks.md the client tries again
// above pacecar, and two retrying layers multiply; with it, never, and a refusal
// takes no time.
func TestOwnRetries(t *testing.T) {
	each(t, func(t *testing.T, s *sdk) {
		for _, c := range []struct {
			name  string
			stack stack
			n     int // round trips that the client asks for
			sent  int // sendings for each, by pacecar
		}{
			{"down", stack{base: down{}, config: pacecar.Config{Retry: pacecar.Retry{Max: -1}}}, s.own.down, 0},
			{"limited", stack{}, s.own.limited, 4},
			{"refused", stack{scarce: true}, s.own.refused, 0},
			{"made429", stack{scarce: true, config: pacecar.Config{Refuse429: true}}, s.own.made429, 0},
		} {
			for _, retries := range []bool{true, false} {
				name, n := c.name+"/on", c.n
				if !retries {
					name, n = c.name+"/off", 1
				}
				t.Run(name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						st, first := c.stack, 0
						st.virtual, st.retries = true, retries
						if st.scarce {
							st.build(t, s, http.StatusOK)
							if err := st.call(t.Context()); err != nil {
								t.Fatal(err)
							}
							first = 1
						} else {
							st.build(t, s, http.StatusTooManyRequests)
						}
						start := time.Now()
						err := st.call(t.Context())
						took := time.Since(start)

						sent, ok := first+n*c.sent, false
						if c.name == "made429" && retries {
							if ok = s.own.waits >= time.Hour; ok {
								sent++
							}
							if took < s.own.waits {
								t.Errorf("the call took %v, want %v", took, s.own.waits)
							}
						}
						if (err == nil) != ok {
							t.Errorf("the call gave %v", err)
						}
						st.wantCounts(t, first+n, sent)
						if !retries && c.sent == 0 && took > 0 {
							t.Errorf("the call took %v of virtual time, want none", took)
						}
					})
				})
			}
		}
	})
}
