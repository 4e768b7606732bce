package pacecar

import (
	"encoding/json"
	"flag"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseRates(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want Rates
		text string // what String makes of it
	}{
		{"3/s", Rates{{3, time.Second}}, "3/s"},
		{"3/s, 30/m", Rates{{3, time.Second}, {30, time.Minute}}, "3/s, 30/m"},
		{" 3 / s ,\t30/m\n", Rates{{3, time.Second}, {30, time.Minute}}, "3/s, 30/m"},
		{"30/m,3/s", Rates{{30, time.Minute}, {3, time.Second}}, "30/m, 3/s"},
		{"5000/h", Rates{{5000, time.Hour}}, "5000/h"},
		{"5/d", Rates{{5, 24 * time.Hour}}, "5/d"},
		{"7/7d", Rates{{7, 7 * 24 * time.Hour}}, "7/7d"},
		{"1/ms", Rates{{1, time.Millisecond}}, "1/ms"},
		{"100/10s", Rates{{100, 10 * time.Second}}, "100/10s"},
		{"100/1m30s", Rates{{100, 90 * time.Second}}, "100/90s"},
		{"100/60s", Rates{{100, time.Minute}}, "100/m"},
		{"100/1500ms", Rates{{100, 1500 * time.Millisecond}}, "100/1.5s"},
		{"100/90.5s", Rates{{100, 90500 * time.Millisecond}}, "100/90.5s"},
		{"100/1h0.000001s", Rates{{100, time.Hour + time.Microsecond}}, "100/3600.000001s"},
		{"100/2.25ms", Rates{{100, 2250 * time.Microsecond}}, "100/2.25ms"},
		{"100/1001us", Rates{{100, 1001 * time.Microsecond}}, "100/1.001ms"},
		{"1000000/24h", Rates{{1000000, 24 * time.Hour}}, "1000000/d"},
		{"1000000000/366d", Rates{{1000000000, 366 * 24 * time.Hour}}, "1000000000/366d"},
		{"003/s", Rates{{3, time.Second}}, "3/s"},
		// Pairs of which one is pointless are what upstreams publish.
		{"3/s, 1000/m", Rates{{3, time.Second}, {1000, time.Minute}}, "3/s, 1000/m"},
		{"30/s, 3/m", Rates{{30, time.Second}, {3, time.Minute}}, "30/s, 3/m"},
	} {
		got, err := ParseRates(tt.in)
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("ParseRates(%q) = %v, %v; want %v", tt.in, []Rate(got), err, []Rate(tt.want))
			continue
		}
		if got.String() != tt.text {
			t.Errorf("ParseRates(%q).String() = %q, want %q", tt.in, got.String(), tt.text)
		}
	}
}

// A typo must never parse to something else, and the error must show where it is.
func TestParseRatesErrors(t *testing.T) {
	for _, tt := range []struct{ in, err string }{
		{"", `at least one is required`},
		{" \t", `at least one is required`},
		{"3/s, 30/x", `rate 2 "30/x": unknown unit "x", want ms, s, m, h or d`},
		{"3/s, 30/min", `rate 2 "30/min": unknown unit "min", want`},
		{"3/S", `rate 1 "3/S": unknown unit "S"`},
		{"3/s,,", `rate 2 "": empty`},
		{"3/s,", `rate 2 "": empty`},
		{",3/s", `rate 1 "": empty`},
		{"3//s", `rate 1 "3//s": unknown unit "/s"`},
		{"3/s/m", `rate 1 "3/s/m": unknown unit "s/m"`},
		{"3/s 30/m", `rate 1 "3/s 30/m": the period "s 30/m": rates are separated by commas`},
		{"3/", `rate 1 "3/": no period after the "/"`},
		{"/s", `rate 1 "/s": no limit before the "/"`},
		{"/", `rate 1 "/": no limit before the "/"`},
		{"3", `rate 1 "3": no "/" between limit and period`},
		{"3 per second", `rate 1 "3 per second": no "/" between limit and period`},
		{"1,000/s", `rate 1 "1": no "/" between limit and period`},
		{"1_000/s", `rate 1 "1_000/s": the limit "1_000" is not a whole number`},
		{"1e3/s", `rate 1 "1e3/s": the limit "1e3" is not a whole number`},
		{"0x10/s", `the limit "0x10" is not a whole number`},
		{"3.5/s", `rate 1 "3.5/s": the limit "3.5" is not a whole number`},
		{"+3/s", `rate 1 "+3/s": the limit "+3" is not a whole number`},
		{"-3/s", `rate 1 "-3/s": the limit "-3" is not a whole number`},
		{"٣/s", `the limit "٣" is not a whole number`},
		{"s/3", `rate 1 "s/3": the limit "s" is not a whole number`},
		{"0/s", `rate 1 (0/s): the limit must be from 1 to 1000000000`},
		{"1000000001/s", `rate 1 (1000000001/s): the limit must be from 1 to 1000000000`},
		{"99999999999999999999/s", `rate 1 "99999999999999999999/s": the limit must be from 1 to 1000000000`},
		{"3/-1s", `rate 1 (3/-1s): the period must be from 1ms to 366d`},
		{"3/+1s", `rate 1 "3/+1s": the period "+1s" is neither`},
		{"3/0s", `rate 1 (3/0s): the period must be from 1ms to 366d`},
		{"3/0", `the period must be from 1ms to 366d`},
		{"3/0d", `the period must be from 1ms to 366d`},
		{"3/367d", `rate 1 "3/367d": the period must be from 1ms to 366d`},
		{"3/99999999999999999999d", `the period must be from 1ms to 366d`},
		{"3/8785h", `rate 1 (3/8785h): the period must be from 1ms to 366d`},
		{"3/9999999999h", `the period "9999999999h" is neither`},
		{"3/999us", `rate 1 (3/999µs): the period must be from 1ms to 366d`},
		{"3/1000001ns", `the period must be in whole microseconds`},
		{"3/10", `the period "10" is neither a unit nor a duration such as 10s`},
		{"3/1.5d", `the period "1.5d" is neither`},
		{"3/-1d", `the period "-1d" is neither`},
		{"3/s, 30/m, 5/1000ms", `rate 3 (5/s): the same period as rate 1 (3/s)`},
		{"1/s,1/2s,1/3s,1/4s,1/5s,1/6s,1/7s,1/8s,1/9s", `9 rates, at most 8 are allowed`},
	} {
		rs, err := ParseRates(tt.in)
		if err == nil {
			t.Errorf("ParseRates(%q) = %v, want an error with %q", tt.in, rs, tt.err)
			continue
		}
		if prefix := "pacecar: rates " + quote(tt.in) + ": "; !strings.HasPrefix(err.Error(), prefix) || !strings.Contains(err.Error(), tt.err) {
			t.Errorf("ParseRates(%q): %q, want %q and then %q", tt.in, err, prefix, tt.err)
		}
		if rs != nil {
			t.Errorf("ParseRates(%q) = %v together with an error", tt.in, rs)
		}
	}
}

func TestParseRatesLongInput(t *testing.T) {
	_, err := ParseRates(strings.Repeat("é", 1<<20))
	if err == nil || len(err.Error()) > 500 {
		t.Errorf("a megabyte of nonsense gives an error of %d bytes, want a short one", len(err.Error()))
	}
}

func TestMustRates(t *testing.T) {
	if got := MustRates("3/s"); !slices.Equal(got, Rates{{3, time.Second}}) {
		t.Errorf("MustRates = %v", got)
	}
	defer func() {
		if err, ok := recover().(error); !ok || !strings.HasPrefix(err.Error(), `pacecar: rates "3/x": `) {
			t.Errorf("MustRates panicked with %v, want the error of ParseRates", err)
		}
	}()
	MustRates("3/x")
	t.Error("MustRates did not panic")
}

func TestRatesText(t *testing.T) {
	var c struct{ Rates Rates }
	if err := json.Unmarshal([]byte(`{"Rates": "3/s, 30/m"}`), &c); err != nil {
		t.Fatal(err)
	}
	want := MustRates("3/s, 30/m")
	if !slices.Equal(c.Rates, want) {
		t.Errorf("from JSON: %v", c.Rates)
	}
	if b, err := json.Marshal(c); err != nil || string(b) != `{"Rates":"3/s, 30/m"}` {
		t.Errorf("to JSON: %s, %v", b, err)
	}

	err := json.Unmarshal([]byte(`{"Rates": "3/s, 30"}`), &c)
	if err == nil || !slices.Equal(c.Rates, want) {
		t.Errorf("bad text: error %v, value %v; want an error and the old value", err, c.Rates)
	}
	for _, bad := range []Rates{nil, {}, {{0, time.Second}}, {{1, time.Second}, {2, time.Second}}, {{1, 1500}}} {
		if b, err := bad.MarshalText(); err == nil {
			t.Errorf("MarshalText(%#v) = %q, want an error: it could not be read back", bad, b)
		}
	}

	var r Rates
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.TextVar(&r, "rates", want, "")
	if err := fs.Parse([]string{"-rates", "5/m"}); err != nil || r.String() != "5/m" {
		t.Errorf("from a flag: %v, %v", r, err)
	}
}

func TestRatesStringOfInvalid(t *testing.T) {
	for _, tt := range []struct {
		rs   Rates
		want string
	}{
		{nil, ""},
		{Rates{{}}, "0/0s"},
		{Rates{{-1, -time.Second}, {1, 1500}}, "-1/-1s, 1/1.5µs"},
	} {
		if got := tt.rs.String(); got != tt.want {
			t.Errorf("String() = %q, want %q", got, tt.want)
		}
	}
}

func FuzzParseRates(f *testing.F) {
	for _, s := range []string{"3/s, 30/m", "100/10s", "1000000/24h", "5/d", "1/1h0.000001s", "3//s", "1e3/s", "3/999us", "9/1ns,"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		rs, err := ParseRates(s)
		if err != nil {
			return
		}
		if err := rs.validate(); err != nil {
			t.Fatalf("ParseRates(%q) = %v, which is invalid: %v", s, rs, err)
		}
		text, err := rs.MarshalText()
		if err != nil {
			t.Fatalf("MarshalText of %v: %v", rs, err)
		}
		var back Rates
		if err := back.UnmarshalText(text); err != nil || !slices.Equal(back, rs) {
			t.Fatalf("%q parses to %#v, whose text %q parses to %#v, %v", s, rs, text, back, err)
		}
		if again := back.String(); again != string(text) {
			t.Fatalf("the text of %#v is first %q, then %q", rs, text, again)
		}
	})
}
