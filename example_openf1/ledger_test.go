package main

import (
	"fmt"
	"testing"
	"time"
)

func TestLedger(t *testing.T) {
	type step struct {
		at   int    // milliseconds
		full string // the window that refuses it
	}
	many := func(n, from, every int, full string) (steps []step) {
		for i := range n {
			steps = append(steps, step{from + i*every, full})
		}
		return steps
	}
	for _, tt := range []struct {
		name  string
		tier  tier
		steps []step
	}{
		{"a burst of the limit", tier{3, 30}, []step{{0, ""}, {0, ""}, {0, ""}, {0, "second"}}},
		{"the window is open at its old end", tier{3, 30}, []step{{0, ""}, {0, ""}, {0, ""}, {999, "second"}, {1000, ""}}},
		{"it slides", tier{3, 30}, []step{{0, ""}, {500, ""}, {600, ""}, {999, "second"}, {1000, ""}, {1400, "second"}, {1500, ""}}},
		{"a refusal does not count towards the second", tier{1, 30}, []step{{0, ""}, {900, "second"}, {1000, ""}}},
		{"the minute", tier{3, 6}, append(many(6, 0, 400, ""), step{60_000, ""})},
		{"the minute, a moment early", tier{3, 6}, append(many(6, 0, 400, ""), step{59_999, "minute"})},
		{"a refusal counts towards the minute", tier{1, 3}, []step{{0, ""}, {1, "second"}, {2, "second"}, {1500, "minute"}}},
		{"both full", tier{2, 2}, []step{{0, ""}, {0, ""}, {0, "minute"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := ledger{tier: tt.tier}
			t0 := time.Unix(1e9, 0)
			refused := 0
			for i, s := range tt.steps {
				full := ""
				if v := l.arrive(t0.Add(time.Duration(s.at) * time.Millisecond)); v != nil {
					full = v.unit
					refused++
				}
				if full != s.full {
					t.Errorf("step %d at %d ms: full window %q, want %q", i, s.at, full, s.full)
				}
			}
			if l.refused != refused || len(l.arrivals) != len(tt.steps) {
				t.Errorf("counted %d refused of %d, want %d of %d", l.refused, len(l.arrivals), refused, len(tt.steps))
			}
		})
	}
}

func TestMost(t *testing.T) {
	for _, tt := range []struct {
		at   []int // milliseconds
		want int
	}{
		{nil, 0},
		{[]int{5}, 1},
		{[]int{0, 999}, 2},
		{[]int{0, 1000}, 1},
		{[]int{0, 600, 1100, 1200, 1599}, 4},
		{[]int{0, 0, 0, 1000, 1000, 1000, 2000}, 3},
	} {
		var log []time.Time
		for _, ms := range tt.at {
			log = append(log, time.UnixMilli(int64(ms)))
		}
		if got := most(log, time.Second); got != tt.want {
			t.Errorf("most(%v) = %d, want %d", tt.at, got, tt.want)
		}
	}
}

func TestIdealTime(t *testing.T) {
	free := tiers["free"]
	for _, tt := range []struct {
		n    int
		want time.Duration
	}{
		{0, 0}, {1, 0}, {3, 0}, {4, time.Second}, {28, 9 * time.Second}, {30, 9 * time.Second},
		{31, time.Minute}, {60, 69 * time.Second}, {76, 125 * time.Second},
	} {
		if got := idealTime(tt.n, free); got != tt.want {
			t.Errorf("idealTime(%d) = %v, want %v", tt.n, got, tt.want)
		}
	}
}

// The ideal is one that the stand-in accepts, and nothing faster is.
func TestIdealTimeIsAccepted(t *testing.T) {
	for _, tr := range tiers {
		l := ledger{tier: tr}
		for n := 1; n <= 150; n++ {
			at := time.Unix(0, 0).Add(idealTime(n, tr))
			if early := l; n > tr.second && early.arrive(at.Add(-1)) == nil {
				t.Fatalf("%v: request %d could leave before %v", tr, n, idealTime(n, tr))
			}
			if v := l.arrive(at); v != nil {
				t.Fatalf("%v: request %d at %v refused: %s", tr, n, idealTime(n, tr), fmt.Sprint(*v))
			}
		}
	}
}

func TestLastMinute(t *testing.T) {
	var l ledger
	t0 := time.Unix(0, 0)
	for s := range 90 {
		l.note(t0.Add(time.Duration(s)*time.Second), "ok")
	}
	if n := len(l.marks); n != 60 {
		t.Errorf("%d marks are kept, want 60", n)
	}
	if m := l.lastMinute(t0.Add(100 * time.Second)); len(m) != 49 || m[0].at != t0.Add(41*time.Second) {
		t.Errorf("%d marks, the first %v", len(m), m[0])
	}
	if m := l.lastMinute(t0.Add(time.Hour)); m != nil {
		t.Errorf("marks %v", m)
	}
}
