// Command benchmark measures pacecar beside the rate limiters that a fleet of
// Go (or Node) processes could use instead: against a strict upstream, with
// real processes and a real redis-server. See README.md for what is measured
// and how.
//
//	main.go        flags in, table out
//	workload.go    what is asked of every limiter
//	fleet.go       one run: upstream, Redis, proxies, workers
//	process.go     the child processes and the pipes to them
//	upstream.go    the upstream; its exact windows in ledger.go
//	worker.go      one process of the fleet
//	adapters.go    the limiters; those of other people in peers.go
//	bottleneck.go  the one that runs in Node
//	redis.go       redis-server and its statistics
//	proxy.go       round trip times
//	ideal.go       what a limiter that knows everything would reach
//	figures.go     from logs to figures
//	report.go      table and CSV; pictures in draw.go
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if play, ok := roles[os.Getenv(roleEnv)]; ok {
		if err := play(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "benchmark:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C kills
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// options are the flags.
type options struct {
	quick    bool
	only     []string // limiters
	workload []string
	csv, svg string
}

func parseOptions(args []string, stderr io.Writer) (o options, err error) {
	f := flag.NewFlagSet("benchmark", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.BoolVar(&o.quick, "quick", false, "fewer requests, the plain workload for all and two more for pacecar; under 3 minutes")
	only := f.String("only", "", "`limiters` to run, separated by commas; empty for all of "+strings.Join(names(adapters), ", "))
	workload := f.String("workload", "", "`workloads` to run, separated by commas; empty for all of "+strings.Join(names(workloads), ", "))
	f.StringVar(&o.csv, "csv", "", "write every figure to this `file`")
	f.StringVar(&o.svg, "svg", "", "draw the plain workload into this `folder`")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.only, err = choose(*only, names(adapters)); err != nil {
		return o, fmt.Errorf("-only: %w", err)
	}
	o.workload, err = choose(*workload, names(workloads))
	if err != nil {
		return o, fmt.Errorf("-workload: %w", err)
	}
	return o, nil
}

// choose reads a list of names, all of which must be known. Empty means nil.
func choose(list string, known []string) ([]string, error) {
	if list == "" {
		return nil, nil
	}
	chosen := strings.Split(list, ",")
	for i, name := range chosen {
		chosen[i] = strings.TrimSpace(name)
		if !slices.Contains(known, chosen[i]) {
			return nil, fmt.Errorf("unknown name %q, want some of %s", chosen[i], strings.Join(known, ", "))
		}
	}
	return chosen, nil
}

// A pair is one row of the table, to be measured.
type pair struct {
	workload *workload
	adapter  *adapter
}

// pairs returns what the options ask for, in the order of the table.
func (o *options) pairs() (ps []pair) {
	for i := range workloads {
		w := &workloads[i]
		for j := range adapters {
			a := &adapters[j]
			byDefault := !o.quick || w.quick == forAll || w.quick == forPacecar && a.name == ours
			if o.workload != nil {
				byDefault = slices.Contains(o.workload, w.name)
			}
			if byDefault && (o.only == nil || slices.Contains(o.only, a.name)) {
				ps = append(ps, pair{w, a})
			}
		}
	}
	return ps
}

// run is the program without its globals. It returns the exit code: 0, 1 when
// something could not be measured or written, 2 for a wrong flag.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parseOptions(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "benchmark:", err)
		return 2
	}
	results, err := measure(ctx, o, stderr)
	if len(results) > 0 {
		writeTable(stdout, results)
	}
	if err == nil && o.csv != "" {
		err = writeFile(o.csv, func(w io.Writer) error { return writeCSV(w, results) })
	}
	if err == nil && o.svg != "" {
		err = drawAll(o.svg, results)
	}
	if err != nil {
		fmt.Fprintln(stderr, "benchmark:", err)
		return 1
	}
	return 0
}

// measure runs every pair, one after the other. What was measured before an
// error is returned with it. A limiter that cannot be had is a row that says
// so, not an error.
func measure(ctx context.Context, o options, progress io.Writer) (results []result, err error) {
	node := &node{}
	defer node.remove()
	pairs := o.pairs()
	began := time.Now()
	for i, p := range pairs {
		fmt.Fprintf(progress, "%5.0fs  %d of %d: %s, %s\n", time.Since(began).Seconds(), i+1, len(pairs), p.workload.name, p.adapter.name)
		w := p.workload.sized(o.quick)
		r, err := measureOne(ctx, w, p.adapter, node)
		if err != nil {
			return results, fmt.Errorf("%s, %s: %w", w.name, p.adapter.name, err)
		}
		results = append(results, r)
	}
	fmt.Fprintf(progress, "%5.0fs  done\n", time.Since(began).Seconds())
	return results, nil
}
