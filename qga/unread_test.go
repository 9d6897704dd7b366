package qga_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/qga/qgatest"
)

// A channel that another client holds is told from an agent that hangs.
func TestSilenceOfAHeldChannel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	fake, err := qgatest.StartAgent(qgatest.AgentConfig{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer fake.Close()
	silence := func() error {
		agent, err := qga.NewAgent(qga.Addr{Scheme: "unix", Path: path}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := agent.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		defer running.Wait()
		defer stop()
		call, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		return agent.Ping(call)
	}

	holder, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	// The holder is served once it has its answer; whoever comes now waits.
	if _, err := holder.Write([]byte(`{"execute":"guest-ping"}` + "\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Read(make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
	if err := silence(); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, qga.ErrUnread) {
		t.Errorf("a held channel: %v, want a timeout that is ErrUnread", err)
	}
	holder.Close()
	fake.Stop()
	if err := silence(); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, qga.ErrUnread) {
		t.Errorf("an agent that hangs: %v, want a timeout that is not ErrUnread", err)
	}
}
