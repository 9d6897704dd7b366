package netprobe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"time"
)

const (
	// maxExpect is how many bytes a server may send before Expect must have matched.
	maxExpect = 4096
	// maxShown is how many of them a failure's text quotes.
	maxShown = 64
)

// A TCPSocket probe succeeds when a connection can be opened, as the kubelet's tcpSocket does
// (k8s v1.37.2 pkg/probe/tcp/tcp.go): nothing is sent or read, and a listener that never accepts
// is good enough. Send and Expect go beyond the kubelet and hold the server to its protocol.
type TCPSocket struct {
	// Host is a name or an IP address; an IPv6 address may carry a zone and needs no brackets.
	Host string
	// Port is the TCP port.
	Port int
	// Network restricts the address family: "tcp4", "tcp6", or "tcp" (the default) for both.
	Network string
	// Send is written once the connection stands.
	Send []byte
	// Expect must match within the first 4096 bytes that the server sends. It is tried whenever
	// more of them arrive, so a pattern that ends in $ may match what is not yet the end.
	Expect *regexp.Regexp
}

// Probe makes one attempt. Errors are of the package's types, never a *Warning.
func (t *TCPSocket) Probe(ctx context.Context) error {
	conn, err := dial(ctx, t.Network, hostPort(t.Host, t.Port))
	if err == nil {
		err = t.converse(ctx, conn)
		// The kubelet does not mind a close that fails either.
		_ = conn.Close()
	}
	var f *Failure
	switch {
	case err == nil:
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		return &Indeterminate{Err: context.Cause(ctx)}
	case errors.As(err, &f):
		return f
	default:
		return failure(causeOf(err), err.Error(), err)
	}
}

// converse sends and expects, as far as the probe asks for it.
func (t *TCPSocket) converse(ctx context.Context, conn net.Conn) error {
	if len(t.Send) == 0 && t.Expect == nil {
		return nil
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if len(t.Send) > 0 {
		if _, err := conn.Write(t.Send); err != nil {
			return err
		}
	}
	if t.Expect == nil {
		return nil
	}
	return t.expect(conn)
}

// expect reads until Expect matches or cannot match any more.
func (t *TCPSocket) expect(conn net.Conn) error {
	buf := make([]byte, maxExpect)
	n := 0
	for {
		more, err := conn.Read(buf[n:])
		n += more
		if more > 0 && t.Expect.Match(buf[:n]) {
			return nil
		}
		cause := CauseExpect
		switch {
		case err == nil && n < maxExpect:
			continue
		case n > 0: // it spoke, and not as expected
		case errors.Is(err, io.EOF):
			return failure(CauseClosed, fmt.Sprintf("connection closed without a byte, expected %q", t.Expect), err)
		case causeOf(err) == CauseTimeout:
			return failure(CauseSilent, fmt.Sprintf("no byte received, expected %q", t.Expect), err)
		default:
			return err
		}
		if causeOf(err) == CauseReset {
			cause = CauseReset
		}
		return failure(cause, fmt.Sprintf("expected %q, received %d bytes: %q", t.Expect, n, buf[:min(n, maxShown)]), err)
	}
}
