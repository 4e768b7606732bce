// Package tour has the programs that docs/start.md runs, and tests that hold
// the project's pages to what they say.
package tour
