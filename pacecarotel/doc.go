// Package pacecarotel gives pacecar OpenTelemetry metrics, and events on the
// spans of requests:
//
//	o, err := pacecarotel.New(pacecarotel.Options{})
//	t, err := pacecar.New(pacecar.Config{Routes: routes, Observe: o.Observe})
//	o.Watch(t)
//
// Events make the histogram of waits, the counters of what happened, and the
// span events. What cannot be told as an event (who waits now, calls to Redis,
// pauses under way) is read from Stats at each collection.
//
// Names and units are those of OpenTelemetry's semantic conventions where they
// have any: error.type, http.response.status_code, http.request.resend_count,
// seconds. All others begin with "pacecar.". Every attribute has few values,
// unless [Options.PerKey] is set, and none is secret: no URL, header, body or text
// of an error. README.md lists them all.
package pacecarotel
