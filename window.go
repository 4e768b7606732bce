package pacecar

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// A window books the slots of one key. Its two implementations, shared (in
// Redis) and local (in this process's memory), give the same answers.
//
// Within this file and the two, times and durations are whole microseconds,
// and a slot is a time on the key's clock, which can be stopped: see
// lua/state.lua for the model.
//
// # Why no window holds more than Limit departures
//
// Number the slots in the order of booking: s(1), s(2), ... A log holds for
// each slot a time l(i) that is no earlier than s(i), and l only grows. A slot
// is booked no earlier than l(i-Limit) + Per + slack, so
//
//	s(i) >= l(i-Limit) + Per + slack >= s(i-Limit) + Per + slack.
//
// A request that leaves at d(i), with s(i) <= d(i) <= s(i) + slack, is then at
// least Per after d(i-Limit). Sort the departures by i modulo Limit: within one
// of these Limit classes no two are closer than Per, so that any half-open
// interval of length Per holds at most one of each class. Removing slot j
// moves the numbers behind it down by one; since l grows, the inequality with
// l(i-Limit+1) in it implies the one with l(i-Limit). Stopping the clock for t
// moves every departure still to come by t, away from those before; so does
// setting it back after a departure that was late. One that was late with nobody
// behind it is moved, as if booked then. A slot with a new owner keeps its number,
// and a charge only raises l.
type window interface {
	// exchange does what q says, atomically. It does not keep q.
	exchange(ctx context.Context, q *query) (*answer, error)

	// with returns the window of the same key under other rates.
	with(bounds []bound) window
}

// A query is what a process has to say and ask of a key in one exchange, in
// the order of the fields. Its zero value only looks at the clock.
type query struct {
	known      int64      // the stored policy known; when a newer one is stored, nothing is done
	write      bool       // fail if the state cannot be written now
	here       bool       // process is alive
	tell       bool       // known was lost, and its rates are to be stored again...
	policy     string     // ...which are these
	from       string     // the rate whose log the others take over from, if they were not in force
	restore    *past      // state that Redis lost
	process    string     // who asks
	seq        int64      // numbers its queries: a drop or back that the client sent again counts once
	generation int64      // of the state in which drop, back and late were booked
	drop       []span     // slots not used, and not for others
	charge     []span     // slots used without asking, the earliest first
	back       []span     // slots not used, the latest first
	late       []lateness // departures after their slots, the earliest first
	pause      int64      // how long to stop the clock; 0: not
	paused     int64      // the resume known when the request whose answer asks for the pause was sent
	resume     bool       // end a pause
	reset      bool       // forget all bookings, and end a pause
	heard      int64      // the serial that the state has at least, unless it was lost
	asks       []ask      // slots wanted, in order
}

// A past is what a process knows of a state that Redis lost.
type past struct {
	generation             int64
	serial, offset, resume int64
	booked                 []entry // by serial
	rest                   []int64 // of each rate, so many more may have been used...
	until                  int64   // ...until then, by the key's clock
}

// An entry says that the slots up to number upto, from the entry before, are
// at time at or before it.
type entry struct{ at, upto int64 }

// A span is a number of slots at one time.
type span struct{ slot, units int64 }

// A lateness tells that units of slot left at a time of the window's own clock,
// not the key's: that way, a burst that many report sets the key's clock back
// once.
type lateness struct{ slot, left, units int64 }

// An ask is for count bookings of cost slots each. Each is granted or refused.
type ask struct {
	count, cost int64
	longest     int64 // the longest wait, from the exchange's now; negative: unbounded
	delay       int64 // the shortest, if the slot is to come after the answer
	keep        int64 // if not 0: at once or not at all, and so many slots stay free of each rate
	again       bool  // with keep: it asks when it was told to
}

// A run is what became of the next count asks.
type run struct {
	count int64
	slot  int64 // when they may leave; 0 if they were refused
	wait  int64 // what the refused would have waited; with keep, until the turn to ask again
}

// An answer is the state of the key at the end of an exchange, and the runs.
type answer struct {
	now        int64 // the window's own clock
	offset     int64 // the key's clock reads max(now, resume) - offset
	resume     int64
	serial     int64  // slots booked ever; below query.heard: the state was lost, and nothing is booked
	tail       int64  // no slot is booked later
	generation int64  // names the state; another one means that it was lost and made anew
	origin     int64  // from which state it was restored; 0: it was not
	restored   int64  // up to which serial of that
	policy     int64  // when rates were stored for the whole fleet; 0: never
	stale      bool   // policy is newer than known, and nothing was done...
	rates      string // ...these are its rates; empty: each process's own
	from       string // nothing was done: the logs must take over from that of this rate
	free       []int64
	runs       []run
}

// key returns what the key's clock reads at now.
func (a *answer) key() int64 { return max(a.now, a.resume) - a.offset }

// A bound is one rate as a window enforces it.
type bound struct {
	name   string
	limit  int64
	window int64 // Per and slack
	grain  int64 // a slot is logged at a multiple of this; 0: exactly
}

// longestOf returns the bound of the longest window.
func longestOf(bounds []bound) bound {
	return slices.MaxFunc(bounds, func(a, b bound) int { return cmp.Compare(a.window, b.window) })
}

// perGrains is how many distinct times a window of a large limit is logged
// with at most, so that a log stays small whatever the limit.
const perGrains = 1000

// bounds turns the policy's rates into what windows enforce.
func (p *Policy) bounds() []bound {
	bs := make([]bound, len(p.Rates))
	for i, r := range p.Rates {
		bs[i] = bound{
			name:   r.Per.String(),
			limit:  int64(r.Limit),
			window: (r.Per + p.slack(r)).Microseconds(),
		}
		if r.Limit > perGrains {
			bs[i].grain = max(1, r.Per.Microseconds()/perGrains)
		}
	}
	return bs
}

// rounded returns the time at which b logs slot at: rounded up, since a time
// too late only ever delays.
func (b *bound) rounded(at int64) int64 {
	if b.grain > 0 && at%b.grain > 0 {
		at += b.grain - at%b.grain
	}
	return at
}

// The shared window is one script, in three parts.
var (
	//go:embed lua/state.lua
	stateLua string
	//go:embed lua/corrections.lua
	correctionsLua string
	//go:embed lua/reserve.lua
	reserveLua string

	exchangeScript = redis.NewScript(stateLua + correctionsLua + reserveLua)
)

// shared is the window that a fleet shares through Redis.
type shared struct {
	rdb    redis.Scripter
	base   string // of all its keys
	keys   []string
	bounds []bound
	force  string // see lua/state.lua
}

// newShared names the keys in Redis. The braces are a Redis Cluster hash tag:
// all keys of one quota are in one slot. The 1 is the layout's version.
func newShared(rdb redis.Scripter, prefix, key string, bounds []bound) *shared {
	return newSharedAt(rdb, prefix+":1:{"+redisName(key)+"}:", bounds)
}

func newSharedAt(rdb redis.Scripter, base string, bounds []bound) *shared {
	keys := []string{base + "clock", base + "free", base + "fleet"}
	for _, b := range bounds {
		keys = append(keys, base+"log:"+b.name)
	}
	return &shared{rdb, base, keys, bounds, forceOf(bounds)}
}

func (w *shared) with(bounds []bound) window { return newSharedAt(w.rdb, w.base, bounds) }

func (w *shared) exchange(ctx context.Context, q *query) (*answer, error) {
	keys := w.keys
	if q.from != "" {
		keys = append(slices.Clip(keys), w.base+"log:"+q.from)
	}
	words, err := exchangeScript.Run(ctx, w.rdb, keys, q.words(w.bounds, w.force)...).Slice()
	if err != nil {
		return nil, err
	}
	return parseAnswer(words, len(w.bounds), q)
}

// forceOf writes the rates in force: the longest window, and the name and limit of
// each, that one's first.
func forceOf(bounds []bound) string {
	if len(bounds) == 0 { // an Admin that knows of none
		return ""
	}
	bounds = slices.SortedFunc(slices.Values(bounds), func(a, b bound) int { return cmp.Compare(b.window, a.window) })
	force := strconv.FormatInt(bounds[0].window, 10)
	for _, b := range bounds {
		force += fmt.Sprintf(" %s=%d", b.name, b.limit)
	}
	return force
}

// words encodes the query as the script reads it.
func (q *query) words(bounds []bound, force string) []any {
	words := make([]any, 0, 4*len(bounds)+6*len(q.asks)+2*len(q.back)+8)
	numbers := func(ns ...int64) {
		for _, n := range ns {
			words = append(words, n)
		}
	}
	op := func(name string, ns ...int64) {
		words = append(words, name)
		numbers(ns...)
	}
	if q.process == "" { // it has no rates to put in force
		force = ""
	}
	words = append(words, q.known, force, q.from, len(bounds))
	for i := range bounds {
		b := &bounds[i]
		op(b.name, b.limit, b.window, b.grain)
	}
	if q.write {
		op("write")
	}
	if q.here {
		words = append(words, "here", q.process)
	}
	if q.tell {
		op("policy", q.known)
		words = append(words, q.policy)
	}
	if m := q.restore; m != nil {
		op("restore", m.generation, m.serial, m.offset, m.resume, m.until)
		numbers(m.rest...)
		numbers(int64(len(m.booked)))
		for _, b := range m.booked {
			numbers(b.at, b.upto)
		}
	}
	addSpans := func(spans []span) {
		numbers(int64(len(spans)))
		for _, s := range spans {
			numbers(s.slot, s.units)
		}
	}
	if len(q.drop) > 0 {
		op("drop", q.generation)
		words = append(words, q.process, q.seq)
		addSpans(q.drop)
	}
	if len(q.charge) > 0 {
		op("charge")
		addSpans(q.charge)
	}
	if len(q.back) > 0 {
		op("back", q.generation)
		words = append(words, q.process, q.seq)
		addSpans(q.back)
	}
	if len(q.late) > 0 {
		op("late", q.generation, int64(len(q.late)))
		for _, l := range q.late {
			numbers(l.slot, l.left, l.units)
		}
	}
	if q.pause > 0 {
		op("pause", q.pause, q.paused)
	}
	if q.resume {
		op("resume")
	}
	if q.reset {
		op("reset")
	}
	if len(q.asks) > 0 {
		op("reserve", q.heard, int64(len(q.asks)))
		for _, a := range q.asks {
			again := int64(0)
			if a.again {
				again = 1
			}
			numbers(a.count, a.cost, a.longest, a.delay, a.keep, again)
		}
	}
	return words
}

// answerWords is the number of words before free and runs.
const answerWords = 9

// parseAnswer decodes the script's reply to q for so many rates.
func parseAnswer(reply []any, rates int, q *query) (*answer, error) {
	if len(reply) == 2 {
		policy, isNumber := reply[0].(int64)
		text, isText := reply[1].(string)
		if isNumber && isText {
			return &answer{stale: true, policy: policy, rates: text}, nil
		}
	}
	if len(reply) == 3 {
		if from, isText := reply[2].(string); isText {
			return &answer{from: from}, nil
		}
	}
	words := make([]int64, len(reply))
	numbers := true
	for i, word := range reply {
		var number bool
		words[i], number = word.(int64)
		numbers = numbers && number
	}
	runs := words[min(len(words), answerWords+rates):]
	if len(words) < answerWords+rates || len(runs)%2 != 0 || !numbers {
		return nil, fmt.Errorf("pacecar: a reply of %d words from Redis that this version does not know", len(words))
	}
	a := &answer{
		now: words[0], offset: words[1], resume: words[2], serial: words[3], tail: words[4],
		generation: words[5], origin: words[6], restored: words[7], policy: words[8],
		free: words[answerWords : answerWords+rates],
	}
	asked := int64(0)
	for _, ask := range q.asks {
		asked += ask.count
	}
	for ; len(runs) > 0; runs = runs[2:] {
		a.runs = append(a.runs, newRun(runs[0], runs[1]))
		asked -= max(1, runs[0])
	}
	if asked != 0 && a.serial >= q.heard { // else the state was lost
		return nil, fmt.Errorf("pacecar: a reply from Redis that answers %d too few", asked)
	}
	return a, nil
}

// newRun tells a slot from a wait by its sign.
func newRun(count, what int64) run {
	if what < 0 {
		return run{count: count, wait: -what}
	}
	return run{count: count, slot: what}
}

// micros turns d into microseconds, rounded up.
func micros(d time.Duration) int64 {
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}

// duration turns microseconds into a duration, the longest there is if need be.
func duration(us int64) time.Duration {
	if us > math.MaxInt64/int64(time.Microsecond) {
		return math.MaxInt64
	}
	return time.Duration(us) * time.Microsecond
}
