package guest

import (
	"context"
	"errors"
	"net"
	"testing"
)

// A Line is the serial line to a test guest whose QEMU another program runs, such as libvirt's daemon. The guest's
// second serial port must lead to it. Its methods are for one goroutine, the test's, and fail the test.
type Line struct {
	t testing.TB
	c *console
}

// NewLine takes a connection to the guest's second serial port over. It must be made before the guest boots.
func NewLine(t testing.TB, conn net.Conn) *Line {
	l := &Line{t: t, c: newConsole(conn)}
	t.Cleanup(l.c.close)
	return l
}

func (l *Line) context() (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(l.t.Context(), patience, errors.New("patience ran out"))
}

// Use makes what fails from here on fail t.
func (l *Line) Use(t testing.TB) { l.t = t }

// WaitBoots waits until the guest has come up n times on this line.
func (l *Line) WaitBoots(n int) {
	l.t.Helper()
	ctx, cancel := l.context()
	defer cancel()
	if err := l.c.await(ctx, n); err != nil {
		l.t.Fatal(err)
	}
}

// Run runs one line of shell inside the guest and returns what it printed; a status other than 0 fails the test.
func (l *Line) Run(command string) string {
	l.t.Helper()
	ctx, cancel := l.context()
	defer cancel()
	out, err := l.c.run(ctx, command)
	if err != nil {
		l.t.Fatalf("in the guest: %v", err)
	}
	return out
}

// Send gives the guest one line of shell and does not wait for its end: for what the guest does not survive.
func (l *Line) Send(command string) {
	l.t.Helper()
	if _, err := l.c.send(command); err != nil {
		l.t.Fatalf("in the guest: %v", err)
	}
}
