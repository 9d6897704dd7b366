package sidecar

import (
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/qga"
)

// A change of the monitor is no new VM, and a new VM is one whoever tells of it.
func TestInstanceNames(t *testing.T) {
	const direct, other = false, true
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	up := func(instance string, started int) qga.VMState {
		return qga.VMState{Link: qga.LinkUp, UUID: "u", Instance: instance, StartedAt: at(started)}
	}
	with := func(vm qga.VMState, link qga.Link) qga.VMState {
		vm.Link = link
		return vm
	}
	ended := with(up("libvirt 2", 200), qga.LinkGone)
	ended.Shutdown = &qga.Shutdown{}
	stranger := up("libvirt 9", 900)
	stranger.UUID = "v"
	var n instanceNames
	for _, step := range []struct {
		what     string
		from     bool
		vm       qga.VMState
		instance string
		started  int
	}{
		{"a VM", direct, up("direct 1", 100), "direct 1", 100},
		{"its QEMU hangs", direct, with(up("direct 1", 100), qga.LinkStuck), "direct 1", 100},
		{"libvirt is connected to", other, qga.VMState{Link: qga.LinkConnecting}, "", -1},
		{"libvirt tells of it", other, up("libvirt 1", 95), "direct 1", 100},
		{"again", other, up("libvirt 1", 95), "direct 1", 100},
		{"QEMU wakes", direct, up("direct 1", 100), "direct 1", 100},
		{"and hangs", direct, with(up("direct 1", 100), qga.LinkStuck), "direct 1", 100},
		{"the guest is reset", other, up("libvirt 1", 150), "direct 1", 150},
		{"libvirt is lost, and the VM restarted meanwhile", other, with(up("libvirt 1", 150), qga.LinkUnreachable), "direct 1", 150},
		{"there is another VM", other, up("libvirt 2", 200), "libvirt 2", 200},
		{"seen directly", direct, up("direct 2", 201), "libvirt 2", 200},
		{"reset", direct, up("direct 2", 210), "libvirt 2", 210},
		{"libvirt saw it a bit later", other, up("libvirt 2", 213), "libvirt 2", 210},
		{"directly again", direct, up("direct 2", 210), "libvirt 2", 210},
		{"libvirt's daemon has forgotten it", other, up("libvirt 2", 200), "libvirt 2", 210},
		{"a reset behind its back", direct, up("direct 2", 250), "libvirt 2", 250},
		{"its end", other, ended, "libvirt 2", 250},
		{"the next, seen directly first", direct, up("direct 3", 300), "direct 3", 300},
		{"libvirt has it too", other, up("libvirt 3", 299), "direct 3", 300},
		{"one that is another VM's", other, stranger, "libvirt 9", 900},
	} {
		got := n.settle(step.from, step.vm)
		if got.Instance != step.instance {
			t.Errorf("%s: instance %q, want %q", step.what, got.Instance, step.instance)
		}
		if step.started >= 0 && !got.StartedAt.Equal(at(step.started)) {
			t.Errorf("%s: started at %d, want %d", step.what, got.StartedAt.Unix(), step.started)
		}
		if got.Link != step.vm.Link {
			t.Errorf("%s: the link has changed", step.what)
		}
	}
}
