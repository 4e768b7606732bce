package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/pacecar-go/pacecar"
)

func TestOptions(t *testing.T) {
	o, err := parseOptions(nil, nil)
	if err != nil || o.workers != 4 || o.concurrency != 4 || !slices.Equal(o.years, []int{2023, 2024, 2025}) ||
		o.tier != (tier{3, 30}) || o.outage != pacecar.FailClosed {
		t.Errorf("defaults: %+v, %v", o, err)
	}
	o, err = parseOptions(strings.Fields("-tier sponsor -years 2025,2023,2025 -chaos -fault 429,slow"), nil)
	if err != nil || o.tier.String() != "6/s, 60/m" || !slices.Equal(o.years, []int{2023, 2025}) ||
		o.outage != pacecar.FailOpen || !slices.Equal(o.faults, []string{"429", "slow"}) {
		t.Errorf("got %+v, %v", o, err)
	}
	o, err = parseOptions(strings.Fields("-chaos -outage closed"), nil)
	if err != nil || o.outage != pacecar.FailClosed {
		t.Errorf("got %+v, %v", o, err)
	}
	for arg, want := range map[string]string{"127.0.0.1:8080": "127.0.0.1:8080", ":0": "127.0.0.1:0", "0.0.0.0:80": "0.0.0.0:80"} {
		if o, err = parseOptions([]string{"-serve", arg}, nil); err != nil || o.serve != want {
			t.Errorf("-serve %s: %q, %v", arg, o.serve, err)
		}
	}
	o, err = parseOptions(strings.Fields("-upstream https://api.openf1.org/ -redis redis://:secret@127.0.0.1:6379/1"), nil)
	if err != nil || o.upstream != "https://api.openf1.org" {
		t.Errorf("got %+v, %v", o, err)
	}
}

func TestWrongOptions(t *testing.T) {
	for args, want := range map[string]string{
		"-workers 0":                  "-workers 0: must be from 1 to 64",
		"-workers many":               `invalid value "many"`,
		"-concurrency -1":             "-concurrency -1: must be from 1 to 64",
		"-years 2023,soon":            `"soon" is no season`,
		"-years 23":                   `"23" is no season`,
		"-tier gold":                  `-tier "gold": must be free or sponsor`,
		"-upstream api.openf1.org":    "-upstream: must begin with http:// or https://",
		"-upstream https://":          "-upstream: must begin with http:// or https://",
		"-upstream https://a.org/v1":  "-upstream: must be a scheme and a host alone",
		"-upstream https://u:p@a.org": "-upstream: must be a scheme and a host alone",
		"-redis redis://:secret@x:y/": "-redis: not a redis:// URL",
		"-fault 418":                  `-fault "418": must be a list of 429,503,text429,slow`,
		"-outage ajar":                `-outage "ajar": must be closed or open`,
		"-serve 8080":                 `-serve: "8080" must be host:port`,
		"-nonsense":                   "flag provided but not defined",
		"now":                         `unexpected argument "now"`,
		"-fault 429 -upstream https://api.openf1.org": "-fault is for the embedded stand-in",
		"-without -upstream https://api.openf1.org":   "-without is for the embedded stand-in",
		"-without -redis localhost:6379":              "-without needs no Redis",
		"-without -chaos":                             "-without needs no Redis",
		"-chaos -redis localhost:6379":                "-chaos kills the embedded Redis",
	} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), strings.Fields(args), &stdout, &stderr); code != 2 {
			t.Errorf("%s: exit code %d, want 2", args, code)
		}
		if got := stderr.String(); !strings.Contains(got, want) || strings.Contains(got, "secret") {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
		if strings.Count(stderr.String(), "\n") != 1 || stdout.Len() > 0 {
			t.Errorf("%s: more than a line: %q %q", args, stderr.String(), stdout.String())
		}
	}
}

func TestHelp(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"-h"}, &stdout, &stderr); code != 0 || !strings.Contains(stderr.String(), "-workers") {
		t.Errorf("exit code %d, %q", code, stderr.String())
	}
}
