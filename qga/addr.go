package qga

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// An Addr names the channel to a guest agent or to a QEMU monitor.
type Addr struct {
	// Scheme is "unix", "vsock" or "libvirt", and says which of the other
	// fields count.
	Scheme string
	// Path is the unix socket's path. One that begins with @ is in Linux'
	// abstract namespace.
	Path string
	// CID and Port are those of the guest, for vsock.
	CID, Port uint32
	// Domain is libvirt's name of the virtual machine, and Socket the unix
	// socket of its daemon; empty: the usual places.
	Domain, Socket string
}

// maxUnixPath is what fits into sun_path on Linux, with its final NUL
// (unix(7)). The kernel's own answer is a bare "invalid argument".
const maxUnixPath = 107

// vsockAny is VMADDR_CID_ANY and VMADDR_PORT_ANY: to listen on, not to dial.
const vsockAny = 1<<32 - 1

// ParseAddr reads unix:PATH, vsock:CID:PORT or libvirt:DOMAIN[?socket=PATH].
// Nothing is escaped or expanded. The error names the address and what to
// write instead.
func ParseAddr(s string) (Addr, error) {
	a, err := parseAddr(s)
	if err != nil {
		return Addr{}, fmt.Errorf("address %q: %w", s, err)
	}
	return a, nil
}

func parseAddr(s string) (Addr, error) {
	if i := strings.IndexFunc(s, unicode.IsControl); i >= 0 {
		return Addr{}, fmt.Errorf("control character at byte %d; remove it", i)
	}
	scheme, rest, ok := strings.Cut(s, ":")
	if !ok {
		if strings.Contains(s, "/") {
			return Addr{}, fmt.Errorf("no scheme; write unix:%s for a unix socket", s)
		}
		return Addr{}, errors.New("no scheme; write unix:PATH, vsock:CID:PORT or libvirt:DOMAIN")
	}
	switch scheme {
	case "unix":
		if err := checkSocketPath(rest); err != nil {
			return Addr{}, fmt.Errorf("%w; write unix:PATH, such as unix:/run/vm/agent.sock", err)
		}
		return Addr{Scheme: scheme, Path: rest}, nil
	case "vsock":
		return parseVsock(rest)
	case "libvirt":
		return parseLibvirt(rest)
	}
	return Addr{}, fmt.Errorf("unknown scheme %q; use unix, vsock or libvirt", scheme)
}

func checkSocketPath(path string) error {
	switch {
	case path == "":
		return errors.New("no socket path")
	case len(path) > maxUnixPath:
		return fmt.Errorf("socket path of %d bytes, the system takes %d", len(path), maxUnixPath)
	}
	return nil
}

func parseVsock(s string) (Addr, error) {
	const form = "write vsock:CID:PORT, such as vsock:3:1024"
	cid, port, ok := strings.Cut(s, ":")
	if !ok {
		return Addr{}, fmt.Errorf("no port; %s", form)
	}
	c, err := strconv.ParseUint(cid, 10, 32)
	if err != nil || c == vsockAny {
		return Addr{}, fmt.Errorf("CID %q is not a number from 0 to %d; %s", cid, uint32(vsockAny-1), form)
	}
	p, err := strconv.ParseUint(port, 10, 32)
	if err != nil || p == vsockAny {
		return Addr{}, fmt.Errorf("port %q is not a number from 0 to %d; %s", port, uint32(vsockAny-1), form)
	}
	return Addr{Scheme: "vsock", CID: uint32(c), Port: uint32(p)}, nil
}

func parseLibvirt(s string) (Addr, error) {
	const form = "write libvirt:DOMAIN or libvirt:DOMAIN?socket=PATH"
	domain, query, hasQuery := strings.Cut(s, "?")
	if domain == "" {
		return Addr{}, fmt.Errorf("no domain; %s", form)
	}
	a := Addr{Scheme: "libvirt", Domain: domain}
	if !hasQuery {
		return a, nil
	}
	socket, ok := strings.CutPrefix(query, "socket=")
	if !ok {
		return Addr{}, fmt.Errorf("unknown option %q; %s", query, form)
	}
	if err := checkSocketPath(socket); err != nil {
		return Addr{}, fmt.Errorf("%w; %s", err, form)
	}
	a.Socket = socket
	return a, nil
}

// String returns the address in the form that ParseAddr reads.
func (a Addr) String() string {
	switch a.Scheme {
	case "unix":
		return "unix:" + a.Path
	case "vsock":
		return fmt.Sprintf("vsock:%d:%d", a.CID, a.Port)
	case "libvirt":
		if a.Socket != "" {
			return "libvirt:" + a.Domain + "?socket=" + a.Socket
		}
		return "libvirt:" + a.Domain
	}
	return a.Scheme
}
