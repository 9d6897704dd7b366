// Package states brings a real QEMU into each state that it can be brought into on this machine, and a real guest
// agent into each of its conditions, and holds a built guestprobe to what docs/verdicts.md says of them. Live
// migration is test/migration's subject, and the walk through a VM's everyday troubles is test/e2e's.
package states
