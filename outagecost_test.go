package pacecar

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestWhatAnOutageCosts measures, by phase, how many of the requests that 20/s
// allow four greedy processes do not send because Redis was away for 3 s and came
// back empty: docs/benchmark.md has the figures.
func TestWhatAnOutageCosts(t *testing.T) {
	const (
		second = time.Second
		gone   = 10 * second
		back   = gone + 3*second
	)
	p := Policy{Rates: MustRates("20/s"), Outage: FailOpen, Replicas: 4}
	run := func(t *testing.T, outage bool) (tr *trace) {
		synctest.Test(t, func(t *testing.T) {
			redis := newStandIn(&p, 200*time.Microsecond)
			tr = redis.fleet(t, p, 4, 16, 0, func(*trace) {
				time.Sleep(gone)
				if outage {
					redis.kill()
				}
				time.Sleep(back - gone)
				if outage {
					redis.restart(true)
				}
				time.Sleep(17 * second)
			})
			tr.check(t, p.Rates)
		})
		return tr
	}
	with, without := run(t, true), run(t, false)
	lost := 0
	for _, phase := range []struct {
		name     string
		from, to time.Duration
	}{
		{"before", 0, gone},
		{"first second without Redis", gone, gone + second},
		{"second second", gone + second, gone + 2*second},
		{"third second", gone + 2*second, back},
		{"first second after", back, back + second},
		{"second second after", back + second, back + 2*second},
		{"third second after", back + 2*second, back + 3*second},
		{"the next seven", back + 3*second, back + 10*second},
	} {
		a, b := with.between(phase.from, phase.to), without.between(phase.from, phase.to)
		lost += b - a
		t.Logf("%-27s %3d of %3d", phase.name, a, b)
	}
	t.Logf("%d requests lost, %.2f s of the quota", lost, float64(lost)/20)
	if lost < 0 || lost > 3*20 {
		t.Errorf("%d requests lost", lost)
	}
}
