package tour

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pacecar-go/pacecar"
	"github.com/redis/go-redis/v9"
)

// aclUsers returns the users that SECURITY.md defines, as arguments of ACL SETUSER.
func aclUsers(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	users := map[string][]string{}
	joined := strings.NewReplacer("\\\n", " ", "'", "").Replace(string(text))
	for _, m := range regexp.MustCompile(`(?m)^redis-cli ACL SETUSER (.*)$`).FindAllStringSubmatch(joined, -1) {
		words := strings.Fields(m[1])
		users[words[0]] = words
	}
	if len(users) != 2 {
		t.Fatalf("SECURITY.md has the users %v", users)
	}
	return users
}

// TestACLCommands: the users of SECURITY.md may do what the scripts do, and no
// more.
func TestACLCommands(t *testing.T) {
	users := aclUsers(t)
	commands := func(files ...string) []string {
		set := []string{"+eval", "+evalsha"}
		for _, file := range files {
			text, err := os.ReadFile(filepath.Join("../../lua", file))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`call\('([A-Z]+)'`).FindAllStringSubmatch(string(text), -1) {
				set = append(set, "+"+strings.ToLower(m[1]))
			}
		}
		slices.Sort(set)
		return slices.Compact(set)
	}
	fleet := commands("state.lua", "corrections.lua", "reserve.lua")
	admin := append(commands("state.lua", "corrections.lua", "reserve.lua", "status.lua", "set.lua"), "+scan")
	slices.Sort(admin)
	for name, want := range map[string][]string{"pacecar": fleet, "pacecar-admin": admin} {
		var got []string
		for _, word := range users[name] {
			if strings.HasPrefix(word, "+") {
				got = append(got, word)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s\n got %v\nwant %v", name, got, want)
		}
	}
}

// TestACL: as the users of SECURITY.md, a Transport books, gives back, pauses,
// meets other rates, a lost state and an outage, and an Admin does all that it
// can; other names are closed to both.
func TestACL(t *testing.T) {
	rdb := startRedis(t)
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second) // background work waits for an outage to end
	defer stop()
	clients := map[string]*redis.Client{}
	for name, words := range aclUsers(t) {
		args := []any{"ACL", "SETUSER"}
		for _, w := range words {
			args = append(args, w)
		}
		if err := rdb.Do(ctx, args...).Err(); err != nil {
			t.Fatal(err)
		}
		// With go-redis's defaults: what it does by itself must not fail either.
		c := redis.NewClient(&redis.Options{Addr: rdb.Options().Addr, Username: name, Password: "PASSWORD"})
		defer c.Close()
		if err := c.Get(ctx, "other").Err(); !redis.HasErrorPrefix(err, "NOPERM") {
			t.Errorf("%s reads another name: %v", name, err)
		}
		clients[name] = c
	}
	if err := rdb.Do(ctx, "ACL", "LOG", "RESET").Err(); err != nil {
		t.Fatal(err)
	}

	var mu sync.Mutex
	var kinds []pacecar.EventKind
	limited := true
	transport, err := pacecar.New(pacecar.Config{
		Redis: clients["pacecar"],
		Routes: pacecar.Routes{"api.example.com/": {
			Rates: pacecar.MustRates("20/200ms"), Reserve: 2, Outage: pacecar.FailOpen, Replicas: 1,
		}},
		Base: roundTripper(func(req *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			resp := &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: req}
			if limited {
				resp.StatusCode, resp.Header, limited = 429, http.Header{"Retry-After-Ms": {"100"}}, false
			}
			return resp, nil
		}),
		Observe: func(_ context.Context, e pacecar.Event) {
			mu.Lock()
			defer mu.Unlock()
			kinds = append(kinds, e.Kind)
			_, said := errors.AsType[redis.Error](e.Err) // Redis itself: it does not let this user
			if said || e.Kind == pacecar.EventRefused && !errors.Is(e.Err, context.Canceled) {
				t.Errorf("%v: %v", e.Kind, e.Err)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	send := func(ctx context.Context, n int) {
		t.Helper()
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "https://api.example.com/", nil)
				if _, err := transport.RoundTrip(req); err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	admin, err := pacecar.NewAdmin(clients["pacecar-admin"], "")
	if err != nil {
		t.Fatal(err)
	}
	const key = "api.example.com"
	do := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}

	send(ctx, 50) // waits, and a 429 that pauses
	short, cancel := context.WithCancel(ctx)
	time.AfterFunc(20*time.Millisecond, cancel)
	send(short, 60) // gives back
	send(pacecar.Background(ctx), 2)

	keys, err := admin.Keys(ctx)
	if do("Keys", err); !slices.Equal(keys, []string{key}) {
		t.Errorf("keys %q", keys)
	}
	do("SetRates", admin.SetRates(ctx, key, pacecar.MustRates("40/400ms")))
	send(ctx, 5)
	_, err = admin.Pause(ctx, key, time.Hour)
	do("Pause", err)
	do("Resume", admin.Resume(ctx, key))
	do("Reset", admin.Reset(ctx, key))
	_, err = admin.Status(ctx, key)
	do("Status", err)

	do("FLUSHALL", rdb.FlushAll(ctx).Err()) // the scripts too
	send(ctx, 5)
	do("CLIENT PAUSE", rdb.Do(ctx, "CLIENT", "PAUSE", 800, "ALL").Err())
	send(ctx, 5)
	time.Sleep(1500 * time.Millisecond) // it is charged
	send(ctx, 5)

	mu.Lock()
	defer mu.Unlock()
	for _, kind := range []pacecar.EventKind{pacecar.EventPaused, pacecar.EventRates, pacecar.EventLost,
		pacecar.EventDegraded, pacecar.EventRestored} {
		if !slices.Contains(kinds, kind) {
			t.Errorf("no %v among the events", kind)
		}
	}
	denied, err := rdb.Do(ctx, "ACL", "LOG").Slice()
	do("ACL LOG", err)
	for _, entry := range denied {
		t.Errorf("denied: %v", entry)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
