package states_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/guestprobe/guestprobe/test/daemon"
	"github.com/guestprobe/guestprobe/test/guest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sparePort is the name of a further virtio port, for which the guest starts no agent by itself.
const sparePort = "org.guestprobe.spare.0"

// A machine is the VM that all steps share, with one daemon that follows it from before its boot to its end.
type machine struct {
	vm     *guest.VM
	binary string
	main   *daemon.Daemon
	second string // a monitor for one further daemon at a time
	spare  string // the agent channel of sparePort

	table   map[string]row // of docs/verdicts.md, by QEMU's status
	reached map[string]bool
}

// A row says what the documentation promises for one status.
type row struct{ ready, reason, live string }

// documented reads the table of states.
func documented(t *testing.T) map[string]row {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(guest.Root(t), "docs", "verdicts.md"))
	if err != nil {
		t.Fatal(err)
	}
	table := make(map[string]row)
	pattern := regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| (503|the probes decide) \\| (\\w+) \\| (held|fails at once|the probes decide) \\|$")
	for _, match := range pattern.FindAllStringSubmatch(string(page), -1) {
		table[match[1]] = row{match[2], match[3], match[4]}
	}
	if len(table) != 16 {
		t.Fatalf("%d rows of the table of states were understood, want QEMU's 16 run states", len(table))
	}
	return table
}

// disk is a drive whose lower half the test exchanges: one that works, one that cannot be read, one that is full.
func disk(t *testing.T) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	failing := func(node, kind string, errno int) string {
		return fmt.Sprintf(`{"driver": "blkdebug", "node-name": %q, "image": "file",
			"inject-error": [{"event": "none", "iotype": %q, "errno": %d, "once": false}]}`, node, kind, errno)
	}
	const eio, enospc = 5, 28 // QEMU's numbers are Linux's
	return []string{
		"-blockdev", "driver=file,node-name=file,filename=" + file,
		"-blockdev", "driver=raw,node-name=good,file=file",
		"-blockdev", failing("unreadable", "read", eio),
		"-blockdev", failing("full", "write", enospc),
		"-blockdev", "driver=raw,node-name=top,file=good",
		"-device", "virtio-blk-pci,id=disk0,drive=top,rerror=stop,werror=stop",
	}
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{binary: daemon.Build(t), table: documented(t), reached: make(map[string]bool)}
	dir, err := os.MkdirTemp("", "gps") // short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m.second, m.spare = filepath.Join(dir, "qmp2.sock"), filepath.Join(dir, "spare.sock")

	outb, arguments := filepath.Join(dir, "outb"), filepath.Join(dir, "arguments")
	build := exec.Command("go", "build", "-o", outb, "./outb")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building outb: %v\n%s", err, out)
	}
	if err := os.WriteFile(arguments, []byte("#!/bin/sh\nprintf '<%s>\\n' \"$@\" >/run/arguments\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.vm = guest.Start(t, guest.Options{
		Files: map[string]string{"/sbin/outb": outb, "/sbin/arguments": arguments},
		Args: append(disk(t),
			"-S", "-no-shutdown", "-action", "watchdog=pause", "-device", "ib700",
			"-qmp", "unix:"+m.second+",server=on,wait=off",
			"-chardev", "socket,id=spare,server=on,wait=off,path="+m.spare,
			"-device", "virtserialport,chardev=spare,id=spareport,name="+sparePort),
	})
	m.main = daemon.On(t, m.binary, "the VM", m.vm, `
apiVersion: guestprobe.dev/v1alpha1
kind: GuestProbes
metadata: {name: states}
spec:
  startupProbe:   {guestAgentPing: {}, initialDelaySeconds: 2, periodSeconds: 1, failureThreshold: 120}
  readinessProbe: {httpGet: {port: WEB, path: /healthz}, periodSeconds: 1}
  livenessProbe:  {guestAgentPing: {}, periodSeconds: 1, failureThreshold: 3}
`)
	return m
}

// extra starts a further daemon, on the second monitor and the spare agent.
func (m *machine) extra(t *testing.T, name, spec string) *daemon.Daemon {
	t.Helper()
	return daemon.On(t, m.binary, name, m.vm,
		"apiVersion: guestprobe.dev/v1alpha1\nkind: GuestProbes\nmetadata: {name: extra}\nspec:\n"+spec,
		"--monitor", "unix:"+m.second, "--agent", "unix:"+m.spare)
}

// use lets a subtest have the machine.
func (m *machine) use(t *testing.T) { m.vm.Use(t); m.main.Use(t) }

func (m *machine) ready(t *testing.T) daemon.Status {
	t.Helper()
	return m.in(t, "running", "")
}

// in waits until the daemon says what the documentation promises for a status that QEMU is in now.
func (m *machine) in(t *testing.T, status, detail string) daemon.Status {
	t.Helper()
	if got := m.vm.Status(); got != status {
		t.Errorf("QEMU's status is %s, not %s", got, status)
	}
	row, ok := m.table[status]
	if !ok {
		t.Fatalf("the documentation has no row for %s", status)
	}
	s := m.main.Await(daemon.Verdict{
		Reason: row.reason, Ready: row.ready != "503", Live: row.live != "fails at once", Detail: detail,
	})
	held := row.live != "the probes decide"
	if s.VM.Status != status || s.Held != held {
		t.Errorf("/status says %q, held %v; want %q, held %v", s.VM.Status, s.Held, status, held)
	}
	for _, c := range s.Checks {
		if held != (c.Step == "held") {
			t.Errorf("in %s, step of %s: %s", status, c.Name, c.Step)
		}
	}
	m.reached[status] = true
	return s
}

// stays asks, at the end of a state in which the probes were held, that none was run since s and that nothing about
// the checks has changed; and that a daemon which comes only now, as after a restart, says the same of the VM.
func (m *machine) stays(t *testing.T, s daemon.Status) {
	t.Helper()
	late := m.extra(t, "one that comes late", `
  readinessProbe: {guestAgentPing: {}, periodSeconds: 1}
  livenessProbe:  {guestAgentPing: {}, periodSeconds: 1, failureThreshold: 1}
`)
	late.Use(t)
	now := late.Until("the VM's status", func(now daemon.Status) error {
		if now.VM.Status != s.VM.Status || now.VM.IOError == "" && s.VM.IOError != "" {
			return fmt.Errorf("%s, %+v", now.Reason, now.VM)
		}
		return nil
	})
	late.Await(daemon.Verdict{Reason: s.Reason, Ready: s.Ready, Live: s.Live})
	// It learns the device from query-block, and not why: of a drive made by -blockdev QEMU 7.2 keeps the first error.
	if (now.VM.IOError == "") != (s.VM.IOError == "") || !strings.HasPrefix(now.VM.IOError, device(s)) {
		t.Errorf("one that comes late says of the storage %q, the other %q", now.VM.IOError, s.VM.IOError)
	}
	late.Stop()
	m.unmoved(t, s)
}

// device is the device whose storage has failed.
func device(s daemon.Status) string {
	name, _, _ := strings.Cut(s.VM.IOError, ":")
	return name
}

// unmoved asks that no probe was run since s, and that nothing about the checks has changed.
func (m *machine) unmoved(t *testing.T, s daemon.Status) {
	t.Helper()
	now := m.main.MustStatus()
	for i, c := range now.Checks {
		if before := s.Checks[i]; c.Runs != before.Runs || c.State != before.State || c.Failures != before.Failures {
			t.Errorf("while the probes were held %s went from %+v to %+v", c.Name, before, c)
		}
	}
}

// alive asks that /livez never failed.
func alive(t *testing.T, samples []daemon.Sample) {
	t.Helper()
	for _, s := range samples {
		for _, code := range s.Live {
			if code != http.StatusOK {
				t.Errorf("at %v /livez answered %d", s.At, code)
			}
		}
	}
}

// TestStates walks one VM from before its boot to its end. The steps build on one another: each boot takes seconds.
func TestStates(t *testing.T) {
	m := newMachine(t)
	for _, part := range []struct {
		name string
		run  func(t *testing.T, m *machine)
	}{
		{"before the boot", prelaunch},
		{"the five conditions of an agent", agentConditions},
		{"exec", execHandler},
		{"grpc and tcp", networkHandlers},
		{"the doctor", doctor},
		{"frozen file systems", frozen},
		{"paused", paused},
		{"suspended", suspended},
		{"storage that cannot be read", unreadable},
		{"storage that swaps at 20 Hz", swapping},
		{"storage that is full", full},
		{"watchdog", watchdog},
		{"debugger", debugger},
		{"crash dump and panic", panicked},
		{"reset by the host", resetByHost},
		{"reboot by the guest", rebootByGuest},
		{"power off", powerOff},
		{"incoming", incoming},
		{"every row of the table", everyRow},
	} {
		if !t.Run(part.name, func(t *testing.T) { m.use(t); part.run(t, m) }) {
			t.FailNow() // the machine is in no known state
		}
	}
	m.main.Stop()
}

// everyRow asks that no row of the documentation's table was forgotten.
func everyRow(t *testing.T, m *machine) {
	elsewhere := map[string]string{
		"finish-migrate": "test/migration; it lasts for a few ms",
		"postmigrate":    "test/migration",
		"save-vm":        "lasts for as long as savevm takes, and libvirt has its own way to save",
		"restore-vm":     "lasts for as long as loadvm takes, before the guest runs",
		"internal-error": "KVM reports it, and there is none to be had here",
		"colo":           "takes a COLO pair",
	}
	for status := range m.table {
		switch why, excused := elsewhere[status]; {
		case excused && m.reached[status]:
			t.Errorf("%s was reached, and is excused: %s", status, why)
		case excused:
			t.Logf("%s is not tested here: %s", status, why)
		case !m.reached[status]:
			t.Errorf("%s was not reached", status)
		}
	}
}
