package qga

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
)

// What is no libvirt daemon must not hurt: go-libvirt alone would panic on
// some of these, and hang on others.
func TestLibvirtGarbage(t *testing.T) {
	header := func(words ...uint32) []byte {
		var w xdrWriter
		for _, v := range words {
			w.u32(v)
		}
		return w.Bytes()
	}
	for _, tt := range []struct {
		name string
		say  []byte
		want error
	}{
		{"a web server", []byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"), ErrProtocol},
		{"a QEMU monitor", []byte(`{"QMP": {"version": {"qemu": {}}, "capabilities": []}}` + "\r\n"), ErrProtocol},
		{"a length less than its header", header(4, 0x20008086, 1, 66, 1, 1, 0), ErrProtocol},
		{"a length of 4 GiB", header(1<<32-1, 0x20008086, 1, 66, 1, 1, 0), ErrTooLarge},
		{"half a header", header(28, 0x20008086), ErrConnectionLost},
		{"half a packet", header(64, 0x20008086, 1, 66, 1, 1, 0), ErrConnectionLost},
		{"nothing", nil, ErrConnectionLost},
		{"a reply without its content", header(28, 0x20008086, 1, 66, 1, 1, 0), ErrDaemon},
		{"an error without its content", header(28, 0x20008086, 1, 66, 1, 1, 1), ErrDaemon},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "sock")
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				nc, err := l.Accept()
				if err != nil {
					return
				}
				defer nc.Close()
				_, _ = nc.Read(make([]byte, 1024))
				_, _ = nc.Write(tt.say)
			}()
			ctx, cancel := context.WithTimeout(t.Context(), plenty)
			defer cancel()
			c, err := openLibvirt(ctx, libvirtDialer(Addr{Scheme: "libvirt", Domain: "vm", Socket: path}))
			if err == nil {
				c.close()
				t.Fatal("opened")
			}
			if !errors.Is(err, tt.want) || !errors.Is(err, ErrDaemon) || ctx.Err() != nil {
				t.Errorf("error %v, want %q", err, tt.want)
			}
			l.Close()
			<-done
		})
	}
}

// Replies that nobody awaits, twice the same, and packets of other programs.
func TestLibvirtStrayPackets(t *testing.T) {
	f := runningFake(t, obedient)
	f.set(func(f *fakeLibvirt) {
		f.intercept = func(c *fakeLibvirtConn, call libvirtFakeCall) bool {
			c.send(call.proc, 1, 4711, 0, nil)
			c.send(procEventLifecycle, 2, 0, 0, []byte{1, 2, 3})
			c.send(procEventLifecycle, 2, 0, 0, nil)
			if call.proc == procLibVersion || call.proc == procLookupByName {
				f.wg.Go(func() {
					f.answer(c, call)
					c.reply(call, []byte{9, 9, 9, 9})
				})
				return true
			}
			return false
		}
	})
	a := runLibvirtAgent(t, f.addr(), nil)
	for range 20 {
		if err := pingWithin(a, plenty); err != nil {
			t.Fatal(err)
		}
	}
}

// A daemon of a user has the session's driver alone, and says so.
func TestLibvirtOpensTheOtherDriver(t *testing.T) {
	for _, accepts := range []string{"qemu:///system", "qemu:///session"} {
		f := runningFake(t, obedient)
		f.set(func(f *fakeLibvirt) {
			f.intercept = func(c *fakeLibvirtConn, call libvirtFakeCall) bool {
				if call.proc != procOpen {
					return false
				}
				call.payload.u32()
				if uri := call.payload.str(); uri != accepts {
					c.refuse(call, libvirt.Error{Code: 1, Message: "internal error: unexpected qemu URI path, try " + accepts})
					return true
				}
				return false
			}
		})
		if err := pingWithin(runLibvirtAgent(t, f.addr(), nil), plenty); err != nil {
			t.Errorf("%s: %v", accepts, err)
		}
	}
}

func TestLibvirtRefusesToOpen(t *testing.T) {
	f := runningFake(t, obedient)
	f.set(func(f *fakeLibvirt) {
		f.intercept = func(c *fakeLibvirtConn, call libvirtFakeCall) bool {
			if call.proc == procOpen {
				c.refuse(call, libvirt.Error{Code: 45, Message: "authentication failed: access denied by policy"})
			}
			return call.proc == procOpen
		}
	})
	err := pingWithin(runLibvirtAgent(t, f.addr(), nil), time.Second)
	if !errors.Is(err, ErrDaemon) || !errors.Is(err, ErrNotConnected) || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("error %v", err)
	}
}

func TestLibvirtSockets(t *testing.T) {
	for _, tt := range []struct {
		uid  int
		dir  string
		want string
	}{
		{0, "/run/user/0", "/var/run/libvirt/virtqemud-sock /var/run/libvirt/libvirt-sock"},
		{107, "", "/var/run/libvirt/virtqemud-sock /var/run/libvirt/libvirt-sock"},
		{107, "/var/run", "/var/run/libvirt/virtqemud-sock /var/run/libvirt/libvirt-sock"},
		{1000, "/run/user/1000", "/run/user/1000/libvirt/virtqemud-sock /run/user/1000/libvirt/libvirt-sock " +
			"/var/run/libvirt/virtqemud-sock /var/run/libvirt/libvirt-sock"},
	} {
		if got := strings.Join(libvirtSockets(tt.uid, tt.dir), " "); got != tt.want {
			t.Errorf("uid %d, %q: %s", tt.uid, tt.dir, got)
		}
	}
}
