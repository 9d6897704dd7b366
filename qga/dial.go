package qga

import (
	"context"
	"fmt"
	"net"
	"path"
	"strings"

	"github.com/mdlayher/vsock"
)

// dialer returns how to open a stream to addr. It is the only switch over the
// kinds of stream.
func dialer(addr Addr) (func(context.Context) (net.Conn, error), error) {
	switch addr.Scheme {
	case "unix":
		return func(ctx context.Context) (net.Conn, error) {
			if isLibvirtsChannel(addr.Path) {
				return nil, ErrLibvirtsChannel
			}
			var d net.Dialer
			return d.DialContext(ctx, "unix", addr.Path)
		}, nil
	case "vsock":
		return func(ctx context.Context) (net.Conn, error) {
			// Not Dial: that one cannot be cancelled, and a CID without a
			// guest answers only after the kernel's own two seconds.
			conn, err := vsock.DialContext(ctx, addr.CID, addr.Port, nil)
			if err != nil {
				return nil, err // a nil *vsock.Conn must not become a net.Conn
			}
			return conn, nil
		}, nil
	}
	return nil, fmt.Errorf("address %s: %s is no stream", addr, addr.Scheme)
}

// isLibvirtsChannel tells the guest agent's channel in a folder of libvirt's, which libvirt is a client of: on a host
// /var/lib/libvirt/qemu/channel/target/domain-1-vm/org.qemu.guest_agent.0, and its likes in a session and in KubeVirt.
func isLibvirtsChannel(name string) bool {
	return path.Base(name) == agentPortName && strings.Contains(name, "/libvirt/qemu/")
}
