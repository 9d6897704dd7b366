package libvirt_test

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/test/guest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A walk is one host, one domain, and the monitor and agent clients that follow it through all that can happen. A boot
// costs seconds, so the steps share one.
type walk struct {
	*host
	states *record
	agent  *agent
	line   *guest.Line
	boots  int
}

func TestWalk(t *testing.T) {
	h := newHost(t)
	w := &walk{host: h, states: watch(t, h.addr()), agent: startAgent(t, h.addr())}
	for _, step := range []struct {
		name string
		f    func(*walk, *testing.T)
	}{
		{"no daemon", (*walk).noDaemon},
		{"no domain", (*walk).noDomain},
		{"defined and not started", (*walk).defined},
		{"start", (*walk).started},
		{"suspend and resume", (*walk).suspend},
		{"errors of the agent", (*walk).agentErrors},
		{"agent stopped and continued", (*walk).agentHangs},
		{"agent ended and started", (*walk).agentEnds},
		{"a junk line from the guest", (*walk).junk},
		{"daemon stopped and continued", (*walk).daemonHangs},
		{"daemon restarted", (*walk).daemonRestarts},
		{"reset", (*walk).reset},
		{"reboot from inside", (*walk).reboot},
		{"panic", (*walk).panic},
		{"destroy", (*walk).destroy},
		{"start again, with a disk", (*walk).startAgain},
		{"the storage is full", (*walk).storageFull},
		{"there is room again", (*walk).storageBack},
		{"power off from inside", (*walk).poweroff},
		{"undefine", (*walk).undefine},
	} {
		ok := t.Run(step.name, func(t *testing.T) {
			w.use(t)
			step.f(w, t)
		})
		w.use(nil)
		w.host.t, w.states.t, w.agent.t = h.t, t, t
		if !ok {
			t.FailNow()
		}
	}
}

func (w *walk) use(t *testing.T) {
	if t == nil {
		return
	}
	w.states.t, w.agent.t = t, t
	if w.line != nil {
		w.line.Use(t)
	}
}

func up(status string) func(qga.VMState) bool {
	return func(s qga.VMState) bool { return s.Link == qga.LinkUp && s.Status == status }
}

func upWithPort(p qga.Port) func(qga.VMState) bool {
	return func(s qga.VMState) bool { return up("running")(s) && s.AgentPort == p }
}

func (w *walk) noDaemon(t *testing.T) {
	s := w.states.await("unreachable", func(s qga.VMState) bool { return s.Link == qga.LinkUnreachable })
	wantErr(t, s.LinkErr, fs.ErrNotExist)
	err := w.agent.ping(5 * time.Second)
	wantErr(t, err, qga.ErrDaemon, context.DeadlineExceeded)
	wantErr(t, err, qga.ErrNotConnected)
}

func (w *walk) noDomain(t *testing.T) {
	w.StartDaemon()
	s := w.states.await("no domain", func(s qga.VMState) bool { return s.Link == qga.LinkGone })
	wantErr(t, s.LinkErr, fs.ErrNotExist, qga.ErrDaemon)
	if s.Instance != "" || s.Shutdown != nil {
		t.Errorf("state %s", format(s))
	}
	w.agent.await("no domain", func(err error) bool { // its connection is one of its own
		return errors.Is(err, qga.ErrNotRunning) && errors.Is(err, fs.ErrNotExist) && !errors.Is(err, qga.ErrDaemon)
	})
}

func (w *walk) defined(t *testing.T) {
	w.define("")
	s := w.states.await("defined", func(s qga.VMState) bool { return s.Link == qga.LinkGone && !errors.Is(s.LinkErr, fs.ErrNotExist) })
	if s.Instance != "" || s.Shutdown != nil {
		t.Errorf("a domain that never ran has ended: %s", format(s))
	}
	wantErr(t, w.agent.ping(5*time.Second), qga.ErrNotRunning, qga.ErrDaemon)
}

func (w *walk) started(t *testing.T) {
	before := time.Now()
	w.line, w.boots = w.Start(), 1
	w.line.Use(t)
	s := w.states.await("running", up("running"))
	if s.StartedAt.Before(before.Add(-time.Second)) || s.StartedAt.After(time.Now()) || s.Incoming {
		t.Errorf("the start was not seen: %s", format(s))
	}
	if s.Name != domainName || s.UUID == "" || s.Version == "" || s.Instance == "" {
		t.Errorf("name %q, UUID %q, version %q, instance %q", s.Name, s.UUID, s.Version, s.Instance)
	}
	if s.AgentEverOpen {
		t.Error("the agent's port cannot have been open yet")
	}
	w.states.await("agent's port open", upWithPort(qga.PortOpen))
	w.line.WaitBoots(1)
	w.agent.awaitPing()
	if err := w.agent.Sync(t.Context()); err != nil {
		t.Errorf("Sync: %v", err)
	}
	info, err := w.agent.Info(t.Context())
	if err != nil || !info.Enabled("guest-ping") {
		t.Errorf("Info: %v, version %q", err, info.Version)
	}
	res, err := w.agent.Exec(t.Context(), qga.ExecRequest{Path: "/bin/echo", Args: []string{"hello"}})
	if err != nil || !strings.Contains(string(res.Stdout), "hello") {
		t.Errorf("Exec: %v, %+v", err, res)
	}
	if st := w.agent.Stats(); !st.Connected || !st.InSync || st.StaleReplies != 0 || st.RoundTrip <= 0 {
		t.Errorf("stats %+v", st)
	}
}

func (w *walk) suspend(t *testing.T) {
	instance, started := w.states.last().Instance, w.states.last().StartedAt
	w.Virsh("suspend", domainName)
	s := w.states.await("paused by a user", func(s qga.VMState) bool { return up("paused")(s) && s.PauseReason == "user" })
	if s.AgentPort != qga.PortOpen {
		t.Errorf("port %v: it cannot close while the VM is paused", s.AgentPort)
	}
	wantErr(t, w.agent.ping(5*time.Second), qga.ErrNotRunning, qga.ErrDaemon)
	w.Virsh("resume", domainName)
	s = w.states.await("running again", up("running"))
	if s.Instance != instance || !s.StartedAt.Equal(started) || s.PauseReason != "" {
		t.Errorf("a pause changed more than the status: %s", format(s))
	}
	w.agent.awaitPing()
}

func (w *walk) agentErrors(t *testing.T) {
	err := w.agent.Do(t.Context(), "guest-no-such-command", nil, nil)
	wantErr(t, err, qga.ErrUnsupported, qga.ErrDaemon)
	err = w.agent.Do(t.Context(), "guest-exec-status", map[string]int{"pid": 999999}, nil)
	var said *qga.Error
	if !errors.As(err, &said) || errors.Is(err, qga.ErrUnsupported) {
		t.Errorf("error %v, want the agent's own", err)
	}
	if err := w.agent.Do(t.Context(), "guest-sync-delimited", map[string]int{"id": 1}, nil); err == nil {
		t.Error("guest-sync-delimited was sent: libvirt drops the agent for its reply")
	}
	if err := w.agent.ping(5 * time.Second); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func (w *walk) agentHangs(t *testing.T) {
	w.line.Run("agent stop")
	for range 3 { // one call at a time, and each ends in time
		start := time.Now()
		err := w.agent.ping(time.Second)
		wantErr(t, err, context.DeadlineExceeded, qga.ErrDaemon, qga.ErrNotConnected)
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("a ping of one second took %v", took)
		}
	}
	// With more time than libvirt has patience, libvirt says so itself.
	start := time.Now()
	wantErr(t, w.agent.ping(30*time.Second), context.DeadlineExceeded, qga.ErrDaemon)
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("libvirt's own verdict took %v", took)
	}
	if s := w.states.last(); s.AgentPort != qga.PortOpen || s.Status != "running" {
		t.Errorf("a hung agent keeps its port open: %s", format(s))
	}
	w.line.Run("agent cont")
	w.agent.awaitPing()
	if st := w.agent.Stats(); st.Connects != 1 {
		t.Errorf("stats %+v: the connection was not kept", st)
	}
}

func (w *walk) agentEnds(t *testing.T) {
	w.line.Run("agent kill")
	w.states.await("port closed", upWithPort(qga.PortClosed))
	wantErr(t, w.agent.ping(5*time.Second), qga.ErrNotConnected, qga.ErrDaemon, qga.ErrNotRunning, context.DeadlineExceeded)
	if w.agent.Stats().Connected {
		t.Error("no agent is there, and the client says connected")
	}
	w.line.Run("agent start")
	w.states.await("port open", upWithPort(qga.PortOpen))
	w.agent.awaitPing()
}

func (w *walk) junk(t *testing.T) {
	w.line.Run("agent kill")
	w.states.await("port closed", upWithPort(qga.PortClosed))
	w.line.Run("exec 4<>/dev/virtio-ports/org.qemu.guest_agent.0; sleep 1; echo junk >&4; sleep 1")
	w.states.await("port open", upWithPort(qga.PortOpen))
	wantErr(t, w.agent.ping(5*time.Second), qga.ErrProtocol, qga.ErrDaemon, context.DeadlineExceeded)
	w.line.Run("exec 4>&-")
	w.states.await("port closed again", upWithPort(qga.PortClosed))
	w.line.Run("agent start")
	w.states.await("port open again", upWithPort(qga.PortOpen))
	w.agent.awaitPing()
}

func (w *walk) daemonHangs(t *testing.T) {
	before := w.states.last()
	w.Daemon.Signal(t, syscall.SIGSTOP)
	s := w.states.await("stuck", func(s qga.VMState) bool { return s.Link == qga.LinkStuck })
	if s.Status != "running" || s.AgentPort != qga.PortOpen {
		t.Errorf("what was heard last is to stand: %s", format(s))
	}
	wantErr(t, s.LinkErr, context.DeadlineExceeded)
	wantErr(t, w.agent.ping(time.Second), qga.ErrDaemon, context.DeadlineExceeded)
	w.Daemon.Signal(t, syscall.SIGCONT)
	s = w.states.await("running", upWithPort(qga.PortOpen))
	if s.Instance != before.Instance || !s.StartedAt.Equal(before.StartedAt) {
		t.Errorf("not the same VM: %s, before %s", format(s), format(before))
	}
	w.agent.awaitPing()
}

func (w *walk) daemonRestarts(t *testing.T) {
	before, mark := w.states.last(), w.states.mark()
	w.StopDaemon()
	w.states.await("unreachable", func(s qga.VMState) bool { return s.Link == qga.LinkUnreachable })
	err := w.agent.ping(2 * time.Second)
	wantErr(t, err, qga.ErrDaemon, context.DeadlineExceeded)
	w.StartDaemon()
	s := w.states.await("running", upWithPort(qga.PortOpen))
	if s.Instance != before.Instance || !s.StartedAt.Equal(before.StartedAt) || s.Resets != before.Resets {
		t.Errorf("not the same VM: %s, before %s", format(s), format(before))
	}
	for _, s := range w.states.since(mark) {
		if s.Link == qga.LinkGone {
			t.Errorf("a lost daemon is not a lost VM: %s", format(s))
		}
	}
	w.agent.awaitPing()
}

func (w *walk) reset(t *testing.T) {
	before := w.states.last()
	w.Virsh("reset", domainName)
	w.awaitBoot(t, before)
}

func (w *walk) reboot(t *testing.T) {
	before := w.states.last()
	w.line.Send("reboot -f")
	w.awaitBoot(t, before)
}

// awaitBoot waits for the guest to come up again, in the same instance.
func (w *walk) awaitBoot(t *testing.T, before qga.VMState) {
	t.Helper()
	s := w.states.await("reset", func(s qga.VMState) bool { return s.Resets == before.Resets+1 })
	if s.Instance != before.Instance || !s.StartedAt.After(before.StartedAt) {
		t.Errorf("a reset is a new boot of the same VM: %s, before %s", format(s), format(before))
	}
	w.boots++
	w.line.WaitBoots(w.boots)
	w.states.await("agent's port open", upWithPort(qga.PortOpen))
	w.agent.awaitPing()
	if s := w.states.last(); s.Resets != before.Resets+1 {
		t.Errorf("one reset was counted %d times", s.Resets-before.Resets)
	}
}

func (w *walk) panic(t *testing.T) {
	taint := w.Virsh("dominfo", domainName)
	if strings.Contains(taint, "custom monitor") || !strings.Contains(taint, "custom guest agent") {
		t.Errorf("the domain is to be tainted by agent commands alone: %s", taint)
	}
	w.line.Send("echo c > /proc/sysrq-trigger")
	// The action is told by QEMU's own event alone.
	s := w.states.await("panicked", func(s qga.VMState) bool { return up("guest-panicked")(s) && s.Panic != nil && s.Panic.Action != "" })
	if s.Panics != 1 {
		t.Errorf("state %s, panic %+v", format(s), *s.Panic)
	}
}

func (w *walk) destroy(t *testing.T) {
	w.Virsh("destroy", domainName)
	s := w.states.await("gone", func(s qga.VMState) bool { return s.Link == qga.LinkGone })
	if s.Shutdown == nil || s.Shutdown.Guest || s.Shutdown.Reason != "destroyed" || s.Instance == "" {
		t.Errorf("state %s", format(s))
	}
}

func (w *walk) startAgain(t *testing.T) {
	before := w.states.last()
	w.serveDisk("file.inject-error.0.event=write_aio", "file.inject-error.0.errno=28", "file.inject-error.0.once=on") // ENOSPC
	w.define(w.disk())
	w.line, w.boots = w.Start(), 1
	w.line.Use(t)
	s := w.states.await("running", up("running"))
	if s.Instance == before.Instance || s.Shutdown != nil || s.AgentEverOpen || s.Panic != nil || s.Panics != 1 {
		t.Errorf("not a new VM: %s", format(s))
	}
	w.line.WaitBoots(1)
}

func (w *walk) storageFull(t *testing.T) {
	w.line.Send("dd if=/dev/zero of=/dev/vda bs=4096 count=1 2>/dev/null; sync")
	s := w.states.await("stopped by its disk", func(s qga.VMState) bool {
		return up("io-error")(s) && s.IOError != nil && s.IOError.Device != "" && s.IOErrors > 0 // state and event come apart
	})
	if !s.IOError.NoSpace || s.PauseReason != "ioerror" {
		t.Errorf("state %s", format(s))
	}
}

func (w *walk) storageBack(t *testing.T) {
	w.Virsh("resume", domainName)
	s := w.states.await("running", up("running"))
	if s.IOError != nil || s.PauseReason != "" {
		t.Errorf("state %s", format(s))
	}
	w.line.Run("sync") // the line had to wait for the write
}

func (w *walk) poweroff(t *testing.T) {
	w.line.Send("poweroff -f")
	s := w.states.await("gone", func(s qga.VMState) bool { return s.Link == qga.LinkGone })
	if s.Shutdown == nil || !s.Shutdown.Guest {
		t.Errorf("the guest ended it: %s", format(s))
	}
}

func (w *walk) undefine(t *testing.T) {
	w.Virsh("undefine", domainName)
	s := w.states.await("no domain", func(s qga.VMState) bool { return errors.Is(s.LinkErr, fs.ErrNotExist) })
	if s.Link != qga.LinkGone {
		t.Errorf("state %s", format(s))
	}
}
