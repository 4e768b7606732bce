package pacecar

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Routes are the policies of [Config].Routes, by pattern. As data, in JSON or
// YAML, each pattern has an object of these fields, which are those of [Policy]:
//
//	rates      "3/s, 30/m"; required
//	name       text without "#"
//	keyHeader  a header field: Key is ByHeader of it
//	maxWait    a duration such as "1.5s" or "5m"
//	slack      a duration
//	lease      a whole number
//	reserve    a whole number
//	outage     "fail closed" or "fail open"
//	replicas   a whole number
//	maxPause   a duration
//	feedback   "anthropic", "azure", "discord", "github", "openai", "reddit" or "slack"
//
// A field left out has its default. Durations are those of [time.ParseDuration],
// with a unit. What a field means, and zero, is said at Policy; its Cost, other
// Keys and other Feedbacks are functions, to be set in the program. Fields that
// are unknown, given twice or given without a value are errors, as is all that
// [New] would refuse: what has been read without an error is fit for New. Errors
// name the route, the field and, where it is known, the line.
//
// JSON is read by [ReadRoutes], or by encoding/json as a part of something
// larger, where the line is not known. As text, say in an environment variable
// or a flag, Routes are JSON. YAML needs a library that calls an UnmarshalYAML
// method: tests cover gopkg.in/yaml.v3, go.yaml.in/yaml/v3 and v4, and
// github.com/goccy/go-yaml. With gopkg.in/yaml.v2 and sigs.k8s.io/yaml use
// UnmarshalStrict: their Unmarshal drops what is given twice; the latter knows
// no lines.
//
// Reading replaces all routes that were there before; on an error they stay.
type Routes map[string]Policy

// A dataField is a field of a policy that has a form as data.
type dataField struct {
	key string
	of  func(*Policy) any // a pointer to the field
}

// dataFields are in the order in which they are written. A key is the name of
// the field in Go with a small first letter, by which errors find it.
var dataFields = []dataField{
	{"rates", func(p *Policy) any { return &p.Rates }},
	{"name", func(p *Policy) any { return &p.Name }},
	{"keyHeader", func(p *Policy) any { return (*keyHeader)(&p.Key) }},
	{"maxWait", func(p *Policy) any { return &p.MaxWait }},
	{"slack", func(p *Policy) any { return &p.Slack }},
	{"lease", func(p *Policy) any { return &p.Lease }},
	{"reserve", func(p *Policy) any { return &p.Reserve }},
	{"outage", func(p *Policy) any { return &p.Outage }},
	{"replicas", func(p *Policy) any { return &p.Replicas }},
	{"maxPause", func(p *Policy) any { return &p.MaxPause }},
	{"feedback", func(p *Policy) any { return (*dialect)(&p.Feedback) }},
}

// dataKeys are the keys of dataFields.
func dataKeys() []string {
	keys := make([]string, len(dataFields))
	for i, f := range dataFields {
		keys[i] = f.key
	}
	return keys
}

// wantPolicy and wantRoutes say what should be there instead of another value.
const (
	wantPolicy = `want an object such as {"rates": "3/s"}, not %s`
	wantRoutes = "want an object of patterns and policies, not %s"
)

// maxRoutes bounds what is read: each route is checked against all others.
const maxRoutes = 4096

// routeData is a policy that was read, and not yet looked at.
type routeData struct {
	where   string // for errors
	pattern string
	fields  map[string]any

	// err says why there are no fields. badField is what it is about, if not all.
	err      error
	badField string

	// line tells where a field is, or the policy if field is empty or not there;
	// zero where that is not known.
	line func(field string) int
}

// fail adds to err where the policy is, or its field if there is one.
func (d *routeData) fail(field string, err error) error {
	if n := d.line(field); n > 0 {
		return fmt.Errorf("pacecar: line %d: %s: %w", n, d.where, err)
	}
	return fmt.Errorf("pacecar: %s: %w", d.where, err)
}

// invalid returns the error for what validate or the router says, which begins
// with the field that is wrong, if it is about one.
func (d *routeData) invalid(text string) error {
	field, what, _ := strings.Cut(text, ": ")
	for _, key := range dataKeys() {
		if field == strings.ToUpper(key[:1])+key[1:] {
			return d.fail(key, fmt.Errorf("%s: %s", key, what))
		}
	}
	return d.fail("", errors.New(text))
}

// apply sets those fields of p that there are.
func (d *routeData) apply(p *Policy) error {
	if d.err != nil {
		return d.fail(d.badField, d.err)
	}
	known := dataKeys()
	for _, key := range slices.Sorted(maps.Keys(d.fields)) {
		if !slices.Contains(known, key) {
			return d.fail(key, unknownField(key))
		}
	}
	for _, f := range dataFields {
		if value, ok := d.fields[f.key]; ok {
			if err := setField(f.of(p), value); err != nil {
				return d.fail(f.key, fmt.Errorf("%s: %w", f.key, err))
			}
		}
	}
	return nil
}

// read sets those fields of p that there are, and checks it. On an error p
// stays as it was.
func (d *routeData) read(p *Policy) error {
	set := *p
	if err := d.apply(&set); err != nil {
		return err
	}
	if err := set.validate(); err != nil {
		return d.invalid(err.Error())
	}
	*p = set
	return nil
}

// readRoutes turns data into routes, and checks them like [New].
func readRoutes(data []routeData) (Routes, error) {
	if len(data) > maxRoutes {
		return nil, fmt.Errorf("pacecar: Routes: %d of them, at most %d can be read", len(data), maxRoutes)
	}
	rs := make(Routes, len(data))
	for i := range data {
		var p Policy
		if err := data[i].apply(&p); err != nil {
			return nil, err
		}
		rs[data[i].pattern] = p
	}
	if _, err := newRouter(rs); err != nil {
		for i := range data {
			if what, ok := strings.CutPrefix(err.Error(), "pacecar: "+data[i].where+": "); ok {
				return nil, data[i].invalid(what)
			}
		}
		return nil, err
	}
	return rs, nil
}

// unknownField says what may be meant instead.
func unknownField(key string) error {
	if like := likeliest(key); like != "" {
		return fmt.Errorf("unknown field %s, did you mean %q?", quote(key), like)
	}
	if _, err := parseRates(key); err == nil {
		return fmt.Errorf("unknown field %s: in braces, YAML wants quotes around text with a comma", quote(key))
	}
	return fmt.Errorf("unknown field %s, want one of %s", quote(key), strings.Join(dataKeys(), ", "))
}

// A datum is one field of a policy as data.
type datum struct {
	key   string
	value any // text or an int
}

// data returns the fields that are not zero. Its error begins with the field.
func (p Policy) data() ([]datum, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	if p.Cost != nil {
		return nil, errors.New("Cost: a function has no form as data")
	}
	var list []datum
	for _, f := range dataFields {
		field := f.of(&p)
		if reflect.ValueOf(field).Elem().IsZero() {
			continue
		}
		value, err := fieldData(field)
		if err != nil {
			return nil, err
		}
		list = append(list, datum{f.key, value})
	}
	return list, nil
}
