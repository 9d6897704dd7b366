// Command guestd is the application inside the test guest: a web server on port 1500, which speaks gRPC's health
// protocol too, the same over HTTPS on port 1543, and an SSH-like banner on port 22. It is built into the guest's
// initramfs and does nothing about the guest agent, which is Debian's own.
//
// /healthz answers with the status in the file given by -code, read at each request, so that the host steers it with
// a plain echo into that file. /requests tells how often /healthz was asked since the start, and with which headers
// the last time.
package main
