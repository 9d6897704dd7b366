// Package qgatest is a simulated virtual machine that speaks bytes on real
// sockets: a QEMU guest agent, a QEMU monitor, and peers that misbehave by
// script. It is for tests and demonstrations of clients.
//
// It does not run guest code, and it imitates QEMU only as far as a client can
// tell over these sockets. It needs no *testing.T and reports by errors.
package qgatest
