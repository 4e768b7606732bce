package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// roleEnv says, in a child's environment, what this program is to be.
const roleEnv = "PACECAR_BENCHMARK_ROLE"

// roles are what a child can be. It reads JSON from stdin and writes JSON to
// stdout.
var roles = map[string]func(stdin io.Reader, stdout io.Writer) error{
	"upstream": playUpstream,
	"worker":   playWorker,
}

// A child is a process that talks JSON: it is told a job, says hello, may be
// told more, and reports when its work is done or its stdin ends. It ends by
// itself when this process does, since its stdin then ends.
type child struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	out    *json.Decoder
	stderr bytes.Buffer
	waited chan struct{}
}

// startRole starts this program again in a role.
func startRole(role string, job any) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	return startChild(cmd, job)
}

// startChild starts a command and tells it its job.
func startChild(cmd *exec.Cmd, job any) (*child, error) {
	c := &child{cmd: cmd, waited: make(chan struct{})}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	c.stdin = stdin
	// A pipe of our own: Wait would close that of StdoutPipe while the report
	// is still being read.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = w, &c.stderr
	c.out = json.NewDecoder(r)
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, r.Close(), w.Close())
	}
	_ = w.Close()
	go func() {
		_ = cmd.Wait() // the report, or its absence, says more
		close(c.waited)
	}()
	if err := c.tell(job); err != nil {
		return nil, c.fail(err)
	}
	return c, nil
}

// tell writes to the child.
func (c *child) tell(v any) error { return json.NewEncoder(c.stdin).Encode(v) }

// hear reads what the child says next.
func (c *child) hear(v any) error {
	if err := c.out.Decode(v); err != nil {
		return c.fail(err)
	}
	return nil
}

// hangUp ends the child's stdin.
func (c *child) hangUp() { _ = c.stdin.Close() }

// end waits a moment for the child to end, and kills it otherwise.
func (c *child) end() {
	c.hangUp()
	select {
	case <-c.waited:
	case <-time.After(2 * time.Second):
		_ = c.cmd.Process.Kill()
		<-c.waited
	}
}

// fail ends the child, and adds to err the last line that it wrote to stderr.
func (c *child) fail(err error) error {
	c.end()
	lines := strings.Split(strings.TrimSpace(c.stderr.String()), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return fmt.Errorf("%w: %s", err, last)
	}
	return err
}

// A workerJob is what a worker is told when it starts.
type workerJob struct {
	Limiter   string
	Worker    int
	Processes int
	Callers   int
	Requests  int
	Rates     []rateJob
	URL       string
	Cert      string // PEM; empty for plain HTTP
	Redis     string // address
	AllIdle   bool   // keep an idle connection for each caller
	FailOpen  bool   // where the limiter has such a choice
	Patience  time.Duration
}

// A rateJob is a rate, in a form that JSON and Node take.
type rateJob struct {
	Limit int
	Per   time.Duration // nanoseconds
}

// A workerHello says that the worker is ready, or why not.
type workerHello struct{ Err string }

// A workerGo tells the workers the moment to begin.
type workerGo struct{ UnixNano int64 }

// A workerReport is what a worker tells at the end.
type workerReport struct {
	Micros  []int64 // of each request that succeeded, from asking to the answer, with all that was refused in between
	Refused int     // 429s
	Errors  int     // failures of the limiter or of the connection, tried again after a while
	LastErr string
}
