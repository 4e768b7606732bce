package main

import (
	"bytes"
	"context"
	"flag"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pacecar-go/pacecar"
)

// The picture in docs/img is made, in a minute and on a machine that is idle, by
//
//	go test -run TestScreenshot ./example_openf1 -screenshot ../docs/img/fleet.png
var screenshot = flag.String("screenshot", "", "let TestScreenshot write a picture of the page to this `file`")

// chromium runs a headless browser on a page and returns what it prints. The
// page's clock runs as fast as the machine is, but stands still while it waits for
// an answer: it asks for some ten states, and then the browser does what args say.
// The test is skipped where there is no chromium, unless
// PACECAR_REQUIRE_CHROMIUM=1.
func chromium(t *testing.T, url string, args ...string) string {
	t.Helper()
	// Not t.TempDir: a straggler of the browser may still write there.
	dir, err := os.MkdirTemp("", "chromium")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	args = append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", // root needs the second
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
		"--user-data-dir=" + dir, "--virtual-time-budget=2500"}, args...)
	cmd := exec.CommandContext(ctx, "chromium", append(args, url)...)
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("chromium: %v\n%s", err, stderr.String())
	}
	return string(out)
}

func needChromium(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("chromium"); err != nil {
		if os.Getenv("PACECAR_REQUIRE_CHROMIUM") == "1" {
			t.Fatal("PACECAR_REQUIRE_CHROMIUM=1, and there is no chromium on PATH")
		}
		t.Skip("no chromium on PATH; PACECAR_REQUIRE_CHROMIUM=1 makes this a failure")
	}
}

// The page shows a fleet at work that was paused by a fault and lost its Redis
// for a while, in the numbers of /state.
func TestPageInBrowser(t *testing.T) {
	needChromium(t)
	t.Parallel()
	o := testOptions(t)
	o.tier = tier{second: 20, minute: vast.minute}
	o.faults, o.seed = []string{"429"}, 99
	o.chaos, o.outage = true, pacecar.FailOpen
	s := startServed(t, o)
	before := s.until("a pause and an outage", func(v view) bool {
		return len(v.Pauses) > 0 && v.Pauses[len(v.Pauses)-1].Reason != "" && len(v.Outages) > 0 && v.Outages[len(v.Outages)-1].Until > 0
	})
	dom := chromium(t, s.url, "--dump-dom")
	after := s.state()

	// A busy machine may bring requests by more than the slack later than others,
	// so that some are refused.
	for what, tt := range map[string]struct {
		pattern  string
		low, top int
	}{
		"requests":        {`id="counts">(\d+) requests, \d+ refused`, before.Upstream.Requests, after.Upstream.Requests},
		"the second":      {`aria-label="requests in the last second" aria-valuemin="0" aria-valuenow="(\d+)" aria-valuemax="20"`, 0, 20},
		"the minute":      {`>(\d+) of 100000<`, before.Upstream.Rates[1].Used, after.Upstream.Rates[1].Used},
		"calls, worker 1": {`<tr class=""><td class="">1</td>.*?<td class="n">(\d+)</td>`, before.Workers[0].Calls, after.Workers[0].Calls},
		"calls, worker 2": {`<tr class=""><td class="">2</td>.*?<td class="n">(\d+)</td>`, before.Workers[1].Calls, after.Workers[1].Calls},
		"a pause":         {`until (\d+)(?:\.\d s|:)[^<]*: 429 retry-after, worker [12]<`, 1, 600},
		"an outage":       {`worker ([12]), until \d`, 1, 2},
		"the round":       {`round (\d+), \d+ of 2?[014] calls done`, before.Round, after.Round},
	} {
		m := regexp.MustCompile(tt.pattern).FindStringSubmatch(dom)
		if m == nil {
			t.Errorf("%s: not on the page", what)
			continue
		}
		if n, _ := strconv.Atoi(m[1]); n < tt.low || n > tt.top {
			t.Errorf("%s: %d, want from %d to %d", what, n, tt.low, tt.top)
		}
	}
	if n := strings.Count(dom, `<rect class="ok"`); n == 0 || n > after.Upstream.Requests {
		t.Errorf("%d arrivals are drawn, of %d", n, after.Upstream.Requests)
	}
	for _, band := range []string{"pause", "outage"} {
		if !strings.Contains(dom, `<rect class="`+band+`"`) {
			t.Errorf("no %s is drawn", band)
		}
	}
	if t.Failed() {
		t.Log(dom[strings.Index(dom, "<body>"):strings.Index(dom, "<script>")])
	}
}

// What comes from elsewhere is shown as text, whatever it is.
func TestPageEscapes(t *testing.T) {
	needChromium(t)
	t.Parallel()
	const evil = `<b id="evil">`
	p := new(page)
	p.show(view{
		At: 5, Fleet: evil, Policy: evil,
		Upstream: &viewUpstream{Rates: []viewRate{{evil, 1, 2}}, Marks: []viewMark{{4, evil}}},
		Workers:  []viewWorker{{State: evil, Does: evil}},
		Pauses:   []viewPause{{1, 2, 1, evil}},
		Outages:  []viewOutage{{1, 2, 0, evil}},
		News:     []viewNews{{1, 2, evil}},
	})
	srv := httptest.NewServer(p.handler())
	defer srv.Close()
	dom := chromium(t, srv.URL, "--dump-dom")
	if strings.Contains(dom, evil) {
		t.Error("there is an element that came as text")
	}
	if n := strings.Count(dom, `&lt;b id="evil"&gt;`); n != 8 {
		t.Errorf("the text is there %d times, want 8", n)
	}
}

func TestScreenshot(t *testing.T) {
	if *screenshot == "" {
		t.Skip("for -screenshot")
	}
	needChromium(t)
	s := startServed(t, options{workers: 4, concurrency: 4, years: []int{2023, 2024, 2025}, all: true, tier: tiers["free"],
		faults: []string{"429", "503"}, seed: 99, chaos: true, outage: pacecar.FailOpen})
	s.until("half a minute after it all", func(v view) bool { return v.At > 44 })
	chromium(t, s.url, "--window-size=1200,880", "--screenshot="+*screenshot)
}
