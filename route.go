package pacecar

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
)

// A router finds the route of a request. http.ServeMux does the matching; what
// is added here is the clients' side of it: requests that http.Client accepts
// and no server ever sees, ports, and hosts that are spelled in several ways.
type router struct {
	mux     *http.ServeMux
	routes  map[string]*route // by the pattern that mux knows
	inOrder []*route          // the same, sorted by their own
	names   map[string]bool   // Names that look like hosts without a dot
	ports   map[string]string // "host:port" of the patterns that name a port, to muxHost

	// alone spares most requests the mux: it has an entry for each muxHost, and
	// for "" if there are patterns without a host. The entry is the host's only
	// route, if that takes every method and path, else nil.
	alone map[string]*route
}

// A route is one entry of Config.Routes.
type route struct {
	pattern string                 // as in Config.Routes
	policy  atomic.Pointer[Policy] // see SetPolicy; Name stays

	// The parts of the pattern: method is empty or ends with a blank, host is
	// canonical and may hold a port.
	method, host, path string

	// muxHost is what stands for host in the mux, which would strip a port.
	muxHost string

	// name is the key where the pattern has a host.
	name string
}

// ServeHTTP lets mux hand out the route as the handler of its pattern. It is
// never called.
func (r *route) ServeHTTP(http.ResponseWriter, *http.Request) {}

func (r *route) muxPattern() string { return r.method + r.muxHost + r.path }

// key names the quota of requests to host, for which a route without a host has
// one quota each. A route with a host has one, whatever the port of the request.
func (r *route) key(host string) string {
	switch {
	case r.policy.Load().Name != "":
		return r.policy.Load().Name
	case r.host != "":
		return r.name
	}
	return quotaName(r.method, host, r.path)
}

// label names the route in events and metrics.
func (r *route) label() string { return cmp.Or(r.policy.Load().Name, r.pattern) }

// together reports whether r and other have one quota, by the Name of one or
// both.
func (r *route) together(other *route) bool {
	named := r.policy.Load().Name != "" || other.policy.Load().Name != ""
	return named && r.key("") == other.key("")
}

// covers reports whether the route, which has neither a host nor a Name, has a
// quota of that name for some host, by the dot in it.
func (r *route) covers(name string) bool {
	if r.host != "" || r.policy.Load().Name != "" {
		return false
	}
	host, ok := strings.CutPrefix(name, r.method)
	if r.path != "/" && ok {
		host, ok = strings.CutSuffix(host, r.path)
	}
	return ok && strings.Contains(host, ".") && !strings.ContainsAny(host, "/ ")
}

// agrees returns an error if r and other have one quota and not one policy: the
// first to be used would decide for both. So it does if one has the other's
// pattern for a Name, which would look like one quota and be another.
func (r *route) agrees(other *route) error {
	mine, others := *r.policy.Load(), *other.policy.Load()
	if mine.Name != others.Name && (mine.Name == other.pattern || others.Name == r.pattern) {
		return fmt.Errorf("Name: a pattern is no Name; to share a quota with Routes[%q], give both one Name", other.pattern)
	}
	plain := func(p Policy) Policy {
		p.Name, p.Key, p.Cost, p.Feedback = "", nil, nil, nil
		return p
	}
	if !r.together(other) && !r.covers(others.Name) && !other.covers(mine.Name) {
		return nil
	}
	a, b := reflect.ValueOf(plain(mine)), reflect.ValueOf(plain(others))
	for i := range a.NumField() {
		if field := a.Type().Field(i).Name; !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			return fmt.Errorf("Name: has the quota of Routes[%q], with another policy: %s is %v, and %v there",
				other.pattern, field, a.Field(i).Interface(), b.Field(i).Interface())
		}
	}
	return nil
}

func quotaName(method, host, path string) string {
	if path == "/" && host != "" {
		path = ""
	}
	return method + host + path
}

// newRouter returns the router of Config.Routes. Patterns are checked in their
// sorted order, so that the same mistake always gives the same error.
func newRouter(routes map[string]Policy) (*router, error) {
	if len(routes) == 0 {
		return nil, errors.New("pacecar: Routes: at least one is required")
	}
	// With GODEBUG=httpmuxgo121=1 the mux knows neither methods nor wildcards,
	// and takes them for odd hosts and paths that match nothing.
	probe := http.NewServeMux()
	probe.Handle("GET /{x}", &route{})
	if _, pattern := probe.Handler(&http.Request{Method: "GET", URL: &url.URL{Path: "/x"}}); pattern == "" {
		return nil, errors.New("pacecar: Routes: GODEBUG httpmuxgo121=1 is not supported")
	}
	rt := &router{
		mux:    http.NewServeMux(),
		routes: make(map[string]*route, len(routes)),
		names:  make(map[string]bool),
		ports:  make(map[string]string),
		alone:  make(map[string]*route),
	}
	for _, pattern := range slices.Sorted(maps.Keys(routes)) {
		if err := rt.add(pattern, routes[pattern]); err != nil {
			return nil, fmt.Errorf("pacecar: Routes[%q]: %w", pattern, err)
		}
	}
	return rt, nil
}

func (rt *router) add(pattern string, policy Policy) error {
	r, err := parseRoute(pattern)
	if err != nil {
		return err
	}
	if err = policy.validate(); err != nil {
		return err
	}
	policy.Rates = slices.Clone(policy.Rates)
	r.policy.Store(&policy)

	if other := rt.routes[r.muxPattern()]; other != nil {
		return fmt.Errorf("conflicts with Routes[%q]: both mean %q", other.pattern, r.method+r.host+r.path)
	}
	if register(rt.mux, r.muxPattern(), r) != nil {
		return rt.conflict(r)
	}
	for _, other := range rt.inOrder {
		if err := r.agrees(other); err != nil {
			return err
		}
	}
	if policy.Name != "" && !strings.Contains(policy.Name, ".") {
		rt.names[policy.Name] = true
	}
	rt.inOrder = append(rt.inOrder, r)
	rt.routes[r.muxPattern()] = r
	if r.muxHost != r.host {
		rt.ports[r.host] = r.muxHost
	}
	if _, again := rt.alone[r.muxHost]; again || r.method != "" || r.path != "/" {
		rt.alone[r.muxHost] = nil
	} else {
		rt.alone[r.muxHost] = r
	}
	return nil
}

// conflict finds the pattern that keeps r out of the mux, which itself names it
// only together with lines of source code.
func (rt *router) conflict(r *route) error {
	for _, other := range rt.inOrder {
		mux := http.NewServeMux()
		mux.Handle(other.muxPattern(), r)
		err := register(mux, r.muxPattern(), r)
		if err == nil {
			continue
		}
		// Its last lines explain it by examples, without source code.
		text := err.Error()
		text = text[strings.LastIndex(text, ":\n")+1:]
		text = strings.Join(strings.Fields(text), " ")
		if r.host != "" {
			text = strings.ReplaceAll(text, r.muxHost, r.host)
		}
		return fmt.Errorf("conflicts with Routes[%q]: %s", other.pattern, text)
	}
	return errors.New("conflicts with another route")
}

// register is mux.Handle with an error for its panic.
func register(mux *http.ServeMux, pattern string, h http.Handler) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case error:
			// The innermost says what is wrong; what is around it says where,
			// in terms of muxPattern.
			for err = v; errors.Unwrap(err) != nil; {
				err = errors.Unwrap(err)
			}
		default:
			err = fmt.Errorf("%v", v)
		}
	}()
	mux.Handle(pattern, h)
	return nil
}

// match returns the route of a request and the name of its quota, or nil. It
// does not modify the request, and does not mind one that cannot be sent.
//
// The host is that of the URL, where the connection goes, and not that of a
// Host header: what an upstream counts is what arrives. (A fleet that reaches
// several upstreams through one address can tell them apart with Policy.Key.)
// Only a URL without a host falls back to req.Host.
//
// The name is Policy.Name, else the pattern, with the request's host in it where
// the pattern has none, and without the slash of an empty path:
// "api.openf1.org", "POST api.example.com", "GET api.example.com/v1/". What
// Policy.Key returns follows after " #", which neither a name nor a pattern nor
// a host can hold; so one route's key is never another's, whatever Key returns.
func (rt *router) match(req *http.Request) (r *route, key string) {
	if req.URL == nil {
		return nil, ""
	}
	name, hostPort := requestHost(req)
	if muxHost, ok := rt.ports[hostPort]; ok {
		// A pattern without a host is of no interest yet: one that has the
		// host alone comes first.
		if r = rt.find(req, muxHost); r != nil && r.host == "" {
			r = nil
		}
	}
	if r == nil {
		r = rt.find(req, name)
	}
	if r == nil {
		return nil, ""
	}
	key = r.key(hostPort)
	if r.host == "" && r.policy.Load().Name == "" {
		for rt.names[key] { // the Name of another's quota
			key += "/"
		}
	}
	if split := r.policy.Load().Key; split != nil {
		if sub := split(req); sub != "" {
			key += " #" + printable(sub)
		}
	}
	return r, key
}

// named returns the route of a pattern as it is in Config.Routes, or nil.
func (rt *router) named(pattern string) *route {
	for _, r := range rt.routes {
		if r.pattern == pattern {
			return r
		}
	}
	return nil
}

// unknown says that there is no route of that pattern, and which may be meant.
func (rt *router) unknown(pattern string) error {
	if meant, err := parseRoute(pattern); err == nil {
		if r := rt.routes[meant.muxPattern()]; r != nil {
			return fmt.Errorf("no such route, did you mean %q?", r.pattern)
		}
	}
	for _, r := range rt.inOrder {
		if strings.Trim(r.pattern, "/") == strings.Trim(pattern, "/") {
			return fmt.Errorf("no such route, did you mean %q?", r.pattern)
		}
	}
	return errors.New("no such route")
}

// find asks the mux, in the form of a request that a server would see.
func (rt *router) find(req *http.Request, host string) *route {
	r, named := rt.alone[host]
	if !named {
		r = rt.alone[""]
	}
	if r != nil {
		return r
	}

	u := req.URL
	if u.Opaque != "" || u.Path == "" || req.Method == http.MethodConnect {
		u = muxURL(u, host)
	}
	probe := http.Request{Method: cmp.Or(req.Method, http.MethodGet), Host: host, URL: u}
	h, pattern := rt.mux.Handler(&probe)
	if r, ok := h.(*route); ok {
		return r
	}
	// Else the mux would redirect, to a clean path or from "/tree" to "/tree/". A
	// client sends the request as it is, and it counts upstream: that is a match.
	if probe.Method != http.MethodConnect {
		return rt.routes[pattern]
	}
	// For CONNECT the mux returns the path that it redirects to, and not the
	// pattern.
	if !strings.HasSuffix(u.Path, "/") {
		u.Path, u.RawPath = u.Path+"/", ""
		h, _ = rt.mux.Handler(&probe)
	}
	r, _ = h.(*route)
	return r
}

// muxURL returns what the mux should take for the URL of a request of which it
// would not understand it. Opaque stands in the place of host, path and query:
// "//host/path?query" or "/path".
func muxURL(u *url.URL, host string) *url.URL {
	raw := u.EscapedPath()
	if u.Opaque != "" {
		raw, _, _ = strings.Cut(u.Opaque, "?")
		if rest, ok := strings.CutPrefix(raw, "//"); ok {
			_, raw, _ = strings.Cut(rest, "/")
			raw = "/" + raw
		}
	}
	if !strings.HasPrefix(raw, "/") {
		raw = "/" // "*", or the host and port of a CONNECT
	}
	unescaped, err := url.PathUnescape(raw)
	if err != nil {
		unescaped = raw
	}
	return &url.URL{Host: host, Path: unescaped, RawPath: raw}
}
