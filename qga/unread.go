package qga

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// unread reports whether a local peer has left unread what we sent. QEMU reads
// a channel as long as the guest has its end open; so nobody has taken our
// connection, because a character device serves one client and has another one,
// or the guest's end is closed. It is false where the kernel cannot tell.
func unread(conn net.Conn) bool {
	if _, local := conn.(*net.UnixConn); !local {
		return false
	}
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return false
	}
	var queued int
	var failed error
	err = raw.Control(func(fd uintptr) { queued, failed = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return err == nil && failed == nil && queued > 0
}
