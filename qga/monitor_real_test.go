package qga

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/digitalocean/go-qemu/qmp/raw"
)

// A realQEMU is a qemu-system process of this host, without an operating
// system in it. It has two monitors: qmp.sock for the client under test, and
// one for the test.
type realQEMU struct {
	t    *testing.T
	dir  string
	args []string
	cmd  *exec.Cmd
}

// newRealQEMU prepares a QEMU and does not start it. The test is skipped where
// there is none, unless the environment says that there must.
func newRealQEMU(t *testing.T, args ...string) *realQEMU {
	t.Helper()
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		if os.Getenv("CI") == "true" || os.Getenv("GUESTPROBE_REQUIRE_REAL") == "1" {
			t.Fatalf("no real QEMU: %v", err)
		}
		t.Skipf("NOT TESTED against a real QEMU: %v (Debian: apt-get install qemu-system-x86)", err)
	}
	return &realQEMU{t: t, dir: shortDir(t), args: args}
}

func (q *realQEMU) path(name string) string { return filepath.Join(q.dir, name) }
func (q *realQEMU) addr() string            { return "unix:" + q.path("qmp.sock") }

// start starts the process, with its CPUs stopped, and waits for its monitors.
func (q *realQEMU) start(more ...string) {
	q.t.Helper()
	args := append([]string{
		"-accel", "tcg", "-nodefaults", "-display", "none", "-m", "32", "-name", "bare", "-S",
		"-qmp", "unix:" + q.path("qmp.sock") + ",server=on,wait=off",
		"-qmp", "unix:" + q.path("test.sock") + ",server=on,wait=off",
	}, append(q.args, more...)...)
	q.cmd = exec.Command("qemu-system-x86_64", args...)
	q.cmd.Stderr = os.Stderr
	if err := q.cmd.Start(); err != nil {
		q.t.Fatal(err)
	}
	cmd := q.cmd
	q.t.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	})
}

// kill ends the process without a word.
func (q *realQEMU) kill() {
	q.t.Helper()
	if err := q.cmd.Process.Kill(); err != nil {
		q.t.Fatal(err)
	}
	q.cmd.Wait()
}

func (q *realQEMU) signal(sig os.Signal) {
	q.t.Helper()
	if err := q.cmd.Process.Signal(sig); err != nil {
		q.t.Fatal(err)
	}
}

// control runs commands on the test's own monitor: a name, or a whole object.
func (q *realQEMU) control(commands ...string) {
	q.t.Helper()
	conn := dialSoon(q.t, q.path("test.sock"))
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		q.t.Fatal(err)
	}
	lines := bufio.NewScanner(conn)
	for _, command := range append([]string{"qmp_capabilities"}, commands...) {
		if command[0] != '{' {
			command = fmt.Sprintf(`{"execute": %q}`, command)
		}
		if _, err := fmt.Fprintln(conn, command); err != nil {
			q.t.Fatal(err)
		}
		for {
			if !lines.Scan() {
				q.t.Fatalf("%s: no reply: %v", command, lines.Err())
			}
			var reply struct{ Return, Error json.RawMessage }
			if err := json.Unmarshal(lines.Bytes(), &reply); err != nil || reply.Error != nil {
				q.t.Fatalf("%s: %s", command, lines.Bytes())
			}
			if reply.Return != nil {
				break
			}
		}
	}
}

// dialSoon connects once somebody listens.
func dialSoon(t *testing.T, path string) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		conn, err := net.Dial("unix", path)
		if err == nil {
			return conn
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
}

// boots makes QEMU boot a sector of machine code for a PC in real mode.
func (q *realQEMU) boots(code []byte) {
	q.t.Helper()
	disk := make([]byte, 1<<20) // firmware does not boot from a smaller one
	copy(disk, code)
	disk[510], disk[511] = 0x55, 0xaa
	if err := os.WriteFile(q.path("disk"), disk, 0o600); err != nil {
		q.t.Fatal(err)
	}
	q.args = append(q.args, "-drive", "if=none,id=d,format=raw,file="+q.path("disk"), "-device", "virtio-blk-pci,drive=d,bootindex=1")
}

// out returns machine code that writes a byte to an I/O port, and halts.
func out(port uint16, value byte) []byte {
	return []byte{
		0xba, byte(port), byte(port >> 8), // mov dx, port
		0xb0, value, // mov al, value
		0xee,       // out dx, al
		0xf4,       // hlt
		0xeb, 0xfd, // jmp to hlt
	}
}

const pvpanicPort = 0x505

func TestRealLife(t *testing.T) {
	t.Parallel()
	q := newRealQEMU(t)
	r := record(t, newMonitor(t, q.addr(), nil))
	r.waitLink(LinkGone)
	q.start()
	s := r.waitStatus("prelaunch")
	if s.Name != "bare" || s.Version == "" || !s.StartedAt.IsZero() || !strings.Contains(s.Instance, fmt.Sprint(q.cmd.Process.Pid)) {
		t.Errorf("found: %+v", s)
	}

	q.control("cont")
	s = r.waitStatus("running")
	began := s.StartedAt
	if began.IsZero() || time.Since(began) > patience {
		t.Errorf("began %v", began)
	}
	q.control("stop")
	r.waitStatus("paused")
	q.control("cont")
	if s := r.waitStatus("running"); !s.StartedAt.Equal(began) {
		t.Error("a pause moved the start")
	}

	// One system_reset: the host's event, and the firmware's own.
	q.control("system_reset")
	s = r.wait("a reset", func(s VMState) bool { return s.Resets == 1 })
	if !s.StartedAt.After(began) || s.Status != "running" {
		t.Errorf("reset: %+v", s)
	}
	q.control("stop", "system_reset")
	r.waitStatus("prelaunch")
	q.control("cont")
	if s := r.waitStatus("running"); s.Resets != 2 {
		t.Errorf("%d resets, want 2", s.Resets)
	}

	q.control("quit")
	s = r.waitLink(LinkGone)
	if s.Shutdown == nil || s.Shutdown.Guest || s.Shutdown.Reason != "host-qmp-quit" {
		t.Errorf("gone: %+v", s)
	}
	q.cmd.Wait()

	q.start()
	began = time.Now()
	next := r.waitStatus("prelaunch")
	if next.Instance == s.Instance || next.Shutdown != nil || next.Resets != 2 {
		t.Errorf("another QEMU: %+v", next)
	}
	t.Logf("a new QEMU was found %v after its start", time.Since(began).Round(time.Millisecond))
	q.kill()
	s = r.waitLink(LinkGone)
	if s.Shutdown != nil || s.Instance != next.Instance {
		t.Errorf("killed: %+v", s)
	}
}

func TestRealFoundRunning(t *testing.T) {
	t.Parallel()
	q := newRealQEMU(t)
	before := time.Now()
	q.start()
	q.control("cont")
	after := time.Now()
	r := record(t, newMonitor(t, q.addr(), nil))
	// The process's start, to a clock tick.
	s := r.waitStatus("running")
	if s.StartedAt.Before(before.Add(-50*time.Millisecond)) || s.StartedAt.After(after) {
		t.Errorf("started %v, want %v to %v", s.StartedAt, before, after)
	}
	r.stop()
	if again := record(t, newMonitor(t, q.addr(), nil)).waitStatus("running"); again.Instance != s.Instance {
		t.Errorf("a reconnect made %q of %q", again.Instance, s.Instance)
	}
}

func TestRealBusy(t *testing.T) {
	t.Parallel()
	q := newRealQEMU(t)
	q.start()
	dialSoon(t, q.path("qmp.sock")).Close()
	other := connect(t, q.addr(), nil)
	r := record(t, newMonitor(t, q.addr(), quick("")))
	r.waitLink(LinkBusy)
	if _, err := other.Run([]byte(`{"execute": "query-status"}`)); err != nil {
		t.Errorf("the client that was there first: %v", err)
	}
	if err := other.Disconnect(); err != nil {
		t.Fatal(err)
	}
	r.waitStatus("prelaunch")
}

func TestRealGoQEMU(t *testing.T) {
	t.Parallel()
	q := newRealQEMU(t)
	q.start()
	dialSoon(t, q.path("qmp.sock")).Close()
	typed := raw.NewMonitor(connect(t, q.addr(), nil))
	status, err := typed.QueryStatus()
	if err != nil || status.Status != raw.RunStatePrelaunch {
		t.Errorf("query-status: %+v, %v", status, err)
	}
	if version, err := typed.QueryVersion(); err != nil || version.Qemu.Major < 5 {
		t.Errorf("query-version: %+v, %v", version, err)
	}
}

func TestRealStopped(t *testing.T) {
	t.Parallel()
	q := newRealQEMU(t)
	q.start()
	r := record(t, newMonitor(t, q.addr(), quick("")))
	s := r.waitStatus("prelaunch")
	q.signal(syscall.SIGSTOP)
	stuck := r.waitStuck("is stopped")
	if stuck.Status != "prelaunch" || stuck.Instance != s.Instance {
		t.Errorf("stopped: %+v", stuck)
	}
	// One that connects now hears nothing, and is told why.
	record(t, newMonitor(t, "unix:"+q.path("test.sock"), quick(""))).waitStuck("is stopped")
	q.signal(syscall.SIGCONT)
	if again := r.waitStatus("prelaunch"); again.Instance != s.Instance {
		t.Errorf("continued: %+v", again)
	}
}

func TestRealPanic(t *testing.T) {
	t.Parallel()
	q := newRealQEMU(t, "-device", "pvpanic", "-action", "panic=pause")
	q.boots(out(pvpanicPort, 1))
	q.start()
	r := record(t, newMonitor(t, q.addr(), nil))
	r.waitStatus("prelaunch")
	q.control("cont")
	s := r.waitStatus("guest-panicked")
	if s.Panic == nil || s.Panic.Action != "pause" || s.Panics != 1 {
		t.Errorf("%+v", s.Panic)
	}
	q.control("system_reset")
	if s := r.waitStatus("prelaunch"); s.Panic != nil || s.Resets != 1 {
		t.Errorf("reset: %+v", s)
	}
}

func TestRealPanicPowersOff(t *testing.T) {
	t.Parallel()
	q := newRealQEMU(t, "-device", "pvpanic", "-action", "panic=shutdown", "-no-shutdown")
	q.boots(out(pvpanicPort, 1))
	q.start()
	r := record(t, newMonitor(t, q.addr(), nil))
	r.waitStatus("prelaunch")
	q.control("cont")
	s := r.wait("the end", func(s VMState) bool {
		return s.Shutdown != nil || s.Status == "guest-panicked" && s.Panic.Action == "pause"
	})
	if s.Panic == nil || s.Panics != 1 {
		t.Errorf("%+v", s)
	}
}

func TestRealCrashLoaded(t *testing.T) {
	t.Parallel()
	q := newRealQEMU(t, "-device", "pvpanic")
	q.boots(out(pvpanicPort, 2))
	q.start()
	r := record(t, newMonitor(t, q.addr(), nil))
	r.waitStatus("prelaunch")
	q.control("cont")
	s := r.wait("a crash dump", func(s VMState) bool { return s.CrashDumping })
	if s.Status != "running" || s.Panics != 0 {
		t.Errorf("%+v", s)
	}
}

func TestRealIOError(t *testing.T) {
	t.Parallel()
	q := newRealQEMU(t)
	if err := os.WriteFile(q.path("disk"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	q.start(
		"-blockdev", fmt.Sprintf(`{"driver": "blkdebug", "node-name": "bad", "image": {"driver": "file", "filename": %q},
			"inject-error": [{"event": "none", "iotype": "read", "errno": %d, "once": false}]}`, q.path("disk"), syscall.ENOSPC),
		"-device", "virtio-blk-pci,id=disk0,drive=bad,bootindex=1,rerror=stop,werror=stop")
	r := record(t, newMonitor(t, q.addr(), nil))
	r.waitStatus("prelaunch")
	q.control("cont")
	s := r.waitStatus("io-error")
	if s.IOError == nil || !s.IOError.NoSpace || s.IOErrors == 0 {
		t.Errorf("%+v", s)
	}
	// The event has the node's name only; query-block knows whose it is.
	s = r.wait("the device's name", func(s VMState) bool { return s.IOError != nil && s.IOError.Device == "disk0" })
	if s.IOError.Reason == "" {
		t.Errorf("%+v", s.IOError)
	}
	r.stop()

	// A monitor that comes late finds the same.
	late := record(t, newMonitor(t, q.addr(), nil))
	late.wait("the device, late", func(s VMState) bool {
		return s.Status == "io-error" && s.IOError != nil && s.IOError.Device == "disk0" && s.IOError.NoSpace
	})
	q.control("cont") // fails again at once
	s = late.wait("running, if only for a moment", func(s VMState) bool { return s.Status == "running" && s.IOError == nil })
	late.waitStatus("io-error")
	q.control("stop", "quit")
	late.waitLink(LinkGone)
}

func TestRealMigration(t *testing.T) {
	t.Parallel()
	source, target := newRealQEMU(t), newRealQEMU(t)
	source.start()
	from := record(t, newMonitor(t, source.addr(), nil))
	from.waitStatus("prelaunch")
	source.control("cont")
	from.waitStatus("running")

	target.start("-incoming", "unix:"+target.path("migrate.sock"))
	to := record(t, newMonitor(t, target.addr(), nil))
	if s := to.waitStatus("inmigrate"); !s.Incoming || !s.StartedAt.IsZero() {
		t.Errorf("target: %+v", s)
	}
	// QEMU with -S does not go on by itself.
	source.control(fmt.Sprintf(`{"execute": "migrate", "arguments": {"uri": "unix:%s"}}`, target.path("migrate.sock")))
	from.waitStatus("postmigrate")
	if s := to.waitStatus("paused"); !s.Incoming {
		t.Errorf("target, arrived: %+v", s)
	}
	target.control("cont")
	if s := to.waitStatus("running"); !s.Incoming || s.StartedAt.IsZero() || s.Resets != 0 {
		t.Errorf("target, running: %+v", s)
	}
	source.kill()
	from.waitLink(LinkGone)
}

func TestRealAgentPort(t *testing.T) {
	t.Parallel()
	q := newRealQEMU(t)
	q.start("-device", "virtio-serial-pci",
		"-chardev", "socket,id=qga0,server=on,wait=off,path="+q.path("qga.sock"),
		"-device", "virtserialport,chardev=qga0,name=org.qemu.guest_agent.0,id=channel0")
	r := record(t, newMonitor(t, q.addr(), &MonitorConfig{AgentPath: q.path("qga.sock")}))
	if s := r.waitPort(PortClosed); s.AgentEverOpen {
		t.Errorf("%+v", s)
	}
	r.stop()
	byLabel := record(t, newMonitor(t, q.addr(), &MonitorConfig{AgentPath: "qga0"}))
	byLabel.waitPort(PortClosed)
	byLabel.stop()

	// The agent's channel, taken for the monitor: nobody in the guest answers,
	// so it looks like a monitor that another client holds.
	wrong := record(t, newMonitor(t, "unix:"+q.path("qga.sock"), quick("")))
	wrong.waitLink(LinkBusy)
}
