package pacecar

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// exampleRoutes are those of testdata/routes.json.
var exampleRoutes = Routes{
	"api.openf1.org/":       {Rates: MustRates("3/s, 30/m")},
	"POST api.example.com/": {Rates: MustRates("100/10s"), MaxWait: 5 * time.Second},
	"api.example.org/tenants/": {
		Rates: MustRates("10/s"), Name: "tenants", Key: ByHeader("Authorization"), Slack: 50 * time.Millisecond,
		Lease: -1, Reserve: 2, Outage: FailOpen, Replicas: 4,
	},
	"api.github.com/": {Rates: MustRates("5000/h"), MaxPause: time.Hour, Feedback: GitHub},
	"/":               {Rates: MustRates("50/s")},
}

// plainRoutes returns rs in a form that reflect.DeepEqual compares: functions
// become the text that they are written as.
func plainRoutes(t testing.TB, rs Routes) map[string]any {
	t.Helper()
	type plain struct {
		Policy
		key, feedback string
	}
	all := make(map[string]any, len(rs))
	for pattern, policy := range rs {
		p := plain{Policy: policy}
		for _, f := range []struct {
			set  bool
			from interface{ MarshalText() ([]byte, error) }
			to   *string
		}{{p.Key != nil, keyHeader(p.Key), &p.key}, {p.Feedback != nil, dialect(p.Feedback), &p.feedback}} {
			if !f.set {
				continue
			}
			text, err := f.from.MarshalText()
			if err != nil {
				t.Fatal(err)
			}
			*f.to = string(text)
		}
		p.Key, p.Feedback = nil, nil
		all[pattern] = p
	}
	return all
}

func mustEqualRoutes(t testing.TB, got, want Routes) {
	t.Helper()
	if g, w := plainRoutes(t, got), plainRoutes(t, want); !reflect.DeepEqual(g, w) {
		t.Fatalf("got  %+v\nwant %+v", g, w)
	}
}

func TestReadRoutes(t *testing.T) {
	f, err := os.Open("testdata/routes.json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rs, err := ReadRoutes(f)
	if err != nil {
		t.Fatal(err)
	}
	mustEqualRoutes(t, rs, exampleRoutes)
	if _, err := New(Config{Routes: rs}); err != nil {
		t.Error(err)
	}

	// What it is for: the functions are those of the program.
	req := &http.Request{Header: http.Header{"Authorization": {"secret"}}}
	if got, want := rs["api.example.org/tenants/"].Key(req), ByHeader("Authorization")(req); got != want || got == "" {
		t.Errorf("keyHeader: the key is %q, that of ByHeader %q", got, want)
	}
	if _, ok := rs["api.github.com/"].Feedback(response(429, "")); !ok {
		t.Error("feedback: github does not know a 429")
	}
}

// badRoutes are what must not be read, and the error.
var badRoutes = []struct{ name, data, want string }{
	{"empty", ``, `pacecar: line 1: Routes: no data, want a JSON object`},
	{"blank", " \n ", `pacecar: line 1: Routes: no data, want a JSON object`},
	{"null", `null`, `pacecar: line 1: Routes: want an object of patterns and policies, not null`},
	{"list", `[{}]`, `pacecar: line 1: Routes: want an object of patterns and policies, not a list`},
	{"no routes", `{}`, `pacecar: Routes: at least one is required`},
	{"syntax", "{\n\"/\": {\"rates\": 3/s}\n}", `pacecar: line 2: Routes: not JSON: invalid character '/' after object key:value pair`},
	{"comma", "{\n\"/\": {\"rates\": \"3/s\"},\n}", `pacecar: line 3: Routes: not JSON: invalid character '}' looking for beginning of object key string`},
	{"cut off", "{\n\"/\":\n{\"rates\"", `pacecar: line 3: Routes: not JSON: unexpected end of JSON input`},
	{"two values", "{\"/\": {\"rates\": \"3/s\"}}\n{}", `pacecar: line 2: Routes: not JSON: invalid character '{' after top-level value`},
	{"YAML", "# routes\n/:\n  rates: 3/s\n", `pacecar: line 1: Routes: not JSON: invalid character '#' looking for beginning of value`},
	{"Latin-1", "{\n\"/\xfc\": {}}", `pacecar: line 2: Routes: not in UTF-8`},

	{"pattern twice", "{\n\"/\": {\"rates\": \"3/s\"},\n\"/x\": {\"rates\": \"3/s\"},\n\"\\u002f\": {\"rates\": \"4/s\"}\n}",
		`pacecar: line 4: Routes["/"]: is given twice, first on line 2`},
	{"pattern twice, two spellings", "{\n\"a.example/\": {\"rates\": \"3/s\"},\n\"A.example/\": {\"rates\": \"3/s\"}\n}",
		`pacecar: line 2: Routes["a.example/"]: conflicts with Routes["A.example/"]: both mean "a.example/"`},
	{"pattern", "{\n\n\"api.example\":\n{\"rates\": \"3/s\"}}", `pacecar: line 3: Routes["api.example"]: no path, did you mean "api.example/"?`},
	{"no pattern", "{\n\"\": {\"rates\": \"3/s\"}}", `pacecar: line 2: Routes[""]: the pattern is empty`},
	{"policy of text", "{\n\"/\": \"3/s\"}", `pacecar: line 2: Routes["/"]: want an object such as {"rates": "3/s"}, not "3/s"`},
	{"policy of null", "{\n\"/\": null}", `pacecar: line 2: Routes["/"]: want an object such as {"rates": "3/s"}, not null`},
	{"policy of nothing", "{\n\"/\": {}}", `pacecar: line 2: Routes["/"]: rates: at least one is required`},
	{"no rates", "{\n\"/\":\n{\"maxWait\": \"3s\"}}", `pacecar: line 2: Routes["/"]: rates: at least one is required`},

	{"field twice", "{\"/\": {\n\"rates\": \"3/s\",\n\"rates\": \"3/s\"}}", `pacecar: line 3: Routes["/"]: field "rates" is given twice, first on line 2`},
	{"typo", "{\"/\": {\n\"rate\": \"3/s\"}}", `pacecar: line 2: Routes["/"]: unknown field "rate", did you mean "rates"?`},
	{"another style", "{\"/\": {\n\"rates\": \"3/s\",\n\"max_wait\": \"3s\"}}", `pacecar: line 3: Routes["/"]: unknown field "max_wait", did you mean "maxWait"?`},
	{"another case", "{\"/\": {\n\"Rates\": \"3/s\"}}", `pacecar: line 2: Routes["/"]: unknown field "Rates", did you mean "rates"?`},
	{"key", "{\"/\": {\n\"key\": \"X\"}}", `pacecar: line 2: Routes["/"]: unknown field "key", did you mean "keyHeader"?`},
	{"burst", "{\"/\": {\n\"burst\": 3}}", `pacecar: line 2: Routes["/"]: unknown field "burst", want one of ` +
		`rates, name, keyHeader, maxWait, slack, lease, reserve, outage, replicas, maxPause, feedback`},
	{"no field", "{\"/\": {\n\"\": 3}}", `pacecar: line 2: Routes["/"]: unknown field "", want one of ` +
		`rates, name, keyHeader, maxWait, slack, lease, reserve, outage, replicas, maxPause, feedback`},

	{"rates", field(`"rates": "3/x"`), `pacecar: line 3: Routes["/"]: rates: rate 1 "3/x": unknown unit "x", want ms, s, m, h or d`},
	{"rates, limit", field(`"rates": "0/s"`), `pacecar: line 3: Routes["/"]: rates: rate 1 (0/s): the limit must be from 1 to 1000000000`},
	{"rates, none", field(`"rates": ""`), `pacecar: line 3: Routes["/"]: rates: at least one is required`},
	{"rates, number", field(`"rates": 3`), `pacecar: line 3: Routes["/"]: rates: want text in quotes, not 3`},
	{"rates, list", field(`"rates": ["3/s"]`), `pacecar: line 3: Routes["/"]: rates: want text in quotes, not a list`},
	{"rates, null", field(`"rates": null`), `pacecar: line 3: Routes["/"]: rates: no value; leave the field out for its default`},
	{"name", more(`"name": "a#b"`), `pacecar: line 4: Routes["/"]: name: must be up to 200 printable bytes without #`},
	{"name, true", more(`"name": true`), `pacecar: line 4: Routes["/"]: name: want text in quotes, not true`},
	{"name, object", more(`"name": {}`), `pacecar: line 4: Routes["/"]: name: want text in quotes, not an object`},
	{"keyHeader", more(`"keyHeader": "a b"`), `pacecar: line 4: Routes["/"]: keyHeader: want the name of a header field, not "a b"`},
	{"keyHeader, none", more(`"keyHeader": ""`), `pacecar: line 4: Routes["/"]: keyHeader: want the name of a header field, not ""`},
	{"maxWait, number", more(`"maxWait": 5`), `pacecar: line 4: Routes["/"]: maxWait: 5 has no unit, want a duration such as "5s"`},
	{"maxWait, no unit", more(`"maxWait": "5"`), `pacecar: line 4: Routes["/"]: maxWait: "5" has no unit, want a duration such as "5s"`},
	{"maxWait, zero", more(`"maxWait": 0`), `pacecar: line 4: Routes["/"]: maxWait: 0 has no unit, want a duration such as "5s"`},
	{"maxWait, days", more(`"maxWait": "1d"`), `pacecar: line 4: Routes["/"]: maxWait: want a duration such as "1.5s" or "5m", not "1d"`},
	{"maxWait, false", more(`"maxWait": false`), `pacecar: line 4: Routes["/"]: maxWait: want a duration such as "1.5s" or "5m", not false`},
	{"maxWait, negative", more(`"maxWait": "-5s"`), `pacecar: line 4: Routes["/"]: maxWait: must not be negative: -5s`},
	{"slack", more(`"slack": "1s"`), `pacecar: line 4: Routes["/"]: slack: 1s must be shorter than the period of every rate, as of 3/s`},
	{"lease, text", more(`"lease": "1"`), `pacecar: line 4: Routes["/"]: lease: want a whole number, not "1"`},
	{"lease, fraction", more(`"lease": 1.5`), `pacecar: line 4: Routes["/"]: lease: want a whole number, not 1.5`},
	{"lease, large", more(`"lease": 99999999999999999999`), `pacecar: line 4: Routes["/"]: lease: 99999999999999999999 is out of range`},
	{"reserve", more(`"reserve": 3`), `pacecar: line 4: Routes["/"]: reserve: 3 must be below the limit of every rate, as of 3/s`},
	{"outage", more(`"outage": "open"`), `pacecar: line 4: Routes["/"]: outage: want "fail closed" or "fail open", not "open"`},
	{"outage, number", more(`"outage": 1`), `pacecar: line 4: Routes["/"]: outage: want text in quotes, not 1`},
	{"replicas", more(`"replicas": -1`), `pacecar: line 4: Routes["/"]: replicas: must be from 0 to 100000: -1`},
	{"replicas, none", more(`"outage": "fail open"`), `pacecar: line 2: Routes["/"]: replicas: required with FailOpen ("fail open"), whose share it sizes`},
	{"maxPause", more(`"maxPause": "1ns"`), `pacecar: line 4: Routes["/"]: maxPause: 1ns is below a microsecond; a duration has a unit, as in 5*time.Second`},
	{"feedback", more(`"feedback": "GitHub"`), `pacecar: line 4: Routes["/"]: feedback: want one of ` +
		`anthropic, azure, discord, github, openai, reddit, slack, not "GitHub"`},

	{"shared name", "{\n\"a/\": {\"name\": \"q\", \"rates\": \"3/s\"},\n\"b/\": {\n\"rates\": \"4/s\",\n\"name\": \"q\"}}",
		`pacecar: line 5: Routes["b/"]: name: has the quota of Routes["a/"], with another policy: Rates is 4/s, and 3/s there`},
	{"conflict", "{\n\"/{x}/y\": {\"rates\": \"3/s\"},\n\"/x/{y}\": {\"rates\": \"3/s\"}}",
		`pacecar: line 2: Routes["/{x}/y"]: conflicts with Routes["/x/{y}"]: `},
}

// field is a route on line 2, with a field on line 3.
func field(text string) string { return "{\n\"/\": {\n" + text + "}\n}" }

// more is field with rates, and the field on line 4.
func more(text string) string { return field("\"rates\": \"3/s\",\n" + text) }

func TestReadRoutesErrors(t *testing.T) {
	for _, c := range badRoutes {
		t.Run(c.name, func(t *testing.T) {
			rs, err := ReadRoutes(strings.NewReader(c.data))
			if err == nil {
				t.Fatalf("read %+v", rs)
			}
			if got := err.Error(); got != c.want && !(c.name == "conflict" && strings.HasPrefix(got, c.want)) {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}

			kept := Routes{"/kept": plenty}
			if err := kept.UnmarshalText([]byte(c.data)); err == nil || len(kept) != 1 {
				t.Errorf("UnmarshalText: %v, left %v", err, kept)
			}
			if c.name == "null" {
				return
			}
			if err := json.Unmarshal([]byte(c.data), &kept); err == nil || len(kept) != 1 {
				t.Errorf("json.Unmarshal: %v, left %v", err, kept)
			}
		})
	}
}

func TestReadRoutesBounds(t *testing.T) {
	many := func(n int) io.Reader {
		b := []byte("{")
		for i := range n {
			b = fmt.Appendf(b, "%.*s\"/%d\": {\"rates\": \"3/s\"}", min(i, 1), ",", i)
		}
		return bytes.NewReader(append(b, '}'))
	}
	good := `{"/": {"rates": "3/s"}}`
	blanks := func(n int) io.Reader { return strings.NewReader(good + strings.Repeat(" ", n-len(good))) }
	failure := errors.New("disk on fire")
	for _, c := range []struct {
		name string
		r    io.Reader
		want string
	}{
		{"1 MiB", blanks(1 << 20), ""},
		{"more", blanks(1<<20 + 1), "pacecar: Routes: more than 1048576 bytes"},
		{"endless", zeros{}, "pacecar: Routes: more than 1048576 bytes"},
		{"too many", many(maxRoutes + 1), "pacecar: Routes: 4097 of them, at most 4096 can be read"},
		{"deep", strings.NewReader(`{"/": {"rates": ` + strings.Repeat("[", 500_000)), "exceeded max depth"},
		{"failing", iotest.ErrReader(failure), "pacecar: Routes: disk on fire"},
		{"byte order mark", strings.NewReader("\ufeff" + good), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ReadRoutes(c.r)
			if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if _, err := ReadRoutes(iotest.ErrReader(failure)); !errors.Is(err, failure) {
		t.Errorf("%v does not wrap the reader's error", err)
	}
}

// A field that is added to Policy must be read and written too, or else be
// refused where it cannot be written: a line of dataFields.
func TestDataFieldsAreComplete(t *testing.T) {
	functions := map[string]string{"Key": "keyHeader", "Feedback": "feedback"}
	known := make(map[string]bool)
	for _, key := range dataKeys() {
		known[key] = true
	}
	for f := range reflect.TypeFor[Policy]().Fields() {
		key := strings.ToLower(f.Name[:1]) + f.Name[1:]
		if function := functions[f.Name]; function != "" {
			key = function
		}
		if !known[key] && f.Name != "Cost" { // which is refused
			t.Errorf("Policy.%s has no form as data: dataFields lacks %q", f.Name, key)
		}
		delete(known, key)
	}
	for key := range known {
		t.Errorf("%q is no field of Policy", key)
	}
}

func TestUnmarshalAsPart(t *testing.T) {
	var config struct {
		Redis  string
		Routes Routes
		Mail   Policy
	}
	config.Mail = Policy{MaxWait: time.Second, Slack: time.Millisecond}
	data := "\n{\"redis\": \"localhost\",\n\"routes\": {\"/\": {\"rates\": \"3/s\"}},\n\"mail\": {\"rates\": \"2/m\", \"slack\": \"2ms\"}}"
	if err := json.Unmarshal([]byte(data), &config); err != nil {
		t.Fatal(err)
	}
	mustEqualRoutes(t, config.Routes, Routes{"/": {Rates: MustRates("3/s")}})
	// Fields that are left out keep what they were.
	mail := Policy{Rates: MustRates("2/m"), MaxWait: time.Second, Slack: 2 * time.Millisecond}
	mustEqualRoutes(t, Routes{"": config.Mail}, Routes{"": mail})

	for _, c := range []struct{ data, want string }{
		{"{\n\"routes\": {\n\"/\": {\"rate\": 3}}}", `pacecar: Routes["/"]: unknown field "rate", did you mean "rates"?`},
		{"{\n\"routes\": {\n\"/\": {}, \"/\": {}}}", `pacecar: Routes["/"]: is given twice`},
		{"{\n\"mail\": {\n\"maxWait\": 3}}", `pacecar: Policy: maxWait: 3 has no unit, want a duration such as "5s"`},
		{"{\n\"mail\": {\n\"rates\": \"3/s\", \"slack\": \"2s\"}}", `pacecar: Policy: slack: 2s must be shorter than the period of every rate, as of 3/s`},
		{"{\n\"mail\": 3}", `pacecar: Policy: want an object such as {"rates": "3/s"}, not 3`},
	} {
		err := json.Unmarshal([]byte(c.data), &config)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: got %v\nwant %s", c.data, err, c.want)
		}
	}
	mustEqualRoutes(t, Routes{"": config.Mail}, Routes{"": mail})

	if err := json.Unmarshal([]byte(`{"routes": null, "mail": null}`), &config); err != nil || len(config.Routes) != 1 {
		t.Errorf("null: %v, left %v", err, config.Routes)
	}
	if err := new(Policy).UnmarshalJSON([]byte("{")); err == nil {
		t.Error("a Policy was read from what is not JSON")
	}
}

func TestMarshalRoutes(t *testing.T) {
	want, err := os.ReadFile("testdata/routes.json")
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(exampleRoutes)
	if err != nil {
		t.Fatal(err)
	}
	var a, b any
	if json.Unmarshal(got, &a) != nil || json.Unmarshal(want, &b) != nil || !reflect.DeepEqual(a, b) {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if got, want := mustMarshal(t, Policy{Rates: MustRates("3/s"), MaxPause: time.Minute, Outage: FailOpen, Replicas: 2}),
		`{"rates":"3/s","outage":"fail open","replicas":2,"maxPause":"1m"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := mustMarshal(t, Routes{}); got != "null" {
		t.Errorf("no routes: got %s", got)
	}

	one := MustRates("3/s")
	cost := func(*http.Request) int { return 1 }
	other := func(resp *http.Response) (time.Duration, bool) { return GitHub(resp) }
	for _, c := range []struct {
		pattern string
		policy  Policy
		want    string
	}{
		{"/", Policy{Rates: one, Cost: cost}, `Routes["/"]: Cost: a function has no form as data`},
		{"/", Policy{Rates: one, Key: func(*http.Request) string { panic("called") }}, `Routes["/"]: Key: a function has no form as data`},
		{"/", Policy{Rates: one, Key: func(*http.Request) string { return "" }}, `Routes["/"]: Key: a function has no form as data`},
		{"/", Policy{Rates: one, Key: ByHeader("a b")}, `Routes["/"]: Key: want the name of a header field, not "a b"`},
		{"/", Policy{Rates: one, Feedback: other}, `Routes["/"]: Feedback: a function has no form as data`},
		{"/", Policy{}, `Routes["/"]: Rates: at least one is required`},
		{"/", Policy{Rates: one, Outage: 7}, `Routes["/"]: Outage: unknown value 7`},
		{"/\xff", Policy{Rates: one}, `Routes["/\xff"]: the pattern is not in UTF-8`},
		{"api.example", Policy{Rates: one}, `Routes["api.example"]: no path`},
	} {
		rs := Routes{c.pattern: c.policy}
		for name, marshal := range map[string]func() ([]byte, error){
			"JSON": rs.MarshalJSON,
			"text": rs.MarshalText,
			"YAML": func() ([]byte, error) { _, err := rs.MarshalYAML(); return nil, err },
		} {
			b, err := marshal()
			if err == nil || !strings.HasPrefix(err.Error(), "pacecar: "+c.want) {
				t.Errorf("%s: got %s, %v\nwant %s", name, b, err, c.want)
			}
		}
	}
	for _, p := range []Policy{{}, {Rates: one, Cost: cost}} {
		_, errJSON := p.MarshalJSON()
		_, errYAML := p.MarshalYAML()
		if errJSON == nil || errYAML == nil || !strings.HasPrefix(errJSON.Error(), "pacecar: Policy: ") {
			t.Errorf("%+v: %v, %v", p, errJSON, errYAML)
		}
	}
	if _, err := (Routes{}).MarshalText(); err == nil {
		t.Error("no routes became text")
	}
}

func mustMarshal(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Each dialect has a name, by which it is read and written.
func TestDialectNames(t *testing.T) {
	for _, known := range dialects {
		p := Policy{Rates: MustRates("3/s"), Feedback: known.dialect}
		text := mustMarshal(t, p)
		if want := fmt.Sprintf(`{"rates":"3/s","feedback":%q}`, known.name); text != want {
			t.Errorf("got %s, want %s", text, want)
		}
		var again Policy
		if err := json.Unmarshal([]byte(text), &again); err != nil {
			t.Fatal(err)
		}
		if got := mustMarshal(t, again); got != text {
			t.Errorf("got %s, want %s", got, text)
		}
	}
}

// Any policy that New would take comes back as it was.
func TestPolicyRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func(s ...string) string { return s[rng.IntN(len(s))] }
	duration := func() time.Duration {
		if rng.IntN(2) == 0 {
			return 0
		}
		return time.Duration(rng.Int64N(int64(1) << (10 + rng.IntN(50))))
	}
	read := 0
	for range 2000 {
		rates := Rates{{1 + rng.IntN(1000), minPer + time.Duration(rng.Int64N(1<<40))*time.Microsecond}}
		if rng.IntN(2) == 0 {
			rates = append(rates, MustRates(pick("3/s", "30/m", "1000000000/366d", "100/1h30m"))...)
		}
		p := Policy{
			Rates: rates, MaxWait: duration(), Slack: duration(), MaxPause: duration(),
			Name:  pick("", "a", "true", "null", "1:30", "5", "<&> \"\\'", "ä\u2028", "- x: y", " ", "~", "{}", "%"),
			Lease: rng.IntN(21) - 10, Replicas: rng.IntN(5), Outage: Outage(rng.IntN(2)),
		}
		if name := pick("", "X-Tenant", "Host", "Authorization"); name != "" {
			p.Key = ByHeader(name)
		}
		if i := rng.IntN(2 * len(dialects)); i < len(dialects) {
			p.Feedback = dialects[i].dialect
		}
		rs := Routes{pick("/", "GET /{x}/", "api.example.com:8080/a%20b/", "[::1]/<&>\"'\\/ü\u2028"): p}
		if _, err := newRouter(rs); err != nil {
			if _, err := json.Marshal(rs); err == nil {
				t.Fatalf("%+v was written, and is invalid", rs)
			}
			continue
		}
		read++
		var again Routes
		if err := json.Unmarshal([]byte(mustMarshal(t, rs)), &again); err != nil {
			t.Fatal(err)
		}
		mustEqualRoutes(t, again, rs)
	}
	if read < 100 {
		t.Errorf("only %d policies were valid", read)
	}
}

func TestOutageText(t *testing.T) {
	for text, want := range map[string]Outage{
		"fail closed": FailClosed, "fail-closed": FailClosed, "fail_closed": FailClosed,
		"fail open": FailOpen, "fail-open": FailOpen, "fail_open": FailOpen,
	} {
		o := 1 - want
		if err := o.UnmarshalText([]byte(text)); err != nil || o != want {
			t.Errorf("%q: got %v, %v", text, o, err)
		}
		if text, err := want.MarshalText(); err != nil || string(text) != want.String() {
			t.Errorf("%v: got %q, %v", want, text, err)
		}
	}
	for _, text := range []string{"", "open", "Fail open", "fail  open", "unknown", "1"} {
		o := FailOpen
		if err := o.UnmarshalText([]byte(text)); err == nil || o != FailOpen {
			t.Errorf("%q: got %v, %v", text, o, err)
		}
	}
	if text, err := Outage(7).MarshalText(); err == nil {
		t.Errorf("7: got %q", text)
	}

	var o Outage
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.TextVar(&o, "outage", FailClosed, "")
	if err := fs.Parse([]string{"-outage=fail-open"}); err != nil || o != FailOpen {
		t.Errorf("flag: got %v, %v", o, err)
	}
}

// FuzzRoutes checks that whatever can be read is fit for New, and comes back as
// it was when it is written and read again.
func FuzzRoutes(f *testing.F) {
	example, err := os.ReadFile("testdata/routes.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(example)
	for _, c := range badRoutes {
		f.Add([]byte(c.data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		rs, err := ReadRoutes(bytes.NewReader(data))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "pacecar: ") {
				t.Fatalf("the error is not of pacecar: %v", err)
			}
			return
		}
		if _, err := New(Config{Routes: rs}); err != nil {
			t.Fatalf("read, and refused by New: %v", err)
		}
		text, err := rs.MarshalText()
		if err != nil {
			t.Fatalf("read, and cannot be written: %v", err)
		}
		again, err := ReadRoutes(bytes.NewReader(text))
		if err != nil {
			t.Fatalf("written, and cannot be read: %v\n%s", err, text)
		}
		mustEqualRoutes(t, again, rs)
	})
}
