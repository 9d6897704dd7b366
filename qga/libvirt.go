package qga

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"
)

// A libvirtConn is one open connection to libvirt's daemon. go-libvirt's calls
// know no context and no deadline; call gives them both.
type libvirtConn struct {
	rpc   *libvirt.Libvirt
	guard *libvirtGuard

	mu      sync.Mutex
	closing bool
	spawned sync.WaitGroup
}

// openLibvirt connects to the daemon and opens its QEMU driver, until ctx
// ends. All its errors match ErrDaemon.
func openLibvirt(ctx context.Context, dial func(context.Context) (net.Conn, error)) (*libvirtConn, error) {
	var first error
	for attempt := range 2 {
		nc, err := dial(ctx)
		if err != nil {
			return nil, fmt.Errorf("%w: %w: %w", ErrDaemon, ErrNotConnected, err)
		}
		uris := libvirtURIs(nc)
		c, err := openURI(ctx, nc, uris[attempt])
		if err == nil {
			return c, nil
		}
		if first == nil {
			first = fmt.Errorf("%s: %w", uris[attempt], err)
		}
		if code, _, ok := refused(err); !ok || code == libvirt.ErrAuthFailed {
			break
		}
	}
	if _, _, ok := refused(first); ok {
		return nil, daemonError(first)
	}
	return nil, fmt.Errorf("%w: %w", ErrDaemon, first)
}

// libvirtURIs returns the two drivers a daemon may have, the likelier first: a
// daemon run by root has the system's, any other that user's session. Who runs
// it, the kernel tells; where it cannot, our own user id decides.
func libvirtURIs(nc net.Conn) [2]libvirt.ConnectURI {
	uid := os.Getuid()
	if sc, ok := nc.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				if cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
					uid = int(cred.Uid)
				}
			})
		}
	}
	if uid == 0 {
		return [2]libvirt.ConnectURI{libvirt.QEMUSystem, libvirt.QEMUSession}
	}
	return [2]libvirt.ConnectURI{libvirt.QEMUSession, libvirt.QEMUSystem}
}

func openURI(ctx context.Context, nc net.Conn, uri libvirt.ConnectURI) (*libvirtConn, error) {
	guard := newLibvirtGuard(nc)
	c := &libvirtConn{rpc: libvirt.NewWithDialer(dialers.NewAlreadyConnected(guard)), guard: guard}
	err := c.call(ctx, func(rpc *libvirt.Libvirt) error {
		defer guard.release()
		return rpc.ConnectToURI(uri)
	})
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// close ends the connection, without a word to the daemon that might hang, and
// waits for what spawn started.
func (c *libvirtConn) close() {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	c.guard.end()
	<-c.guard.done
	c.spawned.Wait()
}

// spawn starts f, which must end when the connection does: every call of
// go-libvirt does. It reports false, and does nothing, if the connection is
// being closed.
func (c *libvirtConn) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closing {
		c.spawned.Go(f)
	}
	return !c.closing
}

// call runs one or more calls of go-libvirt. If ctx ends first, call ends the
// connection: nothing else makes go-libvirt give a call up. An answer that
// says no is a libvirt.Error.
func (c *libvirtConn) call(ctx context.Context, f func(*libvirt.Libvirt) error) error {
	done := make(chan error, 1)
	go func() { done <- f(c.rpc) }() // joined below
	select {
	case err := <-done:
		return c.explain(err)
	case <-ctx.Done():
	}
	c.guard.end()
	if err := <-done; err == nil {
		return nil // both at once
	}
	return fmt.Errorf("libvirt's daemon does not answer: %w", ctx.Err())
}

// explain replaces go-libvirt's errors for a lost connection, which do not say
// why it was lost. An answer of the daemon stays.
func (c *libvirtConn) explain(err error) error {
	if _, _, ok := refused(err); ok {
		return err
	}
	if errors.Is(err, libvirt.ErrInterrupted) || errors.Is(err, syscall.EINVAL) {
		<-c.guard.done
	}
	if cause := c.guard.cause(); err != nil && cause != nil {
		return cause
	}
	return err
}

// domain looks the domain up, by its name or else by its UUID.
func (c *libvirtConn) domain(rpc *libvirt.Libvirt, name string) (libvirt.Domain, error) {
	dom, err := rpc.DomainLookupByName(name)
	if err != nil && libvirt.IsNotFound(err) {
		if uuid, ok := parseUUID(name); ok {
			return rpc.DomainLookupByUUID(uuid)
		}
	}
	return dom, err
}

// parseUUID reads the usual form, 36 characters with four dashes.
func parseUUID(s string) (u libvirt.UUID, ok bool) {
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(s) != 36 || len(b) != len(u) {
		return u, false
	}
	return libvirt.UUID(b), true
}

// libvirtDialer returns how to reach the daemon of addr.
func libvirtDialer(addr Addr) func(context.Context) (net.Conn, error) {
	paths := []string{addr.Socket}
	if addr.Socket == "" {
		paths = libvirtSockets(os.Getuid(), os.Getenv("XDG_RUNTIME_DIR"))
	}
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		var failure error
		for _, path := range paths {
			nc, err := d.DialContext(ctx, "unix", path)
			if err == nil {
				return nc, nil
			}
			// What is there and cannot be used says more than what is not there.
			if failure == nil || errors.Is(failure, fs.ErrNotExist) && !errors.Is(err, fs.ErrNotExist) {
				failure = err
			}
		}
		return nil, failure
	}
}

// libvirtSockets returns where the daemon of the QEMU driver, or the one for
// all drivers, is found (libvirt 9.0 src/remote/remote_sockets.c): a user's
// own first, then the system's, which is also where KubeVirt puts its own.
func libvirtSockets(uid int, runtimeDir string) []string {
	var dirs []string
	if uid != 0 && runtimeDir != "" {
		dirs = append(dirs, filepath.Join(runtimeDir, "libvirt"))
	}
	if len(dirs) == 0 || dirs[0] != "/var/run/libvirt" {
		dirs = append(dirs, "/var/run/libvirt")
	}
	var paths []string
	for _, dir := range dirs {
		paths = append(paths, filepath.Join(dir, "virtqemud-sock"), filepath.Join(dir, "libvirt-sock"))
	}
	return paths
}
