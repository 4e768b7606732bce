package pacecarotel

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/pacecar-go/pacecar"
)

// none is the attribute that is left out.
var none attribute.KeyValue

// attributes returns the route of an event, its key if that is asked for, and
// more.
func (o *Observer) attributes(e pacecar.Event, more ...attribute.KeyValue) []attribute.KeyValue {
	attrs := o.seriesOf(e.Route, e.Key).attributes(len(more))
	for _, a := range more {
		if a.Valid() {
			attrs = append(attrs, a)
		}
	}
	return attrs
}

// A series is what tells the metrics of one quota from those of others.
type series struct{ route, key string }

func (o *Observer) seriesOf(route, key string) series {
	if !o.perKey {
		key = ""
	}
	return series{route, key}
}

// attributes leaves room for more. An event of no route has none.
func (s series) attributes(more int) []attribute.KeyValue {
	attrs := make([]attribute.KeyValue, 0, 2+more)
	if s.route != "" {
		attrs = append(attrs, attribute.String("pacecar.route", s.route))
	}
	if s.key != "" {
		attrs = append(attrs, attribute.String("pacecar.key", s.key))
	}
	return attrs
}

func seconds(key attribute.Key, d time.Duration) attribute.KeyValue {
	return key.Float64(d.Seconds())
}

// positive is seconds, or none of what is not known.
func positive(key attribute.Key, d time.Duration) attribute.KeyValue {
	if d <= 0 {
		return none
	}
	return seconds(key, d)
}

// splitReason returns the status that an event's reason begins with, and the
// rest; none for what it does not say.
func splitReason(s string) (status, reason attribute.KeyValue) {
	first, rest, _ := strings.Cut(s, " ")
	if code, err := strconv.Atoi(first); err == nil && code >= 100 && code <= 999 {
		status, s = semconv.HTTPResponseStatusCode(code), rest
	}
	if s != "" {
		reason = attribute.String("pacecar.reason", s)
	}
	return status, reason
}

// refusalType is the error.type of a refusal. Its values are those of
// pacecarprom's label reason, but for OpenTelemetry's own for all others.
func refusalType(err error) string {
	switch {
	case errors.Is(err, pacecar.ErrWaitTooLong):
		return "wait_too_long"
	case errors.Is(err, pacecar.ErrUnavailable): // may wrap a timeout
		return "unavailable"
	case errors.Is(err, pacecar.ErrCostTooHigh):
		return "cost_too_high"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	return semconv.ErrorTypeOther.Value.AsString()
}

// retryType is the error.type of an attempt that failed: the status, or of an
// error what kind it is of. A status that is no failure has none: only the
// caller's Check wanted another attempt.
func retryType(status attribute.KeyValue, err error) attribute.KeyValue {
	if status.Valid() {
		code := status.Value.AsInt64()
		if code < 400 {
			return none
		}
		return semconv.ErrorTypeKey.String(strconv.FormatInt(code, 10))
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return semconv.ErrorTypeKey.String("timeout")
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return semconv.ErrorTypeKey.String("dns")
	}
	op, ok := errors.AsType[*net.OpError](err)
	switch {
	case ok && op.Op == "dial":
		return semconv.ErrorTypeKey.String("connect")
	case ok, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return semconv.ErrorTypeKey.String("connection")
	}
	return semconv.ErrorTypeOther
}

func outageName(o pacecar.Outage) string { return strings.ReplaceAll(o.String(), " ", "_") }
