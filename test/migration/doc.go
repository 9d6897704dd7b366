// Package migration migrates a running guest between QEMUs of this machine, with one built guestprobe beside each
// of them, and holds both to what a Service relies on: never two sides ready, no liveness failure, and no answer taken
// for another's. What each state of a VM means is test/states' subject.
package migration
