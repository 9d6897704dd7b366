// Package daemon runs the built program as a user does, `guestprobe run` in a process of its own, and reads what it
// answers. What it must answer is the test's to say, and what becomes of the VM is test/guest's.
package daemon
