package direct_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/test/daemon"
	"github.com/guestprobe/guestprobe/test/guest"
	"github.com/guestprobe/guestprobe/test/libvirtd"
)

// A walk is one host, and one sidecar that follows the VM through all that can happen to its two ways.
type walk struct {
	host *libvirtd.Host
	gp   *daemon.Daemon
	line *guest.Line
}

// TestDirect begins with what a VM is that was started before the Plugin was there, and goes on with what it is after
// its next start.
func TestDirect(t *testing.T) {
	h := libvirtd.New(t, domainName)
	plain := h.XML("")
	direct := here(h).Replace(hooked(t, plain))
	flags, manifest := injected(t)
	for i := range flags {
		flags[i] = here(h).Replace(flags[i])
	}
	if strings.Contains(direct+strings.Join(flags, " "), "/var/run/") {
		t.Fatalf("not all folders are the test's:\n%s\n%s", direct, flags)
	}
	folder := filepath.Join(h.Dir, "plugin") // the sidecar's mount makes it
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	h.GiveAway(folder)

	h.StartDaemon()
	w := &walk{host: h, gp: daemon.Start(t, daemon.Build(t), "the VM", manifest, flags...)}
	for _, step := range []struct {
		name string
		f    func(*testing.T)
	}{
		{"without the hook", func(t *testing.T) { w.start(t, plain); w.throughLibvirt(t) }},
		{"destroyed", w.destroyed},
		{"with the hook", func(t *testing.T) { w.start(t, direct); w.direct(t, 1) }},
		{"libvirt keeps its own", w.libvirtKeeps},
		{"paused by libvirt", w.paused},
		{"the second agent ends", w.agentEnds},
		{"the second agent hangs", w.agentHangs},
		{"libvirt away", w.libvirtAway},
		{"QEMU hangs", w.hangs},
		{"destroyed again", w.destroyed},
		{"started again", func(t *testing.T) { w.start(t, ""); w.direct(t, 3) }},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			h.Use(t)
			w.gp.Use(t)
			if w.line != nil {
				w.line.Use(t)
			}
			step.f(t)
		}) {
			t.FailNow()
		}
		if w.line != nil {
			w.line.Use(t)
		}
	}
	w.gp.Stop()
}

// ready is the verdict that the VM is to have whenever it runs.
func ready() daemon.Verdict { return daemon.Verdict{Reason: "Ready", Ready: true, Live: true} }

// start defines the domain, unless it is to be the one that there is, and waits for its guest and for the sidecar.
func (w *walk) start(t *testing.T, xml string) {
	if xml != "" {
		w.host.Define(xml)
	}
	w.line = w.host.Start()
	w.line.Use(t)
	w.line.WaitBoots(1)
	w.gp.Await(ready())
}

// ways waits until the sidecar says of both of its ways whether they are the direct ones.
func (w *walk) ways(t *testing.T, monitorFallback, agentFallback bool) daemon.Status {
	t.Helper()
	return w.gp.Until(fmt.Sprintf("monitor through libvirt: %v, agent through libvirt: %v", monitorFallback, agentFallback), func(s daemon.Status) error {
		switch {
		case s.VM.Link != "up" || s.VM.Status != "running" || !s.Agent.Connected:
			return fmt.Errorf("monitor %s, VM %s, agent connected: %v", s.VM.Link, s.VM.Status, s.Agent.Connected)
		case s.VM.Fallback != monitorFallback || s.Agent.Fallback != agentFallback:
			return fmt.Errorf("fallbacks are %v and %v", s.VM.Fallback, s.Agent.Fallback)
		}
		return nil
	})
}

// logged waits until the sidecar has logged a message n times in all, or more often: on a busy host an agent that is
// only slow may be given up and found again.
func (w *walk) logged(t *testing.T, message string, n int) {
	t.Helper()
	w.gp.Until("the log", func(daemon.Status) error {
		if got := strings.Count(w.gp.Output(), message); got < n {
			return fmt.Errorf("%q is in the log %d times, not yet %d", message, got, n)
		}
		return nil
	})
}

const (
	monitorFalls = "the direct monitor is out of reach, falling back"
	agentFalls   = "no guest agent answers on the direct channel, falling back"
	agentReturns = "the guest agent answers on the direct channel again"
)

func (w *walk) throughLibvirt(t *testing.T) {
	w.ways(t, true, true)
	w.logged(t, monitorFalls, 1)
	w.logged(t, agentFalls, 1)
	w.host.Virsh("suspend", domainName)
	w.gp.Await(daemon.Verdict{Reason: "Paused", Live: true})
	w.host.Virsh("resume", domainName)
	w.gp.Await(ready())
}

// direct: nothing goes through libvirt.
func (w *walk) direct(t *testing.T, returns int) {
	t.Helper()
	w.ways(t, false, false)
	w.logged(t, agentReturns, returns)
}

// libvirtKeeps: its own monitor and agent answer while ours do, and it knows of nothing done behind its back but the
// arguments that the Plugin added.
func (w *walk) libvirtKeeps(t *testing.T) {
	before := w.gp.MustStatus()
	log := domainLog(t, w.host)
	log = log[strings.LastIndex(log, "starting up libvirt version"):]
	if !strings.Contains(log, "tainted: custom-argv") || strings.Count(log, "tainted:") != 1 {
		t.Errorf("the domain is to be tainted by its arguments, and by nothing else:\n%s", log)
	}
	for range 5 {
		if got := strings.TrimSpace(w.host.Virsh("domstate", domainName)); got != "running" {
			t.Errorf("libvirt's monitor says %q", got)
		}
		if got := strings.TrimSpace(w.host.Virsh("qemu-agent-command", domainName, `{"execute":"guest-ping"}`)); got != `{"return":{}}` {
			t.Errorf("libvirt's agent says %q", got)
		}
		w.pings(1)
	}
	after := w.ways(t, false, false)
	if len(after.Transitions) != len(before.Transitions) || after.Agent.Connects != before.Agent.Connects || after.Agent.Resyncs != before.Agent.Resyncs {
		t.Errorf("libvirt's clients are felt: %+v, before %+v", after, before)
	}
}

func (w *walk) paused(t *testing.T) {
	for range 3 {
		w.host.Virsh("suspend", domainName)
		began := time.Now()
		w.gp.Await(daemon.Verdict{Reason: "Paused", Live: true})
		if took := time.Since(began); took > time.Second {
			t.Errorf("the pause was seen after %v", took)
		}
		w.host.Virsh("resume", domainName)
		w.gp.Await(ready())
	}
	w.ways(t, false, false)
}

// agentEnds: an agent that is gone is known to the monitor, so that with another one beside it not even a VM that may
// fail no ping is unready for a moment.
func (w *walk) agentEnds(t *testing.T) {
	w.stays(t, func() {
		w.line.Run("agent kill " + guest.SecondAgentPort)
		w.ways(t, false, true)
		w.logged(t, agentFalls, 2)
		w.pings(3)
		w.line.Run("agent start " + guest.SecondAgentPort)
		w.ways(t, false, false)
		w.logged(t, agentReturns, 2)
		w.pings(3)
	})
}

// agentHangs: that is found out by a ping which gets no answer. This one counts.
func (w *walk) agentHangs(t *testing.T) {
	w.line.Run("agent stop " + guest.SecondAgentPort)
	w.ways(t, false, true)
	w.gp.Await(ready())
	w.stays(t, func() { w.pings(3) })
	w.logged(t, agentFalls, 3)
	w.stays(t, func() {
		w.line.Run("agent cont " + guest.SecondAgentPort)
		w.ways(t, false, false)
		w.pings(3)
	})
	w.logged(t, agentReturns, 3)
}

// libvirtAway: while both ways are direct ones, libvirt's daemon is nothing to the sidecar.
func (w *walk) libvirtAway(t *testing.T) {
	w.stays(t, func() {
		w.host.StopDaemon()
		w.pings(3)
		w.host.StartDaemon()
		w.pings(1)
	})
	w.ways(t, false, false)
}

// hangs: while QEMU does not answer, libvirt's word stands in for it. That is no new VM.
func (w *walk) hangs(t *testing.T) {
	before := w.gp.MustStatus()
	pid, err := os.ReadFile(filepath.Join(w.host.Dir, "run/libvirt/qemu/run", domainName+".pid"))
	if err != nil {
		t.Fatal(err)
	}
	signal := func(sig syscall.Signal) {
		t.Helper()
		n, err := strconv.Atoi(strings.TrimSpace(string(pid)))
		if err == nil {
			err = syscall.Kill(n, sig)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	w.gp.Until("libvirt's word", func(s daemon.Status) error {
		if !s.VM.Fallback {
			return errors.New("the direct monitor is still the one in use")
		}
		return nil
	})
	signal(syscall.SIGCONT)
	w.ways(t, false, false)
	after := w.gp.Await(ready())
	if after.VM.Instance != before.VM.Instance || !after.VM.StartedAt.Equal(before.VM.StartedAt) {
		t.Errorf("instance %q, started at %v; before %q, %v", after.VM.Instance, after.VM.StartedAt, before.VM.Instance, before.VM.StartedAt)
	}
	for _, s := range after.Transitions[len(before.Transitions):] {
		if s.To == "Starting" || !s.Live {
			t.Errorf("what was known of the VM is forgotten: %+v", s)
		}
	}
}

// stays does something and demands that the VM was ready all the time.
func (w *walk) stays(t *testing.T, f func()) {
	t.Helper()
	before := w.gp.MustStatus()
	f()
	if after := w.gp.MustStatus(); !after.Ready || len(after.Transitions) != len(before.Transitions) {
		t.Errorf("the VM has not stayed ready: %+v", after.Transitions[min(len(before.Transitions), len(after.Transitions)):])
	}
}

// pings waits for so many more rounds of the readiness probe.
func (w *walk) pings(n int) {
	runs := readiness(w.gp.MustStatus()).Runs
	w.gp.Until("more pings", func(s daemon.Status) error {
		if got := readiness(s).Runs - runs; got < n {
			return fmt.Errorf("%d of %d", got, n)
		}
		return nil
	})
}

func readiness(s daemon.Status) daemon.Check {
	for _, c := range s.Checks {
		if c.Kind == "readiness" {
			return c
		}
	}
	return daemon.Check{}
}

func (w *walk) destroyed(t *testing.T) {
	w.host.Virsh("destroy", domainName)
	w.gp.Await(daemon.Verdict{Reason: "NoDomain", Live: true})
}
