// Command example_openf1 fetches Formula 1's calendar from Open F1 with a fleet
// of processes that share one quota, 3 requests a second and 30 a minute.
//
// Without flags it needs no network and no server: it starts a Redis and a
// stand-in for Open F1 inside itself, and then itself again, four times. Each
// of those processes is a worker: see [newClient] in worker.go, which is all
// that a program has to do to join such a fleet. The rest is stage machinery:
//
//	main.go      flags in, exit code out
//	plan.go      what to ask for, and what came of it
//	fleet.go     the worker processes and the pipes to them
//	wire.go      what goes through them
//	worker.go    one worker: the transport, the client
//	call.go      one call, and what its answer means
//	server.go    the stand-in; its quota in ledger.go, its queries in filter.go
//	chaos.go     the embedded Redis, and how to kill it
//	report.go    what is printed, what is written
//
// With -redis and -upstream https://api.openf1.org it is a usable fetcher. It is
// unofficial, and not associated with Open F1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if os.Getenv(workerEnv) != "" {
		os.Exit(workerMain())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C kills
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program without its globals. It returns the exit code: 0 when
// everything was fetched, 1 when something was not, 2 for a wrong flag.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parseOptions(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "example_openf1:", err)
		return 2
	}
	complete, err := fetchAll(ctx, o, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "example_openf1:", err)
		return 1
	}
	if !complete {
		return 1
	}
	return 0
}

// fetchAll starts what is embedded, lets the fleet work, and reports. It
// returns whether everything was fetched. An error means that the run could
// not begin, or that the file could not be written.
func fetchAll(ctx context.Context, o options, stdout io.Writer) (complete bool, err error) {
	if o.out != "" {
		// Better now than after two minutes of fetching.
		f, err := os.OpenFile(o.out, os.O_WRONLY|os.O_CREATE, 0o644)
		if err != nil {
			return false, err
		}
		f.Close()
	}

	s := settings{
		Upstream: o.upstream,
		Redis:    o.redis,
		Rates:    o.tier.String(),
		Without:  o.without,
		Outage:   o.outage,
		Replicas: o.workers,
	}
	var up *standIn
	if o.upstream == "" {
		up = newStandIn(o.tier, newFaults(o.faults, o.seed))
		addr, stop, err := up.start()
		if err != nil {
			return false, err
		}
		defer stop()
		s.Upstream = "http://" + addr
	}
	var rdb *embeddedRedis
	if o.redis == "" && !o.without {
		if rdb, err = startRedis(); err != nil {
			return false, err
		}
		defer rdb.stop()
		s.Redis = rdb.addr
	}

	printHeading(stdout, o)
	f, err := startFleet(o.workers, o.concurrency, s)
	if err != nil {
		return false, err
	}
	p := newPlan(o.years, o.all)
	bar := newProgress(stdout)
	start := time.Now()
	f.work(ctx, p, func() {
		bar.show(time.Now(), p, f)
		if o.chaos && p.done >= p.total/3 && p.done > len(o.years) {
			rdb.outage(chaosAway)
		}
	})
	took := time.Since(start)
	bar.clear()
	f.stop(p)

	r := report{o: o, plan: p, fleet: f, upstream: up, redis: rdb, start: start, took: took}
	r.print(stdout)
	if o.out != "" {
		if err := r.write(o.out); err != nil {
			return false, err
		}
		fmt.Fprintln(stdout, "wrote", o.out)
	}
	return r.complete(), nil
}
