package netprobe

import (
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// closedPort returns a loopback port that refuses connections until the test ends: it is bound,
// so that nobody else can have it, and nobody listens.
func closedPort(t testing.TB) int {
	t.Helper()
	port, _ := reservePort(t)
	return port
}

// reservePort is closedPort with a way to listen on the port after all.
func reservePort(t testing.TB) (port int, listen func() net.Listener) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "reserved port")
	t.Cleanup(func() { f.Close() })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	addr, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return addr.(*syscall.SockaddrInet4).Port, func() net.Listener {
		if err := syscall.Listen(fd, 16); err != nil {
			t.Error(err)
		}
		l, err := net.FileListener(f)
		if err != nil {
			t.Error(err)
		}
		return l
	}
}

// fullQueue returns a loopback port whose accept queue is full, so that a further connection
// attempt gets no answer at all, as from a host that drops packets.
func fullQueue(t testing.TB) int {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	addr, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := addr.(*syscall.SockaddrInet4).Port
	for range 64 { // until an attempt hangs
		conn, err := net.DialTimeout("tcp", hostPort("127.0.0.1", port), 100*time.Millisecond)
		if err != nil {
			return port
		}
		t.Cleanup(func() { conn.Close() })
	}
	t.Skip("the accept queue never fills here")
	return 0
}
