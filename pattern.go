package pacecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// parseRoute takes a pattern apart and makes its host canonical. It refuses,
// beside what http.ServeMux refuses, patterns that no request would ever match:
// they leave a quota unguarded and nobody notices.
func parseRoute(pattern string) (*route, error) {
	if strings.TrimSpace(pattern) == "" {
		return nil, errors.New("the pattern is empty")
	}
	r := &route{pattern: pattern}
	rest := pattern
	if i := strings.IndexAny(pattern, " \t"); i >= 0 {
		r.method, rest = pattern[:i], strings.TrimLeft(pattern[i:], " \t")
	}
	if upper := strings.ToUpper(r.method); upper != r.method && isMethod(upper) {
		return nil, fmt.Errorf("methods are in upper case, did you mean %q?", upper+" "+rest)
	}
	if like := likeMethod(r.method); like != "" {
		return nil, fmt.Errorf("no such method, did you mean %q? A route without a method has them all", like+" "+rest)
	}
	if r.method != "" {
		r.method += " "
	}

	if scheme, after, ok := strings.Cut(rest, "://"); ok && !strings.Contains(scheme, "/") {
		if !strings.Contains(after, "/") {
			after += "/"
		}
		return nil, fmt.Errorf("a pattern has no scheme, did you mean %q?", r.method+after)
	}
	i := strings.IndexByte(rest, '/')
	switch {
	case rest == "*":
		return nil, errors.New("did you mean \"/\", which matches every host and path?")
	case i < 0 && isMethod(rest):
		return nil, fmt.Errorf("no path, did you mean %q?", r.method+rest+" /")
	case i < 0:
		return nil, fmt.Errorf("no path, did you mean %q?", r.method+rest+"/")
	case isMethod(rest[:i]):
		return nil, fmt.Errorf("no blank after the method, did you mean %q?", rest[:i]+" "+rest[i:])
	}
	host, port, err := parseHost(rest[:i])
	if err != nil {
		return nil, err
	}
	r.host, r.muxHost = host, host
	if port != "" {
		// No canonical host has these letters in upper case.
		r.host, r.muxHost = host+":"+port, host+"PORT"+port
	}
	r.path = rest[i:]
	r.name = quotaName(r.method, r.host, r.path)
	if i := strings.IndexFunc(r.path, func(c rune) bool { return c <= ' ' || c == '?' || c == '#' || c == 0x7f }); i >= 0 {
		return nil, fmt.Errorf("%q in the path: a pattern has no query or fragment; as a part of the path it is written %%%02X", r.path[i:i+1], r.path[i])
	}

	if strings.HasSuffix(r.path, "/*") {
		return nil, fmt.Errorf("no * in a pattern: all below a path is matched by the path with a slash at its end, %q",
			strings.TrimSuffix(rest, "*"))
	}

	mux := http.NewServeMux()
	if err := register(mux, r.muxPattern(), r); err != nil {
		return nil, err
	}
	if r.method == "" {
		// Only with a method does the mux look whether the path is clean.
		return r, register(mux, "GET "+r.muxPattern(), r)
	}
	return r, nil
}

// methods are those of RFC 9110 and RFC 5789.
var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE"}

func isMethod(s string) bool { return slices.Contains(methods, s) }

// likeMethod returns the method that s is written like: with its letters in another
// order, or one too many or too few. Empty: s is one, or another's own.
func likeMethod(s string) string {
	if isMethod(s) {
		return ""
	}
	letters := func(s string) string { return string(slices.Sorted(slices.Values([]byte(s)))) }
	for _, m := range methods {
		if len(s) == len(m) && letters(s) == letters(m) || len(s) != len(m) && editDistance(s, m) == 1 {
			return m
		}
	}
	return ""
}

// parseHost makes the host of a pattern canonical. The port is empty for 80 and
// 443, the defaults: a pattern has no scheme that could tell them apart.
func parseHost(s string) (host, port string, err error) {
	if s == "" {
		return "", "", nil
	}
	if strings.ContainsAny(s, "{}*") {
		return "", "", fmt.Errorf("host %s: no wildcards in hosts (or a missing \"/\" at the beginning)", quote(s))
	}
	u := url.URL{Host: s}
	host, ok := canonicalHost(u.Hostname())
	if !ok || host == "" || strings.Contains("."+host+".", "..") {
		return "", "", fmt.Errorf("host %s: want a name or an IP address (IPv6 in brackets), and a port or none", quote(s))
	}
	port = u.Port()
	if n, err := strconv.Atoi(port); strings.HasSuffix(s, ":") || port != "" && (err != nil || n < 1 || n > 65535 || port[0] == '0') {
		return "", "", fmt.Errorf("host %s: the port must be from 1 to 65535", quote(s))
	}
	if port == "80" || port == "443" {
		port = ""
	}
	return host, port, nil
}

// requestHost returns the canonical host to which a request goes, and the same
// with its port, if that isn't the default one of the URL's scheme.
func requestHost(req *http.Request) (name, hostPort string) {
	u := url.URL{Host: req.URL.Host}
	if u.Host == "" {
		u.Host = req.Host
	}
	name, _ = canonicalHost(u.Hostname())
	port := strings.TrimLeft(u.Port(), "0")
	switch {
	case port == "", len(port) > len("65535"),
		port == "80" && req.URL.Scheme == "http",
		port == "443" && req.URL.Scheme == "https":
		return name, name
	case len(u.Host) == len(name)+1+len(port) && strings.HasPrefix(u.Host, name):
		return name, u.Host // saves an allocation
	}
	return name, name + ":" + port
}

// canonicalHost returns the one form of all the spellings of a host: lower
// case, no dot at the end, ASCII, IPv6 addresses shortened and in brackets. ok
// is false for what can be no host; then the result is something printable,
// without blanks, that is still the same for the same host.
func canonicalHost(host string) (canonical string, ok bool) {
	// The longest name of the DNS, in the longest encoding.
	if len(host) > 253*4 {
		return digest(host), false
	}
	if strings.Contains(host, ":") {
		if ip, err := netip.ParseAddr(strings.ToLower(host)); err == nil && isPlain(ip.Zone()) {
			return "[" + ip.String() + "]", true
		}
	}
	if strings.ContainsFunc(host, func(c rune) bool { return c >= 0x80 }) {
		host = dialedHost(host)
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if !isPlain(host) {
		return printable(url.QueryEscape(host)), false
	}
	if len(host) > 253 {
		return digest(host), false
	}
	return host, true
}

// isPlain reports whether s is made of nothing but the characters of canonical
// host names.
func isPlain(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '.', c == '_':
		default:
			return false
		}
	}
	return true
}

// dialedHost returns the ASCII form of an internationalised host: the one that
// net/http dials, learned by letting it dial. The Host line that it writes is of
// no use here. That one's letters are encoded as they are, without the mapping
// of UTS 46, so that "api。example。com" would be another host than the
// one that is called.
func dialedHost(host string) string {
	stop := errors.New("only the address was wanted")
	t := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(_ context.Context, _, addr string) (net.Conn, error) {
			if h, _, err := net.SplitHostPort(addr); err == nil {
				host = h
			}
			return nil, stop
		},
	}
	req := &http.Request{URL: &url.URL{Scheme: "http", Host: host}, Header: http.Header{}}
	if resp, err := t.RoundTrip(req); err == nil {
		resp.Body.Close() // not reached: nothing was dialed
	}
	return host
}
