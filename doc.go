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
// Slots are times on a clock that the key has of its own, which can be stopped:
// everybody who waits, in every process, then keeps order and distance.
//
// What counts is when a request leaves. A request enters Base a little before
// its slot, so that its connection is ready, and is held there until the slot.
//
// # Routes
//
// [Config].Routes maps patterns of [net/http.ServeMux] to policies; the most
// specific one has the request. A pattern with a host is one quota. One without
// a host, such as "/", is a quota for each host. Routes of one [Policy].Name
// share a quota, Key splits it, for each tenant say, and Cost weighs requests. A
// request that matches nothing passes unlimited. [ReadRoutes] reads routes from
// JSON, and [Routes] can be part of a JSON or YAML file.
//
// For calls that are not HTTP requests there is [NewLimiter].
//
// # Waiting, and refusals
//
// A request waits as long as its context lives; [Policy].MaxWait makes that
// shorter. http.Client.Timeout covers the wait, too. When the slot is further
// away, the request is refused at once, with an [Error], and nothing is charged.
// [errors.Is] tells why: [ErrWaitTooLong], the context's own error,
// [ErrUnavailable] while Redis is away, or [ErrCostTooHigh]. With
// [Config].Refuse429 what time would let pass is a made-up response instead, for
// SDKs that try again after every error.
//
// # Retries
//
// What the upstream refused for its rate is sent again, and so is what may have
// failed by chance, if the method is idempotent or has an Idempotency-Key: three
// times, each with a slot of its own. A body is sent again only if the request
// has GetBody. [Retry] has the numbers, and Check to decide otherwise. When
// they are used up, the last response is the result, whole. Two layers that
// retry multiply: turn off those of an SDK above.
//
// # Pauses
//
// When the upstream answers 429 or 503 with a Retry-After, or says in other
// ways that nothing is left, the key's clock is stopped for as long, in all
// processes, for those already waiting too; nothing leaves all at once when it
// goes on. [Policy].MaxPause is the most. A wait longer than Retry.MaxRetryAfter
// is not waited for: the caller gets the response at once, and the others wait.
// [Policy].Feedback reads what upstreams say in their own words: see [GitHub]
// and its siblings.
//
// # Outages
//
// Every call to Redis is bounded by [Config].RedisTimeout; after one that failed
// nobody waits for Redis, but for the first request after ten idle seconds. Then
// [FailClosed], the default, refuses requests, and [FailOpen] goes on with this
// process's share of the quota. When Redis is back, it is told what was sent. If
// it has forgotten what was booked, the processes tell it what they remember, and
// what they cannot know counts as used. What holds exactly is in docs/outages.md.
//
// # Changing limits
//
// [Transport.SetPolicy] changes a policy in one process. [Admin.SetRates], and
// the command pacecar, store rates for the whole fleet: they win over those in
// the processes, from one booking to the next. What is booked stays booked. An
// Admin also shows, pauses, resumes and resets quotas, from outside of the fleet.
//
// # Background work
//
// [Background] marks the requests of a backfill. Under a policy with a Reserve
// they leave so many slots free, and never stand in line before others.
//
// # Seeing it
//
// [Config].Observe is called with each [Event]: who waited and for how long, what
// was refused and why, pauses, outages. [Config].Logger tells the same in words,
// and [Transport.Stats] is how things stand. None of them holds a URL, a header
// or a body. The modules pacecarprom and pacecarotel beside this one make metrics
// and traces of them. [Event].Route is a label with few values, Key one without
// a bound.
//
// # Testing
//
// With [Config].Redis nil a quota is in memory, for one Transport alone: no server
// is needed, and in a bubble of [testing/synctest], with a Base that needs no
// network, waits take no time.
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
// another has no slot of its own. A process that stands still between taking its
// slot and sending is late without knowing, and so is a request that has its HTTP/2
// connection and waits for a stream ([net/http.HTTP2Config]'s
// StrictMaxConcurrentRequests).
//
// All types are safe for concurrent use, but for a configuration while it is
// being filled in.
package pacecar
