package qga

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/guestprobe/guestprobe/qga/qgatest"
)

// Not a connection is made to a channel of libvirt's.
func TestAgentLeavesLibvirtsChannelAlone(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(socketDir(t), "libvirt", "qemu", "channel")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	fake := fakeAgent(t, qgatest.AgentConfig{Path: filepath.Join(dir, agentPortName)})
	agent := runAgent(t, fake.Addr(), nil)
	if err := agent.Ping(within(t, long)); !errors.Is(err, ErrLibvirtsChannel) || !errors.Is(err, ErrNotConnected) {
		t.Errorf("Ping: %v", err)
	}
	if err := fake.WaitHost(within(t, short), true); err == nil {
		t.Error("it was connected to")
	}
	own := fakeAgent(t, qgatest.AgentConfig{Path: filepath.Join(dir, "org.guestprobe.agent.0")})
	if err := runAgent(t, own.Addr(), nil).Ping(within(t, long)); err != nil {
		t.Errorf("a channel of our own beside it: %v", err)
	}
}
