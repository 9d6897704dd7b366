package qga_test

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/qga/qgatest"
)

// startFallback runs an agent over two fake ones.
func startFallback(t *testing.T, log *slog.Logger) (ctx context.Context, agent *qga.Agent, direct, other *qgatest.Agent) {
	t.Helper()
	dir := t.TempDir()
	start := func(name string) (*qgatest.Agent, *qga.Agent) {
		path := filepath.Join(dir, name)
		fake, err := qgatest.StartAgent(qgatest.AgentConfig{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { fake.Close() })
		addr, err := qga.ParseAddr("unix:" + path)
		if err != nil {
			t.Fatal(err)
		}
		client, err := qga.NewAgent(addr, nil)
		if err != nil {
			t.Fatal(err)
		}
		return fake, client
	}
	direct, directClient := start("direct")
	other, otherClient := start("other")
	agent = qga.WithFallback(directClient, otherClient, log)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := agent.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	return ctx, agent, direct, other
}

// awaitWay waits until the direct way or the fallback is in use.
func awaitWay(t *testing.T, agent *qga.Agent, fallback bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for agent.Stats().Fallback != fallback {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("fallback in use: %v, want %v", !fallback, fallback)
		}
	}
}

// The direct channel is used while an agent answers on it, and no call fails because none does.
func TestFallback(t *testing.T) {
	ctx, agent, directFake, _ := startFallback(t, nil)
	directFake.Stop()

	ping := func() {
		t.Helper()
		call, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		for {
			err := agent.Ping(call)
			if err == nil {
				return
			}
			if call.Err() != nil {
				t.Fatalf("Ping: %v", err)
			}
		}
	}
	ping()
	awaitWay(t, agent, true)
	directFake.Continue()
	awaitWay(t, agent, false)
	ping()
	directFake.Stop()
	call, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	_ = agent.Ping(call) // the call that meets the silence is lost
	cancel()
	awaitWay(t, agent, true)
	ping()
}

// What the monitor tells of the direct channel is acted on at once: no call is lost to an agent that has ended, and none
// goes astray while a new one starts.
func TestFallbackChannel(t *testing.T) {
	var log syncBuffer
	ctx, agent, direct, other := startFallback(t, slog.New(slog.NewTextHandler(&log, nil)))
	ping := func(way string) {
		t.Helper()
		counts := map[string]int{"direct": direct.Calls("guest-ping"), "other": other.Calls("guest-ping")}
		call, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if err := agent.Ping(call); err != nil {
			t.Errorf("Ping: %v", err)
		}
		counts[way]++
		if d, o := direct.Calls("guest-ping"), other.Calls("guest-ping"); d != counts["direct"] || o != counts["other"] {
			t.Errorf("direct and other have been asked %d and %d times, want %v", d, o, counts)
		}
	}
	ping("direct") // the first call as well
	for range 3 {
		direct.Kill()
		agent.ChannelClosed()
		ping("other")
		if !agent.Stats().Fallback {
			t.Error("the statistics do not tell of the fallback")
		}
		direct.Start()
		agent.ChannelOpened()
		ping("direct")
	}
	// A word that comes late does no harm.
	agent.ChannelClosed()
	ping("other")
	awaitWay(t, agent, false)
	ping("direct")
	// Nobody answers while a guest boots: that is nothing to tell.
	told := strings.Count(log.String(), "falling back")
	if told == 0 {
		t.Errorf("no fallback was logged:\n%s", &log)
	}
	direct.Kill()
	other.Kill()
	agent.ChannelClosed()
	call, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if err := agent.Ping(call); err == nil {
		t.Error("somebody answers")
	}
	if got := strings.Count(log.String(), "falling back"); got != told {
		t.Errorf("a fallback that does not answer was logged:\n%s", &log)
	}
}

// A syncBuffer is a buffer that may be written and read at once.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
