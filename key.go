package pacecar

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// digest stands for a text that is too long or too secret to be written out.
func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:16])
}

// maxName is the longest key that is written out in Redis.
const maxName = 200

// redisName makes a key fit for a hash tag: short, and without braces, blanks
// or control characters.
func redisName(key string) string {
	if len(key) > maxName {
		key = key[:maxName/2] + "~" + digest(key)
	}
	out := make([]byte, 0, len(key))
	for i := range len(key) {
		switch c := key[i]; {
		case c <= ' ' || c == '{' || c == '}' || c == '%' || c == 0x7f:
			out = append(out, '%')
			if c < 0x10 {
				out = append(out, '0')
			}
			out = strconv.AppendUint(out, uint64(c), 16)
		default:
			out = append(out, c)
		}
	}
	return string(out)
}

// ByHeader returns a function for [Policy].Key that splits a route's quota by the
// values of a header field, say "Authorization". It returns a hash (the first
// half of SHA-256, in hex), so that a secret never reaches Redis, a log or a
// metric. The hash is not salted, so that all processes agree: whoever sees it
// can confirm a guess, and a value of few possibilities can be found by trying
// them all. Requests without the field share one quota.
//
//go:noinline
func ByHeader(name string) func(*http.Request) string { // not inlined: its results are known by their code
	name = http.CanonicalHeaderKey(name)
	return func(req *http.Request) string {
		if req == whichHeader {
			return name
		}
		values := req.Header[name]
		if name == "Host" && req.Host != "" {
			values = []string{req.Host} // net/http keeps it apart
		}
		if len(values) == 0 {
			return ""
		}
		return digest(strings.Join(values, "\x00"))
	}
}

// whichHeader is the request that asks a result of ByHeader for its header.
var whichHeader = new(http.Request)

// printable returns s, or its digest where s is no name to show: over maxName
// bytes, not in UTF-8, or with control characters.
func printable(s string) string {
	if len(s) > maxName || !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
		return digest(s)
	}
	return s
}
