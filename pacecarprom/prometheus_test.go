package pacecarprom_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/pacecar-go/pacecar"
	"github.com/pacecar-go/pacecar/pacecarprom"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
)

// need skips the test where a program is missing, unless
// PACECAR_REQUIRE_PROMETHEUS=1.
func need(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		if os.Getenv("PACECAR_REQUIRE_PROMETHEUS") == "1" {
			t.Fatalf("PACECAR_REQUIRE_PROMETHEUS=1, and there is no %s on PATH", program)
		}
		t.Skipf("no %s on PATH; PACECAR_REQUIRE_PROMETHEUS=1 makes this a failure", program)
	}
}

// The rules are valid, and each alert fires where it must and nowhere else.
func TestAlerts(t *testing.T) {
	need(t, "promtool")
	for _, args := range [][]string{
		{"check", "rules", "alerts.yml"},
		{"test", "rules", "testdata/alerts_test.yml"},
	} {
		if out, err := exec.CommandContext(t.Context(), "promtool", args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// An expression to look for, and what its result is shown with.
type expression struct {
	where, text string
	labels      []string
}

// shown returns the labels that a legend or a summary names.
func shown(text string) (labels []string) {
	for _, m := range regexp.MustCompile(`\{\{ *(?:\$labels\.)?(\w+) *\}\}`).FindAllStringSubmatch(text, -1) {
		labels = append(labels, m[1])
	}
	return labels
}

// variables are Grafana's.
var variables = strings.NewReplacer(
	"$__rate_interval", "5s", "$__range_s", "60", "$__range", "60s", "$__interval", "1s",
	"$job", ".*", "$route", ".*",
)

// threshold is what an alert compares with.
var threshold = regexp.MustCompile(`^(?s)(.*\S)\s*>\s*[0-9.]+$`)

// Each expression of the dashboard and the left side of each alert has a result,
// which at some time is not zero, of a fleet that waits, is refused, gets 429s,
// and whose Redis goes away and loses its state.
func TestPrometheus(t *testing.T) {
	need(t, "prometheus")
	f := startFleet(t)
	p := startPrometheus(t, f.targets)
	d := readDashboard(t)

	var todo []expression
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			for part := range strings.SplitSeq(target.Expr, " or on (route) ") { // each for itself
				todo = append(todo, expression{panel.Title, variables.Replace(part), shown(target.LegendFormat)})
			}
		}
	}
	for _, rule := range p.alerts() {
		m := threshold.FindStringSubmatch(rule.Query)
		if m == nil {
			t.Errorf("%s: no threshold at the end of %s", rule.Name, rule.Query)
			continue
		}
		todo = append(todo, expression{rule.Name, m[1], shown(rule.Annotations["summary"])})
	}
	if len(todo) < 30 {
		t.Fatalf("%d expressions only", len(todo))
	}

	// It takes about 10 seconds.
	begun := time.Now()
	for ; ; time.Sleep(250 * time.Millisecond) {
		var left []expression
		for _, e := range todo {
			if !p.query(e) {
				left = append(left, e)
			} else {
				t.Logf("%.1f s: %s", time.Since(begun).Seconds(), e.where)
			}
		}
		if todo = left; len(todo) == 0 || t.Failed() {
			break
		}
		if time.Since(begun) > 90*time.Second {
			for _, e := range todo {
				t.Errorf("%s: never a number but zero, with labels %v: %s", e.where, e.labels, e.text)
			}
			break
		}
	}

	for _, v := range d.Templating.List {
		m := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(v.Definition)
		if v.Type == "datasource" {
			continue
		}
		if m == nil {
			t.Errorf("variable %s: %q", v.Name, v.Definition)
			continue
		}
		var values []string
		p.get("label/"+m[2]+"/values", url.Values{"match[]": {variables.Replace(m[1])}}, &values)
		if len(values) == 0 {
			t.Errorf("variable %s has no values: %s", v.Name, v.Definition)
		}
	}
}

// A query that can never match must fail the test above.
func TestQueryFindsNothing(t *testing.T) {
	need(t, "prometheus")
	p := startPrometheus(t, nil)
	labelled := `label_replace(vector(1), "route", "r", "", "")`
	for _, test := range []struct {
		text   string
		labels []string
		want   bool
	}{
		{"pacecar_requests_sent_total", nil, false},
		{"vector(0)", nil, false},
		{"vector(0) / 0", nil, false},
		{"vector(1) / 0", nil, false},
		{"vector(1)", []string{"route"}, false},
		{labelled, shown("{{route}} {{instance}}"), false},
		{labelled, shown("{{ $value }} of {{ $labels.instance }}"), false},
		{labelled, shown("{{ $value }} of {{ $labels.route }}, {{ $value | humanize }}"), true},
		{labelled, shown("p95 {{route}}"), true},
		{"vector(1)", nil, true},
	} {
		if got := p.query(expression{"test", test.text, test.labels}); got != test.want {
			t.Errorf("%s with labels %v: a result: %v, want %v", test.text, test.labels, got, test.want)
		}
	}
}

// A monitor is a prometheus that the test started.
type monitor struct {
	t    *testing.T
	base string
}

func startPrometheus(t *testing.T, targets []string) *monitor {
	t.Helper()
	rules, err := filepath.Abs("alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config, err := json.Marshal(map[string]any{ // which is YAML
		"global":     map[string]any{"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "500ms"},
		"rule_files": []string{rules},
		"scrape_configs": []any{map[string]any{
			"job_name":       "fleet",
			"static_configs": []any{map[string]any{"targets": targets}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()

	cmd := exec.Command("prometheus", "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+addr, "--log.level=warn")
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	p := &monitor{t, "http://" + addr}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		resp, err := http.Get(p.base + "/-/ready")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return p
			}
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("prometheus ended: %v\n%s", err, out.String())
		default:
		}
		if time.Now().After(deadline) {
			_ = cmd.Process.Kill()
			err := <-ended
			ended <- err
			t.Fatalf("prometheus is not ready after 20 s\n%s", out.String())
		}
	}
}

// get fills data with what the API answers. An error fails the test.
func (p *monitor) get(path string, query url.Values, data any) {
	p.t.Helper()
	resp, err := http.Get(p.base + "/api/v1/" + path + "?" + query.Encode())
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Status != "success" {
		p.t.Errorf("%s %v: %v %s", path, query, err, answer.Error)
	}
}

// query reports whether an expression has a series that is a number other than
// zero, and has the labels.
func (p *monitor) query(e expression) bool {
	p.t.Helper()
	var data struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	p.get("query", url.Values{"query": {e.text}}, &data)
	for _, series := range data.Result {
		text, _ := series.Value[1].(string)
		v, err := strconv.ParseFloat(text, 64)
		lacks := slices.ContainsFunc(e.labels, func(label string) bool { return series.Metric[label] == "" })
		if err == nil && v != 0 && !math.IsNaN(v) && !math.IsInf(v, 0) && !lacks {
			return true
		}
	}
	return false
}

// A rule is one alert.
type rule struct {
	Name, Query string
	Annotations map[string]string
}

// alerts returns the rules that are loaded.
func (p *monitor) alerts() (alerts []rule) {
	p.t.Helper()
	var data struct {
		Groups []struct{ Rules []rule }
	}
	p.get("rules", nil, &data)
	for _, g := range data.Groups {
		alerts = append(alerts, g.Rules...)
	}
	for _, r := range alerts {
		if r.Annotations["summary"] == "" || r.Annotations["runbook"] == "" {
			p.t.Errorf("%s: summary or runbook is missing", r.Name)
		}
	}
	if len(alerts) != 5 {
		p.t.Errorf("%d alerts, want 5: %v", len(alerts), alerts)
	}
	return alerts
}

// A fleet is two programs that share quotas through one Redis, and do until the
// test ends all that there are metrics for.
type fleet struct {
	targets []string // their /metrics
}

func startFleet(t *testing.T) *fleet {
	t.Helper()
	store := miniredis.RunT(t)
	upstream := startUpstream(t)
	f := &fleet{}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	for range 2 {
		m := pacecarprom.New(pacecarprom.Options{})
		reg := prometheus.NewPedanticRegistry()
		reg.MustRegister(m)
		metrics := httptest.NewServer(promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
		t.Cleanup(metrics.Close)
		f.targets = append(f.targets, metrics.Listener.Addr().String())

		rdb := redis.NewClient(&redis.Options{Addr: store.Addr(), MaxRetries: -1})
		t.Cleanup(func() { _ = rdb.Close() })
		base := &http.Transport{}
		t.Cleanup(base.CloseIdleConnections)
		tr, err := pacecar.New(pacecar.Config{
			Redis: rdb,
			Routes: map[string]pacecar.Policy{
				"/busy/":    {Rates: pacecar.MustRates("1000/s")},
				"/open/":    {Rates: pacecar.MustRates("100/s"), Outage: pacecar.FailOpen, Replicas: 2},
				"/slow/":    {Rates: pacecar.MustRates("2/s, 1000/m")},
				"/short/":   {Rates: pacecar.MustRates("1/s"), MaxWait: time.Millisecond},
				"/limited/": {Rates: pacecar.MustRates("20/s")},
				"/late/":    {Rates: pacecar.MustRates("10/s")},
			},
			Base:         &dawdler{base: base},
			RedisTimeout: time.Second, // a busy machine is no outage
			Observe:      m.Observe,
		})
		if err != nil {
			t.Fatal(err)
		}
		m.Watch(tr)
		for _, l := range []load{
			{"/busy/", 2, 0, 5 * time.Millisecond, 0},
			{"/open/", 1, 0, 50 * time.Millisecond, 0},
			{"/slow/", 1, 0, 2 * time.Second, 0}, // nobody waits at first
			{"/slow/", 3, 2 * time.Second, 50 * time.Millisecond, 700 * time.Millisecond},
			{"/short/", 1, 0, 200 * time.Millisecond, 0},
			{"/limited/", 2, 0, 50 * time.Millisecond, 0},
			{"/late/", 1, 0, 150 * time.Millisecond, 0},
			{"/none/", 1, 0, 200 * time.Millisecond, 0},
		} {
			for range l.callers {
				wg.Go(func() { l.run(ctx, tr, upstream) })
			}
		}
	}
	wg.Go(func() { disturb(ctx, store) })
	return f
}

// A load is callers that make requests until the test ends.
type load struct {
	path     string
	callers  int
	start    time.Duration
	every    time.Duration // after each
	patience time.Duration // then each gives up; 0: never
}

func (l load) run(ctx context.Context, tr http.RoundTripper, upstream string) {
	if !sleep(ctx, l.start) {
		return
	}
	for ok := true; ok; ok = sleep(ctx, l.every) {
		l.get(ctx, tr, upstream)
	}
}

func (l load) get(ctx context.Context, tr http.RoundTripper, upstream string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if l.patience > 0 {
		defer time.AfterFunc(l.patience, cancel).Stop()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, upstream+l.path, nil)
	if err != nil {
		return
	}
	if resp, err := tr.RoundTrip(req); err == nil {
		resp.Body.Close()
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// disturb has Redis lose its state, and go away, again and again.
func disturb(ctx context.Context, store *miniredis.Miniredis) {
	for sleep(ctx, 2*time.Second) {
		store.FlushAll()
		if !sleep(ctx, 2*time.Second) {
			return
		}
		store.SetError("LOADING for a while")
		sleep(ctx, time.Second)
		store.SetError("")
	}
}

// startUpstream starts a server that refuses each third request to /limited/.
func startUpstream(t *testing.T) string {
	t.Helper()
	var n atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/limited/") && n.Add(1)%3 == 0 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// A dawdler is a Base that takes its time with requests to /late/, now and then.
type dawdler struct {
	base http.RoundTripper
	n    atomic.Int64
}

func (d *dawdler) RoundTrip(req *http.Request) (*http.Response, error) {
	if strings.HasPrefix(req.URL.Path, "/late/") && d.n.Add(1)%4 == 0 {
		sleep(req.Context(), 40*time.Millisecond)
	}
	return d.base.RoundTrip(req)
}

// readDashboard returns what the tests want to know of dashboard.json.
func readDashboard(t *testing.T) *dashboard {
	t.Helper()
	text, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	d := &dashboard{}
	if err := json.Unmarshal(text, d); err != nil {
		t.Fatal(err)
	}
	return d
}

type dashboard struct {
	Panels []struct {
		ID          int
		Type, Title string
		Description string
		GridPos     struct{ X, Y, W, H int }
		Datasource  struct{ Type, UID string }
		Targets     []struct {
			Expr         string
			LegendFormat string
			Datasource   struct{ Type, UID string }
		}
	}
	Templating struct {
		List []struct {
			Name, Type, Definition string
			Datasource             struct{ UID string }
		}
	}
}

// The dashboard names no data source of its own, has its four rows, and no
// panel covers another.
func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	taken, ids, rows := map[[2]int]string{}, map[int]bool{}, 0
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("%s: its id %d is another's", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%s: too wide", p.Title)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" {
					t.Fatalf("%s covers %s", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			rows++
			continue
		}
		if p.Datasource.UID != "${datasource}" || p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("%s: no description, no query, or a data source of its own: %+v", p.Title, p)
		}
		for _, target := range p.Targets {
			if target.Datasource.UID != "${datasource}" {
				t.Errorf("%s: data source %q", p.Title, target.Datasource.UID)
			}
		}
	}
	if rows != 4 {
		t.Errorf("%d rows, want 4", rows)
	}
	names := fmt.Sprint(d.Templating.List)
	for _, v := range []string{"datasource", "job", "route"} {
		if !strings.Contains(names, "{"+v+" ") {
			t.Errorf("no variable %s: %s", v, names)
		}
	}
}
