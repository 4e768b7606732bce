package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// afterError is how long a caller waits when its limiter or connection fails.
const afterError = 100 * time.Millisecond

// playWorker is one process of the fleet.
func playWorker(stdin io.Reader, stdout io.Writer) error {
	in, out := json.NewDecoder(bufio.NewReader(stdin)), json.NewEncoder(stdout)
	var job workerJob
	if err := in.Decode(&job); err != nil {
		return err
	}
	w, err := newWorker(&job)
	if err != nil {
		return out.Encode(workerHello{Err: err.Error()})
	}
	if err := out.Encode(workerHello{}); err != nil {
		return err
	}
	var start workerGo
	if err := in.Decode(&start); err != nil {
		return err
	}
	go func() { // when the benchmark is gone, so is its fleet
		_ = in.Decode(new(struct{}))
		os.Exit(1)
	}()
	time.Sleep(time.Until(time.Unix(0, start.UnixNano)))
	return out.Encode(w.work())
}

// A worker sends its part of the requests.
type worker struct {
	job    *workerJob
	client *http.Client
	left   atomic.Int64

	mu     sync.Mutex
	report workerReport
}

func newWorker(job *workerJob) (*worker, error) {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.Proxy = nil
	if job.AllIdle {
		base.MaxIdleConnsPerHost = job.Callers
	}
	if job.Cert != "" {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM([]byte(job.Cert)) {
			return nil, errors.New("no certificate")
		}
		base.TLSClientConfig = &tls.Config{RootCAs: roots}
	}
	a := adapterByName(job.Limiter)
	if a == nil || a.open == nil {
		return nil, errors.New("no such limiter: " + job.Limiter)
	}
	limited, err := a.open(job, base)
	if err != nil {
		return nil, err
	}
	w := &worker{job: job, client: &http.Client{Transport: limited}}
	w.left.Store(int64(job.Requests))
	return w, nil
}

// work returns when the worker's part is done, or its patience at an end.
func (w *worker) work() *workerReport {
	ctx, cancel := context.WithTimeout(context.Background(), w.job.Patience)
	defer cancel()
	var callers sync.WaitGroup
	for range w.job.Callers {
		callers.Go(func() {
			for w.left.Add(-1) >= 0 && w.request(ctx) {
			}
		})
	}
	callers.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return &w.report
}

// request sends one request until it succeeds, and obeys Retry-After. It
// reports false when ctx ends first.
func (w *worker) request(ctx context.Context) bool {
	asked := time.Now()
	for {
		wait, err := w.attempt(ctx)
		if ctx.Err() != nil {
			return false
		}
		w.mu.Lock()
		switch {
		case err != nil:
			w.report.Errors++
			w.report.LastErr = err.Error()
			wait = afterError
		case wait > 0:
			w.report.Refused++
		default:
			w.report.Micros = append(w.report.Micros, time.Since(asked).Microseconds())
		}
		w.mu.Unlock()
		if wait == 0 {
			return true
		}
		if !sleep(ctx, wait) {
			return false
		}
	}
}

// attempt sends a request once. A wait is what a 429 asked for.
func (w *worker) attempt(ctx context.Context) (wait time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.job.URL, nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set(workerHeader, strconv.Itoa(w.job.Worker))
	resp, err := w.client.Do(req)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	switch {
	case err != nil:
		return 0, err
	case resp.StatusCode == http.StatusOK:
		return 0, nil
	case resp.StatusCode != http.StatusTooManyRequests:
		return 0, errors.New(resp.Status)
	}
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	return max(time.Second, time.Duration(seconds)*time.Second), err
}

// sleep reports false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
