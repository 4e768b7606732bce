package pacecar

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"unicode/utf8"
)

// maxRoutesData is the most that ReadRoutes reads.
const maxRoutesData = 1 << 20

// ReadRoutes reads routes from r, which must hold one JSON object and nothing
// else, of at most 1 MiB and 4096 routes. [Routes] says what form it has, and
// what is checked; that needs neither Redis nor a network. Errors name the line.
func ReadRoutes(r io.Reader) (Routes, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxRoutesData+1))
	if err != nil {
		return nil, fmt.Errorf("pacecar: Routes: %w", err)
	}
	if len(data) > maxRoutesData {
		return nil, fmt.Errorf("pacecar: Routes: more than %d bytes", maxRoutesData)
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff")) // as some editors write it
	return parseRoutes(data, func(offset int) int { return 1 + bytes.Count(data[:offset], []byte("\n")) })
}

// UnmarshalText implements [encoding.TextUnmarshaler]. The text is what
// [ReadRoutes] reads; empty text is an error.
func (rs *Routes) UnmarshalText(text []byte) error {
	read, err := ReadRoutes(bytes.NewReader(text))
	if err != nil {
		return err
	}
	*rs = read
	return nil
}

// UnmarshalJSON implements [json.Unmarshaler]. It does nothing for null.
func (rs *Routes) UnmarshalJSON(data []byte) error {
	if isNull(data) {
		return nil
	}
	read, err := parseRoutes(data, noLine)
	if err != nil {
		return err
	}
	*rs = read
	return nil
}

// UnmarshalJSON implements [json.Unmarshaler]. The form is that of a policy in
// [Routes], and so is what is checked. Fields that are left out keep their
// values; on an error all do. It does nothing for null.
func (p *Policy) UnmarshalJSON(data []byte) error {
	if isNull(data) {
		return nil
	}
	if _, err := checkJSON(data); err != nil {
		return fmt.Errorf("pacecar: Policy: %w", err)
	}
	d := jsonPolicy("Policy", jsonMember{value: data}, noLine)
	return d.read(p)
}

// noLine is for data that is a part of something: its lines would mislead.
func noLine(int) int { return 0 }

func isNull(data []byte) bool { return string(bytes.TrimSpace(data)) == "null" }

// MarshalText implements [encoding.TextMarshaler], with the JSON that
// UnmarshalText reads. No routes are an error.
func (rs Routes) MarshalText() ([]byte, error) {
	if err := rs.writable(); err != nil {
		return nil, err
	}
	return rs.MarshalJSON()
}

// MarshalJSON implements [json.Marshaler]. What it writes can be read again and
// means the same; what cannot is an error: functions, but for those of [ByHeader]
// and the dialects of this package, and all that [New] would refuse. No routes are null.
func (rs Routes) MarshalJSON() ([]byte, error) {
	if len(rs) == 0 {
		return []byte("null"), nil
	}
	if err := rs.writable(); err != nil {
		return nil, err
	}
	var list []datum
	for _, pattern := range slices.Sorted(maps.Keys(rs)) {
		list = append(list, datum{pattern, rs[pattern]})
	}
	return marshalObject(list)
}

// MarshalJSON implements [json.Marshaler], as that of [Routes] does.
func (p Policy) MarshalJSON() ([]byte, error) {
	list, err := p.data()
	if err != nil {
		return nil, fmt.Errorf("pacecar: Policy: %w", err)
	}
	return marshalObject(list)
}

// writable returns an error if rs could not be read back.
func (rs Routes) writable() error {
	if _, err := newRouter(rs); err != nil {
		return err
	}
	if len(rs) > maxRoutes {
		return fmt.Errorf("pacecar: Routes: %d of them, at most %d can be read", len(rs), maxRoutes)
	}
	for _, pattern := range slices.Sorted(maps.Keys(rs)) {
		_, err := rs[pattern].data()
		if !utf8.ValidString(pattern) {
			err = errors.New("the pattern is not in UTF-8")
		}
		if err != nil {
			return fmt.Errorf("pacecar: Routes[%q]: %w", pattern, err)
		}
	}
	return nil
}

func marshalObject(list []datum) ([]byte, error) {
	b := []byte("{")
	for i, d := range list {
		key, err := json.Marshal(d.key)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(d.value)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, key...)
		b = append(b, ':')
		b = append(b, value...)
	}
	return append(b, '}'), nil
}

// parseRoutes reads an object of routes. line turns an offset in data into a
// line, or zero.
func parseRoutes(data []byte, line func(offset int) int) (Routes, error) {
	offset, err := checkJSON(data)
	members, ok := readObject(data)
	if err == nil && !ok {
		err = fmt.Errorf(wantRoutes, describe(readValue(data)))
	}
	if err != nil {
		d := routeData{where: "Routes", line: func(string) int { return line(offset) }}
		return nil, d.fail("", err)
	}
	list := make([]routeData, len(members))
	first := make(map[string]int, len(members))
	for i, m := range members {
		list[i] = jsonPolicy(fmt.Sprintf("Routes[%q]", m.key), m, line)
		if at, again := first[m.key]; again {
			return nil, list[i].fail("", givenTwice(line(at)))
		}
		first[m.key] = m.at
	}
	return readRoutes(list)
}

// jsonPolicy looks at the fields of a policy.
func jsonPolicy(where string, m jsonMember, line func(offset int) int) routeData {
	d := routeData{where: where, pattern: m.key, fields: make(map[string]any)}
	places := make(map[string]int)
	d.line = func(field string) int {
		if at, ok := places[field]; ok {
			return line(at)
		}
		return line(m.at)
	}
	members, ok := readObject(m.value)
	if !ok {
		d.err = fmt.Errorf(wantPolicy, describe(readValue(m.value)))
	}
	for _, f := range members {
		at, again := places[f.key]
		places[f.key] = m.start + f.at
		if again {
			d.err, d.badField = fmt.Errorf("field %s %w", quote(f.key), givenTwice(line(at))), f.key
			break
		}
		d.fields[f.key] = readValue(f.value)
	}
	return d
}

func givenTwice(first int) error {
	if first > 0 {
		return fmt.Errorf("is given twice, first on line %d", first)
	}
	return errors.New("is given twice")
}

// checkJSON returns an error if data is not one JSON value, and its offset.
func checkJSON(data []byte) (offset int, err error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return 0, errors.New("no data, want a JSON object")
	}
	for offset < len(data) {
		r, size := utf8.DecodeRune(data[offset:])
		if r == utf8.RuneError && size == 1 {
			return offset, errors.New("not in UTF-8")
		}
		offset += size
	}
	var value json.RawMessage
	err = json.Unmarshal(data, &value)
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return max(0, int(e.Offset)-1), fmt.Errorf("not JSON: %w", err)
	}
	return 0, err
}

// A jsonMember is one of a JSON object.
type jsonMember struct {
	key   string
	at    int // the offset of its end
	value json.RawMessage
	start int // the offset of value
}

// readObject returns the members of an object in their order, the repeated too.
// ok is false for another value. data must be valid.
func readObject(data []byte) (members []jsonMember, ok bool) {
	dec := json.NewDecoder(bytes.NewReader(data))
	if token, err := dec.Token(); err != nil || token != json.Delim('{') {
		return nil, false
	}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, false
		}
		m := jsonMember{at: int(dec.InputOffset())}
		m.key, _ = token.(string)
		if err := dec.Decode(&m.value); err != nil {
			return nil, false
		}
		m.start = int(dec.InputOffset()) - len(m.value)
		members = append(members, m)
	}
	return members, true
}

// readValue decodes a valid value, and keeps numbers as they are written.
func readValue(data []byte) any {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var value any
	_ = dec.Decode(&value) // valid, so there is no error
	return value
}
