package states_test

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/test/daemon"
	"github.com/guestprobe/guestprobe/test/guest"
)

const initialDelay = 2 * time.Second // of the startup probe, see newMachine

func prelaunch(t *testing.T, m *machine) {
	s := m.in(t, "prelaunch", "not been started")
	if s.Started || !s.VM.StartedAt.IsZero() {
		t.Errorf("started %v, %+v", s.Started, s.VM)
	}
	m.stays(t, s)
	m.vm.Cont()
	m.vm.WaitReady()
	delayed(t, m.ready(t))
}

// delayed asks that the boot was left alone for the initial delay.
func delayed(t *testing.T, s daemon.Status) {
	t.Helper()
	for _, r := range s.Check("startupProbe").History {
		if r.At.After(s.VM.StartedAt) {
			if waited := r.At.Sub(s.VM.StartedAt); waited < initialDelay {
				t.Errorf("the first startup probe came %v after the start, not after %v", waited, initialDelay)
			}
			return
		}
	}
	t.Errorf("the startup probe has not run since %v: %+v", s.VM.StartedAt, s.Check("startupProbe"))
}

func paused(t *testing.T, m *machine) {
	m.vm.Stop()
	s := m.in(t, "paused", "a person or a tool")
	stop := daemon.Watch(t, 100*time.Millisecond, m.main)
	<-time.After(4 * time.Second) // longer than the liveness probe needs to fail
	alive(t, stop())
	m.stays(t, s)
	m.vm.Cont()
	m.ready(t)
}

func suspended(t *testing.T, m *machine) {
	m.vm.Suspend()
	m.stays(t, m.in(t, "suspended", ""))
	m.vm.Wake()
	m.ready(t)
}

// lower exchanges the lower half of the disk.
func (m *machine) lower(node string) {
	m.vm.Command("blockdev-reopen", map[string]any{
		"options": []any{map[string]any{"driver": "raw", "node-name": "top", "file": node}},
	}, nil)
}

func (m *machine) storageError(t *testing.T, node, command, detail string) daemon.Status {
	t.Helper()
	mark := m.vm.Mark()
	m.lower(node)
	m.vm.Send(command + " &")
	m.vm.WaitEvent(mark, "STOP")
	// The first event names the block node only.
	return m.in(t, "io-error", "on disk0: "+detail)
}

func unreadable(t *testing.T, m *machine) {
	s := m.storageError(t, "unreadable", "dd if=/dev/vda of=/dev/null bs=4096 count=1 iflag=direct", "Input/output error")
	if strings.Contains(s.Detail, "ENOSPC") || s.VM.IOErrors == 0 {
		t.Errorf("%s; %+v", s.Detail, s.VM)
	}
	m.stays(t, s)
	// Left as it is, for swapping.
}

// swapping lets a management tool resume the VM again and again while its storage still fails.
func swapping(t *testing.T, m *machine) {
	before := m.main.MustStatus()
	began, mark := time.Now(), m.vm.Mark()
	const rate, times = 50 * time.Millisecond, 40
	stop := daemon.Watch(t, 10*time.Millisecond, m.main)
	tick := time.NewTicker(rate)
	for range times {
		m.vm.CommandEvent("cont", nil, "STOP")
		<-tick.C
	}
	tick.Stop()
	m.lower("good")
	m.vm.Cont()
	resumed := time.Now()
	s := m.ready(t)
	samples := stop()
	alive(t, samples)
	var firstReady time.Time
	for _, sample := range samples {
		if sample.Ready[0] == http.StatusOK {
			firstReady = sample.At
			break
		}
	}
	if !firstReady.IsZero() && firstReady.Before(resumed) {
		t.Errorf("ready at %v, and the storage was repaired at %v", firstReady, resumed)
	}
	if got := daemon.Reasons(s.Since(began)); !slices.Equal(got, []string{"Ready"}) {
		t.Errorf("the verdict went through %v", got)
	}
	if waited := s.Transitions[len(s.Transitions)-1].At.Sub(resumed); waited < 900*time.Millisecond {
		t.Errorf("ready %v after the VM ran again: good news has to last for a second", waited)
	}
	swaps := 0
	for _, e := range m.vm.Events(mark) {
		if e.Name == "RESUME" {
			swaps++
		}
	}
	t.Logf("%d swaps in %.1f s, %d I/O errors counted, %d samples, 1 transition",
		swaps, time.Since(began).Seconds(), s.VM.IOErrors-before.VM.IOErrors, len(samples))
}

func full(t *testing.T, m *machine) {
	s := m.storageError(t, "full", "dd if=/dev/zero of=/dev/vda bs=4096 count=1 oflag=direct", "No space left on device (ENOSPC")
	m.stays(t, s)
	m.lower("good")
	m.vm.Cont()
	m.ready(t)
}

func watchdog(t *testing.T, m *machine) {
	mark := m.vm.Mark()
	m.vm.Send("outb 0x443 0x0f") // the iBASE 700's port; it is to run out at once
	m.vm.WaitEvent(mark, "WATCHDOG")
	m.vm.WaitEvent(mark, "STOP")
	m.stays(t, m.in(t, "watchdog", "watchdog"))
	m.vm.Cont()
	m.ready(t)
}

// debugger steps the guest as gdb would (its remote protocol: $PACKET#CHECKSUM).
func debugger(t *testing.T, m *machine) {
	var said string
	stub := func(where string) {
		m.vm.Command("human-monitor-command", map[string]any{"command-line": "gdbserver " + where}, &said)
	}
	socket := filepath.Join(filepath.Dir(m.second), "gdb.sock")
	stub("unix:path=" + socket + ",server=on,wait=off")
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatalf("%v; QEMU said %q", err, said)
	}
	defer conn.Close()
	mark := m.vm.Mark()
	if _, err := conn.Write([]byte("+$s#73")); err != nil {
		t.Fatal(err)
	}
	m.vm.WaitEvent(mark, "STOP")
	m.main.Until("debug", func(s daemon.Status) error {
		if got := m.vm.Status(); got != "debug" {
			return fmt.Errorf("QEMU says %s", got)
		}
		return nil
	})
	m.stays(t, m.in(t, "debug", "debugger"))
	if _, err := conn.Write([]byte("+$D#44")); err != nil { // detach
		t.Fatal(err)
	}
	m.main.Await(daemon.Verdict{Reason: "Ready", Ready: true, Live: true})
	stub("none")
	m.ready(t)
}

func panicked(t *testing.T, m *machine) {
	// One whose administrator wants to keep a panicked guest as it is.
	patient := m.extra(t, "one that holds on panic", `
  readinessProbe: {httpGet: {port: WEB, path: /healthz}, periodSeconds: 1}
  policy: {guestPanicked: hold}
`)
	patient.Await(daemon.Verdict{Reason: "Ready", Ready: true, Live: true})

	// The guest's kernel, if it has a crash kernel loaded, says so on the panic device: bit 1 of its port.
	mark := m.vm.Mark()
	m.vm.Run("outb 0x505 2")
	m.vm.WaitEvent(mark, "GUEST_CRASHLOADED")
	s := m.main.Await(daemon.Verdict{Reason: "GuestCrashDumping", Live: true})
	if s.VM.Status != "running" || !s.Held || s.VM.Panics != 0 {
		t.Errorf("while it dumps: held %v, %+v", s.Held, s.VM)
	}
	m.unmoved(t, s)

	m.vm.Panic()
	patient.Await(daemon.Verdict{Reason: "GuestPanicked", Live: true})
	patient.Stop()
	s = m.in(t, "guest-panicked", "panicked")
	if s.VM.Panics != 1 {
		t.Errorf("%d panics", s.VM.Panics)
	}
	m.stays(t, s)
}

func resetByHost(t *testing.T, m *machine) {
	m.vm.Reset()
	s := m.in(t, "prelaunch", "") // QEMU waits for somebody to say cont
	if s.Started || s.VM.Resets != 1 {
		t.Errorf("after a reset: started %v, %d resets", s.Started, s.VM.Resets)
	}
	m.vm.Cont()
	m.vm.WaitReady()
	delayed(t, m.ready(t))
}

func rebootByGuest(t *testing.T, m *machine) {
	before, mark := m.main.MustStatus(), m.vm.Mark()
	stop := daemon.Watch(t, 100*time.Millisecond, m.main)
	m.vm.Reboot()
	first := m.vm.WaitEvent(mark, "RESET")
	s := m.main.Await(daemon.Verdict{Reason: "Starting", Live: true})
	if code, _, err := m.main.Get("/startupz"); code != http.StatusServiceUnavailable {
		t.Errorf("/startupz answers %d, %v in a boot", code, err)
	}
	if s.VM.Instance != before.VM.Instance || !s.VM.StartedAt.After(before.VM.StartedAt) {
		t.Errorf("before the reboot %+v, after it %+v", before.VM, s.VM)
	}
	m.vm.WaitReady()
	s = m.ready(t)
	delayed(t, s)
	alive(t, stop())
	events := 0
	for _, e := range m.vm.Events(mark) {
		if e.Name == "RESET" {
			events++
		}
	}
	t.Logf("%d RESET events for one reboot; the VM's start is %v off the first", events, s.VM.StartedAt.Sub(first.At).Abs())
	if events < 2 {
		t.Logf("this QEMU told the reset only once")
	}
	if got := s.VM.Resets - before.VM.Resets; got != 1 {
		t.Errorf("one reboot was counted %d times", got)
	}
}

func powerOff(t *testing.T, m *machine) {
	mark := m.vm.Mark()
	m.vm.Send("poweroff -f")
	m.vm.WaitEvent(mark, "SHUTDOWN")
	m.vm.WaitEvent(mark, "STOP")
	m.stays(t, m.in(t, "shutdown", "ended by the guest"))
}

// incoming asks of a QEMU that waits for a guest what becomes of it if none comes.
func incoming(t *testing.T, m *machine) {
	other := *m
	other.vm = guest.Start(t, guest.Options{Args: []string{"-incoming", "defer"}})
	other.main = daemon.On(t, m.binary, "a VM that is waited for", other.vm, `
apiVersion: guestprobe.dev/v1alpha1
kind: GuestProbes
metadata: {name: incoming}
spec:
  readinessProbe: {guestAgentPing: {}, periodSeconds: 1}
  livenessProbe:  {guestAgentPing: {}, periodSeconds: 1}
`)
	s := other.in(t, "inmigrate", "")
	if !s.VM.Incoming || s.VM.AgentPort != "unknown" {
		t.Errorf("%+v", s.VM)
	}
	other.unmoved(t, s)
	other.vm.Kill()
	other.main.Await(daemon.Verdict{Reason: "NoDomain", Live: true})
	other.main.Stop()
}
