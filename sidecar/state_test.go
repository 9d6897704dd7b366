package sidecar

import (
	"testing"

	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

// While the monitor is being connected to again, nothing new is known of the VM: what was known stands.
func TestReconnectKeepsWhatIsKnown(t *testing.T) {
	s := newState(discard(), true, verdict.Policy{})
	s.setVM(qga.VMState{Link: qga.LinkUp, Instance: "a", Status: "paused", AgentPort: qga.PortClosed})
	s.setVM(qga.VMState{Link: qga.LinkConnecting, Instance: "a"})
	now := s.get()
	if now.vm.Status != "paused" || now.vm.AgentPort != qga.PortClosed || now.Reason != verdict.Paused {
		t.Errorf("status %q, port %v, reason %s", now.vm.Status, now.vm.AgentPort, now.Reason)
	}
	s.setVM(qga.VMState{Link: qga.LinkGone})
	if now = s.get(); now.Reason != verdict.NoDomain || now.goneSince.IsZero() {
		t.Errorf("reason %s of a VM that has gone", now.Reason)
	}
}

// --exit-with-vm ends with a VM that was there, also with one that went before it had told its state; it waits for one
// that has never been.
func TestGoneMeansThatItWasThere(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before qga.VMState
		err    error
		gone   bool
	}{
		{"never seen", qga.VMState{}, qga.ErrNotConnected, false},
		{"was up", qga.VMState{Link: qga.LinkUp, Status: "running"}, qga.ErrNotConnected, true},
		{"hung up on us first", qga.VMState{}, qga.ErrConnectionLost, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newState(discard(), true, verdict.Policy{})
			s.setVM(tt.before)
			s.setVM(qga.VMState{Link: qga.LinkGone, LinkErr: tt.err})
			s.setVM(qga.VMState{Link: qga.LinkGone, LinkErr: qga.ErrNotConnected})
			if gone := !s.get().goneSince.IsZero(); gone != tt.gone {
				t.Errorf("gone: %v, want %v", gone, tt.gone)
			}
		})
	}
}
