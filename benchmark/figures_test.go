package main

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/pacecar-go/pacecar"
)

// ms returns times in milliseconds.
func ms(at ...int) []time.Duration {
	ds := make([]time.Duration, len(at))
	for i, t := range at {
		ds[i] = time.Duration(t) * time.Millisecond
	}
	return ds
}

func TestMostIn(t *testing.T) {
	for _, test := range []struct {
		at   []time.Duration
		want int
	}{
		{nil, 0},
		{ms(5), 1},
		{ms(0, 1000), 1}, // a window is half open
		{ms(0, 999), 2},
		{ms(0, 0, 0), 3},
		{ms(0, 500, 900, 1100, 1499, 3000), 4}, // not aligned with the first
	} {
		if got := mostIn(time.Second, test.at); got != test.want {
			t.Errorf("%v: %d, want %d", test.at, got, test.want)
		}
	}
}

func TestWorstIsThatOfAnyRate(t *testing.T) {
	at := ms(0, 500, 1000, 1500, 2000, 2500)
	if got := worst(pacecar.MustRates("4/s, 4/3s"), at); got != 1.5 {
		t.Errorf("%v, want 6 of 4 in 3 s", got)
	}
}

func TestJain(t *testing.T) {
	for _, test := range []struct {
		counts []int
		want   float64
	}{
		{nil, 0},
		{[]int{0, 0}, 0},
		{[]int{7, 7, 7}, 1},
		{[]int{9, 0, 0}, 1.0 / 3},
		{[]int{1, 3}, 0.8},
	} {
		if got := jain(test.counts); math.Abs(got-test.want) > 1e-12 {
			t.Errorf("%v: %v, want %v", test.counts, got, test.want)
		}
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100 - i)
	}
	for _, test := range []struct {
		all  []time.Duration
		p    int
		want time.Duration
	}{
		{nil, 50, 0},
		{ms(7), 99, 7 * time.Millisecond},
		{ms(2, 1), 50, time.Millisecond},
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 100, 100},
	} {
		if got := percentile(test.all, test.p); got != test.want {
			t.Errorf("p%d of %d values: %v, want %v", test.p, len(test.all), got, test.want)
		}
	}
}

func TestFiguresOf(t *testing.T) {
	w := &workload{rates: pacecar.MustRates("2/s"), processes: 2, callers: 2, requests: 5, service: 10 * time.Millisecond}
	l := &log{
		At:     ms(100, 150, 600, 1100, 1200, 2600, 3000),
		Worker: []int{0, 1, 1, 0, 0, 1, 1},
		Status: []int{accepted, accepted, refused, accepted, accepted, accepted, foreign},
	}
	f := figuresOf(w, l, []workerReport{{Micros: []int64{10_000, 1_060_000, 1_060_000}}, {Micros: []int64{60_000, 2_460_000}, Errors: 2}})
	// At best, two leave at 0 and two at 1 s; the fifth asks at 10 ms, and
	// leaves at 2 s. Of the waits, 10 ms are service.
	want := figures{
		accepted: 5, ideal: 2 * time.Second, took: 2500 * time.Millisecond, share: 0.8,
		refused: 1, foreign: 1, worst: 1.5,
		p50: (1050 - 1000) * time.Millisecond, p99: (2450 - 1990) * time.Millisecond,
		jain:   0.8, // 3 and 1 until process 0 has done its part
		errors: 2,
	}
	if f != want {
		t.Errorf("\n%+v, want\n%+v", f, want)
	}
}

func TestWhileAllWork(t *testing.T) {
	l := &log{At: ms(1, 2, 3, 4, 5, 6), Worker: []int{1, 0, 1, 0, 0, 0}, Status: []int{accepted, accepted, accepted, refused, accepted, accepted}}
	if got := whileAllWork(l, 2); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("%v, want 1 and 2 until the second process has done its part", got)
	}
	if got := whileAllWork(l, 3); !slices.Equal(got, []int{0, 0, 0}) {
		t.Errorf("%v, want none while a third did nothing", got)
	}
}

func TestLedger(t *testing.T) {
	l := newLedger(pacecar.MustRates("2/s, 3/4s"), 3, 5*time.Second)
	for _, test := range []struct {
		at     int // ms
		status int
		wait   int // ms
	}{
		{0, accepted, 0},
		{100, accepted, 0},
		{999, refused, 1},
		{1000, accepted, 0}, // the first has left the window, and the refused one never was in it
		{1050, foreign, 5000},
		{6000, foreign, 50},
		{6050, accepted, 0},
		{6051, accepted, 0},
		{6052, refused, 998},
		{7051, accepted, 0}, // the third of the last 4 s
		{7060, refused, 2990},
	} {
		status, wait := l.judge(time.Duration(test.at) * time.Millisecond)
		if status != test.status || wait != time.Duration(test.wait)*time.Millisecond {
			t.Errorf("at %d ms: %d, wait %v, want %d, %d ms", test.at, status, wait, test.status, test.wait)
		}
	}
}

func TestParseCommandStats(t *testing.T) {
	stats := parseCommandStats("# Commandstats\r\ncmdstat_evalsha:calls=12,usec=345,usec_per_call=28.75,rejected_calls=0\r\n" +
		"cmdstat_script|load:calls=1,usec=5,usec_per_call=5.00\r\n")
	if got, want := stats.of([]string{"evalsha", "script|load", "get"}), (commandStat{13, 350}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	stats.add(commandStats{"evalsha": {1, 1}})
	if got, want := stats["evalsha"], (commandStat{13, 346}); got != want {
		t.Errorf("added: %v, want %v", got, want)
	}
}
