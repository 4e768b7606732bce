package pacecar

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrUnknownKey says that Redis has nothing of a quota: no process has used it
// for about a minute and for longer than its longest window, or it has another
// name or prefix.
var ErrUnknownKey = errors.New("no such quota in Redis")

var (
	//go:embed lua/status.lua
	statusLua string
	//go:embed lua/set.lua
	setLua string

	statusScript = redis.NewScript(statusLua)
	setScript    = redis.NewScript(setLua)
)

const (
	// alive is how long ago a process must have been heard to count.
	alive = time.Minute

	// maxKeys is how many quotas Keys returns.
	maxKeys = 100_000

	// adminTries is how often an Admin tries what others keep changing.
	adminTries = 5
)

// An Admin looks at the quotas of a fleet and steers them, from outside of it.
// The command pacecar does so from a terminal. It books no slot, and needs
// nothing of the processes but that they use the same Redis.
//
// It is made by [NewAdmin], and safe for concurrent use. Calls take as long as
// their context and the client allow. Errors of Redis are wrapped.
type Admin struct {
	rdb    redis.UniversalClient
	prefix string
}

// NewAdmin returns an Admin of the quotas in rdb whose names begin with prefix;
// an empty one means "pacecar", as in [Config]. It does not dial.
func NewAdmin(rdb redis.UniversalClient, prefix string) (*Admin, error) {
	if rdb == nil || isNilPointer(rdb) {
		return nil, errors.New("pacecar: Redis: must not be nil")
	}
	c := Config{Redis: rdb, Prefix: prefix}
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Admin{rdb, c.prefix()}, nil
}

// Several servers are visited one by one.
type (
	cluster interface {
		ForEachMaster(context.Context, func(context.Context, *redis.Client) error) error
	}
	ring interface {
		ForEachShard(context.Context, func(context.Context, *redis.Client) error) error
	}
)

// Keys returns the names of all quotas that Redis knows of, sorted. Of a name
// over 200 bytes only a short form is known, which the other methods take as
// well. It scans the whole of Redis, on all masters of a Cluster and all shards
// of a Ring that are up. More than 100,000 names are an error.
func (a *Admin) Keys(ctx context.Context) ([]string, error) {
	var mu sync.Mutex
	names := map[string]struct{}{}
	scan := func(ctx context.Context, rdb redis.Cmdable) error {
		before := a.prefix + ":1:{"
		keys := rdb.Scan(ctx, 0, escapeGlob(before)+"*", 1000).Iterator()
		for keys.Next(ctx) {
			rest, _ := strings.CutPrefix(keys.Val(), before)
			name, kind, _ := strings.Cut(rest, "}:")
			if kind != "clock" && kind != "fleet" {
				continue
			}
			mu.Lock()
			names[plainName(name)] = struct{}{}
			n := len(names)
			mu.Unlock()
			if n > maxKeys {
				return fmt.Errorf("more than %d quotas", maxKeys)
			}
		}
		return keys.Err()
	}
	node := func(ctx context.Context, rdb *redis.Client) error { return scan(ctx, rdb) }
	var err error
	switch c := a.rdb.(type) {
	case cluster:
		err = c.ForEachMaster(ctx, node)
	case ring:
		err = c.ForEachShard(ctx, node)
	default:
		err = scan(ctx, a.rdb)
	}
	if err != nil {
		return nil, fmt.Errorf("pacecar: keys: %w", err)
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// Pause stops a quota's clock for d from now, for the whole fleet, and returns
// until when it stands, by Redis's clock: later if it stands for longer already.
// Everybody who waits keeps order and distance. A process obeys within 50 ms or a
// quarter of the shortest period, whichever is less. d is from 1 ms to 366 days,
// and [Policy].MaxPause does not bound it. A quota that Redis does not know is
// [ErrUnknownKey].
func (a *Admin) Pause(ctx context.Context, key string, d time.Duration) (until time.Time, err error) {
	if d < time.Millisecond || d > maxPer {
		return until, keyError(key, fmt.Errorf("a pause must be from 1ms to 366d: %v", d))
	}
	got, err := a.tell(ctx, key, func(v *view) *query {
		return &query{pause: micros(d), paused: v.number("resume")}
	})
	if err != nil {
		return until, keyError(key, err)
	}
	return time.UnixMicro(got.resume), nil
}

// Resume ends the pause of a quota, whoever asked for it. Who waits keeps order
// and distance, and goes on. Without a pause it does nothing, and one that ends by
// itself within 0.3 s is left alone. A quota that Redis does not know is
// [ErrUnknownKey].
func (a *Admin) Resume(ctx context.Context, key string) error {
	_, err := a.tell(ctx, key, func(*view) *query { return &query{resume: true} })
	return keyError(key, err)
}

// Reset forgets what is booked of a quota, and ends a pause: the windows are
// empty, and the whole of each limit is free at once, on top of what has left
// already and of the slots that those in line hold. So it exceeds the quota, up to
// twice for as long as that line is: it is for an upstream that has done the same.
// Rates that were set stay. A quota that Redis does not know is [ErrUnknownKey].
func (a *Admin) Reset(ctx context.Context, key string) error {
	_, err := a.tell(ctx, key, func(*view) *query { return &query{reset: true} })
	return keyError(key, err)
}

// SetRates puts rates in force for the whole fleet, instead of those in each
// process's [Policy], until it is called again: also for processes that start
// later. Nil puts the processes' own back in force. What was booked under the
// old rates stays booked and counts under the new ones. A quota that Redis does
// not know is made, so that it can be called before the fleet starts; to go back
// to the processes' own rates is then [ErrUnknownKey].
func (a *Admin) SetRates(ctx context.Context, key string, rates Rates) error {
	if rates != nil {
		if err := rates.validate(); err != nil {
			return keyError(key, fmt.Errorf("rates: %w", err))
		}
	} else if _, err := a.look(ctx, key); errors.Is(err, ErrUnknownKey) {
		return keyError(key, err)
	}
	keys := a.window(key, nil).keys
	return keyError(key, setScript.Run(ctx, a.rdb, []string{keys[0], keys[2]}, rates.String()).Err())
}

// tell makes the exchange that ask wants, knowing the state; again if the state
// has changed meanwhile.
func (a *Admin) tell(ctx context.Context, key string, ask func(*view) *query) (*answer, error) {
	for range adminTries {
		v, err := a.look(ctx, key)
		if err != nil {
			return nil, err
		}
		q := ask(v)
		q.known = v.number("policy")
		got, err := a.window(key, v.named).exchange(ctx, q)
		if err != nil {
			return nil, err
		}
		switch {
		case got.stale: // rates were set meanwhile
		case q.pause > 0 && got.resume < got.now+q.pause: // there was a shorter pause meanwhile
		default:
			return got, nil
		}
	}
	return nil, errors.New("others change it all the time; try again")
}

// window returns the window of a quota. The processes' slack is not known here.
func (a *Admin) window(key string, rates Rates) *shared {
	return newShared(a.rdb, a.prefix, key, (&Policy{Rates: rates}).bounds())
}

// keyError says which quota an error is about.
func keyError(key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("pacecar: %s: %w", quote(key), err)
}

// plainName is the inverse of redisName, but for what was cut off.
func plainName(name string) string {
	out := make([]byte, 0, len(name))
	for i := 0; i < len(name); i++ {
		c := name[i]
		if c == '%' && i+2 < len(name) {
			if n, err := strconv.ParseUint(name[i+1:i+3], 16, 8); err == nil {
				c = byte(n)
				i += 2
			}
		}
		out = append(out, c)
	}
	return string(out)
}

// escapeGlob returns the pattern that matches s alone.
func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}
