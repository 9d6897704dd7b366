package qga

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/qga/qgatest"
)

func TestWatchBusy(t *testing.T) {
	vm := startVM(t, qgatest.Config{Status: "running"})
	other := newMonitor(t, vm.MonitorAddr(), nil)
	if err := other.Connect(); err != nil {
		t.Fatal(err)
	}
	r := record(t, newMonitor(t, vm.MonitorAddr(), quick("")))
	s := r.waitLink(LinkBusy)
	if !errors.Is(s.LinkErr, context.DeadlineExceeded) {
		t.Errorf("busy: %v", s.LinkErr)
	}
	if err := other.Disconnect(); err != nil {
		t.Fatal(err)
	}
	r.waitStatus("running")
}

func TestWatchQueueFull(t *testing.T) {
	vm := startVM(t, qgatest.Config{Status: "running"})
	path := strings.TrimPrefix(vm.MonitorAddr(), "unix:")
	served, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := served.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	// One client is served, and so many wait that the kernel turns us away.
	held := []net.Conn{served}
	for {
		c, err := net.Dial("unix", path)
		if err != nil {
			if !errors.Is(err, syscall.EAGAIN) {
				t.Fatal(err)
			}
			break
		}
		held = append(held, c)
	}
	r := record(t, newMonitor(t, vm.MonitorAddr(), nil))
	if s := r.waitLink(LinkBusy); !errors.Is(s.LinkErr, syscall.EAGAIN) {
		t.Errorf("%v", s.LinkErr)
	}
	for _, c := range held {
		c.Close()
	}
	r.waitStatus("running")
}

func TestWatchStuck(t *testing.T) {
	vm := startVM(t, qgatest.Config{Status: "running"})
	r := record(t, newMonitor(t, vm.MonitorAddr(), quick("")))
	r.waitStatus("running")

	vm.SetMainLoopStuck(true)
	s := r.waitStuck("main loop")
	if s.Status != "running" {
		t.Errorf("status %q, want the last that was heard", s.Status)
	}
	vm.SetMainLoopStuck(false)
	r.waitStatus("running")

	vm.Stop()
	r.waitStuck("!main loop")
	// What happens meanwhile is not lost.
	vm.SetStatus("paused")
	vm.Continue()
	r.waitStatus("paused")

	// A stuck main loop accepts, greets, and does not negotiate.
	vm.SetMainLoopStuck(true)
	vm.DropMonitor()
	s = r.waitStuck("qmp_capabilities")
	if s.Status != "" {
		t.Errorf("status %q of a connection that never told one", s.Status)
	}
	vm.SetMainLoopStuck(false)
	r.waitStatus("paused")
}

func TestWatchStuckAndReplaced(t *testing.T) {
	dir := shortDir(t)
	old := startVM(t, qgatest.Config{Dir: dir, Status: "running"})
	r := record(t, newMonitor(t, old.MonitorAddr(), quick("")))
	first := r.waitStatus("running")
	old.Stop()
	r.waitLink(LinkStuck)
	startVM(t, qgatest.Config{Dir: dir})
	if s := r.waitStatus("prelaunch"); s.Instance == first.Instance {
		t.Error("the new QEMU on the path of a stopped one passes for the old one")
	}
	old.Continue()
}

func TestWatchUnreachable(t *testing.T) {
	dir := shortDir(t)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := record(t, newMonitor(t, "unix:"+file, nil)).waitLink(LinkUnreachable)
	if !strings.Contains(s.LinkErr.Error(), "no socket") {
		t.Errorf("a file: %v", s.LinkErr)
	}

	denied := newMonitor(t, "unix:/d", &MonitorConfig{Dial: func(context.Context) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", syscall.EACCES)}
	}})
	if s := record(t, denied).waitLink(LinkUnreachable); !errors.Is(s.LinkErr, fs.ErrPermission) {
		t.Errorf("no permission: %v", s.LinkErr)
	}
}

func TestWatchGarbage(t *testing.T) {
	vm := startVM(t, qgatest.Config{Status: "running"})
	r := record(t, newMonitor(t, vm.MonitorAddr(), nil))
	for _, garbage := range []string{"hello\r\n", "[]\n", "\x00\x01\n", strings.Repeat("x", maxQMPFrame+1)} {
		r.waitStatus("running")
		vm.SendMonitor([]byte(garbage))
		s := r.waitLink(LinkUnreachable)
		if !errors.Is(s.LinkErr, ErrProtocol) || len(s.LinkErr.Error()) > 1000 {
			t.Errorf("%.10q: %.1000v", garbage, s.LinkErr)
		}
	}
	r.waitStatus("running")
	vm.SendMonitor([]byte("\xff{\"return\": 7}\n"))
	if s := r.waitLink(LinkUnreachable); !errors.Is(s.LinkErr, ErrWrongPeer) {
		t.Errorf("an agent's sentinel: %v", s.LinkErr)
	}
}

func TestWatchWrongPeer(t *testing.T) {
	vm := startVM(t, qgatest.Config{Status: "running"})
	r := record(t, newMonitor(t, vm.AgentAddr(), quick("")))
	s := r.waitLink(LinkUnreachable)
	if !errors.Is(s.LinkErr, ErrWrongPeer) {
		t.Errorf("a guest agent: %v", s.LinkErr)
	}
	r.stop()

	// A channel of libvirt's is known by its name, and not a byte goes there.
	path := filepath.Join(shortDir(t), "org.qemu.guest_agent.0")
	agent, err := qgatest.StartAgent(qgatest.AgentConfig{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { agent.Close() })
	if s := record(t, newMonitor(t, "unix:"+path, quick(""))).waitLink(LinkUnreachable); !errors.Is(s.LinkErr, ErrWrongPeer) {
		t.Errorf("libvirt's channel: %v", s.LinkErr)
	}
	if n := agent.Calls("query-version"); n != 0 {
		t.Errorf("libvirt's channel was written to %d times", n)
	}
}

func TestWatchLeavesLibvirtsMonitorAlone(t *testing.T) {
	vm := startVM(t, qgatest.Config{Status: "running"})
	vm.SetReply("query-chardev", []chardev{{
		Label: "charmonitor", Filename: vm.MonitorAddr() + ",server=on", Open: true,
	}})
	s := record(t, newMonitor(t, vm.MonitorAddr(), nil)).waitLink(LinkUnreachable)
	if !errors.Is(s.LinkErr, errLibvirtsMonitor) {
		t.Errorf("%v", s.LinkErr)
	}
	// The place is free again: nothing of ours is attached.
	other := newMonitor(t, vm.MonitorAddr(), nil)
	if err := other.Connect(); err != nil {
		t.Fatal(err)
	}
	if err := other.Disconnect(); err != nil {
		t.Fatal(err)
	}
}
