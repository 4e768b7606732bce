package tour

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocs: the tests and the files that the project's pages name exist.
func TestDocs(t *testing.T) {
	const root = "../.."
	tests, pages := map[string]bool{}, map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if d != nil && strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2 {
				return fs.SkipDir
			}
			return err
		}
		if strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".md") {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if strings.HasSuffix(path, ".md") {
				pages[path] = string(text)
				return nil
			}
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(text), -1) {
				tests[m[1]] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for path, text := range pages {
		for _, m := range regexp.MustCompile("`(Test[A-Z]\\w*)`").FindAllStringSubmatch(text, -1) {
			if named++; !tests[m[1]] {
				t.Errorf("%s: there is no %s", path, m[1])
			}
		}
		text = regexp.MustCompile("`[^`\n]*`").ReplaceAllString(text, "")
		for _, m := range regexp.MustCompile(`\]\(([^)#:]+)[^):]*\)`).FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s: a link to %s", path, m[1])
			}
		}
	}
	if named < 50 {
		t.Errorf("%d tests are named on %d pages: this test looks at the wrong place", named, len(pages))
	}
}

// TestQuoted: the code on these pages is that of programs which are compiled.
func TestQuoted(t *testing.T) {
	for page, program := range map[string]string{
		"../faq.md":   "../../example_synctest_test.go",
		"../start.md": "paced/main.go",
	} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		source, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		unindented := func(text string) string { return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(text, "") }
		blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindAllStringSubmatch(string(text), -1)
		if len(blocks) == 0 {
			t.Errorf("%s: no code", page)
		}
		for _, block := range blocks {
			if !strings.Contains(unindented(string(source)), unindented(block[1])) {
				t.Errorf("%s: not in %s:\n%s", page, program, block[1])
			}
		}
	}
}
