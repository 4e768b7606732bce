package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/pacecar-go/pacecar"
)

// A tier is one of Open F1's quotas. Both limits hold together.
type tier struct{ second, minute int }

// String returns the tier as pacecar reads it.
func (t tier) String() string { return fmt.Sprintf("%d/s, %d/m", t.second, t.minute) }

var tiers = map[string]tier{
	"free":    {second: 3, minute: 30},
	"sponsor": {second: 6, minute: 60},
}

// options is the command line, checked.
type options struct {
	workers     int
	concurrency int
	years       []int
	all         bool
	tier        tier
	redis       string // host:port or a redis:// URL; empty: embedded
	upstream    string // scheme and host; empty: embedded
	out         string
	without     bool
	faults      []string
	seed        uint64
	chaos       bool
	outage      pacecar.Outage
	serve       string // where the page is; empty: there is none
}

// upstreamName names the upstream for people.
func (o options) upstreamName() string { return cmp.Or(o.upstream, "embedded stand-in for Open F1") }

// again reports whether there is a next round, until Ctrl-C.
func (o options) again() bool { return o.serve != "" && o.upstream == "" }

// parseOptions reads the command line. Usage and -h go to w; other errors are
// for the caller to print.
func parseOptions(args []string, w io.Writer) (options, error) {
	var o options
	var years, tierName, faults, outage string
	fs := flag.NewFlagSet("example_openf1", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.IntVar(&o.workers, "workers", 4, "number of worker processes")
	fs.IntVar(&o.concurrency, "concurrency", 4, "calls at a time in each worker")
	fs.StringVar(&years, "years", "2023,2024,2025", "seasons whose meetings are fetched")
	fs.BoolVar(&o.all, "all", false, "fetch the sessions of every season, not only of the last (76 calls, two minutes)")
	fs.StringVar(&tierName, "tier", "free", "quota: free (3/s, 30/m) or sponsor (6/s, 60/m)")
	fs.StringVar(&o.redis, "redis", "", "Redis to share the quota through, `host:port` or redis:// URL (default embedded)")
	fs.StringVar(&o.upstream, "upstream", "", "`URL` of the API, such as https://api.openf1.org (default an embedded stand-in)")
	fs.StringVar(&o.out, "o", "", "write everything fetched to this `file`, as JSON")
	fs.BoolVar(&o.without, "without", false, "do without pacecar, to see the refusals that it avoids")
	fs.StringVar(&faults, "fault", "", "stand-in also fails one request in ten, a `list` of "+strings.Join(faultKinds, ","))
	fs.Uint64Var(&o.seed, "seed", 99, "which requests -fault hits")
	fs.BoolVar(&o.chaos, "chaos", false, "kill the embedded Redis in mid-run and start it again, empty, after two seconds")
	fs.StringVar(&outage, "outage", "", "while Redis is away: closed or open (default closed; open with -chaos)")
	fs.StringVar(&o.serve, "serve", "", `show the fleet live on a page at this `+"`address`"+`, such as 127.0.0.1:8080, and as JSON
at /state. Without a host it is for this machine alone, and port 0 is a
free one. Until Ctrl-C the stand-in is asked again and again; a real
-upstream is asked once, and the page stays up`)
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(w, "usage: example_openf1 [flags]")
			fs.SetOutput(w)
			fs.PrintDefaults()
		}
		return o, err
	}

	var err error
	switch {
	case fs.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case o.workers < 1 || o.workers > 64:
		return o, fmt.Errorf("-workers %d: must be from 1 to 64", o.workers)
	case o.concurrency < 1 || o.concurrency > 64:
		return o, fmt.Errorf("-concurrency %d: must be from 1 to 64", o.concurrency)
	}
	if o.years, err = parseYears(years); err != nil {
		return o, fmt.Errorf("-years %q: %w", years, err)
	}
	var ok bool
	if o.tier, ok = tiers[tierName]; !ok {
		return o, fmt.Errorf("-tier %q: must be free or sponsor", tierName)
	}
	if o.upstream, err = parseUpstream(o.upstream); err != nil {
		return o, fmt.Errorf("-upstream: %w", err)
	}
	if _, err = redisOptions(o.redis); err != nil {
		return o, fmt.Errorf("-redis: %w", err)
	}
	if o.serve, err = parseServe(o.serve); err != nil {
		return o, fmt.Errorf("-serve: %w", err)
	}
	if o.faults, err = parseFaults(faults); err != nil {
		return o, fmt.Errorf("-fault %w", err)
	}
	if o.outage, err = parseOutage(outage, o.chaos); err != nil {
		return o, fmt.Errorf("-outage %w", err)
	}
	return o, o.contradiction()
}

// contradiction names two flags that do not go together.
func (o options) contradiction() error {
	switch {
	case len(o.faults) > 0 && o.upstream != "":
		return errors.New("-fault is for the embedded stand-in: leave out -upstream")
	case o.without && o.upstream != "":
		// It would flood somebody's API to prove a point.
		return errors.New("-without is for the embedded stand-in: leave out -upstream")
	case o.without && (o.redis != "" || o.chaos):
		return errors.New("-without needs no Redis: leave out -redis and -chaos")
	case o.chaos && o.redis != "":
		return errors.New("-chaos kills the embedded Redis: leave out -redis")
	}
	return nil
}

// parseYears reads a list such as "2023,2024" and returns it sorted.
func parseYears(s string) ([]int, error) {
	var years []int
	for part := range strings.SplitSeq(s, ",") {
		y, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || y < 1950 || y > 2100 {
			return nil, fmt.Errorf("%q is no season", part)
		}
		years = append(years, y)
	}
	slices.Sort(years)
	return slices.Compact(years), nil
}

// parseFaults reads a list of faultKinds.
func parseFaults(s string) ([]string, error) {
	if s == "" {
		return nil, nil
	}
	faults := strings.Split(s, ",")
	for _, f := range faults {
		if !slices.Contains(faultKinds, f) {
			return nil, fmt.Errorf("%q: must be a list of %s", f, strings.Join(faultKinds, ","))
		}
	}
	return faults, nil
}

// parseOutage reads a policy. Without one, it is to fail open with chaos, so
// that there is something to see.
func parseOutage(s string, chaos bool) (pacecar.Outage, error) {
	switch {
	case s == "open", s == "" && chaos:
		return pacecar.FailOpen, nil
	case s == "closed", s == "":
		return pacecar.FailClosed, nil
	}
	return 0, fmt.Errorf("%q: must be closed or open", s)
}

// parseUpstream checks that s is empty or a scheme and a host, nothing else.
func parseUpstream(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	u, err := url.Parse(s)
	if err != nil {
		return "", errors.New("not a URL")
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", errors.New("must begin with http:// or https:// and name a host")
	}
	if u.User != nil || u.RawQuery != "" || strings.Trim(u.Path, "/") != "" {
		return "", errors.New("must be a scheme and a host alone, such as https://api.openf1.org")
	}
	return u.Scheme + "://" + u.Host, nil
}

// parseServe checks that s is empty or host:port, and fills in the host.
func parseServe(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", fmt.Errorf("%q must be host:port, such as 127.0.0.1:8080", s)
	}
	return net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port), nil
}
