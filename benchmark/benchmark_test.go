package main

import (
	"bytes"
	"encoding/csv"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pacecar-go/pacecar"
)

// The children of a test are this test's binary again.
func TestMain(m *testing.M) {
	if play, ok := roles[os.Getenv(roleEnv)]; ok {
		if err := play(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func needRedis(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("PACECAR_REQUIRE_REDIS") == "1" {
			t.Fatal("PACECAR_REQUIRE_REDIS=1, and there is no redis-server on PATH")
		}
		t.Skip("no redis-server on PATH; PACECAR_REQUIRE_REDIS=1 makes this a failure")
	}
}

// A small run from end to end, with everything that a workload can have but an
// outage. It says nothing about speed.
func TestMeasure(t *testing.T) {
	needRedis(t)
	w := &workload{
		name: "plain", about: "a test", rates: pacecar.MustRates("20/200ms"), processes: 2, callers: 4, requests: 50,
		tls: true, rtt: 4 * time.Millisecond, redisRTT: 2 * time.Millisecond, service: time.Millisecond,
	}
	r, err := measureOne(t.Context(), w, adapterByName(ours), &node{})
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case !r.measured || r.accepted != w.requests:
		t.Errorf("%d of %d requests: %s", r.accepted, w.requests, r.note)
	case r.accepted+r.refused != len(r.log.At):
		t.Errorf("%d accepted and %d refused of %d arrivals", r.accepted, r.refused, len(r.log.At))
	case r.ideal < 400*time.Millisecond || r.share <= 0 || r.share > 1:
		t.Errorf("share %v of the ideal %v, want some of 400ms or more", r.share, r.ideal)
	case r.calls <= 0 || r.micros <= 0 || r.jain <= 0:
		t.Errorf("no calls, no time in Redis or no fairness: %+v", r.figures)
	}
	results := []result{r, {workload: w, adapter: adapterByName(bottleneckName), note: "not measured: a reason"}}
	checkReports(t, results)
}

// checkReports writes every report of the results, the second of which was not
// measured.
func checkReports(t *testing.T, results []result) {
	var table, sheet bytes.Buffer
	writeTable(&table, results)
	for _, want := range []string{"plain: a test; 50 requests", "| pacecar ", "bottleneck: not measured: a reason"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, &table)
		}
	}
	if err := writeCSV(&sheet, results); err != nil {
		t.Error(err)
	}
	if rows, err := csv.NewReader(&sheet).ReadAll(); err != nil || len(rows) != 3 {
		t.Errorf("%d rows, %v, want a head and two", len(rows), err)
	}
	dir := t.TempDir()
	if err := drawAll(dir, results); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"arrivals.svg", "limiters.svg"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		for d := xml.NewDecoder(bytes.NewReader(text)); err == nil; {
			_, err = d.Token()
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := drawAll(dir, results[1:]); err == nil {
		t.Error("no error without anything to draw")
	}
}

func TestProxy(t *testing.T) {
	const rtt = 20 * time.Millisecond
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	p, err := startProxy(echo.Addr().String(), rtt)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	began := time.Now()
	c, err := net.Dial("tcp", p.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// Connecting costs one round trip, and hearing the echo another.
	for i, want := range []time.Duration{2 * rtt, 3 * rtt} {
		word := fmt.Sprint("word ", i)
		got := make([]byte, len(word))
		if _, err := io.WriteString(c, word); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, got); err != nil || string(got) != word {
			t.Fatalf("%q, %v, want %q", got, err, word)
		}
		if took := time.Since(began); took < want {
			t.Errorf("%s after %v, want %v or more", word, took, want)
		}
	}
	_ = c.(*net.TCPConn).CloseWrite()
	if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v, want the end", rest, err)
	}
}

func TestOptions(t *testing.T) {
	for _, test := range []struct {
		args string
		rows int
		err  string
	}{
		{"", len(adapters) * len(workloads), ""},
		{"-quick", len(adapters) + 2, ""},
		{"-quick -only script,redis_rate", 2, ""},
		{"-only pacecar -workload fast,many", 2, ""},
		{"-quick -workload fast", len(adapters), ""},
		{"-only nobody", 0, `-only: unknown name "nobody"`},
		{"-workload none", 0, `-workload: unknown name "none"`},
		{"all", 0, `unexpected argument "all"`},
	} {
		o, err := parseOptions(strings.Fields(test.args), io.Discard)
		switch {
		case test.err == "" && err != nil, test.err != "" && (err == nil || !strings.HasPrefix(err.Error(), test.err)):
			t.Errorf("%q: error %v, want %q", test.args, err, test.err)
		case err == nil && len(o.pairs()) != test.rows:
			t.Errorf("%q: %d rows, want %d", test.args, len(o.pairs()), test.rows)
		}
	}
}
