package netprobe

import (
	"bufio"
	"errors"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestTCPCases(t *testing.T) {
	for set, c := range loadCases(t) {
		for _, tc := range c.TCP {
			t.Run(set+"/"+tc.Name, func(t *testing.T) {
				t.Parallel()
				timeout := time.Duration(tc.Timeout) * time.Millisecond
				if tc.Expect.Result == "success" {
					timeout = patience
				}
				err := tcpTarget(t, tc.Target).Probe(withTimeout(t, timeout))
				result, probeError, text := outcome(t, err)
				if result != tc.Expect.Result || probeError != tc.Expect.ProbeError {
					t.Fatalf("got %s, error %v (%v); want %s, error %v", result, probeError, err, tc.Expect.Result, tc.Expect.ProbeError)
				}
				if !strings.Contains(text, tc.Expect.Contains) {
					t.Errorf("output %q does not contain %q", text, tc.Expect.Contains)
				}
			})
		}
	}
}

// tcpTarget makes the probe for a case's target.
func tcpTarget(t *testing.T, target string) *TCPSocket {
	t.Helper()
	switch target {
	case "listening":
		p := &peer{}
		p.serveRaw(t, func(net.Conn, <-chan struct{}) {})
		return &TCPSocket{Host: p.host, Port: p.port}
	case "listen-no-accept":
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return &TCPSocket{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port}
	case "closed":
		return &TCPSocket{Host: "127.0.0.1", Port: closedPort(t)}
	case "port -1":
		return &TCPSocket{Host: "127.0.0.1", Port: -1}
	case "no-such-host.invalid:80":
		return &TCPSocket{Host: "no-such-host.invalid", Port: 80}
	}
	t.Fatalf("no target %q", target)
	return nil
}

func TestTCPExpect(t *testing.T) {
	ssh := regexp.MustCompile("^SSH-2.0")
	say := func(parts ...string) func(net.Conn, <-chan struct{}) {
		return func(c net.Conn, _ <-chan struct{}) {
			for _, s := range parts {
				io.WriteString(c, s)
			}
			c.(*net.TCPConn).CloseWrite()
			io.Copy(io.Discard, c)
		}
	}
	for name, tc := range map[string]struct {
		serve  func(net.Conn, <-chan struct{})
		send   string
		expect *regexp.Regexp
		cause  Cause
		text   string // "" means success
	}{
		"banner":   {say("SSH-2.0-OpenSSH_9.6\r\n"), "", ssh, 0, ""},
		"in parts": {say("SS", "H-", "2.0"), "", ssh, 0, ""},
		"held open after the banner": {func(c net.Conn, _ <-chan struct{}) {
			io.WriteString(c, "SSH-2.0-x\r\n")
			io.Copy(io.Discard, c)
		}, "", ssh, 0, ""},
		"sends first": {func(c net.Conn, _ <-chan struct{}) {
			line, _ := bufio.NewReader(c).ReadString('\n')
			io.WriteString(c, "+"+line)
		}, "PING\r\n", regexp.MustCompile(`^\+PING`), 0, ""},
		"sends alone": {say(), "PING\r\n", nil, 0, ""},
		"another protocol": {say("HTTP/1.1 400 Bad Request\r\n"), "", ssh, CauseExpect,
			`expected "^SSH-2.0", received 26 bytes: "HTTP/1.1 400 Bad Request\r\n"`},
		"closes": {say(), "", ssh, CauseClosed, `connection closed without a byte, expected "^SSH-2.0"`},
		"silent": {func(c net.Conn, _ <-chan struct{}) { io.Copy(io.Discard, c) }, "", ssh, CauseSilent,
			`no byte received, expected "^SSH-2.0"`},
		"too slow": {func(c net.Conn, _ <-chan struct{}) {
			io.WriteString(c, "SSH-")
			io.Copy(io.Discard, c)
		}, "", ssh, CauseExpect, `expected "^SSH-2.0", received 4 bytes: "SSH-"`},
		"endless": {func(c net.Conn, _ <-chan struct{}) {
			for {
				if _, err := io.WriteString(c, strings.Repeat("a", 1000)); err != nil {
					return
				}
			}
		}, "", regexp.MustCompile("b"), CauseExpect,
			`expected "b", received 4096 bytes: "` + strings.Repeat("a", maxShown) + `"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &peer{}
			p.serveRaw(t, tc.serve)
			probe := &TCPSocket{Host: p.host, Port: p.port, Send: []byte(tc.send), Expect: tc.expect}
			timeout := patience
			if name == "silent" || name == "too slow" {
				timeout = time.Second
			}
			checkFailure(t, probe.Probe(withTimeout(t, timeout)), tc.cause, tc.text)
		})
	}
	t.Run("reset", func(t *testing.T) {
		t.Parallel()
		p := &peer{}
		p.serveRaw(t, func(c net.Conn, _ <-chan struct{}) { reset(c) })
		var f *Failure
		err := (&TCPSocket{Host: p.host, Port: p.port, Expect: ssh}).Probe(withTimeout(t, patience))
		if !errors.As(err, &f) || f.Cause != CauseReset {
			t.Errorf("got %T %v, want a failure of cause Reset", err, err)
		}
	})
}

// reset closes c with a RST.
func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	c.Close()
}

func regexpAny() *regexp.Regexp { return regexp.MustCompile(".") }
