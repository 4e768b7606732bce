// Package pacecar holds the HTTP clients of a whole fleet of processes to one
// quota, and uses nearly all of it.
//
// A [Transport] is an [net/http.RoundTripper]. Set as the transport of an
// http.Client in every process, it takes a slot for each request, retries
// included, from a quota that the processes share through Redis, and waits
// exactly until then:
//
//	http.Client
//	    Transport        which quota, whose turn, what the answer says
//	        retry loop   another attempt, another slot
//	            Limiter  one for each quota: a queue, and a bucket of slots
//	                Redis   the window: one script call books for all who wait
//	        Base         http.DefaultTransport
//
// # The model
//
// A quota has a key, its name in Redis, and one or more rates, say "3/s, 30/m":
// at most 3 requests in any second and at most 30 in any minute. A slot is a
// time at which one request may leave. Redis books slots ahead, in the order in
// which they are asked for, over all processes: nobody polls and nobody
// starves. A booking fits every rate, or is refused and charged to none.
//
// Slots are times on a clock that the key has of its own. When an upstream
// answers 429 with Retry-After, that clock is stopped: everybody who waits, in
// every process, keeps order and distance, and nothing leaves all at once when
// it goes on.
//
// # What holds
//
// In no window of a rate, wherever it begins, do more than Limit requests leave,
// as long as each leaves within the policy's slack after its slot; one that
// leaves later is reported, and those behind it keep their distance. The clocks
// of the processes do not matter. That of Redis may go back; when it jumps
// ahead, as on a failover to a server whose clock differs, a window is cut short
// by the jump.
//
// # What does not
//
// What the upstream counts is arrivals: a network that delays some requests by
// more than the slack, and others not, can bring one too many into a window.
// Where Base does not tell of its connections, what it sends again by itself on
// another has no slot of its own. A process that stands still between taking its slot and sending
// is late without knowing. What holds while Redis is away is written at
// [FailOpen], and in docs/outages.md.
//
// All types are safe for concurrent use, but for a configuration while it is
// being filled in.
package pacecar
