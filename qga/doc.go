// Package qga speaks to one virtual machine: to its QEMU guest agent and to
// its QEMU monitor, over unix sockets, vsock or libvirt.
//
// It reports facts and holds no policy. Whether an unreachable agent means
// "not ready", how often to ask and how many misses count is decided by
// others; so are metrics. It never starts a guest, and it never opens a
// channel that another client holds: a QEMU character device serves one client
// at a time (qemu-10.0 chardev/char-socket.c).
//
// # The guest agent
//
// The agent sends no greeting and no events. What makes a client hard is that
// a virtio-serial channel has no sessions: replies to an earlier client, half
// lines and a half-parsed request survive a reconnect on the host. So an
// [Agent] proves that it is in step with a byte 0xFF and guest-sync-delimited
// under a random token before it trusts a reply, on each new connection and
// after each exchange that got no answer; in between, each command carries an
// id of its own. After a timeout the connection stays open and is read on: the
// late token is the recovery.
//
// # Errors
//
// "The peer cannot be reached" ([ErrNotConnected], [ErrConnectionLost]), "the
// peer is silent" (context.DeadlineExceeded), "the peer talks nonsense"
// ([ErrProtocol]) and "the peer said no" ([*Error], which proves it alive) are
// different things, and errors.Is and errors.As tell them apart.
package qga
