package pacecar

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// setField sets what field points to, to a value as encoding/json or a YAML
// library decodes it into an any.
func setField(field, value any) (err error) {
	if value == nil {
		return errors.New("no value; leave the field out for its default")
	}
	switch field := field.(type) {
	case *int:
		*field, err = wholeNumber(value)
		return err
	case *time.Duration:
		*field, err = parseDuration(value)
		return err
	}
	text, ok := value.(string)
	if !ok {
		return fmt.Errorf("want text in quotes, not %s", describe(value))
	}
	switch field := field.(type) {
	case *string:
		*field = text
	case *Rates:
		*field, err = parseRates(text)
	case *Outage:
		*field, err = parseOutage(text)
	case *keyHeader:
		*field, err = parseKeyHeader(text)
	case *dialect:
		*field, err = parseDialect(text)
	default:
		err = fmt.Errorf("a %T cannot be read", field)
	}
	return err
}

// fieldData is the inverse of setField, for the fields of a valid policy.
func fieldData(field any) (any, error) {
	switch field := field.(type) {
	case *int:
		return *field, nil
	case *string:
		return *field, nil
	case *time.Duration:
		return formatDuration(*field), nil
	case encoding.TextMarshaler:
		text, err := field.MarshalText()
		return string(text), err
	}
	return nil, fmt.Errorf("a %T cannot be written", field)
}

func wholeNumber(value any) (int, error) {
	text := describe(value)
	n, err := strconv.Atoi(text)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("%s is out of range", text)
	case err != nil:
		return 0, fmt.Errorf("want a whole number, not %s", text)
	}
	return n, nil
}

func parseDuration(value any) (time.Duration, error) {
	text, ok := value.(string)
	if isNumber(value) || ok && isDigits(text) {
		return 0, fmt.Errorf(`%s has no unit, want a duration such as "5s"`, describe(value))
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf(`want a duration such as "1.5s" or "5m", not %s`, describe(value))
	}
	return d, nil
}

// formatDuration is the inverse of parseDuration: "5m", not "5m0s".
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func isNumber(value any) bool {
	if _, ok := value.(json.Number); ok {
		return true
	}
	v := reflect.ValueOf(value)
	return v.CanInt() || v.CanUint() || v.CanFloat()
}

// describe shows a value, short enough for an error.
func describe(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case string:
		return quote(v)
	case time.Time:
		return "a date"
	}
	switch reflect.TypeOf(value).Kind() {
	case reflect.Map:
		return "an object"
	case reflect.Slice:
		return "a list"
	}
	s := fmt.Sprint(value)
	if len(s) > 40 {
		s = s[:40] + "..."
	}
	return s
}

// likeliest returns the field that was probably meant by key, or "".
func likeliest(key string) string {
	plain := func(s string) string {
		return strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(s))
	}
	if key = plain(key); len(key) < 3 || len(key) > 20 {
		return ""
	}
	best, least := "", 3
	for _, f := range dataKeys() {
		d := editDistance(key, plain(f))
		if strings.HasPrefix(plain(f), key) {
			d = min(d, 1)
		}
		if d < least {
			best, least = f, d
		}
	}
	return best
}

// editDistance counts the bytes to insert, delete or replace to make a of b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := diagonal
			if a[i] != b[j] {
				d = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], d
		}
	}
	return row[len(b)]
}

// MarshalText implements [encoding.TextMarshaler]: "fail closed" or "fail
// open". Another value is an error.
func (o Outage) MarshalText() ([]byte, error) {
	if o != FailClosed && o != FailOpen {
		return nil, fmt.Errorf("pacecar: outage: unknown value %d", int(o))
	}
	return []byte(o.String()), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler]. It reads what
// MarshalText writes, also with "-" or "_" for the blank. On an error o stays
// as it was.
func (o *Outage) UnmarshalText(text []byte) error {
	parsed, err := parseOutage(string(text))
	if err != nil {
		return fmt.Errorf("pacecar: outage: %w", err)
	}
	*o = parsed
	return nil
}

func parseOutage(s string) (Outage, error) {
	switch s {
	case "fail closed", "fail-closed", "fail_closed":
		return FailClosed, nil
	case "fail open", "fail-open", "fail_open":
		return FailOpen, nil
	}
	return 0, fmt.Errorf(`want "fail closed" or "fail open", not %s`, quote(s))
}

// A keyHeader is a Policy.Key that was made by ByHeader.
type keyHeader func(*http.Request) string

// MarshalText returns the header's name.
func (k keyHeader) MarshalText() ([]byte, error) {
	if reflect.ValueOf(k).Pointer() != reflect.ValueOf(ByHeader("")).Pointer() {
		return nil, errors.New("Key: a function has no form as data, unless it is one of ByHeader")
	}
	name := k(whichHeader)
	if _, err := parseKeyHeader(name); err != nil {
		return nil, fmt.Errorf("Key: %w", err)
	}
	return []byte(name), nil
}

func parseKeyHeader(name string) (keyHeader, error) {
	valid := func(c rune) bool { // a tchar of RFC 9110 §5.6.2
		return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", c)
	}
	if name == "" || strings.ContainsFunc(name, func(c rune) bool { return !valid(c) }) {
		return nil, fmt.Errorf("want the name of a header field, not %s", quote(name))
	}
	return ByHeader(name), nil
}

// A dialect is a Policy.Feedback that has a name.
type dialect func(*http.Response) (time.Duration, bool)

var dialects = []struct {
	name string
	dialect
}{
	{"anthropic", Anthropic},
	{"azure", Azure},
	{"discord", Discord},
	{"github", GitHub},
	{"openai", OpenAI},
	{"reddit", Reddit},
	{"slack", Slack},
}

// MarshalText returns the dialect's name.
func (d dialect) MarshalText() ([]byte, error) {
	for _, known := range dialects {
		if reflect.ValueOf(d).Pointer() == reflect.ValueOf(known.dialect).Pointer() {
			return []byte(known.name), nil
		}
	}
	return nil, errors.New("Feedback: a function has no form as data, unless it is one of this package")
}

func parseDialect(name string) (dialect, error) {
	var names []string
	for _, known := range dialects {
		if known.name == name {
			return known.dialect, nil
		}
		names = append(names, known.name)
	}
	return nil, fmt.Errorf("want one of %s, not %s", strings.Join(names, ", "), quote(name))
}
