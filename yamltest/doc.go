// Package yamltest has only tests: that routes are read and written by the
// common libraries for YAML and for the environment, of which pacecar itself
// imports none.
package yamltest
