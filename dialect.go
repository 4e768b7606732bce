package pacecar

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// statusOverloaded is Anthropic's overloaded_error.
const statusOverloaded = 529

// GitHub is a [Policy].Feedback for GitHub's API. It refuses with 403 or 429.
// A Retry-After is obeyed. Without one, a secondary limit, of which only the
// body tells, waits for a minute, and a primary limit with nothing remaining
// until x-ratelimit-reset. A 429 that tells neither waits for a minute, as does
// nothing remaining without a reset. Any other 403 is about permission: no pause,
// no retry. Search and GraphQL have quotas of their own and want their own routes.
//
// Source: GitHub Docs, "Rate limits for the REST API". Where a secondary limit
// leaves nothing of the primary one either, the minute comes first.
func GitHub(resp *http.Response) (pause time.Duration, ok bool) {
	return gitHub(resp, time.Now())
}

func gitHub(resp *http.Response, now time.Time) (time.Duration, bool) {
	if !hasStatus(resp, http.StatusForbidden, http.StatusTooManyRequests) {
		return 0, false
	}
	if wait, ok := namedWait(resp, now); ok {
		return wait, true
	}
	if bytes.Contains(bytes.ToLower(peekBody(resp)), []byte("secondary rate limit")) {
		return time.Minute, true
	}
	none, _ := nothingLeft(trimOWS(headerField(resp.Header, "X-Ratelimit-Remaining")))
	if none {
		base := serverTime(resp.Header, now)
		epoch := func(s string) (time.Duration, bool) { return parseEpoch(s, time.Second, base) }
		if reset, ok := longestDelay(resp.Header, "X-Ratelimit-Reset", epoch); ok {
			return clampDelay(reset), true
		}
	}
	if none || resp.StatusCode == http.StatusTooManyRequests {
		return time.Minute, true
	}
	return 0, false
}

// Discord is a [Policy].Feedback for Discord's API: on a 429, the longest of
// Retry-After, X-RateLimit-Reset-After and the body's retry_after, whatever the
// X-RateLimit-Scope. Discord bans an address for a while that draws 10,000
// refusals (401, 403 and 429) in 10 minutes.
//
// Source: Discord Developer Documentation, "Rate Limits".
func Discord(resp *http.Response) (pause time.Duration, ok bool) {
	return discord(resp, time.Now())
}

func discord(resp *http.Response, now time.Time) (time.Duration, bool) {
	if !hasStatus(resp, http.StatusTooManyRequests) {
		return 0, false
	}
	var body struct {
		RetryAfter json.Number `json:"retry_after"`
	}
	_ = json.Unmarshal(peekBody(resp), &body) // a proxy's 429 is no JSON
	said, ok1 := parseSeconds(body.RetryAfter.String())
	wait, ok2 := namedWait(resp, now)
	reset, ok3 := longestDelay(resp.Header, "X-Ratelimit-Reset-After", parseSeconds)
	if !ok1 && !ok2 && !ok3 {
		return 0, false
	}
	return clampDelay(max(said, wait, reset)), true
}

// OpenAI is a [Policy].Feedback for OpenAI's API: on a 429 retry-after-ms, then
// Retry-After, then the longer of x-ratelimit-reset-requests and
// x-ratelimit-reset-tokens, which are written like Go's durations. The code
// insufficient_quota in the body means an empty account, which no wait fills:
// no pause, no retry.
//
// Source: OpenAI's guides "Rate limits" and "Error codes".
func OpenAI(resp *http.Response) (pause time.Duration, ok bool) {
	return openAI(resp, time.Now())
}

func openAI(resp *http.Response, now time.Time) (time.Duration, bool) {
	if !hasStatus(resp, http.StatusTooManyRequests) {
		return 0, false
	}
	var body struct{ Error struct{ Code string } }
	if json.Unmarshal(peekBody(resp), &body) == nil && body.Error.Code == "insufficient_quota" {
		return 0, true
	}
	if wait, ok := namedWait(resp, now); ok {
		return wait, true
	}
	return longestReset(resp.Header, parseGoDuration, "X-Ratelimit-Reset-Requests", "X-Ratelimit-Reset-Tokens")
}

var goDuration = regexp.MustCompile(`^(\d+(\.\d+)?(h|m|s|ms|us|µs|ns))+$`)

// parseGoDuration is time.ParseDuration without signs, and saturates.
func parseGoDuration(s string) (time.Duration, bool) {
	if !goDuration.MatchString(s) {
		return 0, false
	}
	d, err := time.ParseDuration(s)
	if err != nil { // it overflows
		d = adviceCeiling
	}
	return d, true
}

// Anthropic is a [Policy].Feedback for Anthropic's API: the Retry-After of a
// 429 or a 529 (overloaded); on a 429 without one, the latest of the
// anthropic-ratelimit-…-reset fields, which are RFC 3339 times.
//
// Source: Anthropic's API documentation, "Rate limits" and "Errors".
func Anthropic(resp *http.Response) (pause time.Duration, ok bool) {
	return anthropic(resp, time.Now())
}

func anthropic(resp *http.Response, now time.Time) (time.Duration, bool) {
	if !hasStatus(resp, http.StatusTooManyRequests, statusOverloaded) {
		return 0, false
	}
	wait, ok := namedWait(resp, now)
	if ok || resp.StatusCode == statusOverloaded {
		return wait, ok
	}
	base := serverTime(resp.Header, now)
	return longestReset(resp.Header, func(s string) (time.Duration, bool) {
		t, err := time.Parse(time.RFC3339, s)
		return t.Sub(base), err == nil
	}, "Anthropic-Ratelimit-Requests-Reset", "Anthropic-Ratelimit-Tokens-Reset",
		"Anthropic-Ratelimit-Input-Tokens-Reset", "Anthropic-Ratelimit-Output-Tokens-Reset")
}

// Azure is a [Policy].Feedback for Azure's services: on a 429 or 503
// retry-after-ms, then x-ms-retry-after-ms, then Retry-After. All of these are
// obeyed without it too; it lets a policy say whom it talks to.
//
// Source: the retry policy of the Azure SDK for Go (azcore).
func Azure(resp *http.Response) (pause time.Duration, ok bool) {
	if !hasStatus(resp, http.StatusTooManyRequests, http.StatusServiceUnavailable) {
		return 0, false
	}
	return namedWait(resp, time.Now())
}

// Slack is a [Policy].Feedback for Slack's Web API: the Retry-After of a 429,
// which is obeyed without it too; it lets a policy say whom it talks to.
// Slack counts for each method and workspace: that takes a route for each
// method, and a Key for the workspaces.
//
// Source: Slack's API documentation, "Rate limits".
func Slack(resp *http.Response) (pause time.Duration, ok bool) {
	if !hasStatus(resp, http.StatusTooManyRequests) {
		return 0, false
	}
	return namedWait(resp, time.Now())
}

// Reddit is a [Policy].Feedback for Reddit's Data API: on a 429 Retry-After, or
// else X-Ratelimit-Reset, the seconds until the period ends, unless
// X-Ratelimit-Remaining says that something is left.
//
// Source: Reddit's "Data API Wiki".
func Reddit(resp *http.Response) (pause time.Duration, ok bool) {
	if !hasStatus(resp, http.StatusTooManyRequests) {
		return 0, false
	}
	if wait, ok := namedWait(resp, time.Now()); ok {
		return wait, true
	}
	if none, ok := nothingLeft(trimOWS(headerField(resp.Header, "X-Ratelimit-Remaining"))); ok && !none {
		return 0, false
	}
	return longestReset(resp.Header, parseSeconds, "X-Ratelimit-Reset")
}

func hasStatus(resp *http.Response, statuses ...int) bool {
	return slices.Contains(statuses, resp.StatusCode)
}

// namedWait is [retryAfter] in the form of a dialect's answer.
func namedWait(resp *http.Response, now time.Time) (time.Duration, bool) {
	wait, field := retryAfter(resp.Header, now)
	return wait, field != ""
}

// longestReset returns the longest delay that any of the fields names.
func longestReset(h http.Header, read func(string) (time.Duration, bool), names ...string) (longest time.Duration, found bool) {
	for _, name := range names {
		if d, ok := longestDelay(h, name, read); ok {
			longest, found = max(longest, clampDelay(d)), true
		}
	}
	return longest, found
}

// Of a refusal's body a dialect sees no more than this, and waits for it no
// longer than this: the head has come, and a refusal is small.
const (
	maxPeek  = 64 << 10
	peekTime = time.Second
)

// peekBody returns the beginning of a refusal's body, and puts it back: the caller
// reads every byte of it, then the rest, and where reading ended with an error,
// that error. Close reaches the body itself. There is no look, and the result is
// nil, when the body says that it is longer than maxPeek, when it is compressed
// because the caller asked for that himself, and when its maxPeek bytes or its end
// have not come within peekTime.
func peekBody(resp *http.Response) []byte {
	if resp.Body == nil || resp.Body == http.NoBody || resp.ContentLength > maxPeek ||
		!strings.EqualFold(cmp.Or(resp.Header.Get("Content-Encoding"), "identity"), "identity") {
		return nil
	}
	return readAhead(resp, maxPeek, peekTime)
}

// readAhead reads up to most bytes of a body and puts them back. The result is
// nil when neither they nor the body's end came within the time.
func readAhead(resp *http.Response, most int, within time.Duration) []byte {
	p := &peekedBody{ReadCloser: resp.Body, most: most, done: make(chan struct{})}
	resp.Body = p
	go p.readAhead()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.done:
		return p.head
	case <-timer.C:
		p.late.Store(true)
		return nil
	}
}

// A peekedBody is a body of which the head has been read, or is being read. A
// Read that hangs can't be called off, so it has a goroutine of its own, which
// ends with that Read: when something comes, or when the body is closed, as
// net/http's bodies may be while they are read.
type peekedBody struct {
	io.ReadCloser
	most int           // bytes of the head
	late atomic.Bool   // nobody waits for the head any more
	done chan struct{} // closed when the goroutine is through with what follows
	head []byte
	read int   // how much of head the caller has read
	err  error // what ended the head, at the same place for the caller
}

func (p *peekedBody) readAhead() {
	defer close(p.done)
	for len(p.head) < p.most && p.err == nil && !p.late.Load() {
		p.head = slices.Grow(p.head, bytes.MinRead)
		var n int
		n, p.err = p.ReadCloser.Read(p.head[len(p.head):min(cap(p.head), p.most)])
		p.head = p.head[:len(p.head)+n]
	}
}

// ended reports whether the head is all that there is of the body.
func (p *peekedBody) ended() bool {
	select {
	case <-p.done:
		return p.err != nil
	default:
		return false
	}
}

// Read implements [io.Reader].
func (p *peekedBody) Read(b []byte) (int, error) {
	<-p.done
	if p.read < len(p.head) {
		n := copy(b, p.head[p.read:])
		p.read += n
		return n, nil
	}
	if p.err != nil {
		return 0, p.err
	}
	return p.ReadCloser.Read(b)
}
