// Package imports holds the tests that keep the module's shape: who may import what, a doc.go in every package, and
// no state in package variables. It has no code of its own and leaves formatting and correctness to gofmt, vet and
// staticcheck.
package imports
