package pacecar

import (
	"net/http"
	"regexp"
	"strings"
	"time"
)

// rateLimit returns how long to wait because a quota has nothing left, as the
// RateLimit fields of the IETF's drafts say (draft-ietf-httpapi-ratelimit-headers):
//
//	RateLimit: "burst";r=0;t=30, "daily";r=400;t=80000   since draft 08
//	RateLimit: limit=100, remaining=0, reset=30          draft 07
//	RateLimit-Remaining: 0 and RateLimit-Reset: 30       before
//
// Of several quotas with nothing left the longest wait counts. A malformed
// field is ignored whole, and so are the fields of a response that comes from a
// cache (§7.3): they may be old.
func rateLimit(h http.Header, now time.Time) (wait time.Duration, ok bool) {
	if h["Ratelimit"] == nil && h["Ratelimit-Remaining"] == nil {
		return 0, false // nearly every response
	}
	if age, _ := parseSeconds(trimOWS(h.Get("Age"))); age > 0 {
		return 0, false
	}
	base := serverTime(h, now)
	reset := func(s string) (time.Duration, bool) { return parseReset(s, base) }
	wait, ok = exhaustedQuota(headerField(h, "Ratelimit"), reset)
	for part := range strings.SplitSeq(headerField(h, "Ratelimit-Remaining"), ",") {
		if none, _ := nothingLeft(trimOWS(part)); none {
			if d, valid := longestDelay(h, "Ratelimit-Reset", reset); valid {
				wait, ok = max(wait, d), true
			}
			break
		}
	}
	return clampDelay(wait), ok
}

// nothingLeft reports whether a quota's remainder is below one, and whether it
// is a number at all.
func nothingLeft(s string) (none, ok bool) {
	n, ok := parseSeconds(s)
	return n < time.Second && ok, ok
}

// parseReset reads the reset of the older drafts: seconds to wait, or what some
// (GitLab) send under the same name, the time itself, in seconds or
// milliseconds since 1970. No quota lasts for the 31 years that tell the two
// apart.
func parseReset(s string, base time.Time) (time.Duration, bool) {
	const sinceSeconds, sinceMillis = 1_000_000_000, 1_000_000_000_000
	// Read as microseconds, no number of this size saturates.
	if n, _ := parseDelay(s, time.Microsecond); n > sinceMillis*time.Microsecond {
		return parseEpoch(s, time.Millisecond, base)
	}
	d, ok := parseSeconds(s)
	if d > sinceSeconds*time.Second {
		return parseEpoch(s, time.Second, base)
	}
	return d, ok
}

// parseEpoch reads a time given in units since 1970, and returns how far after
// base it is: negative when it has passed.
func parseEpoch(s string, unit time.Duration, base time.Time) (time.Duration, bool) {
	d, ok := parseDelay(s, unit)
	return time.Unix(0, 0).Add(d).Sub(base), ok
}

// A quotaLeft is what a RateLimit field says of one quota, as it stands there:
// what is left, and when there is more. Empty where it doesn't say.
type quotaLeft struct{ left, reset string }

// exhaustedQuota returns the longest wait that a RateLimit field names for a
// quota with nothing left. reset reads the older form's.
func exhaustedQuota(field string, reset func(string) (time.Duration, bool)) (wait time.Duration, found bool) {
	quotas, isList := parseQuotas(field)
	if isList {
		reset = parseSeconds
	}
	for _, q := range quotas {
		none, ok := nothingLeft(q.left)
		if !ok && q.left != "" {
			return 0, false
		}
		d, ok := reset(q.reset)
		if !ok && q.reset != "" {
			return 0, false
		}
		if none && ok {
			wait, found = max(wait, d), true
		}
	}
	return wait, found
}

// The grammar of a structured field's members (RFC 9651 §4.2), as far as a list
// of items and a dictionary of items go. Inner lists have no place in ours.
const (
	sfKey   = `[a-z*][a-z0-9_.*-]*`
	sfValue = `(?:-?\d+(?:\.\d+)?` + // a number
		`|%?"(?:[ !#-\[\]-~]|\\["\\])*"` + // a string
		`|[A-Za-z*][\w!#$%&'*+.^|~:/` + "`" + `-]*` + // a token
		`|:[A-Za-z0-9+/=]*:|\?[01]|@-?\d+)` // bytes, a truth value, a date
)

var (
	sfMember = regexp.MustCompile(`^(?:(` + sfKey + `)=)?(` + sfValue + `)` +
		`((?:; *` + sfKey + `(?:=` + sfValue + `)?)*)` + `[ \t]*(,[ \t]*|$)`)
	sfParam = regexp.MustCompile(`; *(` + sfKey + `)(?:=(` + sfValue + `))?`)
)

// parseQuotas reads a RateLimit field: a list, whose members have parameters r
// and t, or the older dictionary with the keys remaining and reset, which
// several lines may repeat. A field that is neither, or longer than what is
// read of it, tells of no quota.
func parseQuotas(field string) (quotas []quotaLeft, isList bool) {
	if len(field) == maxFieldBytes {
		return nil, false
	}
	var dict quotaLeft
	rest, items, members := trimOWS(field), 0, 0
	for more := rest != ""; more; members++ {
		m := sfMember.FindStringSubmatch(rest)
		if m == nil {
			return nil, false
		}
		rest, more = rest[len(m[0]):], m[4] != ""
		switch key, value := m[1], m[2]; key {
		case "":
			items++
			var q quotaLeft
			for _, p := range sfParam.FindAllStringSubmatch(m[3], -1) {
				switch p[1] {
				case "r":
					q.left = p[2]
				case "t":
					q.reset = p[2]
				}
			}
			quotas = append(quotas, q)
		case "remaining":
			if dict.left != "" {
				quotas, dict = append(quotas, dict), quotaLeft{}
			}
			dict.left = value
		case "reset":
			if dict.reset != "" {
				quotas, dict = append(quotas, dict), quotaLeft{}
			}
			dict.reset = value
		}
	}
	if items != 0 && items != members {
		return nil, false
	}
	return append(quotas, dict), items != 0
}
