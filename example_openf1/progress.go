package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// progress shows how the work goes: on a terminal in one line that is written
// over, elsewhere in a line now and then.
type progress struct {
	w        io.Writer
	terminal bool
	next     time.Time // not before
}

const seldom = 10 * time.Second

func newProgress(w io.Writer) *progress {
	p := &progress{w: w, next: time.Now().Add(seldom)}
	if f, ok := w.(*os.File); ok {
		if info, err := f.Stat(); err == nil {
			p.terminal = info.Mode()&os.ModeCharDevice != 0
		}
	}
	return p
}

func (b *progress) show(now time.Time, p *plan, f *fleet) {
	switch {
	case b.terminal:
		fmt.Fprintf(b.w, "\r%s\x1b[K", progressLine(now, p, f))
	case now.After(b.next):
		b.next = now.Add(seldom)
		fmt.Fprintln(b.w, progressLine(now, p, f))
	}
}

// clear makes way for the report.
func (b *progress) clear() {
	if b.terminal {
		fmt.Fprint(b.w, "\r\x1b[K")
	}
}

// progressLine is what the workers said last, taken together.
func progressLine(now time.Time, p *plan, f *fleet) string {
	var next, paused time.Time
	var away []string
	waiting := 0
	for _, w := range f.workers {
		s := w.stats
		waiting += s.Waiting
		if s.NextSlot.After(now) && (next.IsZero() || s.NextSlot.Before(next)) {
			next = s.NextSlot
		}
		if s.PausedUntil.After(paused) {
			paused = s.PausedUntil
		}
		if s.Away {
			away = append(away, fmt.Sprint(w.number))
		}
	}
	line := fmt.Sprintf("%d of %d done, %d waiting", p.done, p.total, waiting)
	if !next.IsZero() {
		line += fmt.Sprintf(", next slot in %.1fs", next.Sub(now).Seconds())
	}
	if paused.After(now) {
		line += fmt.Sprintf(", paused for %.1fs", paused.Sub(now).Seconds())
	}
	if len(away) > 0 {
		line += ", Redis is away for worker " + strings.Join(away, " ")
	}
	return line
}
