// Package e2e holds the end-to-end tests: the built guestprobe binary against a real QEMU with a real guest agent and
// a real web server in it, through what breaks in practice. It has no code of its own and tests no package from inside.
package e2e
