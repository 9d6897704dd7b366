package qga

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/qga/qgatest"
)

// The reply to an earlier client comes to the next one on virtio-serial.
func TestAgentStaleReply(t *testing.T) {
	t.Parallel()
	fake := fakeAgent(t, qgatest.AgentConfig{})
	fake.Stop()
	former := rawClient(t, fake)
	send(t, former, `{"execute":"guest-ping","id":"A1"}`+"\n"+`{"execute":"guest-nope"}`+"\n")
	former.Close()
	if err := fake.WaitHost(within(t, long), false); err != nil {
		t.Fatal(err)
	}
	fake.Inject([]byte(`ue}, "x": [{"return": {}}]}` + "\n"))
	fake.Continue()
	if err := fake.WaitCalls(within(t, long), "guest-nope", 1); err != nil {
		t.Fatal(err)
	}
	fake.Inject([]byte(`{"return": [`))
	agent := runAgent(t, fake.Addr(), nil)
	if err := agent.Ping(within(t, long)); err != nil {
		t.Fatal(err)
	}
	if got := agent.Stats(); got.StaleReplies == 0 || got.Garbage == 0 || got.Resyncs != 0 {
		t.Errorf("Stats = %+v, want stale replies and garbage", got)
	}
}

// Half a request of an earlier client eats what follows, until 0xFF.
func TestAgentHalfRequestOfAnother(t *testing.T) {
	t.Parallel()
	for _, half := range []string{`{"execute":`, `{"execute":"guest-pi`, `[[{"a":"\`} {
		fake := fakeAgent(t, qgatest.AgentConfig{})
		former := rawClient(t, fake)
		send(t, former, half)
		former.Close()
		agent := runAgent(t, fake.Addr(), nil)
		if err := agent.Ping(within(t, long)); err != nil {
			t.Errorf("after %q: %v", half, err)
		}
	}
}

// A silent agent gets one synchronisation however often it is asked, and is
// back in step when it wakes, on the same connection.
func TestAgentLateToken(t *testing.T) {
	t.Parallel()
	fake := fakeAgent(t, qgatest.AgentConfig{})
	agent := runAgent(t, fake.Addr(), nil)
	if err := agent.Ping(within(t, long)); err != nil {
		t.Fatal(err)
	}
	fake.Stop()
	for range 3 {
		wantSilence(t, agent.Ping(within(t, mid)))
	}
	if agent.Stats().InSync {
		t.Error("in step with a silent agent")
	}
	fake.Continue()
	if err := agent.Ping(within(t, long)); err != nil {
		t.Fatal(err)
	}
	if syncs, pings := fake.Calls("guest-sync-delimited"), fake.Calls("guest-ping"); syncs != 2 || pings != 3 {
		t.Errorf("the agent got %d syncs and %d pings, want 2 and 3", syncs, pings)
	}
	if got := agent.Stats(); got.Connects != 1 || got.Resyncs != 1 || got.StaleReplies != 1 {
		t.Errorf("Stats = %+v, want one connection, one resync, one stale reply", got)
	}
}

// While the guest's port is closed nothing answers and nothing is lost.
func TestAgentRestart(t *testing.T) {
	t.Parallel()
	fake := fakeAgent(t, qgatest.AgentConfig{Down: true})
	agent := runAgent(t, fake.Addr(), nil)
	wantSilence(t, agent.Ping(within(t, mid)))
	if got := agent.Stats(); !got.Connected || got.InSync {
		t.Errorf("Stats = %+v, want a connection with nobody behind it", got)
	}
	fake.Start()
	if err := agent.Ping(within(t, long)); err != nil {
		t.Fatal(err)
	}
	fake.Kill()
	wantSilence(t, agent.Ping(within(t, mid)))
	fake.Start()
	if err := agent.Ping(within(t, long)); err != nil {
		t.Fatal(err)
	}
	if got := agent.Stats(); got.Connects != 1 {
		t.Errorf("Stats = %+v, want one connection", got)
	}
}

// What an agent had taken in when it died is lost. Who knows that the port was
// opened anew can say so.
func TestAgentChannelOpened(t *testing.T) {
	t.Parallel()
	fake := fakeAgent(t, qgatest.AgentConfig{})
	agent := runAgent(t, fake.Addr(), nil)
	if err := agent.Ping(within(t, long)); err != nil {
		t.Fatal(err)
	}
	fake.Stop()
	wantSilence(t, agent.Ping(within(t, mid)))
	wantSilence(t, agent.Ping(within(t, mid))) // the sync is in the guest now
	fake.Kill()
	fake.Start()
	wantSilence(t, agent.Ping(within(t, mid)))
	agent.ChannelOpened()
	if err := agent.Ping(within(t, long)); err != nil {
		t.Fatal(err)
	}
}

func TestAgentReconnects(t *testing.T) {
	t.Parallel()
	path := filepath.Join(socketDir(t), "qga.sock")
	agent := runAgent(t, "unix:"+path, &AgentConfig{MaxBackoff: 20 * time.Millisecond})

	// No socket: the calls fail at once and say why.
	err := agent.Ping(within(t, long))
	if !errors.Is(err, ErrNotConnected) || !errors.Is(err, os.ErrNotExist) || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("missing socket: %v", err)
	}
	for i := range uint64(3) {
		fake := fakeAgent(t, qgatest.AgentConfig{Path: path})
		if err := fake.WaitHost(within(t, long), true); err != nil {
			t.Fatal(err)
		}
		if err := agent.Ping(within(t, long)); err != nil {
			t.Fatal(err)
		}
		if got := agent.Stats(); got.Connects != i+1 {
			t.Errorf("Stats = %+v, want %d connections", got, i+1)
		}
		fake.Stop()
		lost := make(chan error, 1)
		go func() { lost <- agent.Ping(within(t, long)) }()
		if err := fake.WaitCalls(within(t, short), "guest-ping", 2); err == nil {
			t.Error("a stopped agent read a ping")
		}
		fake.Close()
		if err := <-lost; !errors.Is(err, ErrConnectionLost) {
			t.Errorf("closed in mid exchange: %v", err)
		}
	}
}
