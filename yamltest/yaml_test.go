package yamltest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	goccy "github.com/goccy/go-yaml"
	yamlin3 "go.yaml.in/yaml/v3"
	yamlin4 "go.yaml.in/yaml/v4"
	yaml2 "gopkg.in/yaml.v2"
	yaml3 "gopkg.in/yaml.v3"
	k8s "sigs.k8s.io/yaml"

	"github.com/pacecar-go/pacecar"
)

// A library reads and writes YAML.
type library struct {
	name      string
	unmarshal func([]byte, any) error
	marshal   func(any) ([]byte, error)
	noLines   bool // it turns YAML into JSON
	noMerge   bool // it takes a key that overrides a merged one for a second one
}

var libraries = []library{
	{name: "gopkg.in/yaml.v3", unmarshal: yaml3.Unmarshal, marshal: yaml3.Marshal},
	{name: "go.yaml.in/yaml/v3", unmarshal: yamlin3.Unmarshal, marshal: yamlin3.Marshal},
	{
		name:      "go.yaml.in/yaml/v4",
		unmarshal: func(b []byte, v any) error { return yamlin4.Unmarshal(b, v) },
		marshal:   func(v any) ([]byte, error) { return yamlin4.Marshal(v) },
	},
	{name: "github.com/goccy/go-yaml", unmarshal: goccy.Unmarshal, marshal: goccy.Marshal},
	{name: "gopkg.in/yaml.v2", unmarshal: yaml2.UnmarshalStrict, marshal: yaml2.Marshal, noMerge: true},
	{
		name:      "sigs.k8s.io/yaml",
		unmarshal: func(b []byte, v any) error { return k8s.UnmarshalStrict(b, v) },
		marshal:   k8s.Marshal, noLines: true, noMerge: true,
	},
}

// config is where a program has its routes.
type config struct {
	Redis  string         `yaml:"redis" json:"redis"`
	Routes pacecar.Routes `yaml:"routes" json:"routes"`
}

// plain returns routes as JSON, in which they can be compared.
func plain(t testing.TB, rs pacecar.Routes) string {
	t.Helper()
	b, err := json.MarshalIndent(rs, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func each(t *testing.T, test func(*testing.T, library)) {
	for _, lib := range libraries {
		t.Run(strings.ReplaceAll(lib.name, "/", "_"), func(t *testing.T) { test(t, lib) })
	}
}

// The example files say the same.
func TestExampleFile(t *testing.T) {
	text, err := os.ReadFile("../testdata/routes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("../testdata/routes.json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	want, err := pacecar.ReadRoutes(f)
	if err != nil {
		t.Fatal(err)
	}
	each(t, func(t *testing.T, lib library) {
		var got pacecar.Routes
		if err := lib.unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if got, want := plain(t, got), plain(t, want); got != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
		if _, err := pacecar.New(pacecar.Config{Routes: got}); err != nil {
			t.Error(err)
		}
	})
}

func TestPartOfConfig(t *testing.T) {
	const text = `
redis: localhost:6379
routes:
  a.example/: &common
    rates: 3/s, 30/m
    maxWait: 5s
    replicas: 4
  b.example/: *common
  "c.example/": {rates: "3/s, 30/m", lease: -1}
`
	const merged = `  d.example/:
    <<: *common
    rates: 5/s
`
	common := pacecar.Policy{Rates: pacecar.MustRates("3/s, 30/m"), MaxWait: 5 * time.Second, Replicas: 4}
	want := pacecar.Routes{
		"a.example/": common, "b.example/": common,
		"c.example/": {Rates: pacecar.MustRates("3/s, 30/m"), Lease: -1},
	}
	each(t, func(t *testing.T, lib library) {
		c := config{Routes: pacecar.Routes{"/replaced": {}}}
		if err := lib.unmarshal([]byte(text), &c); err != nil {
			t.Fatal(err)
		}
		if c.Redis != "localhost:6379" || !reflect.DeepEqual(c.Routes, want) {
			t.Errorf("got %+v\nwant %+v", c.Routes, want)
		}

		c = config{}
		err := lib.unmarshal([]byte(text+merged), &c)
		if lib.noMerge {
			if err == nil || !strings.Contains(err.Error(), `key "rates" already set in map`) {
				t.Errorf("got %v, %+v", err, c.Routes)
			}
			return
		}
		d := common
		d.Rates = pacecar.MustRates("5/s")
		if err != nil || !reflect.DeepEqual(c.Routes["d.example/"], d) {
			t.Errorf("got %v, %+v\nwant %+v", err, c.Routes["d.example/"], d)
		}
	})
}

// badConfigs are what must not be read. The error has the line, if there is one,
// and then want.
var badConfigs = []struct {
	name, text string
	line       int
	want       string
	theirs     bool // the library's own error, which has line and want in its own words
}{
	{name: "typo", line: 4, text: `
routes:
  a.example/:
    rate: 3/s
`, want: `Routes["a.example/"]: unknown field "rate", did you mean "rates"?`},
	{name: "typo in the middle", line: 6, text: `
routes:
  a.example/:
    rates: 3/s
    # a comment
    max_wait: 5s
    slack: 10ms
`, want: `Routes["a.example/"]: unknown field "max_wait", did you mean "maxWait"?`},
	{name: "no unit", line: 5, text: `
routes:
  a.example/:
    rates: 3/s
    maxWait: 5
`, want: `Routes["a.example/"]: maxWait: 5 has no unit, want a duration such as "5s"`},
	{name: "not a duration", line: 5, text: `
routes:
  a.example/:
    rates: 3/s
    maxWait: soon
`, want: `Routes["a.example/"]: maxWait: want a duration such as "1.5s" or "5m", not "soon"`},
	{name: "rates", line: 4, text: `
routes:
  a.example/:
    rates: 3/x
`, want: `Routes["a.example/"]: rates: rate 1 "3/x": unknown unit "x", want ms, s, m, h or d`},
	{name: "rates, number", line: 4, text: `
routes:
  a.example/:
    rates: 3
`, want: `Routes["a.example/"]: rates: want text in quotes, not 3`},
	{name: "rates, list", line: 4, text: `
routes:
  a.example/:
    rates: [3/s, 30/m]
`, want: `Routes["a.example/"]: rates: want text in quotes, not a list`},
	{name: "rates, none", line: 4, text: `
routes:
  a.example/:
    rates:
    maxWait: 5s
`, want: `Routes["a.example/"]: rates: no value; leave the field out for its default`},
	{name: "rates in braces", line: 4, text: `
routes:
  b.example/: {rates: 3/s}
  a.example/: {rates: 3/s, 30/m}
`, want: `Routes["a.example/"]: unknown field "30/m": in braces, YAML wants quotes around text with a comma`},
	{name: "name, number", line: 5, text: `
routes:
  a.example/:
    rates: 3/s
    name: 12
`, want: `Routes["a.example/"]: name: want text in quotes, not 12`},
	{name: "name, object", line: 5, text: `
routes:
  a.example/:
    rates: 3/s
    name: {a: b}
`, want: `Routes["a.example/"]: name: want text in quotes, not an object`},
	{name: "replicas, fraction", line: 5, text: `
routes:
  a.example/:
    rates: 3/s
    replicas: 1.5
`, want: `Routes["a.example/"]: replicas: want a whole number, not 1.5`},
	{name: "replicas, text", line: 5, text: `
routes:
  a.example/:
    rates: 3/s
    replicas: "4"
`, want: `Routes["a.example/"]: replicas: want a whole number, not "4"`},
	{name: "outage", line: 5, text: `
routes:
  a.example/:
    rates: 3/s
    outage: open
`, want: `Routes["a.example/"]: outage: want "fail closed" or "fail open", not "open"`},
	{name: "validated field", line: 4, text: `
routes:
  a.example/:
    slack: 2s
    rates: 3/s
`, want: `Routes["a.example/"]: slack: 2s must be shorter than the period of every rate, as of 3/s`},
	{name: "missing field", line: 6, text: `
routes:
  b.example/:
    rates: 3/s

  a.example/:
    maxWait: 3s
`, want: `Routes["a.example/"]: rates: at least one is required`},
	{name: "no policy", line: 3, text: `
routes:
  a.example/:
  b.example/: {rates: 3/s}
`, want: `Routes["a.example/"]: want an object such as {"rates": "3/s"}, not null`},
	{name: "empty policy", line: 3, text: `
routes:
  a.example/: {}
`, want: `Routes["a.example/"]: rates: at least one is required`},
	{name: "policy of text", line: 3, text: `
routes:
  a.example/: 3/s
  b.example/: {rates: 3/s}
`, want: `Routes["a.example/"]: want an object such as {"rates": "3/s"}, not "3/s"`},
	{name: "pattern", line: 5, text: `
routes:
  b.example/:
    rates: 3/s
  a.example:
    rates: 3/s
`, want: `Routes["a.example"]: no path, did you mean "a.example/"?`},
	{name: "shared name", line: 7, text: `
routes:
  a.example/:
    name: q
    rates: 3/s
  b.example/:
    name: q
    rates: 4/s
`, want: `Routes["b.example/"]: name: has the quota of Routes["a.example/"], with another policy`},
	{name: "merged", line: 4, text: `
routes:
  a.example/: &a
    replicas: many
    rates: 3/s
  b.example/:
    <<: *a
    name: b
`, want: `Routes["a.example/"]: replicas: want a whole number, not "many"`},
	{name: "list of routes", line: 2, text: `
routes: [a.example/]
`, want: `Routes: want an object of patterns and policies, not a list`},
	{name: "routes of text", line: 2, text: `
routes: 3/s
`, want: `Routes: want an object of patterns and policies, not "3/s"`},
	{name: "field twice", line: 6, theirs: true, text: `
routes:
  a.example/:
    rates: 3/s
    maxWait: 1s
    rates: 3/s
`, want: `"rates" already`},
	{name: "pattern twice", line: 4, theirs: true, text: `
routes:
  a.example/: {rates: 3/s}
  a.example/: {rates: 3/s}
`, want: `"a.example/" already`},
	{name: "no routes", text: `
routes: {}
`, want: `Routes: at least one is required`},
}

func TestErrors(t *testing.T) {
	each(t, func(t *testing.T, lib library) {
		for _, c := range badConfigs {
			t.Run(c.name, func(t *testing.T) {
				kept := pacecar.Routes{"/kept": {}}
				got := config{Routes: kept}
				err := lib.unmarshal([]byte(c.text), &got)
				if err == nil {
					t.Fatalf("read %+v", got.Routes)
				}
				if !reflect.DeepEqual(got.Routes, kept) && got.Routes != nil {
					t.Errorf("left %v", got.Routes)
				}
				text := err.Error()
				want := "pacecar: " + c.want
				switch {
				case c.theirs:
					want = c.want
					if line := fmt.Sprintf("line %d:", c.line); !lib.noLines &&
						!strings.Contains(text, line) && !strings.Contains(text, fmt.Sprintf("[%d:", c.line)) {
						t.Errorf("got %v\nwant %s", err, line)
					}
				case c.line > 0 && !lib.noLines:
					want = fmt.Sprintf("pacecar: line %d: %s", c.line, c.want)
				}
				if !strings.Contains(text, want) {
					t.Errorf("got %v\nwant %s", err, want)
				}
			})
		}
	})
}

// A policy by itself keeps the fields that the data leaves out.
func TestPolicy(t *testing.T) {
	each(t, func(t *testing.T, lib library) {
		p := pacecar.Policy{MaxWait: time.Second, Slack: time.Millisecond}
		if err := lib.unmarshal([]byte("rates: 3/s\nslack: 2ms\n"), &p); err != nil {
			t.Fatal(err)
		}
		want := pacecar.Policy{Rates: pacecar.MustRates("3/s"), MaxWait: time.Second, Slack: 2 * time.Millisecond}
		if !reflect.DeepEqual(p, want) {
			t.Errorf("got %+v\nwant %+v", p, want)
		}
		err := lib.unmarshal([]byte("\nrates: 3/s\nslack: 2s\n"), &p)
		line := "line 3: "
		if lib.noLines {
			line = ""
		}
		if want := "pacecar: " + line + "Policy: slack: 2s must be shorter"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant %s", err, want)
		}
		if p.Slack != 2*time.Millisecond {
			t.Errorf("after an error: %+v", p)
		}
		if err := lib.unmarshal([]byte("3/s"), &p); err == nil || !strings.Contains(err.Error(), "Policy: want an object such as {") {
			t.Errorf("text: got %v", err)
		}
	})
}

// What a library writes it reads again, whatever needs quotes.
func TestRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func(s ...string) string { return s[rng.IntN(len(s))] }
	each(t, func(t *testing.T, lib library) {
		for range 300 {
			p := pacecar.Policy{
				Rates: pacecar.MustRates(pick("3/s, 30/m", "100/1h30m", "1/366d", "5/1.5s")),
				Name: pick("", "a", "true", "null", "~", "yes", "1:30", "0x10", "1e3", "5", "2001-01-01", "<<", "=",
					"<&> \"\\'", "ä", "- x", "x: y", "x #y"[:2], " ", " a ", "{}", "[", "%", "@", "!a", "&a", "*a", "|", ">", "?", "-"),
				MaxWait: time.Duration(rng.Int64N(1 << 50)).Truncate(time.Microsecond), Lease: rng.IntN(21) - 10,
				Outage: pacecar.Outage(rng.IntN(2)), Replicas: 1 + rng.IntN(5),
			}
			if rng.IntN(2) == 0 {
				p.Feedback = pacecar.GitHub
			}
			want := config{"localhost", pacecar.Routes{pick("/", "GET /{x}/", "a.example:8080/a%20b/", "[::1]/<&>\"'ü", "/!a", "/: b/"[:1]): p}}
			text, err := lib.marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			var got config
			if err := lib.unmarshal(text, &got); err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			if got, want := plain(t, got.Routes), plain(t, want.Routes); got != want {
				t.Fatalf("got %s\nwant %s\nby way of\n%s", got, want, text)
			}
		}
		_, err := lib.marshal(pacecar.Routes{"/": {Rates: pacecar.MustRates("3/s"), Key: func(*http.Request) string { return "" }}})
		if want := `pacecar: Routes["/"]: Key: a function has no form as data`; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant %s", err, want)
		}
	})
}
