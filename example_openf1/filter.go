package main

import (
	"cmp"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// A record is one meeting or session. Numbers are float64.
type record map[string]any

// A filter is one condition of a query: field, operator, and the values of
// which one must fit.
type filter struct {
	field  string
	op     string // "=", ">=", "<=", ">" or "<"
	values []string
}

// parseQuery reads a raw query. The operator is part of the text, encoded or
// not: "year>=2024", "year%3E=2024" and "year%3E%3D2024" say the same, which
// url.Values cannot express. The same field and operator twice is OR; the rest
// is AND, so that "date_start>=…&date_start<…" is a span.
func parseQuery(raw string) ([]filter, error) {
	var filters []filter
	for part := range strings.SplitSeq(raw, "&") {
		if part == "" {
			continue
		}
		text, err := url.QueryUnescape(part)
		if err != nil {
			return nil, fmt.Errorf("%q is not well encoded", part)
		}
		i := strings.IndexAny(text, "<>=")
		if i <= 0 {
			return nil, fmt.Errorf("%q has no field and operator", text)
		}
		field, op, value := text[:i], text[i:i+1], text[i+1:]
		if op != "=" && strings.HasPrefix(value, "=") {
			op, value = op+"=", value[1:]
		}
		filters = addFilter(filters, field, op, value)
	}
	return filters, nil
}

func addFilter(filters []filter, field, op, value string) []filter {
	for i, f := range filters {
		if f.field == field && f.op == op {
			filters[i].values = append(f.values, value)
			return filters
		}
	}
	return append(filters, filter{field: field, op: op, values: []string{value}})
}

// match reports whether r fits all filters. A field that it does not have fits
// none.
func match(r record, filters []filter) bool {
	for _, f := range filters {
		have, ok := r[f.field]
		fits := false
		for _, want := range f.values {
			fits = fits || ok && compare(have, f.op, want)
		}
		if !fits {
			return false
		}
	}
	return true
}

// compare compares numbers as numbers, dates as points in time, and anything
// else as text.
func compare(have any, op, want string) bool {
	if n, ok := have.(float64); ok {
		w, err := strconv.ParseFloat(want, 64)
		return err == nil && holds(cmp.Compare(n, w), op)
	}
	text := fmt.Sprint(have)
	t, _, err := parseTime(text)
	if err != nil {
		return holds(cmp.Compare(text, want), op)
	}
	from, length, err := parseTime(want)
	if err != nil {
		return false
	}
	if op == "=" {
		return !t.Before(from) && t.Before(from.Add(length))
	}
	if op == ">" || op == "<=" { // beyond the end of the day, or not
		from = from.Add(length - 1)
	}
	return holds(t.Compare(from), op)
}

// holds reports whether "a op b", given how a compares to b.
func holds(order int, op string) bool {
	switch op {
	case "=":
		return order == 0
	case ">=":
		return order >= 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	case "<":
		return order < 0
	}
	return false
}

// parseTime reads a date with or without a time of day and a zone (without:
// UTC). length is how long the thing named lasts: a whole day for a date.
func parseTime(s string) (t time.Time, length time.Duration, err error) {
	if t, err = time.Parse(time.DateOnly, s); err == nil {
		return t, 24 * time.Hour, nil
	}
	// A plus that nobody encoded arrives as a space: "…T07:00:00 00:00".
	if i := len("2006-01-02T15:04:05"); len(s) > i {
		s = s[:i] + strings.Replace(s[i:], " ", "+", 1)
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", time.DateTime} {
		if t, err = time.Parse(layout, s); err == nil {
			return t, 1, nil
		}
	}
	return time.Time{}, 0, fmt.Errorf("%q is no time", s)
}
