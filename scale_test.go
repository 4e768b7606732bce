package pacecar

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A farWindow is the window in memory as a fleet sees one in Redis: it takes
// time to reach.
type farWindow struct {
	*local
	trip time.Duration // one way
}

func (w farWindow) exchange(ctx context.Context, q *query) (*answer, error) {
	time.Sleep(w.trip)
	a, err := w.local.exchange(ctx, q)
	time.Sleep(w.trip)
	return a, err
}

// TestScale runs 1,000 processes of 10 greedy callers on one key, which is as
// many as wait for 10 seconds each. PACECAR_SCALE=1 makes it an hour of virtual
// time on the Go window, and a quarter of one on the script: some minutes in all.
func TestScale(t *testing.T) {
	long := os.Getenv("PACECAR_SCALE") == "1"
	for _, c := range []struct {
		name        string
		processes   int
		last, least time.Duration // virtual time when long, and else
	}{
		{"local", 1000, time.Hour, 20 * time.Second},
		{"script", 1000, 15 * time.Minute, 3 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				last := c.least
				if long {
					last = c.last
				}
				p := Policy{Rates: MustRates("1000/s")}
				far := farWindow{newLocal(p.bounds()), 200 * time.Microsecond}
				m := newMini()
				var clients []redis.Scripter // a client has connections for 16 calls at a time
				tr := newTrace()
				limiters := make([]*Limiter, c.processes)
				for i := range limiters {
					if i%16 == 0 {
						clients = append(clients, dialMini(t, m))
					}
					limiters[i] = mustLimiter(t, clients[i/16], "k", p)
					if c.name == "local" {
						limiters[i].window = far
					}
				}
				// No deadline: who knows that its slot lies beyond one is refused at once.
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(last, cancel)
				var wg sync.WaitGroup
				for i, l := range limiters {
					for range 10 {
						wg.Go(func() {
							for ctx.Err() == nil {
								if l.Wait(ctx) == nil {
									tr.add(i, 1)
								}
							}
						})
					}
				}
				start := time.Now()
				wg.Wait()
				took := time.Since(start)
				time.Sleep(time.Second) // what the cancelled had booked goes back
				tr.check(t, p.Rates)
				var trips, hits uint64
				for _, l := range limiters {
					trips += l.Stats().RoundTrips
					hits += l.Stats().LocalHits
				}
				n := len(tr.left)
				t.Logf("%d in %v: %.3f of the quota, %.2f round trips each, Jain %.3f, %d local hits",
					n, took, float64(n)/(1000*(took.Seconds()+1)), float64(trips)/float64(n), tr.jain(), hits)
				if float64(n) < 0.96*1000*took.Seconds() {
					t.Errorf("%d in %v", n, took)
				}
				if per := float64(trips) / float64(n); per > 3 { // at the start, all book and all look
					t.Errorf("%.2f round trips each", per)
				}
				if took >= 20*time.Second && tr.jain() < 0.95 {
					t.Errorf("Jain's index of the processes is %.3f", tr.jain())
				}
			})
		})
	}
}
