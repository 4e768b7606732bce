package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"
)

// betweenRounds is the rest of the fleet between two rounds of -serve. It bounds
// how often a plan is made that fails at once.
const betweenRounds = time.Second

// A stage is what a run needs besides its workers.
type stage struct {
	settings settings
	upstream *standIn       // nil for a real one
	redis    *embeddedRedis // nil for a real one, or none
	page     *page          // nil without -serve
	closers  []func()
}

// newStage starts what is embedded.
func newStage(o options) (_ *stage, err error) {
	s := &stage{settings: settings{
		Upstream: o.upstream,
		Redis:    o.redis,
		Rates:    o.tier.String(),
		Without:  o.without,
		Outage:   o.outage,
		Replicas: o.workers,
	}}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if o.serve != "" {
		if s.page, err = servePage(o.serve); err != nil {
			return nil, err
		}
		s.closers = append(s.closers, s.page.close)
	}
	if o.upstream == "" {
		s.upstream = newStandIn(o.tier, newFaults(o.faults, o.seed))
		addr, stop, err := s.upstream.start()
		if err != nil {
			return nil, err
		}
		s.closers = append(s.closers, stop)
		s.settings.Upstream = "http://" + addr
	}
	if o.redis == "" && !o.without {
		if s.redis, err = startRedis(); err != nil {
			return nil, err
		}
		s.closers = append(s.closers, s.redis.stop)
		s.settings.Redis = s.redis.addr
	}
	return s, nil
}

// close ends what was started.
func (s *stage) close() {
	for _, c := range s.closers {
		c()
	}
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
	s, err := newStage(o)
	if err != nil {
		return false, err
	}
	defer s.close()
	printHeading(stdout, o, s.page)
	f, err := startFleet(o.workers, o.concurrency, s.settings)
	if err != nil {
		return false, err
	}
	r := &report{o: o, fleet: f, upstream: s.upstream, redis: s.redis, start: time.Now()}
	bar := newProgress(stdout)
	r.fetch(ctx, func() {
		now := time.Now()
		bar.show(now, r.plan, f)
		if s.page != nil {
			s.page.show(r.view(now))
		}
		if o.chaos && r.plan.done >= r.plan.total/3 && r.plan.done > len(o.years) {
			s.redis.outage(chaosAway)
		}
	})
	bar.clear()
	r.print(stdout)
	if o.out != "" {
		if err := r.write(o.out); err != nil {
			return false, err
		}
		fmt.Fprintln(stdout, "wrote", o.out)
	}
	if s.page != nil && ctx.Err() == nil {
		s.page.show(r.view(time.Now()))
		fmt.Fprintln(stdout, "the page stays up until Ctrl-C")
		<-ctx.Done()
	}
	return r.complete(), nil
}

// fetch lets the fleet work until the plan is finished, and then ends the fleet.
// With -serve it begins again, until ctx ends: but it asks a real upstream only
// for what it needs, once.
func (r *report) fetch(ctx context.Context, look func()) {
	var whole *plan
	for {
		r.round++
		r.plan = newPlan(r.o.years, r.o.all)
		r.fleet.work(ctx, r.plan, look)
		if !r.o.again() || ctx.Err() != nil || len(r.fleet.live()) == 0 {
			break
		}
		whole = r.plan
		r.fleet.rest(ctx, betweenRounds, look)
	}
	r.took = time.Since(r.start)
	r.fleet.stop(r.plan)
	r.over = true
	if ctx.Err() != nil && whole != nil {
		r.plan, r.round = whole, r.round-1 // the last one is in pieces, but that is what Ctrl-C is for
	}
}
