// Package daemon runs the built program as a user does, `guestprobe run` in a process of its own, and reads what it
// answers. It knows no VM and expects nothing: what the daemon must say is the test's.
package daemon
