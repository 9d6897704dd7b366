package sidecar

import (
	"context"
	"fmt"
	"testing"

	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/sidecar/probe"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

// TestDaemonsTroubleIsNotTheGuests: whatever comes with it, an error of libvirt's daemon counts for nothing, and a VM
// that does not run is not ready and not dead.
func TestDaemonsTroubleIsNotTheGuests(t *testing.T) {
	for _, tt := range []struct {
		kind    probe.Kind
		err     error
		reason  verdict.Reason
		outcome probe.Outcome
	}{
		{probe.Liveness, fmt.Errorf("x: %w: %w", qga.ErrDaemon, qga.ErrNotConnected), verdict.MonitorUnreachable, probe.OutcomeError},
		{probe.Liveness, fmt.Errorf("x: %w: %w", qga.ErrDaemon, qga.ErrConnectionLost), verdict.MonitorUnreachable, probe.OutcomeError},
		{probe.Liveness, fmt.Errorf("x: %w", qga.ErrNotConnected), verdict.AgentNotConnected, probe.OutcomeFailure},
		{probe.Liveness, fmt.Errorf("x: %w", qga.ErrNotRunning), verdict.AgentNotConnected, probe.OutcomeError},
		{probe.Startup, fmt.Errorf("x: %w", qga.ErrNotRunning), verdict.AgentNotConnected, probe.OutcomeError},
		{probe.Readiness, fmt.Errorf("x: %w", qga.ErrNotRunning), verdict.AgentNotConnected, probe.OutcomeFailure},
		{probe.Readiness, fmt.Errorf("x: %w", qga.ErrDaemon), verdict.MonitorUnreachable, probe.OutcomeError},
		{probe.Liveness, fmt.Errorf("x: %w", context.DeadlineExceeded), verdict.AgentTimeout, probe.OutcomeFailure},
		{probe.Liveness, fmt.Errorf("x: %w", qga.ErrProtocol), verdict.AgentError, probe.OutcomeFailure},
	} {
		err := agentFailure(tt.kind, tt.err, tt.err)
		if got := reasonOf(err); got != tt.reason {
			t.Errorf("%v: reason %s, want %s", tt.err, got, tt.reason)
		}
		if got := probe.Classify(err); got != tt.outcome {
			t.Errorf("%v: outcome %v, want %v", tt.err, got, tt.outcome)
		}
	}
}
