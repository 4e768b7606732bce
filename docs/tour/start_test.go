package tour

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A step is one block of commands of docs/start.md, and what it must print.
type step struct {
	section, commands, output string
}

// steps reads the page, with ports that are free.
func steps(t *testing.T) (steps []step) {
	t.Helper()
	text, err := os.ReadFile("../start.md")
	if err != nil {
		t.Fatal(err)
	}
	addrs := map[string]string{}
	page := regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAllStringFunc(string(text), func(addr string) string {
		if addrs[addr] == "" {
			addrs[addr] = freeAddr(t)
		}
		return addrs[addr]
	})
	section := ""
	for _, m := range regexp.MustCompile("(?ms)^## (.*?)$|^```(\\w*)\n(.*?)^```$").FindAllStringSubmatch(page, -1) {
		switch kind, body := m[2], m[3]; {
		case m[1] != "":
			section = m[1]
		case kind == "sh":
			steps = append(steps, step{section: section, commands: body})
		case kind == "":
			steps[len(steps)-1].output = body
		}
	}
	if len(steps) < 10 {
		t.Fatalf("%d blocks of commands: this test looks at the wrong place", len(steps))
	}
	return steps
}

// missing returns the first line that must be there and is not.
func (s *step) missing(printed []string) string {
	for want := range strings.Lines(s.output) {
		want = strings.TrimSuffix(want, "\n")
		like := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(want), "…", ".*") + "$")
		found := false
		for _, line := range printed {
			found = found || like.MatchString(line)
		}
		if !found {
			return want
		}
	}
	return ""
}

// copyTree copies the repository, so that the steps leave nothing behind.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || rel == filepath.Join("docs", "tour", "bin")):
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		case !d.Type().IsRegular():
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), content, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestStart runs the commands of docs/start.md in their order, in one bash, on
// a copy of the repository. Each block has four minutes (the first one builds), and
// each section five.
func TestStart(t *testing.T) {
	need(t, "redis-server", "REDIS")
	need(t, "prometheus", "PROMETHEUS")
	need(t, "promtool", "PROMETHEUS")
	steps, dir := steps(t), t.TempDir()
	copyTree(t, "../..", dir)

	shell := exec.Command("bash", "-e")
	shell.Dir = dir
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that all it starts can be ended
	in, err := shell.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	shell.Stdout, shell.Stderr = write, write
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(read); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	exited := make(chan error, 1)
	go func() { exited <- shell.Wait() }()
	defer func() {
		_ = syscall.Kill(-shell.Process.Pid, syscall.SIGKILL)
		for range lines { // what is left
		}
		read.Close()
	}()

	const mark = "the end of a block"
	began, section := time.Now(), ""
	for i, s := range steps {
		if s.section != section {
			began, section = time.Now(), s.section
		}
		file := filepath.Join(t.TempDir(), "block.sh")
		if err := os.WriteFile(file, []byte(s.commands), 0o644); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(in, ". %s\necho; echo %q\n", file, mark)
		var printed []string
		fatalf := func(format string, args ...any) {
			t.Helper()
			t.Fatalf("block %d, in %q, %s:\n%s\nIt printed:\n%s", i+1, section, fmt.Sprintf(format, args...), s.commands, strings.Join(printed, "\n"))
		}
		for done, late := false, time.After(4*time.Minute); !done; {
			select {
			case line := <-lines:
				if done = line == mark; !done {
					printed = append(printed, line)
				}
			case err := <-exited:
				fatalf("ends the shell: %v", err)
			case <-late:
				fatalf("takes longer than four minutes")
			}
		}
		if line := s.missing(printed); line != "" {
			fatalf("does not print %q", line)
		}
		took := time.Since(began)
		if took > 5*time.Minute {
			t.Fatalf("%q takes longer than five minutes", section)
		}
		t.Logf("%-33s block %2d done after %v", section, i+1, took.Round(time.Second/10))
	}
}
