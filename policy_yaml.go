package pacecar

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
)

// The libraries for YAML call these methods without being imported here. None
// of them says on which line a value is, but their errors do. So where a line is
// wanted, for an error, something is decoded that must fail.

// UnmarshalYAML is called by libraries for YAML; [Routes] says by which. An
// empty document or value leaves rs as it was, without a call.
func (rs *Routes) UnmarshalYAML(unmarshal func(any) error) error {
	var policies map[string]yamlPolicy
	if err := unmarshal(&policies); err != nil {
		line, text := yamlError(unmarshal, err, wantRoutes)
		d := routeData{where: "Routes", line: func(string) int { return line }}
		return d.fail("", text)
	}
	list := make([]routeData, 0, len(policies))
	for _, pattern := range slices.Sorted(maps.Keys(policies)) {
		y := policies[pattern]
		d := y.data(fmt.Sprintf("Routes[%q]", pattern), func() int { return keyLine(unmarshal, pattern) })
		d.pattern = pattern
		list = append(list, d)
	}
	read, err := readRoutes(list)
	if err != nil {
		return err
	}
	*rs = read
	return nil
}

// UnmarshalYAML is for YAML what UnmarshalJSON is for JSON.
func (p *Policy) UnmarshalYAML(unmarshal func(any) error) error {
	var y yamlPolicy
	_ = y.UnmarshalYAML(unmarshal) // its error is y's
	d := y.data("Policy", func() int { return valueLine(unmarshal) })
	return d.read(p)
}

// MarshalYAML is called by libraries for YAML. Its errors are those of
// MarshalJSON.
func (rs Routes) MarshalYAML() (any, error) {
	if len(rs) == 0 {
		return nil, nil
	}
	if err := rs.writable(); err != nil {
		return nil, err
	}
	policies := make(map[string]any, len(rs))
	for pattern, p := range rs {
		policy, err := p.MarshalYAML()
		if err != nil {
			return nil, err
		}
		policies[pattern] = policy
	}
	return policies, nil
}

// MarshalYAML is called by libraries for YAML. Its errors are those of
// MarshalJSON.
func (p Policy) MarshalYAML() (any, error) {
	list, err := p.data()
	if err != nil {
		return nil, fmt.Errorf("pacecar: Policy: %w", err)
	}
	fields := make(map[string]any, len(list))
	for _, d := range list {
		fields[d.key] = d.value
	}
	return fields, nil
}

// A yamlPolicy is a policy that was read, or the reason why not. It stays zero
// for null, for which UnmarshalYAML is not called.
type yamlPolicy struct {
	unmarshal func(any) error
	fields    map[string]any
	err       error
	line      int // of err
}

// UnmarshalYAML returns no error, so that it is told by who knows the pattern.
func (y *yamlPolicy) UnmarshalYAML(unmarshal func(any) error) error {
	y.unmarshal = unmarshal
	if err := unmarshal(&y.fields); err != nil {
		y.line, y.err = yamlError(unmarshal, err, wantPolicy)
	}
	return nil
}

// data returns y for errors that begin with where. line is that of the policy.
func (y *yamlPolicy) data(where string, line func() int) routeData {
	d := routeData{where: where, fields: y.fields, err: y.err}
	if y.unmarshal == nil {
		d.err = fmt.Errorf(wantPolicy, describe(nil))
	}
	d.line = func(field string) int {
		if y.err != nil {
			return y.line
		}
		if field != "" {
			if n := keyLine(y.unmarshal, field); n > 0 {
				return n
			}
		}
		return line()
	}
	return d
}

// yamlError returns what to say where a library could not decode an object. Its
// own error names the line; where that is zero the text has it.
func yamlError(unmarshal func(any) error, err error, want string) (line int, text error) {
	text = errors.New(err.Error()) // libraries change their errors as they go on
	var value any
	if unmarshal(&value) != nil || value != nil && reflect.TypeOf(value).Kind() == reflect.Map {
		return 0, text
	}
	return errorLine(text), fmt.Errorf(want, describe(value))
}

// linePattern matches the first line that the error of a library names.
var linePattern = regexp.MustCompile(`\b(?:line|at) (\d+)|\[(\d+):\d+\]`)

func errorLine(err error) int {
	if err == nil {
		return 0
	}
	m := linePattern.FindStringSubmatch(err.Error())
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1] + m[2])
	return n
}

// valueLine returns the line of a value, or zero.
func valueLine(unmarshal func(any) error) int {
	var no chan int
	return errorLine(unmarshal(&no))
}

// keyLine returns the line of a key in an object, or zero.
func keyLine(unmarshal func(any) error, key string) int {
	var keys map[yamlKey]any
	if unmarshal(&keys) != nil {
		return 0
	}
	line := 0
	for k := range keys {
		if k.text == key {
			line = max(line, k.line) // a key merged from an anchor comes before
		}
	}
	return line
}

// A yamlKey is the key of an object, and its line.
type yamlKey struct {
	text string
	line int
}

func (k *yamlKey) UnmarshalYAML(unmarshal func(any) error) error {
	k.line = valueLine(unmarshal)
	return unmarshal(&k.text)
}
