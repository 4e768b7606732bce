package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// bottleneckName is the limiter that runs in Node. Its worker speaks the same
// JSON as ours.
const bottleneckName = "bottleneck"

//go:embed bottleneck/worker.js
var bottleneckWorker []byte

// bottleneckPackages are what npm installs for it.
var bottleneckPackages = []string{"bottleneck@2.19.5", "ioredis@4.31.0"}

// A node is a folder with Bottleneck in it, made when it is first needed.
type node struct {
	dir string
	err error
}

// prepare makes the folder, once.
func (n *node) prepare(ctx context.Context) error {
	if n.dir == "" && n.err == nil {
		n.err = n.install(ctx)
	}
	return n.err
}

func (n *node) install(ctx context.Context) error {
	for _, tool := range []string{"node", "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			return errors.New("no " + tool + " on PATH")
		}
	}
	dir, err := os.MkdirTemp("", "pacecar-bottleneck-")
	if err != nil {
		return err
	}
	n.dir = dir
	if err := os.WriteFile(filepath.Join(dir, "worker.js"), bottleneckWorker, 0o600); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	args := append([]string{"install", "--prefix", dir, "--no-audit", "--no-fund"}, bottleneckPackages...)
	cmd := exec.CommandContext(ctx, "npm", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("npm install %s: %w: %s", strings.Join(bottleneckPackages, " "), err, line)
	}
	return nil
}

// start starts a worker.
func (n *node) start(job workerJob) (*child, error) {
	cmd := exec.Command("node", filepath.Join(n.dir, "worker.js"))
	cmd.Dir = n.dir
	return startChild(cmd, job)
}

// remove removes the folder.
func (n *node) remove() {
	if n.dir != "" {
		_ = os.RemoveAll(n.dir)
	}
}
