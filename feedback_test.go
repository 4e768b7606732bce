package pacecar

import (
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"
)

// cameAt is when the responses of these tests came; their upstream's clock is
// ten minutes slow.
var (
	cameAt   = time.Date(2026, 3, 1, 12, 0, 0, 5e8, time.UTC)
	slowDate = "Sun, 01 Mar 2026 11:50:00 GMT"
)

// response makes a response whose header has the lines given, "Name: value".
func response(status int, body string, lines ...string) *http.Response {
	h := http.Header{}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		h.Add(name, value)
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body))}
}

// TestRetryAfterValues reads every value on a 429. A value that is not obeyed
// leaves a refusal without a named wait, for which the caller backs off.
func TestRetryAfterValues(t *testing.T) {
	const s = time.Second
	const unnamed = -1
	for _, tt := range []struct {
		name   string
		values []string
		want   time.Duration
	}{
		{"zero is a floor", []string{"0"}, adviceFloor},
		{"zero point zero", []string{"0.0"}, adviceFloor},
		{"one", []string{"1"}, s},
		{"seconds", []string{"120"}, 120 * s},
		{"leading zeros", []string{"007"}, 7 * s},
		{"space before", []string{" 5"}, 5 * s},
		{"space after", []string{"5 "}, 5 * s},
		{"tabs", []string{"\t5\t"}, 5 * s},
		{"decimal", []string{"1.5"}, 1500 * time.Millisecond},
		{"decimal, as Shopify writes it", []string{"2.0"}, 2 * s},
		{"data-prepper#6928, below a second", []string{"0.2"}, 200 * time.Millisecond},
		{"data-prepper#6928", []string{"299.997"}, 299997 * time.Millisecond},
		{"rounded up below the nanosecond", []string{"1.0000000001"}, s + 1},
		{"nothing to round up", []string{"1.0000000000"}, s},
		{"below the floor", []string{"0.000001"}, adviceFloor},

		{"plus sign", []string{"+5"}, unnamed},
		{"minus sign", []string{"-1"}, unnamed},
		{"exponent", []string{"1e3"}, unnamed},
		{"hexadecimal", []string{"0x10"}, unnamed},
		{"underscore", []string{"1_0"}, unnamed},
		{"not a number", []string{"NaN"}, unnamed},
		{"infinite", []string{"Inf"}, unnamed},
		{"other digits", []string{"५"}, unnamed},
		{"unit", []string{"5s"}, unnamed},
		{"space within", []string{"1 0"}, unnamed},
		{"two points", []string{"1.2.3"}, unnamed},
		{"no fraction", []string{"1."}, unnamed},
		{"no whole", []string{".5"}, unnamed},
		{"words", []string{"in a minute"}, unnamed},
		{"empty", []string{""}, unnamed},
		{"only commas", []string{",,"}, unnamed},

		{"list", []string{"120, 60"}, 120 * s},
		{"two lines", []string{"60", "120"}, 120 * s},
		{"list with a bad member", []string{"-1, 60, x"}, 60 * s},
		{"list of a number and a date", []string{"5, Sun, 01 Mar 2026 12:00:30 GMT, 7"}, 29500 * time.Millisecond},

		{"CLIProxyAPI#4725, sentry-native#1744", []string{"561635"}, 561635 * s},
		{"just below an overflow", []string{"9223372036"}, adviceCeiling},
		{"basecamp-sdk#798", []string{"9223372037"}, adviceCeiling},
		{"kubevuln#637", []string{"18446744073"}, adviceCeiling},
		{"largest int64", []string{"9223372036854775807"}, adviceCeiling},
		{"one more", []string{"9223372036854775808"}, adviceCeiling},
		{"forty nines", []string{strings.Repeat("9", 40)}, adviceCeiling},
		{"more than is read", []string{strings.Repeat("9", 1<<20)}, adviceCeiling},
		{"more lines than are read", append(make([]string, 1<<16), "7"), unnamed},

		{"IMF-fixdate", []string{"Sun, 01 Mar 2026 12:00:30 GMT"}, 29500 * time.Millisecond},
		{"RFC 850 date", []string{"Sunday, 01-Mar-26 12:00:30 GMT"}, 29500 * time.Millisecond},
		{"asctime date", []string{"Sun Mar  1 12:00:30 2026"}, 29500 * time.Millisecond},
		{"date in the past", []string{"Sun, 01 Mar 2026 11:00:00 GMT"}, adviceFloor},
		{"date before 1970", []string{"Sun, 06 Nov 1904 08:49:37 GMT"}, adviceFloor},
		{"date in the year 9999", []string{"Fri, 31 Dec 9999 23:59:59 GMT"}, adviceCeiling},
		{"zone that isn't GMT", []string{"Sun, 01 Mar 2026 12:00:30 EST"}, unnamed},
		{"RFC 850 date, zone that isn't GMT", []string{"Sunday, 01-Mar-26 12:00:30 EST"}, unnamed},
		{"RFC 850 date, offset", []string{"Sunday, 01-Mar-26 12:00:30 GMT+5"}, unnamed},
		{"RFC 3339", []string{"2026-03-01T12:00:30Z"}, unnamed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			resp := response(429, "")
			resp.Header["Retry-After"] = tt.values
			got := readAdvice(resp, cameAt)
			want := advice{limited: true, named: true, wait: tt.want, reason: "429 retry-after"}
			if tt.want == unnamed {
				want = advice{limited: true, reason: "429 without a wait"}
			}
			if got != want {
				t.Errorf("Retry-After %.60q: got %+v, want %+v", tt.values, got, want)
			}
		})
	}
}

// TestAdviceCeiling holds the constant to what it is chosen for.
func TestAdviceCeiling(t *testing.T) {
	if end := cameAt.Add(adviceCeiling); end.Sub(cameAt) != adviceCeiling || !end.After(cameAt) {
		t.Errorf("the ceiling can't be added to a time: %v", end)
	}
	if end := cameAt.Add(adviceCeiling).UnixMicro(); end >= 1<<53 || float64(end)+1 != float64(end+1) {
		t.Errorf("the ceiling, as microseconds since 1970, is not exact in a float: %d", end)
	}
}

func TestReadAdvice(t *testing.T) {
	const s = time.Second
	none := advice{}
	named := func(wait time.Duration, reason string) advice {
		return advice{named: true, wait: wait, reason: reason}
	}
	limited := func(wait time.Duration, reason string) advice {
		return advice{limited: true, named: true, wait: wait, reason: reason}
	}
	unnamed := advice{limited: true, reason: "429 without a wait"}
	for _, tt := range []struct {
		name   string
		status int
		lines  []string
		want   advice
	}{
		{"plain answer", 200, nil, none},
		{"linkinator#681: 429 without Retry-After", 429, nil, unnamed},
		{"503 without a wait", 503, nil, none},
		{"503 with a wait", 503, []string{"Retry-After: 3"}, limited(3*s, "503 retry-after")},
		{"413 with a wait", 413, []string{"Retry-After: 3"}, limited(3*s, "413 retry-after")},
		{"413 without", 413, nil, none},
		{"redirect", 301, []string{"Retry-After: 3"}, none},
		{"Retry-After on a 200", 200, []string{"Retry-After: 3"}, none},
		{"Retry-After on a 202", 202, []string{"Retry-After: 3"}, none},
		{"Retry-After on a 500", 500, []string{"Retry-After: 3"}, none},
		{"401", 401, []string{"Retry-After: 3", `RateLimit: "a";r=0;t=3`}, none},
		{"403", 403, []string{"Retry-After: 3", `RateLimit: "a";r=0;t=3`, "RateLimit-Remaining: 0", "RateLimit-Reset: 9"}, none},
		{"Open F1, a second", 429, []string{"Retry-After: 1"}, limited(s, "429 retry-after")},
		{"Open F1, a live session", 401, nil, none},

		{"milliseconds", 429, []string{"Retry-After-Ms: 1500"}, limited(1500*time.Millisecond, "429 retry-after-ms")},
		{"part of a millisecond", 429, []string{"Retry-After-Ms: 1500.25"}, limited(1500250*time.Microsecond, "429 retry-after-ms")},
		{"milliseconds below the floor", 503, []string{"Retry-After-Ms: 1"}, limited(adviceFloor, "503 retry-after-ms")},
		{"milliseconds that overflow", 429, []string{"Retry-After-Ms: 9223372036854775807"}, limited(adviceCeiling, "429 retry-after-ms")},
		{"no date in milliseconds", 429, []string{"Retry-After-Ms: Sun, 01 Mar 2026 12:00:30 GMT"}, unnamed},
		{"order: milliseconds first", 429, []string{"Retry-After: 9", "X-Ms-Retry-After-Ms: 800", "Retry-After-Ms: 500"}, limited(500*time.Millisecond, "429 retry-after-ms")},
		{"order: then x-ms", 429, []string{"Retry-After: 9", "X-Ms-Retry-After-Ms: 800", "Retry-After-Ms: soon"}, limited(800*time.Millisecond, "429 x-ms-retry-after-ms")},
		{"order: then seconds", 429, []string{"Retry-After: 9", "X-Ms-Retry-After-Ms: -1"}, limited(9*s, "429 retry-after")},
		{"order: Retry-After wins over RateLimit", 429, []string{"Retry-After: 2", `RateLimit: "a";r=0;t=30`}, limited(2*s, "429 retry-after")},
		{"order: then RateLimit", 429, []string{"Retry-After: x", `RateLimit: "a";r=0;t=30`}, limited(30*s, "429 ratelimit with nothing left")},

		{"date by the upstream's clock", 429, []string{"Date: " + slowDate, "Retry-After: Sun, 01 Mar 2026 11:50:30 GMT"}, limited(30*s, "429 retry-after")},
		{"date equal to the upstream's clock", 429, []string{"Date: " + slowDate, "Retry-After: " + slowDate}, limited(adviceFloor, "429 retry-after")},
		{"bad Date", 429, []string{"Date: now", "Retry-After: Sun, 01 Mar 2026 12:00:30 GMT"}, limited(29500*time.Millisecond, "429 retry-after")},
		{"Date of another zone", 429, []string{"Date: Sunday, 01-Mar-26 07:00:00 EST", "Retry-After: Sun, 01 Mar 2026 12:00:30 GMT"}, limited(29500*time.Millisecond, "429 retry-after")},
		{"Date in the year 9999", 429, []string{"Date: Fri, 31 Dec 9999 23:59:59 GMT", "Retry-After: Sun, 01 Mar 2026 12:00:30 GMT"}, limited(adviceFloor, "429 retry-after")},

		{"RateLimit on a 200", 200, []string{`RateLimit: "a";r=0;t=30`}, named(30*s, "200 ratelimit with nothing left")},
		{"RateLimit on a redirect", 302, []string{`RateLimit: "a";r=0;t=30`}, named(30*s, "302 ratelimit with nothing left")},
		{"RateLimit on a 503 refuses nothing", 503, []string{`RateLimit: "a";r=0;t=30`}, named(30*s, "503 ratelimit with nothing left")},
		{"RateLimit with something left on a 429", 429, []string{`RateLimit: "a";r=1;t=30`}, unnamed},
		{"X-RateLimit is a dialect's", 200, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 30"}, none},
		{"X-RateLimit on a 429", 429, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 30"}, unnamed},
		{"X, another hyphen", 200, []string{"X-Rate-Limit-Remaining: 0", "X-Rate-Limit-Reset: 30"}, none},
		{"Anthropic's is a dialect's", 529, []string{"Retry-After: 3"}, none},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := readAdvice(response(tt.status, "", tt.lines...), cameAt); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestRateLimitFields(t *testing.T) {
	const s = time.Second
	const nothing = -1
	for _, tt := range []struct {
		name  string
		lines []string
		want  time.Duration
	}{
		{"something left", []string{`RateLimit: "default";r=50;t=30`}, nothing},
		{"nothing left", []string{`RateLimit: "default";r=0;t=30`}, 30 * s},
		{"no time", []string{`RateLimit: "default";r=0`}, nothing},
		{"no remainder", []string{`RateLimit: "default";t=30`}, nothing},
		{"no time to wait", []string{`RateLimit: "default";r=0;t=0`}, adviceFloor},
		{"a list", []string{`RateLimit: "burst";r=0;t=5, "minute";r=0;t=40,"day";r=9;t=80000`}, 40 * s},
		{"several lines", []string{`RateLimit: "burst";r=0;t=5`, `RateLimit: "day";r=0;t=40`}, 40 * s},
		{"partition key, other parameters", []string{`RateLimit: "a";pk=:cHsdsRa894==:;acme-x="t=9;r=0,";b;c=?1; r=0;t=30;d=tok/en`}, 30 * s},
		{"escapes", []string{`RateLimit: "a\"\\;r=5";r=0;t=30`}, 30 * s},
		{"a name without quotes", []string{`RateLimit: default;r=0;t=30`}, 30 * s},
		{"the last of a parameter counts", []string{`RateLimit: "a";r=0;t=30;r=7`}, nothing},
		{"a fraction", []string{`RateLimit: "a";r=0;t=0.25`}, 250 * time.Millisecond},
		{"t is never an epoch", []string{`RateLimit: "a";r=0;t=1772366430`}, 1772366430 * s},
		{"t that overflows", []string{`RateLimit: "a";r=0;t=99999999999999999999`}, adviceCeiling},
		{"the policy field says nothing of now", []string{`RateLimit-Policy: "a";q=0;w=60`}, nothing},
		{"from a cache", []string{`RateLimit: "a";r=0;t=30`, "Age: 7"}, nothing},
		{"age zero", []string{`RateLimit: "a";r=0;t=30`, "Age: 0"}, 30 * s},

		{"malformed: negative t", []string{`RateLimit: "a";r=0;t=-1, "b";r=0;t=30`}, nothing},
		{"malformed: negative r", []string{`RateLimit: "a";r=-1;t=9, "b";r=0;t=30`}, nothing},
		{"malformed: r a string", []string{`RateLimit: "a";r="0";t=30`}, nothing},
		{"malformed: open string", []string{`RateLimit: "a;r=0;t=30`}, nothing},
		{"malformed: trailing comma", []string{`RateLimit: "a";r=0;t=30,`}, nothing},
		{"malformed: empty member", []string{`RateLimit: "a";r=0;t=30,, "b"`}, nothing},
		{"malformed: rubbish behind", []string{`RateLimit: "a";r=0;t=30 ?`}, nothing},
		{"malformed: upper case", []string{`RateLimit: "a";R=0;T=30`}, nothing},
		{"malformed: exponent", []string{`RateLimit: "a";r=0;t=3e1`}, nothing},
		{"malformed: a second line", []string{`RateLimit: "a";r=0;t=30`, `RateLimit: ("b"`}, nothing},
		{"malformed: both forms", []string{`RateLimit: "a";r=0;t=30, limit=9`}, nothing},
		{"malformed: longer than is read", []string{`RateLimit: "a";r=0;t=30;x="` + strings.Repeat("x", maxFieldBytes) + `"`}, nothing},
		{"malformed: cut to a shorter wait", []string{`RateLimit: "` + strings.Repeat("x", maxFieldBytes-len(`"";r=0;t=3`)) + `";r=0;t=30`}, nothing},
		{"empty", []string{"RateLimit: "}, nothing},

		{"draft 7, something left", []string{"RateLimit: limit=100, remaining=50, reset=5"}, nothing},
		{"draft 7", []string{"RateLimit: limit=100, remaining=0, reset=5"}, 5 * s},
		{"draft 7 with a window", []string{"RateLimit: limit=100;w=60,reset=5,remaining=0"}, 5 * s},
		{"draft 7, two lines", []string{"RateLimit: limit=9, remaining=0, reset=5", "RateLimit: limit=99, remaining=90, reset=50"}, 5 * s},
		{"draft 7, two lines, other order", []string{"RateLimit: reset=5, remaining=0, limit=9", "RateLimit: reset=50, remaining=90, limit=99"}, 5 * s},
		{"draft 7, no reset", []string{"RateLimit: limit=100, remaining=0"}, nothing},
		{"draft 7, malformed", []string{"RateLimit: limit=100, remaining=0, reset=-5"}, nothing},
		{"draft 7, epoch", []string{"RateLimit: limit=100, remaining=0, reset=1772366430"}, 29500 * time.Millisecond},

		{"three fields, something left", []string{"RateLimit-Limit: 9", "RateLimit-Remaining: 1", "RateLimit-Reset: 5"}, nothing},
		{"three fields", []string{"RateLimit-Limit: 9, 9;w=60", "RateLimit-Remaining: 0", "RateLimit-Reset: 5"}, 5 * s},
		{"three fields, space", []string{"RateLimit-Remaining:  0 ", "RateLimit-Reset:  5 "}, 5 * s},
		{"three fields, twice", []string{"RateLimit-Remaining: 7", "RateLimit-Remaining: 0", "RateLimit-Reset: 5", "RateLimit-Reset: 9"}, 9 * s},
		{"three fields, no reset", []string{"RateLimit-Remaining: 0"}, nothing},
		{"three fields, bad remainder", []string{"RateLimit-Remaining: none", "RateLimit-Reset: 5"}, nothing},
		{"three fields, negative", []string{"RateLimit-Remaining: -1", "RateLimit-Reset: 5"}, nothing},
		{"GitLab's epoch", []string{"RateLimit-Remaining: 0", "RateLimit-Reset: 1772366430"}, 29500 * time.Millisecond},
		{"epoch by the upstream's clock", []string{"Date: " + slowDate, "RateLimit-Remaining: 0", "RateLimit-Reset: 1772365830"}, 30 * s},
		{"epoch in milliseconds", []string{"RateLimit-Remaining: 0", "RateLimit-Reset: 1772366430250"}, 29750 * time.Millisecond},
		{"epoch in the past", []string{"RateLimit-Remaining: 0", "RateLimit-Reset: 1772366000"}, adviceFloor},
		{"the largest delta", []string{"RateLimit-Remaining: 0", "RateLimit-Reset: 1000000000"}, 1e9 * s},
		{"the smallest epoch", []string{"RateLimit-Remaining: 0", "RateLimit-Reset: 1000000001"}, adviceFloor},
		{"all forms: the longest", []string{`RateLimit: "a";r=0;t=3`, "RateLimit-Remaining: 0", "RateLimit-Reset: 5"}, 5 * s},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := advice{named: true, wait: tt.want, reason: "200 ratelimit with nothing left"}
			if tt.want == nothing {
				want = advice{}
			}
			if got := readAdvice(response(200, "", tt.lines...), cameAt); got != want {
				t.Errorf("%.100q: got %+v, want %+v", tt.lines, got, want)
			}
		})
	}
	t.Run("epoch without an end", func(t *testing.T) {
		got := readAdvice(response(200, "", "RateLimit-Remaining: 0", "RateLimit-Reset: "+strings.Repeat("9", 40)), cameAt)
		if !got.named || got.wait < 40*365*24*time.Hour || got.wait > adviceCeiling {
			t.Errorf("got %+v, want decades", got)
		}
	})
}

// An answer that says nothing costs nothing.
func TestReadAdviceAllocates(t *testing.T) {
	resp := response(200, "", "Content-Type: text/plain", "Date: "+slowDate)
	if n := testing.AllocsPerRun(100, func() { readAdvice(resp, cameAt) }); n != 0 {
		t.Errorf("%v allocations for a plain 200", n)
	}
}

func TestPolicyFeedback(t *testing.T) {
	says := func(pause time.Duration, ok bool) Policy {
		return Policy{Feedback: func(*http.Response) (time.Duration, bool) { return pause, ok }}
	}
	for _, tt := range []struct {
		name   string
		policy Policy
		status int
		want   advice
	}{
		{"no hook", Policy{}, 429, advice{limited: true, named: true, wait: 7 * time.Second, reason: "429 retry-after"}},
		{"not its dialect", says(time.Hour, false), 429, advice{limited: true, named: true, wait: 7 * time.Second, reason: "429 retry-after"}},
		{"not its dialect, 200", says(time.Hour, false), 200, advice{}},
		{"a wait", says(time.Minute, true), 429, advice{limited: true, named: true, wait: time.Minute, reason: "429 feedback"}},
		{"a wait on a 403", says(time.Minute, true), 403, advice{limited: true, named: true, wait: time.Minute, reason: "403 feedback"}},
		{"a wait on a 400, as AWS", says(time.Minute, true), 400, advice{limited: true, named: true, wait: time.Minute, reason: "400 feedback"}},
		{"a wait on a 529", says(time.Minute, true), 529, advice{limited: true, named: true, wait: time.Minute, reason: "529 feedback"}},
		{"a 500 may have been acted upon", says(time.Minute, true), 500, advice{named: true, wait: time.Minute, reason: "500 feedback"}},
		{"a wait on a 200, as Shopify", says(time.Minute, true), 200, advice{named: true, wait: time.Minute, reason: "200 feedback"}},
		{"a wait that has passed", says(-time.Minute, true), 429, advice{limited: true, named: true, wait: adviceFloor, reason: "429 feedback"}},
		{"the smallest", says(math.MinInt64, true), 429, advice{limited: true, named: true, wait: adviceFloor, reason: "429 feedback"}},
		{"the largest", says(math.MaxInt64, true), 429, advice{limited: true, named: true, wait: adviceCeiling, reason: "429 feedback"}},
		{"no wait helps", says(0, true), 429, advice{permanent: true, reason: "429 feedback"}},
		{"no wait helps on a 503", says(0, true), 503, advice{permanent: true, reason: "503 feedback"}},
		{"no wait on a success", says(0, true), 200, advice{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.policy.feedback(response(tt.status, "", "Retry-After: 7"), cameAt)
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if got.pauses() != (got.wait > 0) {
				t.Errorf("pauses %v with %+v", got.pauses(), got)
			}
		})
	}
}

func TestAdvicePausesWithoutWait(t *testing.T) {
	if a := readAdvice(response(429, ""), cameAt); !a.pauses() || a.named {
		t.Errorf("a 429 without a wait must pause for the caller's backoff: %+v", a)
	}
}
