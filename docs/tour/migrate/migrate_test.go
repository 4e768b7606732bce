package migrate

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestDocs: each piece of Go in docs/migrate.md is in this package, line for line.
func TestDocs(t *testing.T) {
	text, err := os.ReadFile("../../migrate.md")
	if err != nil {
		t.Fatal(err)
	}
	code := ""
	for _, file := range []string{"before.go", "after.go"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code += string(source)
	}
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) < 8 {
		t.Errorf("%d pieces of Go, want one before and one after, of four", len(blocks))
	}
	for _, block := range blocks {
		if !strings.Contains(code, block[1]) {
			t.Errorf("not in this package:\n%s", block[1])
		}
	}
}
