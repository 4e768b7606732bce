package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pacecar-go/pacecar"
)

func checkPause(_ *tool, args []string) error {
	_, err := pauseOf(args[1])
	return err
}

func pauseOf(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return 0, usagef("the duration %q is not like 30s, 5m or 1h30m", s)
	case d < time.Millisecond:
		return 0, usagef("the duration %q is below 1ms; resume ends a pause", s)
	case d > 366*24*time.Hour:
		return 0, usagef("the duration %q is above 366 days", s)
	}
	return d, nil
}

func pause(ctx context.Context, t *tool, args []string) error {
	ctx, cancel := t.bounded(ctx)
	defer cancel()
	d, err := pauseOf(args[1])
	if err != nil {
		return err
	}
	until, err := t.admin.Pause(ctx, args[0], d)
	if err != nil {
		return t.nearest(ctx, args[0], err)
	}
	return t.did(ctx, args[0], func(s *pacecar.Status) string {
		left := until.Sub(s.Now)
		text := fmt.Sprintf("paused until %s, for %s", clockText(until, s.Now), short(left))
		if left > d {
			text += ": a longer pause was in force"
		}
		return text
	})
}

func resume(ctx context.Context, t *tool, args []string) error {
	ctx, cancel := t.bounded(ctx)
	defer cancel()
	if err := t.admin.Resume(ctx, args[0]); err != nil {
		return t.nearest(ctx, args[0], err)
	}
	return t.did(ctx, args[0], func(*pacecar.Status) string { return "not paused" })
}

func checkSet(_ *tool, args []string) error {
	_, err := ratesOf(args[1:])
	return err
}

// ratesOf joins what the shell has split, as in: set KEY 6/s, 60/m
func ratesOf(words []string) (pacecar.Rates, error) {
	text := strings.Join(words, " ")
	if text == "default" {
		return nil, nil
	}
	rates, err := pacecar.ParseRates(text)
	if err != nil {
		return nil, usageError{err}
	}
	return rates, nil
}

func set(ctx context.Context, t *tool, args []string) error {
	ctx, cancel := t.bounded(ctx)
	defer cancel()
	key := args[0]
	rates, err := ratesOf(args[1:])
	if err != nil {
		return err
	}
	if _, err := t.admin.Status(ctx, key); errors.Is(err, pacecar.ErrUnknownKey) {
		if !t.new {
			err = t.nearest(ctx, key, err)
			if rates != nil {
				err = fmt.Errorf("%w; -new sets it all the same", err)
			}
			return err
		}
		if keys, err := t.admin.Keys(ctx); err == nil {
			if like := nearest(key, keys); len(like) > 0 {
				fmt.Fprintf(t.err, "pacecar: nothing uses %s yet; there is %s\n", strconv.Quote(key), strings.Join(like, ", "))
			}
		}
	}
	if err := t.admin.SetRates(ctx, key, rates); err != nil {
		return t.nearest(ctx, key, err)
	}
	err = t.did(ctx, key, func(s *pacecar.Status) string {
		if rates == nil {
			return "each process goes back to its own rates"
		}
		return "set to " + s.Set.String()
	})
	if rates == nil && errors.Is(err, pacecar.ErrUnknownKey) {
		fmt.Fprintf(t.out, "%s: forgotten, since nothing has used it\n", shown(key))
		return nil
	}
	return err
}

func reset(ctx context.Context, t *tool, args []string) error {
	key := args[0]
	if !t.yes {
		if !t.terminal(t.in) {
			return usagef("reset forgets what is booked, so that a whole quota may leave at once; -yes does it without asking")
		}
		ask, cancel := t.bounded(ctx)
		s, err := t.admin.Status(ask, key)
		if err != nil {
			err = t.nearest(ask, key, err)
		}
		cancel()
		if err != nil {
			return err
		}
		fmt.Fprintf(t.err, "%s: forget what is booked (%d ahead)? A whole quota may then leave at once. [y/N] ", shown(key), s.Ahead)
		line, _ := bufio.NewReader(t.in).ReadString('\n')
		if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
			return errors.New("nothing was done")
		}
	}
	ctx, cancel := t.bounded(ctx)
	defer cancel()
	if err := t.admin.Reset(ctx, key); err != nil {
		return t.nearest(ctx, key, err)
	}
	return t.did(ctx, key, func(s *pacecar.Status) string {
		if s.Set != nil {
			return "nothing is booked; it stays set to " + s.Set.String()
		}
		return "nothing is booked"
	})
}

// did tells what was done, or with -json how things stand now.
func (t *tool) did(ctx context.Context, key string, text func(*pacecar.Status) string) error {
	s, err := t.admin.Status(ctx, key)
	if err != nil {
		return err
	}
	if t.json {
		return t.printJSON(s)
	}
	_, err = fmt.Fprintf(t.out, "%s: %s\n", shown(key), text(s))
	return err
}

// nearest adds the names that are most like an unknown one.
func (t *tool) nearest(ctx context.Context, key string, err error) error {
	if !errors.Is(err, pacecar.ErrUnknownKey) {
		return err
	}
	keys, scanErr := t.admin.Keys(ctx)
	if scanErr != nil {
		return err
	}
	like := nearest(key, keys)
	if len(like) == 0 {
		return fmt.Errorf("%w at %s with prefix %q, and none of a name like it among %d", err, t.where, t.prefixName(), len(keys))
	}
	return fmt.Errorf("%w; it has %s", err, strings.Join(like, ", "))
}
