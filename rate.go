package pacecar

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The bounds of what a rate can say. A window is kept in whole microseconds,
// the unit of Redis's clock, and counts are kept exact in a float64 score.
const (
	maxRates = 8
	maxLimit = 1_000_000_000
	minPer   = time.Millisecond
	maxPer   = 366 * day
	day      = 24 * time.Hour
)

var (
	errLimit = fmt.Errorf("the limit must be from 1 to %d", maxLimit)
	errPer   = errors.New("the period must be from 1ms to 366d")
)

// A Rate allows at most Limit requests in any window of length Per. The zero
// value is not a valid rate: a Limit is from 1 to 1,000,000,000, and a Per from
// 1 ms to 366 days in whole microseconds.
type Rate struct {
	Limit int
	Per   time.Duration
}

// String returns the rate in the form that [ParseRates] reads, with the period
// in the largest unit that keeps it short: "3/s", "100/10s", "5000/d".
func (r Rate) String() string {
	return strconv.Itoa(r.Limit) + "/" + formatPer(r.Per)
}

// validate says what is wrong with the rate by itself.
func (r Rate) validate() error {
	switch {
	case r.Limit < 1 || r.Limit > maxLimit:
		return errLimit
	case r.Per < minPer || r.Per > maxPer:
		return errPer
	case r.Per%time.Microsecond != 0:
		return errors.New("the period must be in whole microseconds")
	}
	return nil
}

// Rates are the rates of one quota, all of which hold at once: from one to
// eight, each with a period of its own. Their order means nothing. As text they
// read "3/s, 30/m"; see [ParseRates]. They marshal as that text, so JSON and
// [flag.TextVar] take them.
type Rates []Rate

// ParseRates reads rates as in "3/s, 30/m, 100/10s, 5000/1h30m": limits and
// periods, separated by commas. A period is a unit (ms, s, m, h, or d for 24
// hours), a number of days, or anything that [time.ParseDuration] reads. Blanks
// around limits and periods are ignored. The error names the rate that is
// wrong and says why.
func ParseRates(s string) (Rates, error) {
	rs, err := parseRates(s)
	if err != nil {
		return nil, fmt.Errorf("pacecar: rates %s: %w", quote(s), err)
	}
	return rs, nil
}

// MustRates is like [ParseRates], but panics with the error. It is for rates
// that are written in the program.
func MustRates(s string) Rates {
	rs, err := ParseRates(s)
	if err != nil {
		panic(err)
	}
	return rs
}

// String returns the rates in the form that [ParseRates] reads.
func (rs Rates) String() string {
	parts := make([]string, len(rs))
	for i, r := range rs {
		parts[i] = r.String()
	}
	return strings.Join(parts, ", ")
}

// MarshalText implements [encoding.TextMarshaler]. Rates that ParseRates would
// not read back are an error, and so are none.
func (rs Rates) MarshalText() ([]byte, error) {
	if err := rs.validate(); err != nil {
		return nil, fmt.Errorf("pacecar: rates: %w", err)
	}
	return []byte(rs.String()), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler]. On an error rs stays as
// it was.
func (rs *Rates) UnmarshalText(text []byte) error {
	parsed, err := ParseRates(string(text))
	if err != nil {
		return err
	}
	*rs = parsed
	return nil
}

// validate says what is wrong with the rates, and with which of them. A rate
// that another one makes pointless is legal: upstreams publish such pairs, and
// they do no harm.
func (rs Rates) validate() error {
	if len(rs) == 0 {
		return errors.New("at least one is required")
	}
	if len(rs) > maxRates {
		return fmt.Errorf("%d rates, at most %d are allowed", len(rs), maxRates)
	}
	for i, r := range rs {
		if err := r.validate(); err != nil {
			return fmt.Errorf("rate %d (%s): %w", i+1, r, err)
		}
		same := func(o Rate) bool { return o.Per == r.Per }
		if j := slices.IndexFunc(rs[:i], same); j >= 0 {
			return fmt.Errorf("rate %d (%s): the same period as rate %d (%s)", i+1, r, j+1, rs[j])
		}
	}
	return nil
}

func parseRates(s string) (Rates, error) {
	if strings.TrimSpace(s) == "" {
		return nil, errors.New("at least one is required")
	}
	parts := strings.Split(s, ",")
	rs := make(Rates, len(parts))
	for i, part := range parts {
		part = strings.TrimSpace(part)
		r, err := parseRate(part)
		if err != nil {
			return nil, fmt.Errorf("rate %d %s: %w", i+1, quote(part), err)
		}
		rs[i] = r
	}
	return rs, rs.validate()
}

// parseRate reads "3/s". It leaves it to validate whether the values make
// sense, but for limits that no int holds.
func parseRate(s string) (Rate, error) {
	if s == "" {
		return Rate{}, errors.New("empty")
	}
	limit, per, found := strings.Cut(s, "/")
	if !found {
		return Rate{}, errors.New(`no "/" between limit and period`)
	}
	limit, per = strings.TrimSpace(limit), strings.TrimSpace(per)
	if limit == "" {
		return Rate{}, errors.New(`no limit before the "/"`)
	}
	if !isDigits(limit) {
		return Rate{}, fmt.Errorf("the limit %s is not a whole number", quote(limit))
	}
	n, err := strconv.Atoi(limit)
	if err != nil {
		return Rate{}, errLimit
	}
	d, err := parsePer(per)
	if err != nil {
		return Rate{}, err
	}
	return Rate{Limit: n, Per: d}, nil
}

// parsePer reads what stands after the slash.
func parsePer(s string) (time.Duration, error) {
	if s == "" {
		return 0, errors.New(`no period after the "/"`)
	}
	if !strings.ContainsAny(s, "0123456789") {
		switch s {
		case "ms":
			return time.Millisecond, nil
		case "s":
			return time.Second, nil
		case "m":
			return time.Minute, nil
		case "h":
			return time.Hour, nil
		case "d":
			return day, nil
		}
		return 0, fmt.Errorf("unknown unit %s, want ms, s, m, h or d", quote(s))
	}
	if n, isDays := strings.CutSuffix(s, "d"); isDays && isDigits(n) {
		days, err := strconv.Atoi(n)
		if err != nil || days > int(maxPer/day) {
			return 0, errPer
		}
		return time.Duration(days) * day, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || s[0] == '+' {
		if strings.ContainsAny(s, " \t;") {
			return 0, fmt.Errorf("the period %s: rates are separated by commas", quote(s))
		}
		return 0, fmt.Errorf("the period %s is neither a unit nor a duration such as 10s", quote(s))
	}
	return d, nil
}

// formatPer is the inverse of parsePer, for any duration.
func formatPer(d time.Duration) string {
	if d <= 0 || d%time.Microsecond != 0 {
		return d.String() // no valid period, but an error may want to show it
	}
	for _, u := range []struct {
		name string
		size time.Duration
	}{{"d", day}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}} {
		if d == u.size {
			return u.name
		}
		if d%u.size == 0 && (u.size >= time.Second || d < time.Second) {
			return strconv.FormatInt(int64(d/u.size), 10) + u.name
		}
	}
	if d < time.Minute {
		return d.String() // "1.5s", "2.25ms"
	}
	// Seconds and microseconds: 90.5s, where Duration's own form is 1m30.5s.
	frac := fmt.Sprintf("%06d", d%time.Second/time.Microsecond)
	return fmt.Sprintf("%d.%ss", d/time.Second, strings.TrimRight(frac, "0"))
}

func isDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// quote quotes a piece of input for an error, cut where it is no longer of use
// to a reader.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		return strconv.Quote(strings.ToValidUTF8(s[:most], "")) + "..."
	}
	return strconv.Quote(s)
}
