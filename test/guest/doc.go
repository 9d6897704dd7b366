// Package guest runs a real virtual machine for a test: QEMU, a small Linux guest with Debian's guest agent in it, and
// the handles to make that guest fail on demand. It judges nothing: what a test expects of the machine is the test's.
//
// The machine has two monitors, one for the program under test and one that this package keeps for itself, because a
// QEMU socket serves one client at a time. The guest itself is steered over a serial line, so that neither the agent
// nor the network has to work for that.
//
// Where QEMU or the guest's image cannot be had, Start skips the test and says why; with CI=true it fails it instead.
// Processes end with the test, also when the test binary is killed.
package guest
