//go:build unix

package pacecar

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// TestMain makes a worker of this binary where chaos has started it again.
func TestMain(m *testing.M) {
	logging.Disable() // go-redis writes a line for each connection that is lost
	if order := os.Getenv(chaosWorkerEnv); order != "" {
		chaosWorker(order)
		return
	}
	m.Run()
}

const chaosWorkerEnv = "PACECAR_CHAOS_WORKER" // holds a chaosOrder

const (
	chaosWorkers = 4
	chaosCallers = chaosLimit/chaosWorkers - 1 // in each worker: fewer than its share lets through at once
	chaosLimit   = 100
	chaosPer     = time.Second
	chaosSlack   = 50 * time.Millisecond
	chaosTimeout = time.Second // of Redis: a busy machine is no outage

	// A caller calls no more often than this. All together they ask for a fifth
	// more than there is, evenly, so that there is something to lose at any time.
	chaosEvery = 800 * time.Millisecond
)

// A chaosOrder is what a worker is told.
type chaosOrder struct {
	Worker   int
	URL      string
	Redis    string // an address, or of a Sentinel
	Sentinel bool
	Outage   Outage
}

// A chaosNote is what a worker tells, and what was done to Redis.
type chaosNote struct {
	Worker int
	At     int64 // Unix microseconds
	What   string
	Took   int64 `json:",omitempty"` // microseconds
}

// chaosWorker is a process of the fleet, until its standard input is closed.
func chaosWorker(text string) {
	var order chaosOrder
	if err := json.Unmarshal([]byte(text), &order); err != nil {
		panic(err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	note := func(what string, took time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(chaosNote{order.Worker, time.Now().UnixMicro(), what, took.Microseconds()})
	}
	rdb := redis.NewClient(&redis.Options{Addr: order.Redis})
	if order.Sentinel {
		rdb = redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: watchedName, SentinelAddrs: []string{order.Redis},
		})
	}
	t, err := New(Config{
		Redis: rdb,
		Routes: map[string]Policy{"/": {
			Name: "chaos", Rates: Rates{{chaosLimit, chaosPer}}, Slack: chaosSlack,
			Outage: order.Outage, Replicas: chaosWorkers,
		}},
		Retry: Retry{Max: -1}, RedisTimeout: chaosTimeout,
		Base: chaosStamp{order.Worker, &http.Transport{MaxIdleConnsPerHost: chaosCallers}},
		Observe: func(_ context.Context, e Event) {
			switch e.Kind {
			case EventSlot:
				if e.Late > chaosSlack {
					note("late", e.Late)
				}
			case EventDegraded:
				note(fmt.Sprintf("degraded: %v", e.Err), 0)
			case EventRestored:
				note("restored", e.Wait)
			}
		},
	})
	if err != nil {
		panic(err)
	}
	for range chaosCallers {
		go chaosCaller(&http.Client{Transport: t}, order.URL, note)
	}
	select {}
}

func chaosCaller(client *http.Client, url string, note func(string, time.Duration)) {
	time.Sleep(rand.N(chaosEvery))
	for {
		began := time.Now()
		req, err := http.NewRequest("GET", url, nil)
		if err != nil {
			panic(err)
		}
		req.Header.Set("X-Began", strconv.FormatInt(began.UnixMicro(), 10))
		resp, err := client.Do(req)
		switch {
		case errors.Is(err, ErrUnavailable):
			note("unavailable", time.Since(began))
			time.Sleep(50 * time.Millisecond)
		case err != nil:
			note("failed: "+err.Error(), time.Since(began))
			time.Sleep(50 * time.Millisecond)
		default:
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			time.Sleep(chaosEvery - time.Since(began))
		}
	}
}

// chaosStamp is a Base that tells the upstream when a request has entered it. It
// keeps httptrace from the real one, so that a request leaves as it enters.
type chaosStamp struct {
	worker int
	base   http.RoundTripper
}

func (s chaosStamp) RoundTrip(req *http.Request) (*http.Response, error) {
	left := time.Now().UnixMicro()
	req = req.Clone(context.Background())
	req.Header.Set("X-Left", strconv.FormatInt(left, 10))
	req.Header.Set("X-Worker", strconv.Itoa(s.worker))
	return s.base.RoundTrip(req)
}

// A chaosFleet is the workers of one test, their strict upstream, and what both
// have seen. Times are Unix microseconds.
type chaosFleet struct {
	t        *testing.T
	upstream *httptest.Server
	began    int64
	stops    []func() // end the workers

	mu    sync.Mutex
	calls []chaosCall
	notes []chaosNote
}

// A chaosCall is a request as the upstream got it.
type chaosCall struct {
	worker               int
	began, left, arrived int64
}

// startChaos starts the workers, and returns when a window has been full.
func startChaos(t *testing.T, order chaosOrder) *chaosFleet {
	t.Helper()
	f := &chaosFleet{t: t, began: time.Now().UnixMicro()}
	f.upstream = httptest.NewServer(f)
	t.Cleanup(f.upstream.Close)
	order.URL = f.upstream.URL
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for i := range chaosWorkers {
		order.Worker = i
		f.startWorker(binary, order)
	}
	eventually(t, "all workers work, and a window has been full", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		n := make([]int, chaosWorkers)
		for _, c := range f.calls {
			n[c.worker]++
		}
		return slices.Min(n) > 0 && len(f.calls) > chaosLimit*3/2
	})
	return f
}

// startWorker starts a worker process.
func (f *chaosFleet) startWorker(binary string, order chaosOrder) {
	f.t.Helper()
	text, err := json.Marshal(order)
	if err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), chaosWorkerEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for in := json.NewDecoder(stdout); ; {
			var n chaosNote
			if in.Decode(&n) != nil {
				return
			}
			f.mu.Lock()
			f.notes = append(f.notes, n)
			f.mu.Unlock()
		}
	}()
	stop := sync.OnceFunc(func() {
		stdin.Close()
		unresponsive := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
		defer unresponsive.Stop()
		<-read
		if err := cmd.Wait(); err != nil {
			f.t.Errorf("worker %d: %v", order.Worker, err)
		}
	})
	f.t.Cleanup(stop)
	f.stops = append(f.stops, stop)
}

// ServeHTTP is the upstream.
func (f *chaosFleet) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	arrived := time.Now().UnixMicro()
	number := func(name string) int64 {
		n, err := strconv.ParseInt(r.Header.Get(name), 10, 64)
		if err != nil {
			f.t.Errorf("the upstream got %s: %v", name, err)
		}
		return n
	}
	c := chaosCall{int(number("X-Worker")), number("X-Began"), number("X-Left"), arrived}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, c)
}

// mark notes what is being done to Redis, and returns when.
func (f *chaosFleet) mark(what string) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now().UnixMicro()
	f.notes = append(f.notes, chaosNote{Worker: -1, At: now, What: what})
	return now
}

// check stops the workers. Then it checks every window of what left, and of what
// arrived; allowed says how many may leave in the one that begins at from. And it
// checks that work went on to the end.
func (f *chaosFleet) check(allowed func(from int64) int) {
	f.t.Helper()
	end := time.Now().UnixMicro()
	for _, stop := range f.stops {
		stop()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.notes {
		if strings.HasPrefix(n.What, "failed") {
			f.t.Errorf("worker %d at %s: %s", n.Worker, f.at(n.At), n.What)
		}
	}
	var way, wait int64
	recent, per := 0, chaosPer.Microseconds()
	for _, c := range f.calls {
		way, wait = max(way, c.arrived-c.left), max(wait, c.left-c.began)
		if c.left > end-2*per {
			recent++
		}
	}
	most := f.windows("left", func(c chaosCall) int64 { return c.left }, f.late, allowed)
	late := f.late(f.began, end)
	f.windows("arrived", func(c chaosCall) int64 { return c.arrived },
		func(int64, int64) int64 { return way + late },
		func(arrived int64) int { return max(allowed(arrived), allowed(arrived-way)) })
	f.t.Logf("%d requests in %v, %d in the last %v, at most %d in a window; waits up to %v; up to %v later than the slack, and %v on the way",
		len(f.calls), duration(end-f.began), recent, 2*chaosPer, most, duration(wait), duration(late), duration(way))
	if recent < chaosLimit/2 {
		f.t.Errorf("only %d requests in the last %v\n%s", recent, 2*chaosPer, f.around(end-4*per, end))
	}
}

// late returns how much later than its slack a request left about then, as the
// library itself tells: the windows around it are only kept for so much less. A
// busy machine does that. It requires mu.
func (f *chaosFleet) late(from, to int64) (most int64) {
	const about = 100_000
	for _, n := range f.notes {
		if n.What == "late" && n.At > from-about && n.At < to+about {
			most = max(most, n.Took-chaosSlack.Microseconds())
		}
	}
	return most
}

// windows checks every window of the calls' times, and returns the most in one.
// leeway says how much shorter one is to be. It requires mu.
func (f *chaosFleet) windows(what string, when func(chaosCall) int64, leeway func(from, to int64) int64,
	allowed func(from int64) int) (most int) {
	f.t.Helper()
	slices.SortFunc(f.calls, func(a, b chaosCall) int { return cmp.Compare(when(a), when(b)) })
	over, first, last := 0, int64(0), int64(0)
	for i, c := range f.calls {
		from, to := when(c), when(c)+chaosPer.Microseconds()
		to -= leeway(from, to)
		n := sort.Search(len(f.calls)-i, func(j int) bool { return when(f.calls[i+j]) >= to })
		most = max(most, n)
		if more := n - allowed(from); more > over {
			over, first, last = more, from, to
		}
	}
	if over > 0 {
		f.t.Errorf("%d more than may %s in the %v from %s\n%s",
			over, what, duration(last-first), f.at(first), f.around(first, last))
	}
	return most
}

// waits checks that work went on to the end of an outage, and that nobody waited
// for longer than it takes to find out that Redis is away, and then for the share:
// there are fewer callers than that has, so for one window at most.
func (f *chaosFleet) waits(from, to int64) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	bound := chaosTimeout + lookAfter + chaosPer + chaosSlack
	longest, n, last := int64(0), 0, 0
	for _, c := range f.calls {
		if c.left > from && c.left < to {
			n, longest = n+1, max(longest, c.left-c.began)
			if c.left > to-micros(chaosPer+chaosSlack) {
				last++
			}
		}
	}
	f.t.Logf("%d requests in %v without Redis, %d of them in its last window, after up to %v, of %v",
		n, duration(to-from), last, duration(longest), bound)
	// What they had waited before, and the machine.
	if tolerance := time.Second; last == 0 || duration(longest) > bound+tolerance {
		f.t.Errorf("without Redis, %d requests left in its last window, any after up to %v\n%s",
			last, duration(longest), f.around(from, to))
	}
}

// at writes a time out.
func (f *chaosFleet) at(us int64) string { return duration(us - f.began).String() }

// around tells what happened from a second before a time to another. It requires mu.
func (f *chaosFleet) around(from, to int64) string {
	var b strings.Builder
	for worker := -1; worker < chaosWorkers; worker++ {
		if worker < 0 {
			fmt.Fprintf(&b, "  Redis:\n")
		} else {
			fmt.Fprintf(&b, "  worker %d:\n", worker)
		}
		for _, n := range f.notes {
			if n.Worker == worker && n.At > from-1_000_000 && n.At < to && n.What != "unavailable" {
				fmt.Fprintf(&b, "    %s %s %v\n", f.at(n.At), n.What, duration(n.Took))
			}
		}
		var left []string
		for _, c := range f.calls {
			if c.worker == worker && c.left >= from && c.left < to {
				left = append(left, f.at(c.left))
			}
		}
		if worker >= 0 {
			fmt.Fprintf(&b, "    %d left: %s\n", len(left), strings.Join(left, " "))
		}
	}
	return b.String()
}
