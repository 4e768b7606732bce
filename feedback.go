package pacecar

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Every wait that an upstream names is brought into these bounds.
const (
	// adviceFloor stands for "at once" and for a time that has passed, so that
	// an upstream that names no real wait never starts a hot loop.
	adviceFloor = 100 * time.Millisecond

	// adviceCeiling stands for every longer wait. It can be added to a time and
	// is exact in a script's numbers: a century of microseconds is below 2^53.
	adviceCeiling = 100 * 365 * 24 * time.Hour
)

// Work on a header field is bounded whatever the upstream sends: what lies
// beyond is not read.
const (
	maxFieldLines = 16
	maxFieldBytes = 4096
)

// advice is what one response says about waiting. The zero value: nothing.
type advice struct {
	// limited: the request was turned away unprocessed for its rate, so it may
	// be sent again whatever its method. Without named the upstream did not say
	// how long to wait: that is then the caller's backoff.
	limited bool

	// named: the upstream said how long. A response that is not limited may
	// name a wait too, when it used the last of a quota.
	named bool

	// wait counts from the moment the response came. It is zero when not named,
	// else adviceFloor or more and adviceCeiling or less. The caller's caps
	// come after that.
	wait time.Duration

	// permanent: waiting does not help. Neither pause nor send again.
	permanent bool

	// reason is for events and logs: the status and the name of what was
	// obeyed, never a header's value.
	reason string
}

// pauses reports whether the key is to be paused: for wait where that is named,
// else for the caller's backoff.
func (a advice) pauses() bool { return a.limited || a.named }

// feedback asks the policy's dialect first, then the standard header fields.
// now is the moment at which resp came. It may replace resp.Body by one that
// reads the same: see [peekBody].
func (p *Policy) feedback(resp *http.Response, now time.Time) advice {
	if p.Feedback == nil {
		return readAdvice(resp, now)
	}
	pause, ok := p.Feedback(resp)
	status := resp.StatusCode
	switch {
	case !ok:
		return readAdvice(resp, now)
	case pause != 0:
		return advice{limited: statusRefuses(status), named: true, wait: clampDelay(pause), reason: adviceReason(status, "feedback")}
	case status >= 400:
		return advice{permanent: true, reason: adviceReason(status, "feedback")}
	}
	return advice{}
}

// statusRefuses reports whether a status means that the request was not acted
// upon. Of the server errors that is taken of 503 and of Anthropic's 529 alone.
func statusRefuses(status int) bool {
	return status >= 400 && status < 500 || status == http.StatusServiceUnavailable || status == statusOverloaded
}

// readAdvice reads the header fields that mean the same everywhere. It looks at
// no body and no clock: now is the moment at which resp came.
//
// Retry-After and its millisecond forms are obeyed on 429, 503 and 413 (RFC
// 9110 §15.5.14: a content that is too large only for now); on a redirect it is
// not ours to wait, and elsewhere it has no meaning. A RateLimit field with
// nothing left is obeyed on every status, but it says nothing of the request
// that it answers, so that only a 429 is limited by it. A 401 or 403 is about
// permission, and nothing on it is obeyed. X-RateLimit fields mean different
// things on different hosts and are left to the dialects.
func readAdvice(resp *http.Response, now time.Time) advice {
	status := resp.StatusCode
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return advice{}
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusRequestEntityTooLarge:
		if wait, field := retryAfter(resp.Header, now); field != "" {
			return advice{limited: true, named: true, wait: wait, reason: adviceReason(status, field)}
		}
	}
	limited := status == http.StatusTooManyRequests
	if wait, ok := rateLimit(resp.Header, now); ok {
		return advice{limited: limited, named: true, wait: wait, reason: adviceReason(status, "ratelimit with nothing left")}
	}
	if limited {
		return advice{limited: true, reason: "429 without a wait"}
	}
	return advice{}
}

// adviceReason tells why a key is paused, in words that are the same for all keys.
func adviceReason(status int, why string) string { return strconv.Itoa(status) + " " + why }

// retryAfter reads the fields that name a wait outright, and returns the name
// of the one it obeys, the finest first. The empty name means that none is
// valid.
func retryAfter(h http.Header, now time.Time) (wait time.Duration, field string) {
	if d, ok := longestDelay(h, "Retry-After-Ms", parseMillis); ok {
		return clampDelay(d), "retry-after-ms"
	}
	if d, ok := longestDelay(h, "X-Ms-Retry-After-Ms", parseMillis); ok {
		return clampDelay(d), "x-ms-retry-after-ms"
	}
	d, ok := longestDelay(h, "Retry-After", func(s string) (time.Duration, bool) {
		if d, ok := parseSeconds(s); ok {
			return d, true
		}
		t, ok := parseDate(s)
		return t.Sub(serverTime(h, now)), ok // Sub saturates
	})
	if ok {
		return clampDelay(d), "retry-after"
	}
	return 0, ""
}

// clampDelay brings a wait into the bounds of an [advice].
func clampDelay(d time.Duration) time.Duration {
	return min(max(d, adviceFloor), adviceCeiling)
}

// longestDelay returns the longest of a field's values: the members of its
// list and its lines, of which read understands at least one. It may be
// negative: a date that has passed.
func longestDelay(h http.Header, name string, read func(string) (time.Duration, bool)) (longest time.Duration, found bool) {
	field := headerField(h, name)
	if field == "" {
		return 0, false
	}
	parts := strings.Split(field, ",")
	for i, part := range parts {
		d, ok := read(trimOWS(part))
		if !ok && i+1 < len(parts) {
			d, ok = read(trimOWS(part + "," + parts[i+1])) // a date has a comma of its own
		}
		if ok && (!found || d > longest) {
			longest, found = d, true
		}
	}
	return longest, found
}

// headerField joins the lines of a field as RFC 9110 §5.3 says. name is in its
// canonical form.
func headerField(h http.Header, name string) string {
	lines := h[name]
	if len(lines) == 0 {
		return ""
	}
	s := strings.Join(lines[:min(len(lines), maxFieldLines)], ",")
	return s[:min(len(s), maxFieldBytes)]
}

// trimOWS trims what HTTP calls white space.
func trimOWS(s string) string { return strings.Trim(s, " \t") }

// serverTime is the upstream's own clock, where it says what it reads, since
// that is the clock that its dates and epochs are meant by. It is cut to whole
// seconds, which can only lengthen a wait.
func serverTime(h http.Header, now time.Time) time.Time {
	if t, ok := parseDate(trimOWS(headerField(h, "Date"))); ok {
		return t
	}
	return now
}

// parseDate reads the three date forms of RFC 9110 §5.6.7.
func parseDate(s string) (time.Time, bool) {
	t, err := http.ParseTime(s)
	// ParseTime takes the letters of any zone in the RFC 850 form, for UTC
	// where it doesn't know them: hours wrong. Only asctime has no comma.
	gmt := strings.HasSuffix(s, " GMT") || !strings.Contains(s, ",")
	return t, err == nil && gmt
}

func parseSeconds(s string) (time.Duration, bool) { return parseDelay(s, time.Second) }
func parseMillis(s string) (time.Duration, bool)  { return parseDelay(s, time.Millisecond) }

// parseDelay reads digits, with a fraction or without, as a number of units:
// no sign, no exponent, no word. The result is rounded up to the nanosecond and
// never above adviceCeiling, however many digits there are. unit is a power of
// ten, a second at most.
func parseDelay(s string, unit time.Duration) (d time.Duration, ok bool) {
	whole, fraction, point := strings.Cut(s, ".")
	if !isDigits(whole) || point && !isDigits(fraction) {
		return 0, false
	}
	for _, c := range whole {
		d = min(d, adviceCeiling/10)*10 + time.Duration(c-'0')*unit
	}
	for _, c := range fraction {
		if unit /= 10; unit == 0 && c != '0' {
			d++
			break
		}
		d += time.Duration(c-'0') * unit
	}
	return min(d, adviceCeiling), true
}
