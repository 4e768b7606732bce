package pacecar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Status is what Redis knows of one quota. Its times are those of Redis's
// clock, which reads Now.
type Status struct {
	Key         string
	Now         time.Time
	Rates       []RateUse // in force, the shortest period first; none if nothing is booked and none were set
	Ahead       int       // the fleet's line: slots booked that are still to come
	Last        time.Time // when the last of them comes; zero if there is none
	PausedUntil time.Time // zero when the key's clock runs
	Processes   int       // that were heard of in the last minute
	Booked      int64     // slots booked since the quota was last unused
	Set         Rates     // what [Admin.SetRates] has put in force; nil: each process's own
	SetAt       time.Time // when that was last called; zero if never
}

// A RateUse is a rate, and how many slots of the last Per are booked. While the
// clock is stopped, that is the last Per before. A rate that was lowered may
// have more than its limit.
type RateUse struct {
	Rate
	Used int
}

// Status returns what Redis knows of a quota, or [ErrUnknownKey].
func (a *Admin) Status(ctx context.Context, key string) (*Status, error) {
	v, err := a.look(ctx, key)
	if err == nil {
		err = v.setErr
	}
	if err != nil {
		return nil, keyError(key, err)
	}
	s := &Status{
		Key: key, Now: time.UnixMicro(v.now), Processes: int(v.alive),
		Booked: v.number("serial"), Set: v.set,
	}
	if at := v.number("policy"); at > 0 {
		s.SetAt = time.UnixMicro(at)
	}
	if v.resume > v.now {
		s.PausedUntil = time.UnixMicro(v.resume)
	}
	rates := v.force
	if v.set != nil {
		rates = v.set
	}
	for _, r := range rates {
		s.Rates = append(s.Rates, RateUse{r, int(v.logs[r.Per].used)})
	}
	if ahead, last := v.line(); ahead > 0 {
		s.Ahead, s.Last = int(ahead), time.UnixMicro(last+v.offset)
	}
	return s, nil
}

// A view is what lua/status.lua sees of a quota.
type view struct {
	now, alive, offset, resume, spares int64

	fields map[string]string // of the clock
	named  Rates             // whose logs the clock names, by Per; not their limits
	force  Rates             // under which it was last written, by Per
	set    Rates             // that were put in force; nil: none
	setErr error             // why these cannot be read
	logs   map[time.Duration]logView
}

// A logView is what is to see of the log of one rate.
type logView struct {
	last                 int64 // logged time of the last slot booked
	entries, used, ahead int64
}

func (v *view) number(field string) int64 {
	n, _ := strconv.ParseInt(v.fields[field], 10, 64)
	return n
}

// look reads the state of a quota, and of the logs that it names.
func (a *Admin) look(ctx context.Context, key string) (*view, error) {
	var rates Rates
	for range adminTries {
		v, err := a.read(ctx, key, rates)
		if err != nil {
			return nil, err
		}
		if slices.EqualFunc(rates, v.named, func(a, b Rate) bool { return a.Per == b.Per }) {
			return v, nil
		}
		rates = v.named
	}
	return nil, errors.New("its rates change all the time; try again")
}

// read reads the state of a quota, and of the logs of rates.
func (a *Admin) read(ctx context.Context, key string, rates Rates) (*view, error) {
	args := []any{alive.Microseconds()}
	for _, r := range rates {
		args = append(args, r.Per.Microseconds())
	}
	reply, err := statusScript.Run(ctx, a.rdb, a.window(key, rates).keys, args...).Slice()
	if err != nil {
		return nil, err
	}
	if len(reply) == 0 {
		return nil, ErrUnknownKey
	}
	return parseView(reply, rates)
}

func parseView(reply []any, rates Rates) (*view, error) {
	v := &view{fields: map[string]string{}, logs: map[time.Duration]logView{}}
	words := takeNumbers(reply, &v.now, &v.alive, &v.offset, &v.resume, &v.spares)
	if len(words) != 1+len(rates) {
		return nil, fmt.Errorf("a reply of %d words from Redis that this version does not know", len(reply))
	}
	fields, _ := words[0].([]any)
	for i := 0; i+1 < len(fields); i += 2 {
		v.fields[fmt.Sprint(fields[i])] = fmt.Sprint(fields[i+1])
	}
	for field := range v.fields {
		name, isLog := strings.CutPrefix(field, "n:")
		if per, err := time.ParseDuration(name); isLog && err == nil {
			v.named = append(v.named, Rate{1, per})
		}
	}
	slices.SortFunc(v.named, byPer)
	if _, rates, ok := strings.Cut(v.fields["force"], " "); ok {
		for rate := range strings.FieldsSeq(rates) {
			name, limit, _ := strings.Cut(rate, "=")
			per, err := time.ParseDuration(name)
			if n, err2 := strconv.Atoi(limit); err == nil && err2 == nil {
				v.force = append(v.force, Rate{n, per})
			}
		}
		slices.SortFunc(v.force, byPer)
	}
	if text := v.fields["rates"]; text != "" {
		set, err := parseRates(text)
		if err != nil { // of a later version: processes ignore them too
			v.setErr = fmt.Errorf("stored rates %s: %w", quote(text), err)
		} else {
			v.set = slices.SortedFunc(slices.Values(set), byPer)
		}
	}
	for i, log := range words[1:] {
		r := rates[i]
		l := logView{last: v.number("l:" + r.Per.String())}
		numbers, _ := log.([]any)
		takeNumbers(numbers, &l.entries, &l.used, &l.ahead)
		v.logs[r.Per] = l
	}
	return v, nil
}

// takeNumbers reads the first words into numbers, and returns the others.
func takeNumbers(words []any, numbers ...*int64) []any {
	for _, into := range numbers[:min(len(numbers), len(words))] {
		*into, _ = words[0].(int64)
		words = words[1:]
	}
	return words
}

func byPer(a, b Rate) int { return cmp.Compare(a.Per, b.Per) }

// line returns how many slots are still to come, and the last of them. Logged
// times may be rounded up, so that the log that says the least is right.
func (v *view) line() (ahead, last int64) {
	ahead, last = forever, forever
	for _, r := range v.force {
		if l := v.logs[r.Per]; l.entries > 0 {
			ahead, last = min(ahead, l.ahead), min(last, l.last)
		}
	}
	if last == forever {
		return 0, 0
	}
	return ahead - v.spares, last
}
