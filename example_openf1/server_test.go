package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// vast is a quota that no test reaches.
var vast = tier{second: 10_000, minute: 100_000}

func get(h http.Handler, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
	return w
}

func TestStandInQueries(t *testing.T) {
	s := newStandIn(vast, newFaults(nil, 0))
	for _, tt := range []struct {
		target string
		want   int // records; 0 is the 404
	}{
		{"/v1/meetings", 73},
		{"/v1/sessions", 344},
		{"/v1/meetings?year=2023", 23},
		{"/v1/meetings?year=2024", 25},
		{"/v1/meetings?year=2025", 25},
		{"/v1/meetings?year>=2024", 50},
		{"/v1/meetings?year%3E=2024", 50}, // as url.Values encodes it
		{"/v1/meetings?year%3E%3D2024", 50},
		{"/v1/meetings?year>2024", 25},
		{"/v1/meetings?year%3E2024", 25},
		{"/v1/meetings?year<2024", 23},
		{"/v1/meetings?year<=2024", 48},
		{"/v1/meetings?year=2023&year=2025", 48},
		{"/v1/meetings?year>=2024&year<2025", 25},
		{"/v1/meetings?year=2024&country_name=Italy", 2},
		{"/v1/meetings?year=2024&country_name=Italy&country_name=Monaco", 3},
		{"/v1/meetings?year=2024&country_name=United+States", 3},
		{"/v1/meetings?year=2024&country_name=United%20States", 3},
		{"/v1/meetings?meeting_key=latest", 1},
		{"/v1/meetings?meeting_key=1140", 1},
		{"/v1/meetings?date_start=2023-03-03", 1},
		{"/v1/meetings?date_start>2023-03-03&date_start<=2023-03-17", 1},
		{"/v1/meetings?date_start>=2023-03-03T11:30:00%2B00:00&date_start<2023-03-17T13:30:00%2B00:00", 1},
		{"/v1/meetings?date_start=2023-03-03T11:30:00+00:00", 1}, // the plus becomes a space
		{"/v1/sessions?meeting_key=1140", 3},
		{"/v1/sessions?year=2024", 123},
		{"/v1/sessions?year=2024&session_name=Race", 24},
		{"/v1/sessions?meeting_key=latest", 0},
		{"/v1/meetings?year=1999", 0},
		{"/v1/meetings?year=abc", 0},
		{"/v1/meetings?flavour=2024", 0},
		{"/v1/meetings?date_start>yesterday", 0},
	} {
		t.Run(tt.target, func(t *testing.T) {
			w := get(s, tt.target)
			if ct := w.Header().Get("Content-Type"); ct != "application/json" {
				t.Errorf("Content-Type %q", ct)
			}
			if tt.want == 0 {
				if body := strings.TrimSpace(w.Body.String()); w.Code != 404 || body != `{"detail":"No results found."}` {
					t.Errorf("got %d %s", w.Code, body)
				}
				return
			}
			var records []record
			if err := json.Unmarshal(w.Body.Bytes(), &records); err != nil || w.Code != 200 {
				t.Fatalf("got %d, %v", w.Code, err)
			}
			if len(records) != tt.want {
				t.Errorf("got %d records, want %d", len(records), tt.want)
			}
		})
	}
}

func TestStandInLatest(t *testing.T) {
	s := newStandIn(vast, newFaults(nil, 0))
	if body := get(s, "/v1/meetings?meeting_key=latest").Body.String(); !strings.Contains(body, `"meeting_key":1276`) {
		t.Errorf("got %s", body)
	}
}

func TestStandInErrors(t *testing.T) {
	s := newStandIn(vast, newFaults(nil, 0))
	for target, want := range map[string]int{
		"/":                      404,
		"/v1/laps":               404,
		"/v1/meetings?year":      422,
		"/v1/meetings?%3D2024":   422,
		"/v1/meetings?year=%25z": 404, // well encoded, fits nothing
	} {
		if w := get(s, target); w.Code != want {
			t.Errorf("%s: %d, want %d", target, w.Code, want)
		}
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/meetings", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
}

// In a bubble the time stands still while the handler runs.
func TestStandInRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStandIn(tier{3, 6}, newFaults(nil, 0))
		check := func(code int, retryAfter, body string) {
			t.Helper()
			w := get(s, "/v1/meetings?year=2024")
			if w.Code != code || w.Header().Get("Retry-After") != retryAfter {
				t.Errorf("got %d, Retry-After %q; want %d, %q", w.Code, w.Header().Get("Retry-After"), code, retryAfter)
			}
			if body != "" && strings.TrimSpace(w.Body.String()) != body {
				t.Errorf("got %s, want %s", w.Body, body)
			}
		}
		for range 3 {
			check(200, "", "")
		}
		check(429, "1", `{"detail":"Rate limit exceeded. Max 3 requests/second.","error":"Too Many Requests"}`)
		time.Sleep(time.Second)
		check(200, "", "")
		check(200, "", "")
		check(429, "60", `{"detail":"Rate limit exceeded. Max 6 requests/minute.","error":"Too Many Requests"}`)
		if got := s.tally(); got.requests != 7 || got.refused != 2 || got.mostInSecond != 4 || got.mostInMinute != 7 {
			t.Errorf("tally %+v", got)
		}
	})
}

func TestFaultsAreRareAndRepeatable(t *testing.T) {
	draw := func(seed uint64) (got []string) {
		f := newFaults(faultKinds, seed)
		for range 1000 {
			got = append(got, f.draw())
		}
		n := 0
		for _, kind := range faultKinds {
			if f.count[kind] == 0 {
				t.Errorf("seed %d: no %s", seed, kind)
			}
			n += f.count[kind]
		}
		if n < 70 || n > 130 {
			t.Errorf("seed %d: %d faults in 1000 requests, want about 100", seed, n)
		}
		return got
	}
	if !slices.Equal(draw(1), draw(1)) {
		t.Error("the same seed draws differently")
	}
	if slices.Equal(draw(1), draw(2)) {
		t.Error("two seeds draw the same")
	}
	if none := newFaults(nil, 1); none.draw() != "" {
		t.Error("a fault was drawn from none")
	}
}

func TestInject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			fault, retryAfter, contentType string
			code                           int
			took                           time.Duration
		}{
			{"429", "1", "application/json", 429, 0},
			{"503", "1", "application/json", 503, 0},
			{"text429", "", "text/plain", 429, 0},
			{"slow", "", "application/json", 200, 300 * time.Millisecond},
		} {
			f := newFaults([]string{tt.fault}, 1)
			s := newStandIn(vast, f)
			for f.count[tt.fault] == 0 { // until one is hit
				start := time.Now()
				w := get(s, "/v1/meetings?year=2024")
				if f.count[tt.fault] == 0 {
					continue
				}
				if w.Code != tt.code || w.Header().Get("Retry-After") != tt.retryAfter ||
					w.Header().Get("Content-Type") != tt.contentType || time.Since(start) != tt.took {
					t.Errorf("%s: %d %v after %v", tt.fault, w.Code, w.Header(), time.Since(start))
				}
			}
			if got := s.tally(); got.refused != 0 || got.injected[tt.fault] != 1 {
				t.Errorf("%s: an injected refusal was counted as the stand-in's own: %+v", tt.fault, got)
			}
		}
	})
}

// A plain run with -fault shows each of them.
func TestDefaultSeedHitsEveryKind(t *testing.T) {
	o, err := parseOptions(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	f := newFaults(faultKinds, o.seed)
	for range 28 {
		f.draw()
	}
	if len(f.count) != len(faultKinds) {
		t.Errorf("seed %d injects only %v in 28 requests", o.seed, f.count)
	}
}
