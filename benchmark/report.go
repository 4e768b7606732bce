package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// columns are the table's, with how each shows a result.
var columns = []struct {
	title string
	show  func(r *result) string
}{
	{"limiter", func(r *result) string { return r.adapter.name }},
	{"share of ideal speed", func(r *result) string { return fmt.Sprintf("%.3f", r.share) }},
	{"429s", func(r *result) string { return strconv.Itoa(r.refused + r.foreign) }},
	{"worst window", func(r *result) string { return fmt.Sprintf("%.2f", r.worst) }},
	{"Redis calls", func(r *result) string { return perRequest(r, r.calls, 2) }},
	{"Redis µs", func(r *result) string { return perRequest(r, r.micros, 0) }},
	{"wait p50", func(r *result) string { return overIdeal(r.p50) }},
	{"wait p99", func(r *result) string { return overIdeal(r.p99) }},
	{"Jain", func(r *result) string { return fmt.Sprintf("%.3f", r.jain) }},
}

// perRequest shows what a limiter that has no use for Redis does not have.
func perRequest(r *result, v float64, digits int) string {
	if len(r.adapter.trips) == 0 {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}

func overIdeal(d time.Duration) string {
	return fmt.Sprintf("%+d ms", d.Round(time.Millisecond).Milliseconds())
}

// writeTable writes a table in Markdown for each workload, with notes below.
func writeTable(w io.Writer, results []result) {
	for len(results) > 0 {
		n := 1
		for n < len(results) && results[n].workload.name == results[0].workload.name {
			n++
		}
		writeWorkload(w, results[:n])
		results = results[n:]
	}
}

func writeWorkload(w io.Writer, results []result) {
	load := results[0].workload
	fmt.Fprintf(w, "\n%s: %s; %d requests, ideal %.1f s\n\n", load.name, load.about, load.requests, ideal(load).span.Seconds())
	var rows [][]string
	var head, rule []string
	for i, c := range columns {
		head = append(head, c.title)
		rule = append(rule, "--:")
		if i == 0 {
			rule[i] = "---"
		}
	}
	rows = append(rows, head, rule)
	var notes []string
	for i := range results {
		r := &results[i]
		row := []string{r.adapter.name}
		for _, c := range columns[1:] {
			if r.measured {
				row = append(row, c.show(r))
			} else {
				row = append(row, "-")
			}
		}
		rows = append(rows, row)
		if r.note != "" {
			notes = append(notes, r.adapter.name+": "+r.note)
		}
	}
	writeRows(w, rows)
	if len(notes) > 0 {
		fmt.Fprintf(w, "\n%s\n", strings.Join(notes, "\n"))
	}
}

// writeRows aligns the columns: the first to the left, the others to the right.
func writeRows(w io.Writer, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if strings.HasPrefix(cell, "--") {
				pad = strings.Repeat("-", len(pad))
			}
			if i == 0 {
				cell += pad
			} else {
				cell = pad + cell
			}
			fmt.Fprintf(w, "| %s ", cell)
		}
		fmt.Fprintln(w, "|")
	}
}

// writeCSV writes every figure, one row for each workload and limiter.
func writeCSV(w io.Writer, results []result) error {
	out := csv.NewWriter(w)
	_ = out.Write([]string{"workload", "limiter", "measured", "requests", "accepted", "ideal_s", "took_s", "share",
		"refused", "foreign_429s", "worst_window", "redis_calls_per_request", "redis_us_per_request",
		"wait_p50_over_ideal_ms", "wait_p99_over_ideal_ms", "jain", "errors", "note"})
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', 4, 64) }
	millis := func(d time.Duration) string { return number(float64(d) / float64(time.Millisecond)) }
	for _, r := range results {
		_ = out.Write([]string{r.workload.name, r.adapter.name, strconv.FormatBool(r.measured),
			strconv.Itoa(r.workload.requests), strconv.Itoa(r.accepted), number(r.ideal.Seconds()), number(r.took.Seconds()),
			number(r.share), strconv.Itoa(r.refused), strconv.Itoa(r.foreign), number(r.worst), number(r.calls), number(r.micros),
			millis(r.p50), millis(r.p99), number(r.jain), strconv.Itoa(r.errors), r.note})
	}
	out.Flush()
	return out.Error() // of any Write too
}

// writeFile creates a file and has it written.
func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}
