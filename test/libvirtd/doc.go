// Package libvirtd runs a private libvirt daemon for a test, and in it a domain with the test guest. It judges nothing:
// what a test expects of the two is the test's.
//
// The daemon runs as an unprivileged user in session mode, with all that it writes in a temporary folder, so that it
// meets no other libvirt on the machine. Where libvirt cannot be had, New skips the test and says why; with CI=true it
// fails it instead. Daemon and domain end with the test, also when the test binary is killed.
package libvirtd
