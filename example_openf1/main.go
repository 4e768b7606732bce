// Command example_openf1 fetches Formula 1's calendar from Open F1 with a fleet
// of processes that share one quota, 3 requests a second and 30 a minute.
//
// Without flags it needs no network and no server: it starts a Redis and a
// stand-in for Open F1 inside itself, and then itself again, four times. Each
// of those processes is a worker: see [newClient] in worker.go, which is all
// that a program has to do to join such a fleet. The rest is stage machinery:
//
//	main.go      flags in, exit code out
//	stage.go     the order of a run, and what is started for it
//	plan.go      what to ask for, and what came of it
//	fleet.go     the worker processes and the pipes to them
//	wire.go      what goes through them
//	worker.go    one worker: the transport, the client
//	call.go      one call, and what its answer means
//	server.go    the stand-in; its quota in ledger.go, its queries in filter.go
//	chaos.go     the embedded Redis, and how to kill it
//	report.go    what is printed, what is written
//	view.go      what -serve shows; the page in page.go and page.html
//
// With -serve 127.0.0.1:8080 it goes on, and shows live on a page how full the
// quota is, who waits, pauses and outages.
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
// everything was fetched (where -serve fetches again and again, in the last whole
// round), 1 when something was not, 2 for a wrong flag.
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
