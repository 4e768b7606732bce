package yamltest

import (
	"strings"
	"testing"

	"github.com/caarlos0/env/v11"
	"github.com/kelseyhightower/envconfig"

	"github.com/pacecar-go/pacecar"
)

// settings is what a program reads from the environment.
type settings struct {
	Rates  pacecar.Rates  `env:"PACECAR_RATES" envconfig:"PACECAR_RATES"`
	Outage pacecar.Outage `env:"PACECAR_OUTAGE" envconfig:"PACECAR_OUTAGE"`
	Routes pacecar.Routes `env:"PACECAR_ROUTES" envconfig:"PACECAR_ROUTES"`
}

func TestEnvironment(t *testing.T) {
	for name, read := range map[string]func(*settings) error{
		"caarlos0/env":              func(s *settings) error { return env.Parse(s) },
		"kelseyhightower/envconfig": func(s *settings) error { return envconfig.Process("", s) },
	} {
		t.Run(strings.ReplaceAll(name, "/", "_"), func(t *testing.T) {
			t.Setenv("PACECAR_RATES", "3/s, 30/m")
			t.Setenv("PACECAR_OUTAGE", "fail open")
			t.Setenv("PACECAR_ROUTES", `{"api.example.com/": {"rates": "3/s", "maxWait": "5s"}}`)
			var s settings
			if err := read(&s); err != nil {
				t.Fatal(err)
			}
			if got := plain(t, s.Routes); s.Rates.String() != "3/s, 30/m" || s.Outage != pacecar.FailOpen ||
				!strings.Contains(got, `"maxWait": "5s"`) {
				t.Errorf("got %+v", s)
			}

			for value, want := range map[string]string{
				`{"api.example.com/": {"rate": "3/s"}}`: `line 1: Routes["api.example.com/"]: unknown field "rate", did you mean "rates"?`,
				`{"api.example.com/": `:                 `line 1: Routes: not JSON: unexpected end of JSON input`,
				` `:                                     `Routes: no data, want a JSON object`,
			} {
				t.Setenv("PACECAR_ROUTES", value)
				var s settings
				if err := read(&s); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: got %v\nwant %s", value, err, want)
				}
			}

			// Both leave an empty variable out, as one that is not set.
			t.Setenv("PACECAR_ROUTES", "")
			var none settings
			if err := read(&none); err == nil {
				_, err = pacecar.New(pacecar.Config{Routes: none.Routes})
				if err == nil || !strings.Contains(err.Error(), "Routes: at least one is required") {
					t.Errorf("an empty variable: got %+v, %v", none, err)
				}
			}
		})
	}
}
