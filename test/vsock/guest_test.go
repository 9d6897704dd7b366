package vsock_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/qga"
)

const (
	agentAddr = "vsock:1:1024"   // CID 1 is the loopback
	limit     = 30 * time.Second // for what must happen; the guest is slow
	atOnce    = 2 * time.Second  // for what needs no time to speak of
)

// TestInGuest is the half that runs inside the guest.
func TestInGuest(t *testing.T) {
	args := strings.Fields(os.Getenv(inGuest))
	if len(args) == 0 {
		t.Skip("TestVsock runs this inside a guest")
	}
	if err := os.MkdirAll("/run/qemu-ga-vsock", 0o755); err != nil { // as the unit's RuntimeDirectory
		t.Fatal(err)
	}
	addr, err := qga.ParseAddr(agentAddr)
	if err != nil {
		t.Fatal(err)
	}
	agent, err := qga.NewAgent(addr, &qga.AgentConfig{MaxBackoff: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- agent.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	ping := func(limit time.Duration) (time.Duration, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		start := time.Now()
		err := agent.Ping(ctx)
		return time.Since(start).Round(time.Millisecond), err
	}
	awaitPing := func(t *testing.T) {
		t.Helper()
		for end := time.Now().Add(limit); ; {
			took, err := ping(atOnce)
			if err == nil {
				t.Logf("answered in %v", took)
				return
			}
			if time.Now().After(end) {
				t.Fatalf("no answer in %v: %v", limit, err)
			}
		}
	}

	var qemuGA *exec.Cmd
	start := func(t *testing.T) {
		t.Helper()
		qemuGA = exec.Command("/sbin/qemu-ga", args...)
		if err := qemuGA.Start(); err != nil {
			t.Fatal(err)
		}
	}
	end := func(t *testing.T) {
		t.Helper()
		if err := qemuGA.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = qemuGA.Wait() // killed
	}
	refused := func(t *testing.T) {
		t.Helper()
		took, err := ping(limit)
		if !errors.Is(err, qga.ErrNotConnected) && !errors.Is(err, qga.ErrConnectionLost) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if took > atOnce {
			t.Errorf("it took %v to be refused", took)
		}
		t.Logf("after %v: %v", took, err)
	}

	for _, step := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"agent down", func(t *testing.T) {
			for range 3 {
				refused(t)
			}
			_, err := ping(limit)
			if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("the kernel's own reason is lost: %v", err)
			}
		}},
		{"agent up", func(t *testing.T) {
			start(t)
			awaitPing(t)
			info, err := agent.Info(ctx)
			if err != nil || !info.Enabled("guest-ping") {
				t.Errorf("%v, %+v", err, info)
			}
			_, err = agent.Exec(ctx, qga.ExecRequest{Path: "/bin/echo"})
			if !errors.Is(err, qga.ErrUnsupported) {
				t.Errorf("the unit blocks guest-exec, and here: %v", err)
			}
		}},
		{"agent hung", func(t *testing.T) {
			signal(t, qemuGA, syscall.SIGSTOP)
			took, err := ping(time.Second)
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, qga.ErrNotConnected) {
				t.Errorf("error %v", err)
			}
			t.Logf("after %v: %v", took, err)
		}},
		{"agent goes on", func(t *testing.T) {
			before := agent.Stats()
			signal(t, qemuGA, syscall.SIGCONT)
			awaitPing(t)
			if after := agent.Stats(); after.Connects != before.Connects {
				t.Errorf("the connection was not kept: %+v", after)
			}
		}},
		{"agent killed", func(t *testing.T) {
			end(t)
			refused(t)
		}},
		{"agent started again", func(t *testing.T) {
			before := agent.Stats()
			start(t)
			awaitPing(t)
			if after := agent.Stats(); after.Connects == before.Connects {
				t.Errorf("a new agent on the old connection: %+v", after)
			}
			end(t)
		}},
		{"nobody at the CID", func(t *testing.T) {
			nobody, err := qga.NewAgent(qga.Addr{Scheme: "vsock", CID: 77, Port: 1024}, nil)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(ctx)
			done := make(chan error, 1)
			go func() { done <- nobody.Run(ctx) }()
			callCtx, stop := context.WithTimeout(ctx, limit)
			defer stop()
			if err := nobody.Ping(callCtx); !errors.Is(err, qga.ErrNotConnected) {
				t.Errorf("error %v", err)
			} else {
				t.Log(err)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}},
	} {
		if !t.Run(step.name, step.run) {
			t.FailNow()
		}
	}
}

func signal(t *testing.T, cmd *exec.Cmd, sig syscall.Signal) {
	t.Helper()
	if err := cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}
