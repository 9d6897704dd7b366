// Package verdict decides what may be said about a VM: ready, live, started, and
// why. It is the table that puts the VM's state before its agent and its agent
// before its applications.
//
// Everything in it is pure. Decide turns facts into a Verdict, Damper keeps fast
// swaps from becoming fast verdicts with the time passed in, and Diff tells which
// changes are worth a record. It does not know how the facts were found, watches
// nothing, logs nothing and keeps no clock.
package verdict
