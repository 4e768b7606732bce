package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A job is one call, as a worker is told of it.
type job struct {
	ID   int
	Path string

	year    int // of a meetings call
	meeting int // of a sessions call: the meeting's key
	tries   int // workers that died with it
}

// A result is what came of a job.
type result struct {
	ID     int
	Status int             // of the HTTP response; 0 if there was none
	Body   json.RawMessage `json:",omitempty"` // a JSON array, when Err is empty
	Err    string          `json:",omitempty"`
}

// maxTries is how many workers may die over one job before it is given up.
const maxTries = 3

// A meeting is what the example reads of a meeting; raw is all of it.
type meeting struct {
	Key       int    `json:"meeting_key"`
	Name      string `json:"meeting_name"`
	Location  string `json:"location"`
	Country   string `json:"country_name"`
	Year      int    `json:"year"`
	DateStart stamp  `json:"date_start"`

	raw json.RawMessage
}

// A session is what the example reads of a session.
type session struct {
	Name      string `json:"session_name"`
	DateStart stamp  `json:"date_start"`
	DateEnd   stamp  `json:"date_end"`

	raw json.RawMessage
}

// A stamp is a time as the API writes it. One that cannot be read is the zero
// time: a calendar with a gap is better than an answer thrown away.
type stamp struct{ time.Time }

func (s *stamp) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) == nil {
		s.Time, _, _ = parseTime(text)
	}
	return nil
}

// A failure is a call whose answer is missing, and why.
type failure struct {
	Call   string `json:"call"`
	Reason string `json:"reason"`

	status int
	year   int // whose meetings it asked for
}

// A plan knows which calls are still to make, and holds what they brought:
// first the meetings of each season, and when those are in, the sessions of the
// meetings found. It is used by one goroutine.
type plan struct {
	sessionsOf []int // seasons whose sessions are wanted
	queue      []job
	total      int // jobs so far
	done       int // jobs with a result, good or bad
	asked      int // seasons whose meetings have no result yet

	meetings []meeting
	sessions map[int][]session // by meeting key; present, if empty, once answered
	failures []failure
}

// newPlan plans the meetings of years, and the sessions of the last of them or
// of all. Requires years to be sorted.
func newPlan(years []int, all bool) *plan {
	p := &plan{sessions: make(map[int][]session), sessionsOf: years, asked: len(years)}
	if !all {
		p.sessionsOf = years[len(years)-1:]
	}
	for _, y := range years {
		p.add(job{Path: fmt.Sprintf("/v1/meetings?year=%d", y), year: y})
	}
	return p
}

func (p *plan) add(j job) {
	j.ID = p.total
	p.total++
	p.queue = append(p.queue, j)
}

func (p *plan) finished() bool { return p.done == p.total }

// next takes the next job from the queue.
func (p *plan) next() (job, bool) {
	if len(p.queue) == 0 {
		return job{}, false
	}
	j := p.queue[0]
	p.queue = p.queue[1:]
	return j, true
}

// putBack returns a job whose worker died: another one gets it. All calls are
// GET, so that the upstream may have seen it already does no harm.
func (p *plan) putBack(j job) {
	if j.tries++; j.tries >= maxTries {
		p.fail(j, result{Err: fmt.Sprintf("%d workers died over it", j.tries)})
		return
	}
	p.queue = slices.Insert(p.queue, 0, j)
}

// giveUp fails what is still queued, and what would follow from it.
func (p *plan) giveUp(reason string) {
	for j, ok := p.next(); ok; j, ok = p.next() {
		p.fail(j, result{Err: reason})
	}
}

// finish records the result of a job and plans what follows from it.
func (p *plan) finish(j job, r result) {
	if r.Err == "" {
		if err := p.keep(j, r.Body); err != nil {
			r.Err = "answer not understood: " + err.Error()
		}
	}
	if r.Err != "" {
		p.fail(j, r)
		return
	}
	p.over(j)
}

// keep stores an answer.
func (p *plan) keep(j job, body json.RawMessage) error {
	if j.meeting != 0 {
		found, err := decodeEach(body, func(s *session, raw json.RawMessage) { s.raw = raw })
		if err == nil {
			p.sessions[j.meeting] = found
		}
		return err
	}
	found, err := decodeEach(body, func(m *meeting, raw json.RawMessage) { m.raw, m.Year = raw, j.year })
	p.meetings = append(p.meetings, found...)
	return err
}

// fail records that a job has no answer.
func (p *plan) fail(j job, r result) {
	p.failures = append(p.failures, failure{Call: "GET " + j.Path, Reason: r.Err, status: r.Status, year: j.year})
	p.over(j)
}

// over counts a job that has its result. After the last meetings come the
// sessions.
func (p *plan) over(j job) {
	p.done++
	if j.year == 0 {
		return
	}
	if p.asked--; p.asked > 0 {
		return
	}
	slices.SortStableFunc(p.meetings, func(a, b meeting) int { return a.DateStart.Compare(b.DateStart.Time) })
	for _, m := range p.meetings {
		if slices.Contains(p.sessionsOf, m.Year) {
			p.add(job{Path: fmt.Sprintf("/v1/sessions?meeting_key=%d", m.Key), meeting: m.Key})
		}
	}
}

// notAsked returns the seasons whose sessions nobody could ask for, because
// the call for their meetings failed.
func (p *plan) notAsked() []int {
	return slices.DeleteFunc(slices.Clone(p.sessionsOf), func(y int) bool {
		return !slices.ContainsFunc(p.failures, func(f failure) bool { return f.year == y })
	})
}

// decodeEach decodes a JSON array element by element, and lets keep store the
// element as it came, with the fields that T does not know.
func decodeEach[T any](body json.RawMessage, keep func(*T, json.RawMessage)) ([]T, error) {
	var raws []json.RawMessage
	if err := json.Unmarshal(body, &raws); err != nil {
		return nil, errors.New("not a JSON array")
	}
	out := make([]T, len(raws))
	for i, raw := range raws {
		if err := json.Unmarshal(raw, &out[i]); err != nil {
			return nil, err
		}
		keep(&out[i], raw)
	}
	return out, nil
}
