package qga

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseAddr(t *testing.T) {
	tests := []struct {
		in   string
		want Addr
		err  string // part of the error, after the address
	}{
		{in: "unix:/run/vm/agent.sock", want: Addr{Scheme: "unix", Path: "/run/vm/agent.sock"}},
		{in: "unix:agent.sock", want: Addr{Scheme: "unix", Path: "agent.sock"}},
		{in: "unix:@agent", want: Addr{Scheme: "unix", Path: "@agent"}},
		{in: "unix:/a:b?c=d", want: Addr{Scheme: "unix", Path: "/a:b?c=d"}},
		{in: "vsock:3:1024", want: Addr{Scheme: "vsock", CID: 3, Port: 1024}},
		{in: "libvirt:default_vm", want: Addr{Scheme: "libvirt", Domain: "default_vm"}},
		{in: "libvirt:vm?socket=/run/virtqemud-sock", want: Addr{Scheme: "libvirt", Domain: "vm", Socket: "/run/virtqemud-sock"}},

		{in: "", err: "no scheme; write unix:PATH, vsock:CID:PORT or libvirt:DOMAIN"},
		{in: "agent", err: "no scheme"},
		{in: "/run/agent.sock", err: "no scheme; write unix:/run/agent.sock for a unix socket"},
		{in: "tcp:1.2.3.4:5", err: `unknown scheme "tcp"; use unix, vsock or libvirt`},
		{in: "unix:", err: "no socket path; write unix:PATH"},
		{in: "unix:/" + strings.Repeat("x", 107), err: "socket path of 108 bytes, the system takes 107"},
		{in: "unix:/a\nb", err: "control character at byte 7; remove it"},
		{in: "vsock:3", err: "no port; write vsock:CID:PORT, such as vsock:3:1024"},
		{in: "vsock:x:1", err: `CID "x" is not a number from 0 to 4294967294`},
		{in: "vsock:4294967295:1", err: `CID "4294967295" is not a number`},
		{in: "vsock:3:", err: `port "" is not a number`},
		{in: "vsock:3:1:2", err: `port "1:2" is not a number`},
		{in: "libvirt:", err: "no domain"},
		{in: "libvirt:vm?sock=/x", err: `unknown option "sock=/x"; write libvirt:DOMAIN or libvirt:DOMAIN?socket=PATH`},
		{in: "libvirt:vm?socket=", err: "no socket path"},
	}
	for _, tt := range tests {
		got, err := ParseAddr(tt.in)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) || !strings.HasPrefix(err.Error(), "address ") {
				t.Errorf("ParseAddr(%q) error = %v, want one with %q", tt.in, err, tt.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("ParseAddr(%q): %v", tt.in, err)
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("ParseAddr(%q) (-want +got):\n%s", tt.in, diff)
		}
		if got.String() != tt.in {
			t.Errorf("ParseAddr(%q).String() = %q", tt.in, got.String())
		}
	}
}

// What is accepted must print as an address that means the same.
func FuzzParseAddr(f *testing.F) {
	for _, s := range []string{"unix:/a", "vsock:03:1", "libvirt:vm?socket=/s", "libvirt:?", "unix", "x:y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseAddr(s)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r\x00") {
				t.Errorf("ParseAddr(%q): error of several lines: %q", s, err)
			}
			return
		}
		again, err := ParseAddr(a.String())
		if err != nil || again != a {
			t.Errorf("ParseAddr(%q) = %#v; its string %q gives %#v, %v", s, a, a.String(), again, err)
		}
	})
}
