package pacecar

import (
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"
)

// routesOf gives every pattern the same policy.
func routesOf(patterns ...string) map[string]Policy {
	m := make(map[string]Policy)
	for _, p := range patterns {
		m[p] = Policy{Rates: MustRates("3/s")}
	}
	return m
}

func mustRouter(t testing.TB, routes map[string]Policy) *router {
	t.Helper()
	rt, err := newRouter(routes)
	if err != nil {
		t.Fatal(err)
	}
	return rt
}

func TestMatch(t *testing.T) {
	type want struct{ method, url, pattern, key string } // pattern "": no route
	for _, tt := range []struct {
		name     string
		patterns []string
		want     []want
	}{
		{"one host", []string{"api.openf1.org/"}, []want{
			{"GET", "https://api.openf1.org/v1/meetings?year=2024", "api.openf1.org/", "api.openf1.org"},
			{"POST", "https://api.openf1.org", "api.openf1.org/", "api.openf1.org"},
			{"GET", "https://api.openf1.org:8443/", "api.openf1.org/", "api.openf1.org"},
			{"GET", "https://openf1.org/v1/meetings", "", ""},
			{"GET", "https://x.api.openf1.org/", "", ""},
		}},
		{"method", []string{"POST api.example.com/", "GET api.example.com/v1/"}, []want{
			{"POST", "https://api.example.com/v1/x", "POST api.example.com/", "POST api.example.com"},
			{"GET", "https://api.example.com/v1/x", "GET api.example.com/v1/", "GET api.example.com/v1/"},
			{"", "https://api.example.com/v1/x", "GET api.example.com/v1/", "GET api.example.com/v1/"},
			{"HEAD", "https://api.example.com/v1/x", "GET api.example.com/v1/", "GET api.example.com/v1/"},
			{"GET", "https://api.example.com/v2/x", "", ""},
			{"DELETE", "https://api.example.com/v1/x", "", ""},
		}},
		{"no host: one quota for each", []string{"/", "GET /v1/"}, []want{
			{"POST", "http://127.0.0.1:8080/x", "/", "127.0.0.1:8080"},
			{"POST", "http://a.example:80/x", "/", "a.example"},
			{"POST", "https://a.example:443/x", "/", "a.example"},
			{"POST", "http://a.example:443/x", "/", "a.example:443"},
			{"POST", "https://a.example:80/x", "/", "a.example:80"},
			{"GET", "https://B.example/v1/x", "GET /v1/", "GET b.example/v1/"},
			{"GET", "https://[2001:DB8:0::1]:8443/v1/x", "GET /v1/", "GET [2001:db8::1]:8443/v1/"},
			{"GET", "https://[2001:DB8:0::1]/", "/", "[2001:db8::1]"},
			{"GET", "http://[fe80::1%25eth0]:80/", "/", "[fe80::1%eth0]"},
			{"GET", "/v1/", "GET /v1/", "GET /v1/"},
			{"POST", "/", "/", "/"},
		}},
		{"default beside hosts", []string{"/", "a.example/", "POST b.example/", "c.example/x/"}, []want{
			{"GET", "https://a.example/x", "a.example/", "a.example"},
			{"GET", "https://b.example/x", "/", "b.example"},
			{"POST", "https://b.example/x", "POST b.example/", "POST b.example"},
			{"GET", "https://c.example/x/", "c.example/x/", "c.example/x/"},
			{"GET", "https://c.example/y/", "/", "c.example"},
			{"GET", "https://d.example/", "/", "d.example"},
		}},
		{"most specific", []string{"a.example/", "a.example/users/{id}", "a.example/users/me", "a.example/files/{rest...}", "a.example/{$}"}, []want{
			{"GET", "https://a.example/users/7", "a.example/users/{id}", "a.example/users/{id}"},
			{"GET", "https://a.example/users/me", "a.example/users/me", "a.example/users/me"},
			{"GET", "https://a.example/users/7/x", "a.example/", "a.example"},
			{"GET", "https://a.example/files/x/y", "a.example/files/{rest...}", "a.example/files/{rest...}"},
			{"GET", "https://a.example/", "a.example/{$}", "a.example/{$}"},
			{"GET", "https://a.example", "a.example/{$}", "a.example/{$}"},
			{"GET", "https://a.example/x", "a.example/", "a.example"},
			{"GET", "https://a.example/users%2F7", "a.example/", "a.example"},
		}},
		// A server would redirect these; the upstream counts them all the same.
		{"unclean paths", []string{"a.example/tree/", "a.example/leaf"}, []want{
			{"GET", "https://a.example/tree", "a.example/tree/", "a.example/tree/"},
			{"GET", "https://a.example//tree/x", "a.example/tree/", "a.example/tree/"},
			{"GET", "https://a.example/x/../tree/y", "a.example/tree/", "a.example/tree/"},
			{"GET", "https://a.example/./leaf", "a.example/leaf", "a.example/leaf"},
			{"GET", "https://a.example/l%65af", "a.example/leaf", "a.example/leaf"},
			{"GET", "https://a.example/leaf/", "", ""},
			{"GET", "https://a.example/../other", "", ""},
			{"CONNECT", "https://a.example/tree", "a.example/tree/", "a.example/tree/"},
		}},
		{"spellings of a host", []string{"API.Example.COM./"}, []want{
			{"GET", "https://api.example.com/", "API.Example.COM./", "api.example.com"},
			{"GET", "https://API.EXAMPLE.com.:443/", "API.Example.COM./", "api.example.com"},
			{"GET", "https://api。example。com/", "API.Example.COM./", "api.example.com"},
			{"GET", "https://ＡＰＩ.example.com/", "API.Example.COM./", "api.example.com"},
		}},
		{"internationalised", []string{"Bücher.example/", "xn--r8jz45g.example/"}, []want{
			{"GET", "https://bücher.example/", "Bücher.example/", "xn--bcher-kva.example"},
			{"GET", "https://BU\u0308CHER.example:8443/", "Bücher.example/", "xn--bcher-kva.example"},
			{"GET", "https://XN--Bcher-KVA.example/", "Bücher.example/", "xn--bcher-kva.example"},
			{"GET", "https://例え.example/", "xn--r8jz45g.example/", "xn--r8jz45g.example"},
		}},
		{"ports", []string{"localhost/", "localhost:8080/", "GET localhost:9090/x/", "/", "other.example:81/", "[::1]/", "[0::1]:8080/"}, []want{
			{"GET", "http://localhost/", "localhost/", "localhost"},
			{"GET", "http://localhost:7070/", "localhost/", "localhost"},
			{"GET", "http://LOCALHOST.:8080/x", "localhost:8080/", "localhost:8080"},
			{"GET", "http://localhost:008080/x", "localhost:8080/", "localhost:8080"},
			{"GET", "http://localhost:9090/x/y", "GET localhost:9090/x/", "GET localhost:9090/x/"},
			{"POST", "http://localhost:9090/x/y", "localhost/", "localhost"},
			{"GET", "http://localhost:9090/z", "localhost/", "localhost"},
			{"GET", "http://other.example:81/", "other.example:81/", "other.example:81"},
			{"GET", "http://other.example/", "/", "other.example"},
			{"GET", "http://other.example:82/", "/", "other.example:82"},
			{"GET", "http://[::1]:8080/", "[0::1]:8080/", "[::1]:8080"},
			{"GET", "http://[::1]:7070/", "[::1]/", "[::1]"},
			{"GET", "http://[::1]/", "[::1]/", "[::1]"},
			{"GET", "http://localhostport8080/", "/", "localhostport8080"},
			{"GET", "http://localhostPORT8080/", "/", "localhostport8080"},
		}},
		{"a port beats a path", []string{"localhost:8080/", "localhost/api/"}, []want{
			{"GET", "http://localhost:8080/api/x", "localhost:8080/", "localhost:8080"},
			{"GET", "http://localhost:8081/api/x", "localhost/api/", "localhost/api/"},
		}},
		{"default ports in patterns", []string{"a.example:443/", "b.example:80/"}, []want{
			{"GET", "https://a.example/", "a.example:443/", "a.example"},
			{"GET", "http://a.example/", "a.example:443/", "a.example"},
			{"GET", "https://b.example/", "b.example:80/", "b.example"},
		}},
		{"blanks", []string{"GET \t a.example/v1/"}, []want{
			{"GET", "https://a.example/v1/", "GET \t a.example/v1/", "GET a.example/v1/"},
		}},
		{"CONNECT", []string{"CONNECT proxy.example/", "a.example:8443/"}, []want{
			{"CONNECT", "http://proxy.example:3128", "CONNECT proxy.example/", "CONNECT proxy.example"},
			{"GET", "http://proxy.example:3128", "", ""},
			{"CONNECT", "https://a.example:8443", "a.example:8443/", "a.example:8443"},
			{"CONNECT", "https://[::1]", "", ""},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rt := mustRouter(t, routesOf(tt.patterns...))
			for _, w := range tt.want {
				req, err := http.NewRequest(w.method, w.url, nil)
				if err != nil {
					t.Fatal(err)
				}
				req.Method = w.method // NewRequest would make GET of ""
				r, key := rt.match(req)
				pattern := ""
				if r != nil {
					pattern = r.pattern
				}
				if pattern != w.pattern || key != w.key {
					t.Errorf("%s %s: route %q, key %q; want %q, %q", w.method, w.url, pattern, key, w.pattern, w.key)
				}
			}
		})
	}
}

// Requests as only a client can make them: net/http refuses some, but match
// must bear them all.
func TestMatchOddRequests(t *testing.T) {
	rt := mustRouter(t, routesOf("/", "a.example/v1/", "a.example:8080/"))
	long := strings.Repeat("x", 1<<20)
	for _, tt := range []struct {
		name string
		req  http.Request
		key  string
	}{
		{"nil URL", http.Request{Host: "a.example"}, ""},
		{"empty URL", http.Request{URL: &url.URL{}}, "/"},
		{"host of the request only", http.Request{Host: "A.example", URL: &url.URL{Path: "/v1/x"}}, "a.example/v1/"},
		{"two hosts: the connection counts", http.Request{Host: "b.example", URL: &url.URL{Host: "a.example", Path: "/v1/x"}}, "a.example/v1/"},
		{"no slash", http.Request{URL: &url.URL{Host: "a.example", Path: "v1/x"}}, "a.example/v1/"},
		{"asterisk", http.Request{Method: "OPTIONS", URL: &url.URL{Host: "a.example", Path: "*"}}, "a.example"},
		{"opaque path", http.Request{URL: &url.URL{Host: "a.example", Opaque: "/v1/x%2Fy?q=1"}}, "a.example/v1/"},
		{"opaque host and path", http.Request{URL: &url.URL{Host: "a.example", Opaque: "//b.example/v1/x"}}, "a.example/v1/"},
		{"opaque host", http.Request{URL: &url.URL{Host: "a.example", Opaque: "//b.example"}}, "a.example"},
		{"opaque wins over path", http.Request{URL: &url.URL{Host: "a.example", Path: "/v1/x", Opaque: "/v2"}}, "a.example"},
		{"opaque asterisk", http.Request{Method: "OPTIONS", URL: &url.URL{Host: "a.example", Opaque: "*"}}, "a.example"},
		{"opaque, badly escaped", http.Request{URL: &url.URL{Host: "a.example", Opaque: "/v1/%zz"}}, "a.example/v1/"},
		{"CONNECT, opaque", http.Request{Method: "CONNECT", URL: &url.URL{Host: "a.example:8080", Opaque: "b.example:443"}}, "a.example:8080"},
		{"CONNECT, nothing", http.Request{Method: "CONNECT", URL: &url.URL{}}, "/"},
		{"CONNECT, no slash", http.Request{Method: "CONNECT", URL: &url.URL{Host: "a.example", Path: "v1"}}, "a.example"},
		{"CONNECT, subtree without slash", http.Request{Method: "CONNECT", URL: &url.URL{Host: "a.example", Path: "/v1"}}, "a.example/v1/"},
		{"empty port", http.Request{URL: &url.URL{Scheme: "http", Host: "a.example:", Path: "/v1/"}}, "a.example/v1/"},
		{"port that is none", http.Request{URL: &url.URL{Host: "c.example:x"}}, "c.example%3Ax"},
		{"endless port", http.Request{URL: &url.URL{Host: "c.example:" + strings.Repeat("1", 1<<20)}}, "c.example"},
		{"only a port", http.Request{URL: &url.URL{Host: ":8080"}}, ":8080"},
		{"only a dot", http.Request{URL: &url.URL{Host: "."}}, "/"},
		{"IPv6 without brackets", http.Request{URL: &url.URL{Host: "2001:db8::ffff"}}, "[2001:db8::ffff]"},
		{"open bracket", http.Request{URL: &url.URL{Host: "[::1"}}, "%5B%3A:1"},
		{"host like another key", http.Request{URL: &url.URL{Host: "a.example/v1/"}}, "a.example%2Fv1%2F"},
		{"host like a sub-key", http.Request{URL: &url.URL{Host: "a.example #x"}}, "a.example+%23x"},
		{"braces", http.Request{URL: &url.URL{Host: "}{"}}, "%7D%7B"},
		{"line break", http.Request{URL: &url.URL{Host: "ü\r\nx"}}, "%C3%BC%0D%0Ax"},
		{"not UTF-8", http.Request{URL: &url.URL{Host: "\xff/x"}}, "%EF%BF%BD%2Fx"},
		{"very long host", http.Request{URL: &url.URL{Host: long}}, digest(long)},
		{"long host", http.Request{URL: &url.URL{Host: long[:254]}}, digest(long[:254])},
		{"longest host", http.Request{URL: &url.URL{Host: long[:253]}}, long[:253]},
		{"very long path", http.Request{URL: &url.URL{Host: "a.example", Path: "/v1/" + long}}, "a.example/v1/"},
		{"odd method", http.Request{Method: "get it", URL: &url.URL{Host: "a.example"}}, "a.example"},
	} {
		var before url.URL
		if tt.req.URL != nil {
			before = *tt.req.URL
		}
		r, key := rt.match(&tt.req)
		if key != tt.key || (r == nil) != (tt.key == "") {
			t.Errorf("%s: route %v, key %.300q; want key %.300q", tt.name, r, key, tt.key)
		}
		if tt.req.URL != nil && *tt.req.URL != before {
			t.Errorf("%s: the URL was changed from %+v to %+v", tt.name, before, *tt.req.URL)
		}
	}
}

// What match finds without the mux is what the mux finds, and nothing that a
// caller hands in makes it panic or write to the request.
func FuzzMatch(f *testing.F) {
	var routers []*router
	for _, patterns := range [][]string{
		{"a.example/"},
		{"/", "a.example/", "b.example/", "POST b.example/"},
		{"GET /", "a.example/", "a.example:8080/", "a.example/x/", "b.example:8080/{y}"},
		{"/x/", "a.example:8080/", "CONNECT a.example/"},
	} {
		rt, err := newRouter(routesOf(patterns...))
		if err != nil {
			f.Fatal(err)
		}
		routers = append(routers, rt)
	}
	for _, host := range []string{"", "a.example", "a.example:8080", "b.example", "b.example:8080", "c.example", "A.EXAMPLE.", "ü", "[::1]:1"} {
		for _, method := range []string{"", "GET", "POST", "CONNECT"} {
			for _, path := range []string{"", "/", "/x", "/x/", "//x/../y"} {
				f.Add(method, host, path, "")
			}
		}
	}
	f.Add("GET", "a.example", "", "//b/x?y")
	f.Fuzz(func(t *testing.T, method, host, path, opaque string) {
		req := &http.Request{Method: method, URL: &url.URL{Scheme: "http", Host: host, Path: path, Opaque: opaque}}
		for _, rt := range routers {
			r, key := rt.match(req)
			muxAlone := &router{mux: rt.mux, routes: rt.routes, ports: rt.ports}
			if r2, key2 := muxAlone.match(req); r != r2 || key != key2 {
				t.Errorf("%+v: %v, %q; the mux says %v, %q", req, r, key, r2, key2)
			}
			if (r == nil) != (key == "") {
				t.Errorf("%+v: route %v with key %q", req, r, key)
			}
			if strings.Contains(key, "#") || printable(strings.TrimSpace(key)) != key && len(key) < 200 {
				t.Errorf("%+v: key %q", req, key)
			}
		}
		want := &http.Request{Method: method, URL: &url.URL{Scheme: "http", Host: host, Path: path, Opaque: opaque}}
		if !reflect.DeepEqual(req, want) {
			t.Errorf("the request was changed to %+v", req)
		}
	})
}

func TestRouterErrors(t *testing.T) {
	for _, tt := range []struct {
		patterns []string
		err      string
	}{
		{nil, `Routes: at least one is required`},
		{[]string{""}, `Routes[""]: the pattern is empty`},
		{[]string{" \t"}, `Routes[" \t"]: the pattern is empty`},
		{[]string{"api.x.com"}, `Routes["api.x.com"]: no path, did you mean "api.x.com/"?`},
		{[]string{"GET api.x.com"}, `Routes["GET api.x.com"]: no path, did you mean "GET api.x.com/"?`},
		{[]string{"GET"}, `Routes["GET"]: no path, did you mean "GET /"?`},
		{[]string{"GET/v1/"}, `Routes["GET/v1/"]: no blank after the method, did you mean "GET /v1/"?`},
		{[]string{"get api.x.com/"}, `Routes["get api.x.com/"]: methods are in upper case, did you mean "GET api.x.com/"?`},
		{[]string{"GTE api.x.com/"}, `Routes["GTE api.x.com/"]: no such method, did you mean "GET api.x.com/"?`},
		{[]string{"PATH api.x.com/"}, `no such method, did you mean "PATCH api.x.com/"?`},
		{[]string{"https://api.x.com/"}, `Routes["https://api.x.com/"]: a pattern has no scheme, did you mean "api.x.com/"?`},
		{[]string{"POST https://api.x.com"}, `Routes["POST https://api.x.com"]: a pattern has no scheme, did you mean "POST api.x.com/"?`},
		{[]string{"G@T /"}, `Routes["G@T /"]: invalid method "G@T"`},
		{[]string{"/a/{"}, `Routes["/a/{"]: bad wildcard segment (must end with '}')`},
		{[]string{"/{a}/{a}"}, `Routes["/{a}/{a}"]: duplicate wildcard name "a"`},
		{[]string{"/{$}/x"}, `Routes["/{$}/x"]: {$} not at end`},
		{[]string{"x.com/a//b"}, `Routes["x.com/a//b"]: non-CONNECT pattern with unclean path can never match`},
		{[]string{"PUT x.com/../b"}, `Routes["PUT x.com/../b"]: non-CONNECT pattern with unclean path can never match`},
		{[]string{"x.com/a?b=1"}, `Routes["x.com/a?b=1"]: "?" in the path: a pattern has no query or fragment; as a part of the path it is written %3F`},
		{[]string{"x.com/a#b"}, `"#" in the path`},
		{[]string{"GET x.com/a "}, `" " in the path: `},
		{[]string{"x.com/\x00"}, `"\x00" in the path: `},
		{[]string{"*.x.com/"}, `host "*.x.com": no wildcards in hosts`},
		{[]string{"{h}/"}, `host "{h}": no wildcards in hosts (or a missing "/" at the beginning)`},
		{[]string{"user@x.com/"}, `host "user@x.com": want a name or an IP address (IPv6 in brackets), and a port or none`},
		{[]string{"::1/"}, `host "::1": want a name`},
		{[]string{"[::1/"}, `host "[::1": want a name`},
		{[]string{"x..com/"}, `host "x..com": want a name`},
		{[]string{"./"}, `host ".": want a name`},
		{[]string{":8080/"}, `host ":8080": want a name`},
		{[]string{"x.com:http/"}, `host "x.com:http": want a name`},
		{[]string{strings.Repeat("x", 254) + "/"}, `want a name`},
		{[]string{"x.com:/"}, `host "x.com:": the port must be from 1 to 65535`},
		{[]string{"x.com:0/"}, `host "x.com:0": the port must be`},
		{[]string{"x.com:08/"}, `host "x.com:08": the port must be`},
		{[]string{"x.com:65536/"}, `host "x.com:65536": the port must be`},
		{[]string{"x.com:99999999999999999999/"}, `the port must be`},

		{[]string{"x.com/{a}", "x.com/{b}"}, `Routes["x.com/{b}"]: conflicts with Routes["x.com/{a}"]: x.com/{b} matches the same requests as x.com/{a}`},
		{[]string{"/{a}/x", "/y/{b}", "/z/"}, `Routes["/{a}/x"]: conflicts with Routes["/y/{b}"]`}, // sorted: "/y/{b}" comes before "/{a}/x"
		{[]string{"GET x.com:81/", "x.com:81/{a}"}, `Routes["x.com:81/{a}"]: conflicts with Routes["GET x.com:81/"]: x.com:81/{a} matches more methods than GET x.com:81/, but has a more specific path pattern`},
		{[]string{"API.x.com/", "api.x.com:443/"}, `Routes["api.x.com:443/"]: conflicts with Routes["API.x.com/"]: both mean "api.x.com/"`},
		{[]string{"x.com:80/", "x.com:443/"}, `Routes["x.com:80/"]: conflicts with Routes["x.com:443/"]: both mean "x.com/"`},
		{[]string{"GET  x.com:81/", "GET x.com.:81/"}, `both mean "GET x.com:81/"`},
		{[]string{"bücher.example/", "xn--bcher-kva.example/"}, `both mean "xn--bcher-kva.example/"`},
		{[]string{"[::1]:81/", "[0:0::1]:81/"}, `both mean "[::1]:81/"`},
	} {
		for range 3 { // maps have no order, the error must
			_, err := newRouter(routesOf(tt.patterns...))
			if err == nil {
				t.Errorf("%q: no error, want %q", tt.patterns, tt.err)
				break
			}
			text := err.Error()
			if !strings.HasPrefix(text, "pacecar: Routes") || !strings.Contains(text, tt.err) {
				t.Errorf("%q: %q, want %q in it", tt.patterns, text, tt.err)
			}
			if strings.Contains(text, ".go") || strings.Contains(text, "registered") || strings.Contains(text, "PORT") || strings.Contains(text, "\n") {
				t.Errorf("%q: %q shows what is inside", tt.patterns, text)
			}
		}
	}
}

func TestRouterPolicyError(t *testing.T) {
	_, err := newRouter(map[string]Policy{"/": {}})
	if want := `pacecar: Routes["/"]: Rates: at least one is required`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
}

// What a caller does to its configuration afterwards changes nothing.
func TestRouterKeepsItsRates(t *testing.T) {
	rates := MustRates("3/s")
	rt := mustRouter(t, map[string]Policy{"/": {Rates: rates}})
	rates[0].Limit = 1000
	r, _ := rt.match(&http.Request{URL: &url.URL{Host: "a.example"}})
	if got := r.policy.Load().Rates.String(); got != "3/s" {
		t.Errorf("rates are now %s", got)
	}
}

// The old mux would take "GET /x" for a host, and guard nothing.
func TestRouterOldMux(t *testing.T) {
	if os.Getenv("PACECAR_TEST_OLD_MUX") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestRouterOldMux$")
		cmd.Env = append(os.Environ(), "PACECAR_TEST_OLD_MUX=1", "GODEBUG=httpmuxgo121=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	if _, err := newRouter(routesOf("GET /x")); err == nil || !strings.Contains(err.Error(), "httpmuxgo121") {
		t.Fatalf("error %v, want one about httpmuxgo121", err)
	}
}

func TestMatchSubKey(t *testing.T) {
	var sub string
	policy := Policy{Rates: MustRates("3/s"), Key: func(*http.Request) string { return sub }}
	rt := mustRouter(t, map[string]Policy{"POST a.example/": policy, "/": policy})
	for _, tt := range []struct{ sub, want string }{
		{"", "POST a.example"},
		{"tenant 7", "POST a.example #tenant 7"},
		{"größe", "POST a.example #größe"},
		{"/v1/ #x", "POST a.example #/v1/ #x"},
		{strings.Repeat("x", 200), "POST a.example #" + strings.Repeat("x", 200)},
		{strings.Repeat("x", 201), "POST a.example #" + digest(strings.Repeat("x", 201))},
		{"a\nb", "POST a.example #" + digest("a\nb")},
		{"\xff", "POST a.example #" + digest("\xff")},
	} {
		sub = tt.sub
		_, key := rt.match(&http.Request{Method: "POST", URL: &url.URL{Host: "a.example"}})
		if key != tt.want {
			t.Errorf("Key %q: %q, want %q", tt.sub, key, tt.want)
		}
	}

	// Nor is a host's quota another's, whose Name looks like it.
	policy = Policy{Rates: MustRates("3/s")}
	one, two := policy, policy
	one.Name, two.Name = "billing", "billing/"
	rt2 := mustRouter(t, map[string]Policy{"one.example/": one, "two.example/": two, "/": policy})
	if _, key := rt2.match(getURL(t.Context(), "http://billing/")); key != "billing//" {
		t.Errorf("the host's key is %q", key)
	}

	// Whatever Key returns, the part before the first # is the route's own.
	for _, s := range []string{"", "x", "#", " #POST a.example", "POST a.example #x"} {
		sub = s
		_, key := rt.match(&http.Request{URL: &url.URL{Host: "b.example"}})
		if name, _, _ := strings.Cut(key, " #"); name != "b.example" {
			t.Errorf("Key %q forges %q", s, key)
		}
	}
}

func TestByHeader(t *testing.T) {
	key := ByHeader("x-api-KEY")
	req := func(values ...string) *http.Request {
		return &http.Request{Header: http.Header{"X-Api-Key": values}}
	}
	if got := key(&http.Request{}); got != "" {
		t.Errorf("no header at all: %q", got)
	}
	if got := key(req()); got != "" {
		t.Errorf("absent field: %q", got)
	}
	got := key(req("secret"))
	if want := "2bb80d537b1da3e38bd30361aa855686"; got != want { // sha256sum, first half
		t.Errorf("hash of %q: %q, want %q", "secret", got, want)
	}
	seen := map[string][]string{}
	for _, values := range [][]string{{""}, {"a"}, {"b"}, {"a", "b"}, {"b", "a"}, {"ab"}, {"a", ""}} {
		k := key(req(values...))
		if other, ok := seen[k]; ok || len(k) != 32 {
			t.Errorf("%q: %q, like %q", values, k, other)
		}
		seen[k] = values
	}

	byHost := ByHeader("host")
	if a, b := byHost(&http.Request{Host: "a"}), byHost(&http.Request{Host: "b"}); a == b || a != digest("a") {
		t.Errorf("hosts a and b: %q and %q", a, b)
	}
}

func BenchmarkMatch(b *testing.B) {
	for _, bb := range []struct {
		name, url string
		patterns  []string
	}{
		{"OneRoute", "https://api.example.com/v1/meetings?year=2024", []string{"api.example.com/"}},
		{"AnyHost", "https://api.example.com/v1/meetings", []string{"/"}},
		{"Port", "http://localhost:8080/v1/meetings", []string{"localhost:8080/"}},
		{"Mux", "https://api.example.com/v1/meetings", []string{"api.example.com/", "GET api.example.com/v1/meetings"}},
		{"MuxWildcard", "https://api.example.com/v1/meetings/7", []string{"api.example.com/", "GET api.example.com/v1/meetings/{id}"}},
		{"Unrouted", "https://api.example.com/v1/meetings", []string{"other.example.com/"}},
		{"Internationalised", "https://bücher.example/", []string{"/"}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			rt := mustRouter(b, routesOf(bb.patterns...))
			req, err := http.NewRequest("GET", bb.url, nil)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				rt.match(req)
			}
		})
	}
}

// Routes and hosts of one Name share a quota; with different policies they are
// an error, since the first to be used would decide for both.
func TestPolicyName(t *testing.T) {
	policy := Policy{Rates: MustRates("3/s"), Name: "cluster"}
	rt, err := newRouter(map[string]Policy{"a.example/": policy, "GET b.example/x": policy, "/": policy})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range []string{"http://a.example/", "http://b.example/x", "http://c.example:8080/y"} {
		req, _ := http.NewRequest(http.MethodGet, u, nil)
		if _, key := rt.match(req); key != "cluster" {
			t.Errorf("%s has the quota %q", u, key)
		}
	}
	other := policy
	other.MaxWait = time.Second
	derived := Policy{Rates: MustRates("4/s")}
	named := Policy{Rates: MustRates("3/s"), Name: "b.example"}
	slashed := Policy{Rates: MustRates("3/s"), Name: "b.example/"}
	for _, routes := range []map[string]Policy{
		{"b.example/": slashed, "c.example/": derived}, {"a.example/": policy, "/": derived}, {"a.example/": named, "/": {Rates: named.Rates}}, {"a.example/": named, "/v1/": derived},
	} {
		if _, err := newRouter(routes); err != nil {
			t.Error(err)
		}
	}
	if _, err := newRouter(map[string]Policy{"a.example/": slashed, "b.example/": slashed}); err != nil {
		t.Error(err)
	}
	for _, routes := range []map[string]Policy{
		{"a.example/": policy, "b.example/": other},
		{"a.example/": named, "b.example/": derived},
		{"a.example/": named, "/": derived}, // which has a quota for the host b.example
		{"a.example/": {Rates: MustRates("3/s"), Name: "GET b.example/v1/"}, "GET /v1/": derived},
		{"a.example/": slashed, "b.example/": {Rates: MustRates("3/s")}}, // not b.example's quota, which is named without the slash
		{"c.example/": slashed, "b.example/": {Rates: MustRates("3/s")}},
		{"a.example/": {Rates: MustRates("3/s"), Name: "a #b"}},
		{"a.example/": {Rates: MustRates("3/s"), Name: "a\nb"}},
	} {
		if _, err := newRouter(routes); err == nil || !strings.Contains(err.Error(), "Name: ") {
			t.Errorf("%v: got %v", routes, err)
		}
	}
}
