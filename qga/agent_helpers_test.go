package qga

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/qga/qgatest"
)

// runAgent returns a client of the agent at addr that runs until the test ends.
func runAgent(t testing.TB, addr string, cfg *AgentConfig) *Agent {
	t.Helper()
	parsed, err := ParseAddr(addr)
	if err != nil {
		t.Fatal(err)
	}
	agent, err := NewAgent(parsed, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- agent.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return agent
}

// fakeAgent starts a simulated agent that runs until the test ends.
func fakeAgent(t testing.TB, cfg qgatest.AgentConfig) *qgatest.Agent {
	t.Helper()
	if cfg.Path == "" && cfg.Listener == nil {
		cfg.Path = filepath.Join(socketDir(t), "qga.sock")
	}
	fake, err := qgatest.StartAgent(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fake.Close() })
	return fake
}

// socketDir returns a folder whose name is short enough for a socket in it,
// which that of t.TempDir is not always.
func socketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "qga")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// within returns a context for one call.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

const (
	long  = 20 * time.Second       // for what must succeed
	mid   = time.Second            // for what must get somewhere before it falls silent, on a busy machine as well
	short = 100 * time.Millisecond // for what gets nowhere
)

func wantSilence(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrNotConnected) {
		t.Fatalf("error = %v, want silence", err)
	}
}

func rawClient(t *testing.T, fake *qgatest.Agent) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", strings.TrimPrefix(fake.Addr(), "unix:"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := fake.WaitHost(within(t, long), true); err != nil {
		t.Fatal(err)
	}
	return conn
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := conn.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// serveScript plays a script to all clients until the test ends.
func serveScript(t *testing.T, script qgatest.Script) (addr string) {
	t.Helper()
	path := filepath.Join(socketDir(t), "qga.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- qgatest.ServeScript(l, script) }()
	t.Cleanup(func() {
		l.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "unix:" + path
}
