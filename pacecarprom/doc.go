// Package pacecarprom shows in Prometheus what pacecar does: who waits and for
// how long, what is refused and why, 429s and pauses, outages of Redis, and who
// uses the quota.
//
//	m := pacecarprom.New(pacecarprom.Options{})
//	t, err := pacecar.New(pacecar.Config{Observe: m.Observe /* and the rest */})
//	m.Watch(t)
//	prometheus.MustRegister(m)
//
// Both halves are needed. Counters and the histogram of waits come from events,
// by Observe; gauges, and the counters for which there is no event, come from
// Stats, which is asked at each scrape, by Watch.
//
// # Labels
//
// A series has the route of its quota, which takes as many values as there are
// routes, and never the key, unless [Options].PerKey asks for it. Of the keys
// of one route, counts are added and of times the longest is shown.
//
// # Counters from Stats
//
// Stats counts from zero again after a key was forgotten as unused. What is
// exported never goes back: each scrape adds what is new. Where a Transport has
// more than 64 keys, and so forgets any, what one of them counted after the
// last scrape before it was forgotten is missing. That concerns round trips,
// slots given back and requests without Redis; the other counters are exact.
//
// dashboard.json is a dashboard for Grafana, and alerts.yml has alert rules.
package pacecarprom
