// Package systemd holds the tests of Guestprobe as a service of systemd: the built binary and its notify protocol,
// sockets from systemd-socket-activate, the units in dist/systemd under systemd-analyze, and docs/systemd.md. It has no
// code of its own, and needs no systemd as process 1.
package systemd
