// Package vsock holds the test of the vsock transport with the real guest agent. It has no code of its own.
//
// Few machines have a vsock to a guest, and none is needed: inside the test guest the kernel's loopback (CID 1) carries
// AF_VSOCK sockets between its own processes. So the test has two halves. The one on the host builds this very test
// binary without cgo, puts it into a guest and runs it there; the one in the guest starts qemu-ga and is its client.
package vsock
