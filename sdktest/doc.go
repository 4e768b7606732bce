// Package sdktest puts pacecar under the real clients of well-known APIs,
// against a local server. It holds tests alone, and is a module of its own so
// that their dependencies are not the library's.
//
// What they show for each client is in docs/sdks.md: how to plug in, how to turn
// off the client's own retries, and what it makes of a refusal.
package sdktest
