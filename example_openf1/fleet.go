package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/pacecar-go/pacecar"
)

// interrupted is the reason of a call that Ctrl-C ended.
const interrupted = "interrupted"

// goodbye is how long workers have, once told to stop, to give their slots
// back and to say how they did.
const goodbye = 3 * time.Second

// A worker is a process of the fleet as its parent sees it.
type worker struct {
	number int
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	enc    *json.Encoder // on stdin

	jobs   map[int]job // handed to it, without a result yet
	calls  int         // its jobs that the upstream answered
	stats  pacecar.Stats
	events []event
	gone   bool   // its stdout has ended
	death  string // how it ended, if it should not have
	lost   int    // jobs that it took along
}

// A letter is a message with its sender. Without a message it is the last one.
type letter struct {
	from    *worker
	message *message
}

// A fleet is worker processes that share a plan's jobs. Its fields belong to
// the goroutine that calls its methods.
type fleet struct {
	workers     []*worker
	concurrency int
	inbox       chan letter
}

// startFleet starts n processes of this program.
func startFleet(n, concurrency int, s settings) (*fleet, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	f := &fleet{concurrency: concurrency, inbox: make(chan letter)}
	for i := range n {
		w, err := f.startWorker(self, i+1, s)
		if err != nil {
			f.stop(nil)
			return nil, fmt.Errorf("worker %d: %w", i+1, err)
		}
		f.workers = append(f.workers, w)
	}
	return f, nil
}

func (f *fleet) startWorker(self string, number int, s settings) (*worker, error) {
	w := &worker{number: number, jobs: make(map[int]job)}
	w.cmd = exec.Command(self)
	w.cmd.Env = append(os.Environ(), workerEnv+"=1")
	w.cmd.Stderr = os.Stderr
	stdout, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	w.enc = json.NewEncoder(w.stdin)
	go func() {
		dec := json.NewDecoder(stdout)
		for {
			m := new(message)
			if err := dec.Decode(m); err != nil {
				if err != io.EOF {
					_ = w.cmd.Process.Kill() // it raves; its jobs are better off elsewhere
				}
				f.inbox <- letter{from: w}
				return
			}
			f.inbox <- letter{from: w, message: m}
		}
	}()
	// A pipe has room for this and all the jobs that a worker holds at a time,
	// so no write blocks. A failing one means that the process is gone: the end
	// of its stdout tells, here and below.
	_ = w.enc.Encode(s)
	return w, nil
}

// work lets the fleet do the plan until it is finished, nobody is left to do
// it, or ctx ends. look is called ten times a second in between.
func (f *fleet) work(ctx context.Context, p *plan, look func()) {
	f.listen(ctx, p, look, func() bool {
		if !p.finished() && !f.handOut(p) {
			p.giveUp("no worker is left")
		}
		return !p.finished()
	})
}

// rest lets d pass, or ctx end, with nothing to do.
func (f *fleet) rest(ctx context.Context, d time.Duration, look func()) {
	end := time.Now().Add(d)
	f.listen(ctx, new(plan), look, func() bool { return time.Now().Before(end) })
}

// listen receives what the workers say, as long as more returns true and ctx
// has not ended.
func (f *fleet) listen(ctx context.Context, p *plan, look func(), more func() bool) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil && more() {
		select {
		case l := <-f.inbox:
			f.receive(l, p)
		case <-tick.C:
			look()
		case <-ctx.Done():
		}
	}
}

// live returns the workers that are not gone.
func (f *fleet) live() []*worker {
	return slices.DeleteFunc(slices.Clone(f.workers), func(w *worker) bool { return w.gone })
}

// handOut gives queued jobs to the workers with the fewest. It returns false
// when no worker is left.
func (f *fleet) handOut(p *plan) bool {
	live := f.live()
	if len(live) == 0 {
		return false
	}
	for {
		idlest := slices.MinFunc(live, func(a, b *worker) int { return len(a.jobs) - len(b.jobs) })
		if len(idlest.jobs) >= f.concurrency {
			return true
		}
		j, ok := p.next()
		if !ok {
			return true
		}
		idlest.jobs[j.ID] = j
		_ = idlest.enc.Encode(j)
	}
}

// receive takes in a letter. The jobs of a worker that died go back to the
// plan.
func (f *fleet) receive(l letter, p *plan) {
	w := l.from
	if l.message == nil {
		w.gone = true
		w.stdin.Close()
		if err := w.cmd.Wait(); err != nil {
			w.death = err.Error()
		}
		w.lost = len(w.jobs)
		for _, j := range w.jobs {
			p.putBack(j)
		}
		clear(w.jobs)
		return
	}
	w.stats = l.message.Stats
	w.events = append(w.events, l.message.Events...)
	if r := l.message.Result; r != nil {
		if j, ok := w.jobs[r.ID]; ok {
			delete(w.jobs, r.ID)
			if r.Status != 0 {
				w.calls++
			}
			p.finish(j, *r)
		}
	}
}

// stop ends the workers, and has to follow work: it closes their stdin, which
// makes them give back their slots and tell how they did; those that do not
// obey are killed. What is unfinished then fails as interrupted. p may be nil.
func (f *fleet) stop(p *plan) {
	for _, w := range f.workers {
		w.stdin.Close()
	}
	late := time.AfterFunc(goodbye, func() {
		for _, w := range f.workers {
			_ = w.cmd.Process.Kill()
		}
	})
	defer late.Stop()
	if p == nil {
		p = new(plan)
	}
	for slices.ContainsFunc(f.workers, func(w *worker) bool { return !w.gone }) {
		f.receive(<-f.inbox, p)
	}
	p.giveUp(interrupted)
}
