package main

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// nearest returns up to three of keys that name may have been meant for, the
// most likely first: those that hold it or are held by it, and those that few
// letters make the same.
func nearest(name string, keys []string) []string {
	type candidate struct {
		key      string
		distance int
	}
	var found []candidate
	lower := strings.ToLower(name)
	for _, key := range keys {
		l := strings.ToLower(key)
		d := distance(lower, l)
		if d > max(2, len(name)/3) && !strings.Contains(l, lower) && !strings.Contains(lower, l) {
			continue
		}
		found = append(found, candidate{key, d})
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(a.distance, b.distance) })
	var like []string
	for _, c := range found[:min(3, len(found))] {
		like = append(like, strconv.Quote(c.key))
	}
	return like
}

// distance is how many bytes must be changed, added or taken away to make a
// into b (Levenshtein's distance), of the first 100.
func distance(a, b string) int {
	a, b = a[:min(len(a), 100)], b[:min(len(b), 100)]
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := before
			if a[i] != b[j] {
				change++
			}
			before = row[j+1]
			row[j+1] = min(change, row[j]+1, before+1)
		}
	}
	return row[len(b)]
}

// shown returns s as it may be written to a terminal: what is not printable is
// escaped.
func shown(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && n == 1 || !unicode.IsPrint(r) {
			quoted := strconv.Quote(s[:n])
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}
