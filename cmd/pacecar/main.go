// Command pacecar looks at the quotas of a fleet and steers them, through the
// Redis that the fleet shares. pacecar -h says how it is used;
// docs/operations.md says when to use what.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pacecar-go/pacecar"
	"github.com/redis/go-redis/v9"
)

const usage = `pacecar looks at the quotas of a fleet and steers them, through the Redis that the fleet shares.

usage: pacecar COMMAND [ARGUMENTS] [FLAGS]

  status [KEY]           how much of each quota is used, how many wait, and what is paused
  watch [KEY]            the same, again every second, until interrupted
  pause KEY DURATION     stop a quota for the whole fleet: pacecar pause api.example.com 30s
  resume KEY             end a pause
  set KEY RATES          put rates in force for the whole fleet: pacecar set api.example.com 6/s, 60/m
  set KEY default        go back to the rates that each process was started with
  reset KEY              forget what is booked, and end a pause
  bench                  how many bookings a second this Redis serves, and how fast
  version                of this command

flags, before or after the arguments; -- ends them:

  -redis ADDRESS         host:port, redis://, rediss:// or unix:// URL; several for a Cluster, separated by commas
                         (default: the environment's REDIS_URL, else localhost:6379)
  -prefix TEXT           Config.Prefix of the fleet (default "pacecar")
  -json                  print one JSON object a line
  -timeout DURATION      give up when Redis does not answer for so long (default 5s)
  -new                   set: also if nothing uses such a quota yet
  -yes                   reset: do not ask
  -every DURATION, -n N  watch: how often, and how many times (default 1s, and until interrupted)
  -for DURATION          bench: for how long (default 3s, at most 1m)

exit status: 0 done, 1 failed, 2 wrong usage, 3 no such quota
`

// The exit statuses.
const (
	exitOK = iota
	exitFailure
	exitUsage
	exitUnknownKey
)

// A usageError is a mistake in the arguments.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// A tool is one run of the command.
type tool struct {
	in       io.Reader
	out, err io.Writer
	terminal func(any) bool // whether a file of these is one

	redis, prefix       string
	json, yes, new      bool
	timeout, every, dur time.Duration
	times               int

	rdb   redis.UniversalClient
	where string // Redis, for messages
	tls   bool
	admin *pacecar.Admin
}

// A command is one of usage's.
type command struct {
	least, most int      // arguments
	flags       []string // besides those of all commands
	check       func(*tool, []string) error
	run         func(context.Context, *tool, []string) error
}

const many = 1 << 30

var commands = map[string]command{
	"status": {0, 1, nil, nil, status},
	"watch":  {0, 1, []string{"every", "n"}, checkWatch, watch},
	"pause":  {2, 2, nil, checkPause, pause},
	"resume": {1, 1, nil, nil, resume},
	"set":    {2, many, []string{"new"}, checkSet, set},
	"reset":  {1, 1, []string{"yes"}, nil, reset},
	"bench":  {0, 0, []string{"for"}, checkBench, bench},
}

// version returns what "go install" has built.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "unknown"
	}
	return info.Main.Version
}

func main() {
	redis.SetLogger(silence{}) // what fails is reported once, by us
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	t := &tool{in: os.Stdin, out: os.Stdout, err: os.Stderr, terminal: isTerminal}
	code := t.main(ctx, os.Args[1:], os.Getenv("REDIS_URL"))
	stop()
	os.Exit(code)
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

func isTerminal(file any) bool {
	f, ok := file.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}

// main runs the command and returns the exit status.
func (t *tool) main(ctx context.Context, args []string, env string) int {
	err := t.run(ctx, args, env)
	if t.rdb != nil {
		t.rdb.Close()
	}
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(t.out, usage)
		return exitOK
	}
	text, _ := strings.CutPrefix(err.Error(), "pacecar: ")
	fmt.Fprintf(t.err, "pacecar: %s\n", shown(text))
	_, mistake := errors.AsType[usageError](err)
	switch {
	case mistake:
		fmt.Fprintln(t.err, "pacecar -h says how it is used")
		return exitUsage
	case errors.Is(err, pacecar.ErrUnknownKey):
		return exitUnknownKey
	}
	return exitFailure
}

func (t *tool) run(ctx context.Context, args []string, env string) error {
	fs := flag.NewFlagSet("pacecar", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&t.redis, "redis", env, "")
	fs.StringVar(&t.prefix, "prefix", "", "")
	fs.BoolVar(&t.json, "json", false, "")
	fs.BoolVar(&t.new, "new", false, "")
	fs.BoolVar(&t.yes, "yes", false, "")
	fs.DurationVar(&t.timeout, "timeout", 5*time.Second, "")
	fs.DurationVar(&t.every, "every", time.Second, "")
	fs.DurationVar(&t.dur, "for", 3*time.Second, "")
	fs.IntVar(&t.times, "n", 0, "")
	words, err := parse(fs, args)
	if err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return usageError{err}
	}
	if len(words) == 0 {
		return usagef("which command? one of status, watch, pause, resume, set, reset, bench")
	}
	switch words[0] {
	case "help":
		return flag.ErrHelp
	case "version":
		fmt.Fprintln(t.out, "pacecar", version(), runtime.Version())
		return nil
	}
	c, ok := commands[words[0]]
	if !ok {
		return usagef("no command %q: one of status, watch, pause, resume, set, reset, bench", words[0])
	}
	if err := t.check(fs, c, words); err != nil {
		return err
	}
	if err := t.connect(ctx); err != nil {
		return err
	}
	if err := c.run(ctx, t, words[1:]); err != nil {
		return t.explain(err)
	}
	return nil
}

// check finds mistakes in the arguments before anything is done.
func (t *tool) check(fs *flag.FlagSet, c command, words []string) error {
	name, args := words[0], words[1:]
	if len(args) < c.least || len(args) > c.most {
		for line := range strings.Lines(usage) {
			if strings.HasPrefix(line, "  "+name+" ") {
				form, text := line[:min(len(line), 25)], line[min(len(line), 25):]
				return usagef("wrong number of arguments: %s: %s", strings.TrimSpace(form), strings.TrimSpace(text))
			}
		}
	}
	var err error
	fs.Visit(func(f *flag.Flag) {
		if !slices.Contains([]string{"redis", "prefix", "json", "timeout"}, f.Name) && !slices.Contains(c.flags, f.Name) {
			err = usagef("%s has no flag -%s", name, f.Name)
		}
	})
	switch {
	case err != nil:
		return err
	case t.timeout <= 0:
		return usagef("-timeout: must be above zero: %v", t.timeout)
	case c.most > 0 && len(args) > 0 && args[0] == "":
		return usagef("KEY is empty")
	case c.check != nil:
		return c.check(t, args)
	}
	return nil
}

// parse takes flags before, between and after the words that are none.
func parse(fs *flag.FlagSet, args []string) (words []string, err error) {
	for len(args) > 0 {
		if len(words) > 0 && isNegative(args[0]) { // no flag
			words, args = append(words, args[0]), args[1:]
			continue
		}
		if err := fs.Parse(args); err != nil {
			if strings.HasSuffix(err.Error(), "parse error") { // of a duration or a number
				err = fmt.Errorf("%s: a duration is like 500ms, 5s or 1m", strings.TrimSuffix(err.Error(), ": parse error"))
			}
			return nil, err
		}
		done := len(args) - fs.NArg()
		if done > 0 && args[done-1] == "--" {
			return append(words, fs.Args()...), nil
		}
		args = fs.Args()
		if len(args) > 0 {
			words, args = append(words, args[0]), args[1:]
		}
	}
	return words, nil
}

// isNegative reports whether s is a number below zero, with a unit or not.
func isNegative(s string) bool { return len(s) > 1 && s[0] == '-' && s[1] >= '0' && s[1] <= '9' }

// bounded bounds what is to answer soon.
func (t *tool) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, t.timeout)
}

func (t *tool) prefixName() string {
	if t.prefix == "" {
		return "pacecar"
	}
	return t.prefix
}
