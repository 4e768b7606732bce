package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A stage is what one run needs: an upstream, a Redis, the proxies on the way
// to them, and a fleet. Everything is made anew for each run, and ended with
// it.
type stage struct {
	workload *workload
	adapter  *adapter
	ideal    time.Duration
	upstream *child
	redis    *redisServer // nil: the limiter has no use for it
	proxies  []*proxy
	fleet    []*child
}

// close ends everything.
func (s *stage) close() {
	for _, c := range s.fleet {
		c.end()
	}
	if s.upstream != nil {
		s.upstream.end()
	}
	for _, p := range s.proxies {
		p.close()
	}
	if s.redis != nil {
		s.redis.close()
	}
}

// measureOne runs a workload with a limiter. A limiter that cannot be had, or
// that hangs, is a result that says so; an error is the benchmark's own.
func measureOne(ctx context.Context, w *workload, a *adapter, node *node) (result, error) {
	r := result{workload: w, adapter: a}
	if a.name == bottleneckName {
		if err := node.prepare(ctx); err != nil {
			r.note = "not measured: " + err.Error()
			return r, ctx.Err()
		}
	}
	s := &stage{workload: w, adapter: a, ideal: ideal(w).span}
	defer s.close()
	bounded, cancel := context.WithTimeout(ctx, w.patience(s.ideal)+20*time.Second)
	defer cancel()
	job, err := s.build(bounded)
	if err != nil {
		return r, err
	}
	if err := s.muster(job, node); err != nil {
		return r, err
	}
	// A worker that hangs is killed, and that ends the reading of its report.
	stop := context.AfterFunc(bounded, func() {
		for _, c := range s.fleet {
			_ = c.cmd.Process.Kill()
		}
	})
	defer stop()
	reports, err := s.race(bounded)
	if err != nil {
		r.note = "not measured: " + err.Error()
		return r, ctx.Err()
	}
	err = s.sum(ctx, &r, reports)
	return r, err
}

// build starts everything but the fleet, and returns what its workers need to
// know.
func (s *stage) build(ctx context.Context) (job workerJob, err error) {
	w := s.workload
	s.upstream, err = startRole("upstream", upstreamJob{
		Rates: w.rates, TLS: w.tls, Service: w.service, Foreign: w.foreign, ForeignAt: w.requests / 2})
	if err != nil {
		return job, err
	}
	var hello upstreamHello
	if err := s.upstream.hear(&hello); err != nil {
		return job, err
	}
	upstream, err := s.through(hello.Addr, w.rtt)
	if err != nil {
		return job, err
	}
	scheme := "http"
	if w.tls {
		scheme = "https"
	}
	job = workerJob{
		Limiter: s.adapter.name, Processes: w.processes, Callers: w.callers,
		URL: scheme + "://" + upstream + "/", Cert: hello.Cert,
		AllIdle: !w.defaultIdle, FailOpen: w.gone > 0, Patience: w.patience(s.ideal),
	}
	for _, r := range w.rates {
		job.Rates = append(job.Rates, rateJob{r.Limit, r.Per})
	}
	if len(s.adapter.trips) == 0 {
		return job, nil
	}
	if s.redis, err = startRedis(ctx); err != nil {
		return job, err
	}
	job.Redis, err = s.through(s.redis.addr, w.redisRTT)
	return job, err
}

// through returns the address at which addr is rtt away.
func (s *stage) through(addr string, rtt time.Duration) (string, error) {
	if rtt == 0 {
		return addr, nil
	}
	p, err := startProxy(addr, rtt)
	if err != nil {
		return "", err
	}
	s.proxies = append(s.proxies, p)
	return p.addr(), nil
}

// muster starts the fleet.
func (s *stage) muster(job workerJob, node *node) error {
	for i, part := range s.workload.parts() {
		job.Worker, job.Requests = i, part
		start := func() (*child, error) { return startRole("worker", job) }
		if s.adapter.name == bottleneckName {
			start = func() (*child, error) { return node.start(job) }
		}
		c, err := start()
		if err != nil {
			return err
		}
		s.fleet = append(s.fleet, c)
	}
	return nil
}

// race waits until every worker is ready, starts all at one moment, takes Redis
// away if that is the workload, and returns the reports.
func (s *stage) race(ctx context.Context) ([]workerReport, error) {
	for _, c := range s.fleet {
		var hello workerHello
		if err := c.hear(&hello); err != nil {
			return nil, err
		}
		if hello.Err != "" {
			return nil, errors.New(hello.Err)
		}
	}
	start := time.Now().Add(300 * time.Millisecond)
	for _, c := range s.fleet {
		if err := c.tell(workerGo{start.UnixNano()}); err != nil {
			return nil, c.fail(err)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	outage := make(chan error, 1)
	go func() { outage <- s.outage(ctx, start.Add(s.ideal/3)) }()
	reports := make([]workerReport, len(s.fleet))
	var failed error
	for i, c := range s.fleet {
		if err := c.hear(&reports[i]); err != nil {
			failed = errors.Join(failed, fmt.Errorf("worker %d: %w", i, err))
		}
	}
	cancel()
	return reports, errors.Join(failed, <-outage)
}

// outage kills Redis at that moment, and starts it again, unless ctx ends
// first.
func (s *stage) outage(ctx context.Context, at time.Time) error {
	if s.workload.gone == 0 || s.redis == nil || !sleep(ctx, time.Until(at)) {
		return nil
	}
	if err := s.redis.kill(ctx); err != nil {
		return err
	}
	sleep(ctx, s.workload.gone)
	return s.redis.start(context.WithoutCancel(ctx))
}

// sum computes the figures.
func (s *stage) sum(ctx context.Context, r *result, reports []workerReport) error {
	s.upstream.hangUp()
	if err := s.upstream.hear(&r.log); err != nil {
		return fmt.Errorf("upstream: %w", err)
	}
	r.figures = figuresOf(s.workload, &r.log, reports)
	r.measured = true
	if s.redis != nil {
		stats, err := s.redis.stats(ctx)
		if err != nil {
			return err
		}
		stats.add(s.redis.spent)
		if n := float64(r.accepted); n > 0 {
			r.calls = float64(stats.of(s.adapter.trips).calls) / n
			r.micros = float64(stats.of(s.adapter.cost).micros) / n
		}
	}
	if r.accepted < s.workload.requests {
		r.note = fmt.Sprintf("given up after %v: %d of %d requests", s.workload.patience(s.ideal).Round(time.Second), r.accepted, s.workload.requests)
	}
	for _, report := range reports {
		if report.Errors > 0 && r.note == "" {
			r.note = fmt.Sprintf("%d errors, such as: %s", r.errors, report.LastErr)
		}
	}
	return nil
}
