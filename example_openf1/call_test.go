package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pacecar-go/pacecar"
)

func TestFetch(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status int
		body   string
		array  string
		reason string
	}{
		{"an answer", 200, `[{"a":1}]`, `[{"a":1}]`, ""},
		{"empty", 200, `[]`, `[]`, ""},
		{"empty, as 404", 404, `{"detail":"No results found."}`, `[]`, ""},
		{"no such endpoint", 404, `{"detail":"Not Found"}`, "", "404 Not Found: Not Found"},
		{"a live session", 401, `{"detail":"Live F1 session in progress."}`, "", "401 Unauthorized: Live F1 session in progress."},
		{"refused", 429, `{"detail":"Rate limit exceeded. Max 3 requests/second.","error":"Too Many Requests"}`, "",
			"429 Too Many Requests: Rate limit exceeded. Max 3 requests/second."},
		{"refused in plain text", 429, "Rate\n exceeded\n", "", "429 Too Many Requests: Rate exceeded"},
		{"without a word", 500, "", "", "500 Internal Server Error"},
		{"a detail that is no text", 422, `{"detail":[1]}`, "", "422 Unprocessable Entity: [1]"},
		{"a long page", 502, strings.Repeat("<br>", 1000), "", "502 Bad Gateway: " + strings.Repeat("<br>", 50) + "…"},
		{"an object", 200, `{"a":1}`, "", "200 OK, but the answer is not a JSON array"},
		{"cut short", 200, `[{"a":`, "", "200 OK, but the answer is not a JSON array"},
		{"endless", 200, "[" + strings.Repeat(" ", maxBody), "", fmt.Sprintf("the answer is longer than %d bytes", maxBody)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(tt.status)
				fmt.Fprint(w, tt.body)
			}))
			defer srv.Close()
			array, status, reason := fetch(t.Context(), srv.Client(), srv.URL)
			if string(array) != tt.array || status != tt.status || reason != tt.reason {
				t.Errorf("got %.300s, %d, %q; want %s, %d, %q", array, status, reason, tt.array, tt.status, tt.reason)
			}
		})
	}
}

func TestFetchNoResponse(t *testing.T) {
	srv := httptest.NewServer(nil)
	srv.Close()
	_, status, reason := fetch(t.Context(), http.DefaultClient, srv.URL+"/v1/meetings?secret")
	if status != 0 || reason == "" || strings.Contains(reason, "secret") {
		t.Errorf("got %d, %q", status, reason)
	}
}

// refusing refuses as pacecar does while Redis is away, a few times.
type refusing struct {
	times int
	calls int
}

func (r *refusing) RoundTrip(req *http.Request) (*http.Response, error) {
	if r.calls++; r.calls <= r.times {
		return nil, &pacecar.Error{Key: "k", Err: pacecar.ErrUnavailable}
	}
	w := httptest.NewRecorder()
	fmt.Fprint(w, "[]")
	return w.Result(), nil
}

func TestFetchWaitsForRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &refusing{times: 4}
		array, status, reason := fetch(t.Context(), &http.Client{Transport: r}, "http://a.example/")
		if string(array) != "[]" || status != 200 || reason != "" || r.calls != 5 {
			t.Errorf("got %s, %d, %q after %d calls", array, status, reason, r.calls)
		}

		start := time.Now()
		r = &refusing{times: 1e9}
		_, _, reason = fetch(t.Context(), &http.Client{Transport: r}, "http://a.example/")
		if took := time.Since(start); reason != "pacecar: k: redis is unavailable" || took < redisWait || took > redisWait+time.Second {
			t.Errorf("got %q after %v", reason, took)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, reason = fetch(ctx, &http.Client{Transport: r}, "http://a.example/"); reason == "" {
			t.Error("an answer from nowhere")
		}
	})
}
