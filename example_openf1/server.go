package main

import (
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// The API's data is CC BY-NC-SA 4.0: see data/README.md.
//
//go:embed data/meetings.json data/sessions.json
var data embed.FS

// noResults is the detail of the 404 that an empty answer is.
const noResults = "No results found."

// A standIn answers like Open F1, as far as this example asks, and refuses
// like it. It keeps its own account, which the report quotes: what counts is
// how the upstream saw the fleet, not how the fleet saw itself.
type standIn struct {
	meetings, sessions []record

	mu     sync.Mutex // guards what follows
	ledger ledger
	faults *faults
}

func newStandIn(t tier, f *faults) *standIn {
	s := &standIn{ledger: ledger{tier: t}, faults: f}
	s.meetings, s.sessions = mustLoad("data/meetings.json"), mustLoad("data/sessions.json")

	// A session also has what its meeting says of place and year.
	byKey := make(map[any]record)
	for _, m := range s.meetings {
		byKey[m["meeting_key"]] = m
	}
	for _, r := range s.sessions {
		m := byKey[r["meeting_key"]]
		for _, field := range []string{"circuit_key", "circuit_short_name", "country_code", "country_key",
			"country_name", "gmt_offset", "location", "year"} {
			r[field] = m[field]
		}
	}
	return s
}

// mustLoad reads embedded data. A test has read it too.
func mustLoad(name string) []record {
	b, err := data.ReadFile(name)
	if err != nil {
		panic(err)
	}
	var records []record
	if err := json.Unmarshal(b, &records); err != nil {
		panic(err)
	}
	return records
}

// start serves on a free port of this machine until stop is called.
func (s *standIn) start() (addr string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	srv := &http.Server{Handler: s, ReadHeaderTimeout: 5 * time.Second}
	go srv.Serve(l)
	return l.Addr().String(), func() { srv.Close() }, nil
}

// ServeHTTP implements [http.Handler]. The moment of arrival is read first of
// all, under the lock, so that arrivals are entered in their order.
func (s *standIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	now := time.Now()
	v := s.ledger.arrive(now)
	fault, met := "", "refused"
	if v == nil {
		fault = s.faults.draw()
		met = cmp.Or(fault, "ok")
	}
	s.ledger.note(now, met)
	s.mu.Unlock()

	if v != nil {
		w.Header().Set("Retry-After", strconv.Itoa(v.retryAfter))
		writeJSON(w, http.StatusTooManyRequests, json.RawMessage(v.body()))
		return
	}
	if inject(w, fault) {
		return
	}
	var records []record
	switch {
	case r.Method != http.MethodGet:
		writeJSON(w, http.StatusMethodNotAllowed, detail("Method Not Allowed"))
		return
	case r.URL.Path == "/v1/meetings":
		records = s.meetings
	case r.URL.Path == "/v1/sessions":
		records = s.sessions
	default:
		writeJSON(w, http.StatusNotFound, detail("Not Found"))
		return
	}
	found, err := s.find(records, r.URL.RawQuery)
	switch {
	case err != nil:
		writeJSON(w, http.StatusUnprocessableEntity, detail(err.Error()))
	case len(found) == 0:
		writeJSON(w, http.StatusNotFound, detail(noResults))
	default:
		writeJSON(w, http.StatusOK, found)
	}
}

// find returns the records that a query asks for.
func (s *standIn) find(records []record, rawQuery string) ([]record, error) {
	filters, err := parseQuery(rawQuery)
	if err != nil {
		return nil, err
	}
	for _, f := range filters {
		for i, v := range f.values {
			if v == "latest" {
				f.values[i] = s.latest(f.field)
			}
		}
	}
	var found []record
	for _, r := range records {
		if match(r, filters) {
			found = append(found, r)
		}
	}
	return found, nil
}

// latest returns the key of the last meeting or session, or "latest" for other
// fields.
func (s *standIn) latest(field string) string {
	var of []record
	switch field {
	case "meeting_key":
		of = s.meetings
	case "session_key":
		of = s.sessions
	default:
		return "latest"
	}
	last := slices.MaxFunc(of, func(a, b record) int {
		return cmp.Compare(a["date_start"].(string), b["date_start"].(string)) // all are in UTC
	})
	return fmt.Sprint(last[field])
}

func detail(text string) any { return map[string]string{"detail": text} }

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the caller may be gone
}

// faultKinds are what -fault can inject.
var faultKinds = []string{"429", "503", "text429", "slow"}

// faults decides which requests fail though they kept the quota: one in ten.
// The same seed hits the same arrivals, counted by their order.
type faults struct {
	kinds []string
	rng   *rand.Rand
	count map[string]int // how often each was injected
}

func newFaults(kinds []string, seed uint64) *faults {
	return &faults{kinds: kinds, rng: rand.New(rand.NewPCG(seed, 0)), count: make(map[string]int)}
}

// draw returns the fault of the next request, mostly none.
func (f *faults) draw() string {
	if len(f.kinds) == 0 || f.rng.IntN(10) != 0 {
		return ""
	}
	kind := f.kinds[f.rng.IntN(len(f.kinds))]
	f.count[kind]++
	return kind
}

// inject answers with a fault. It returns false if the request is still to be
// answered.
func inject(w http.ResponseWriter, fault string) bool {
	switch fault {
	case "429":
		w.Header().Set("Retry-After", "1")
		writeJSON(w, http.StatusTooManyRequests, map[string]string{
			"detail": "Rate limit exceeded. Try again later.", "error": "Too Many Requests"})
	case "503":
		w.Header().Set("Retry-After", "1")
		writeJSON(w, http.StatusServiceUnavailable, detail("Service Unavailable"))
	case "text429":
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprint(w, "Rate exceeded")
	case "slow":
		time.Sleep(300 * time.Millisecond)
		return false
	default:
		return false
	}
	return true
}

// A tally is the stand-in's account at the end.
type tally struct {
	requests, refused          int
	mostInSecond, mostInMinute int
	injected                   map[string]int
}

func (s *standIn) tally() tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	return tally{
		requests:     len(s.ledger.arrivals),
		refused:      s.ledger.refused,
		mostInSecond: most(s.ledger.arrivals, time.Second),
		mostInMinute: most(s.ledger.arrivals, time.Minute),
		injected:     maps.Clone(s.faults.count),
	}
}
