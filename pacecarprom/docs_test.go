package pacecarprom_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/pacecar-go/pacecar/pacecarprom"
	"github.com/prometheus/client_golang/prometheus"
)

// described returns the names of all metrics.
func described(t *testing.T) map[string]bool {
	t.Helper()
	ch := make(chan *prometheus.Desc)
	go func() {
		pacecarprom.New(pacecarprom.Options{}).Describe(ch)
		close(ch)
	}()
	names, text := map[string]bool{}, regexp.MustCompile(`fqName: "(\w+)"`)
	for d := range ch {
		names[text.FindStringSubmatch(d.String())[1]] = true
	}
	if len(names) < 20 {
		t.Fatalf("%d metrics only: %v", len(names), names)
	}
	return names
}

// The README lists each metric, and nothing names one that there is not.
func TestNames(t *testing.T) {
	names := described(t)
	for _, file := range []string{"README.md", "dashboard.json", "alerts.yml", "testdata/alerts_test.yml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]bool{}
		for _, name := range regexp.MustCompile(`\bpacecar_\w+`).FindAllString(string(text), -1) {
			name = strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count")
			if found[name] = true; !names[name] {
				t.Errorf("%s: there is no %s", file, name)
			}
		}
		for name := range names {
			if file == "README.md" && !found[name] {
				t.Errorf("README.md does not list %s", name)
			}
		}
	}
}
