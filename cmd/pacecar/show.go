package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pacecar-go/pacecar"
)

func status(ctx context.Context, t *tool, args []string) error {
	all, err := t.read(ctx, args)
	if err != nil {
		return err
	}
	if len(all) == 0 && !t.json {
		_, err = fmt.Fprintf(t.out, "no quotas at %s, prefix %q: nothing has used any for a minute\n", t.where, t.prefixName())
		return err
	}
	return t.print(all, text)
}

func checkWatch(t *tool, _ []string) error {
	if t.every < 100*time.Millisecond {
		return usagef("-every: must be at least 100ms: %v", t.every)
	}
	if t.times < 0 {
		return usagef("-n: must not be negative: %d", t.times)
	}
	return nil
}

// maxShown is how many quotas fit on a screen.
const maxShown = 12

func watch(ctx context.Context, t *tool, args []string) error {
	screen := t.terminal(t.out) && !t.json
	ticks := time.NewTicker(t.every)
	defer ticks.Stop()
	for i := 1; ; i++ {
		all, err := t.read(ctx, args)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && i == 1: // a wrong name or address, more likely than an outage
			return err
		case err != nil:
			if screen {
				fmt.Fprint(t.out, "\x1b[H\x1b[J")
			}
			text, _ := strings.CutPrefix(t.explain(err).Error(), "pacecar: ")
			fmt.Fprintf(t.err, "%s %s\n", time.Now().Format(time.TimeOnly), shown(text))
		default:
			if err := t.show(all, screen); err != nil {
				return err
			}
		}
		if i == t.times {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
	}
}

// show shows one look at the quotas.
func (t *tool) show(all []*pacecar.Status, screen bool) (err error) {
	switch {
	case screen:
		return t.redraw(all)
	case len(all) == 0 && !t.json:
		_, err = fmt.Fprintf(t.out, "%s no quotas\n", time.Now().Format(time.TimeOnly))
		return err
	}
	return t.print(all, line)
}

// redraw writes over what is on the screen: line by line, so that it does not
// flicker.
func (t *tool) redraw(all []*pacecar.Status) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s  %d quotas at %s\n\n", time.Now().Format(time.TimeOnly), len(all), t.where)
	slices.SortStableFunc(all, func(x, y *pacecar.Status) int { return y.Ahead - x.Ahead })
	for _, s := range all[:min(len(all), maxShown)] {
		b.WriteString(text(s))
	}
	if n := len(all) - maxShown; n > 0 {
		fmt.Fprintf(&b, "and %d with a shorter line\n", n)
	}
	screen := "\x1b[H" + strings.ReplaceAll(b.String(), "\n", "\x1b[K\n") + "\x1b[J"
	_, err := fmt.Fprint(t.out, screen)
	return err
}

// read reads one quota, or all of them.
func (t *tool) read(ctx context.Context, args []string) ([]*pacecar.Status, error) {
	ctx, cancel := t.bounded(ctx)
	defer cancel()
	if len(args) > 0 {
		s, err := t.admin.Status(ctx, args[0])
		if err != nil {
			return nil, t.nearest(ctx, args[0], err)
		}
		return []*pacecar.Status{s}, nil
	}
	keys, err := t.admin.Keys(ctx)
	if err != nil {
		return nil, err
	}
	const abreast = 8
	all, errs := make([]*pacecar.Status, len(keys)), make([]error, abreast)
	var wg sync.WaitGroup
	for w := range abreast {
		wg.Go(func() {
			for i := w; i < len(keys) && errs[w] == nil; i += abreast {
				s, err := t.admin.Status(ctx, keys[i])
				if !errors.Is(err, pacecar.ErrUnknownKey) { // it has expired meanwhile
					all[i], errs[w] = s, err
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("the state of %d quotas: %w", len(keys), err)
		}
	}
	return slices.DeleteFunc(all, func(s *pacecar.Status) bool { return s == nil }), nil
}

func (t *tool) print(all []*pacecar.Status, form func(*pacecar.Status) string) error {
	for _, s := range all {
		if t.json {
			if err := t.printJSON(s); err != nil {
				return err
			}
		} else if _, err := fmt.Fprint(t.out, form(s)); err != nil {
			return err
		}
	}
	return nil
}

// text shows a quota on several lines.
func text(s *pacecar.Status) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", shown(s.Key))
	width := 0
	for _, r := range s.Rates {
		width = max(width, len(r.String()))
	}
	for _, r := range s.Rates {
		fmt.Fprintf(&b, "  %-*s  %s  %d of %d\n", width, r.String(), bar(r.Used, r.Limit), r.Used, r.Limit)
	}
	if len(s.Rates) == 0 {
		fmt.Fprintln(&b, "  rates:      not known: nothing is booked")
	}
	ahead := "none"
	if s.Ahead > 0 {
		ahead = fmt.Sprintf("%d, the last in %s", s.Ahead, short(s.Last.Sub(s.Now)))
	}
	fmt.Fprintf(&b, "  ahead:      %s\n", ahead)
	if !s.PausedUntil.IsZero() {
		fmt.Fprintf(&b, "  paused:     until %s, %s more\n", clockText(s.PausedUntil, s.Now), short(s.PausedUntil.Sub(s.Now)))
	}
	switch {
	case s.Set != nil:
		fmt.Fprintf(&b, "  set:        %s, at %s\n", s.Set, clockText(s.SetAt, s.Now))
	case !s.SetAt.IsZero():
		fmt.Fprintf(&b, "  set:        back to the processes' own rates, at %s\n", clockText(s.SetAt, s.Now))
	}
	fmt.Fprintf(&b, "  processes:  %d\n", s.Processes)
	fmt.Fprintf(&b, "  booked:     %d in all\n\n", s.Booked)
	return b.String()
}

// line shows a quota on one line.
func line(s *pacecar.Status) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", s.Now.Format(time.TimeOnly), shown(s.Key))
	for _, r := range s.Rates {
		fmt.Fprintf(&b, "  %s: %d", r, r.Used)
	}
	fmt.Fprintf(&b, "  ahead: %d", s.Ahead)
	if s.Ahead > 0 {
		fmt.Fprintf(&b, " (%s)", short(s.Last.Sub(s.Now)))
	}
	if !s.PausedUntil.IsZero() {
		fmt.Fprintf(&b, "  paused: %s", short(s.PausedUntil.Sub(s.Now)))
	}
	fmt.Fprintf(&b, "  processes: %d\n", s.Processes)
	return b.String()
}

// bar draws how much of a limit is used.
func bar(used, limit int) string {
	const width = 30
	n := width
	if used < limit {
		n = min(width-1, int(math.Ceil(float64(used)*width/float64(limit))))
	}
	return "[" + strings.Repeat("#", n) + strings.Repeat(".", width-n) + "]"
}

// short is a duration as precise as one reads it.
func short(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// clockText is a time of day, with the day if it is another than now's.
func clockText(at, now time.Time) string {
	if at.Format(time.DateOnly) != now.Format(time.DateOnly) {
		return at.Format(time.DateTime)
	}
	return at.Format(time.TimeOnly)
}

// printJSON writes one line. The names of its fields are part of the command's
// interface.
func (t *tool) printJSON(s *pacecar.Status) error {
	type rate struct {
		Rate  string  `json:"rate"`
		Limit int     `json:"limit"`
		Per   float64 `json:"per_seconds"`
		Used  int     `json:"used"`
	}
	rates := make([]rate, len(s.Rates))
	for i, r := range s.Rates {
		rates[i] = rate{r.String(), r.Limit, r.Per.Seconds(), r.Used}
	}
	return json.NewEncoder(t.out).Encode(struct {
		Key         string    `json:"key"`
		Now         time.Time `json:"now"`
		Rates       []rate    `json:"rates"`
		Ahead       int       `json:"ahead"`
		Last        time.Time `json:"last,omitzero"`
		PausedUntil time.Time `json:"paused_until,omitzero"`
		Processes   int       `json:"processes"`
		Booked      int64     `json:"booked"`
		Set         string    `json:"set,omitempty"`
		SetAt       time.Time `json:"set_at,omitzero"`
	}{s.Key, s.Now, rates, s.Ahead, s.Last, s.PausedUntil, s.Processes, s.Booked, s.Set.String(), s.SetAt})
}
