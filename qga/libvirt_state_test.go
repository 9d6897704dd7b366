package qga

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
)

func TestLibvirtStatus(t *testing.T) {
	for _, tt := range []struct {
		state, reason      int32
		started            bool
		status, pause, off string
	}{
		{1, 1, true, "running", "", ""},
		{2, 0, true, "running", "", ""},
		{3, 0, true, "paused", "", ""},
		{3, 1, true, "paused", "user", ""},
		{3, 2, true, "finish-migrate", "migration", ""},
		{3, 2, false, "inmigrate", "migration", ""},
		{3, 3, true, "save-vm", "save", ""},
		{3, 4, true, "paused", "dump", ""},
		{3, 5, true, "io-error", "ioerror", ""},
		{3, 6, true, "watchdog", "watchdog", ""},
		{3, 7, true, "paused", "from-snapshot", ""},
		{3, 8, true, "shutdown", "shutting-down", ""},
		{3, 9, true, "paused", "snapshot", ""},
		{3, 10, true, "guest-panicked", "crashed", ""},
		{3, 11, false, "prelaunch", "starting-up", ""},
		{3, 12, true, "finish-migrate", "postcopy", ""},
		{3, 13, true, "paused", "postcopy-failed", ""},
		{3, 14, true, "paused", "api-error", ""},
		{3, 99, true, "paused", "reason-99", ""},
		{4, 1, true, "shutdown", "", ""},
		{5, 0, false, "", "", "never started"},
		{5, 1, true, "", "", "shutdown"},
		{5, 2, true, "", "", "destroyed"},
		{5, 3, true, "", "", "crashed"},
		{5, 4, true, "", "", "migrated"},
		{5, 5, true, "", "", "saved"},
		{5, 6, true, "", "", "failed"},
		{5, 7, true, "", "", "from snapshot"},
		{5, 8, true, "", "", "lost by the daemon"},
		{5, 99, true, "", "", "reason 99"},
		{6, 1, true, "guest-panicked", "", ""},
		{7, 0, true, "suspended", "", ""},
		{0, 0, true, "", "", "no state"},
		{8, 0, true, "libvirt-state-8", "", ""},
	} {
		status, pause, off := libvirtStatus(tt.state, tt.reason, tt.started)
		if status != tt.status || pause != tt.pause || off != tt.off {
			t.Errorf("%d/%d: %q %q %q", tt.state, tt.reason, status, pause, off)
		}
	}
	for detail := range int32(8) {
		s, ok := lifecycleState(int32(libvirt.DomainEventStopped), detail)
		_, _, off := libvirtStatus(s.state, s.reason, true)
		if !ok || off == "" || off == "never started" && detail != 7 {
			t.Errorf("STOPPED/%d: %q", detail, off)
		}
	}
}

func TestLibvirtTracker(t *testing.T) {
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	dom := libvirt.Domain{Name: "vm", UUID: libvirt.UUID{1}, ID: 1}
	read := func(state libvirt.DomainState, reason int) libvirtReading {
		return libvirtReading{found: true, dom: dom, state: libvirtState{int32(state), int32(reason)}, hasXML: true, port: PortClosed, boundAt: t0}
	}
	running, booted := libvirt.DomainRunning, int(libvirt.DomainRunningBooted)

	t.Run("found running", func(t *testing.T) {
		var tr libvirtTracker
		tr.reading(read(running, booted), t0.Add(time.Hour))
		if !tr.s.StartedAt.Equal(t0) || tr.s.Incoming {
			t.Errorf("%+v", tr.s)
		}
	})
	t.Run("found running after a migration", func(t *testing.T) {
		var tr libvirtTracker
		tr.reading(read(running, int(libvirt.DomainRunningMigrated)), t0.Add(time.Hour))
		if !tr.s.Incoming {
			t.Errorf("%+v", tr.s)
		}
	})
	t.Run("migration in", func(t *testing.T) {
		var tr libvirtTracker
		tr.reading(libvirtReading{}, t0)
		tr.reading(read(libvirt.DomainPaused, int(libvirt.DomainPausedStartingUp)), t0.Add(time.Second))
		if tr.s.Status != "prelaunch" || !tr.s.StartedAt.IsZero() {
			t.Errorf("%+v", tr.s)
		}
		tr.lifecycle(dom, int32(libvirt.DomainEventStarted), int32(libvirt.DomainEventStartedMigrated), t0.Add(time.Second))
		tr.reading(read(libvirt.DomainPaused, int(libvirt.DomainPausedMigration)), t0.Add(2*time.Second))
		if tr.s.Status != "inmigrate" || !tr.s.Incoming || !tr.s.StartedAt.IsZero() {
			t.Errorf("%+v", tr.s)
		}
		at := t0.Add(time.Minute)
		tr.lifecycle(dom, int32(libvirt.DomainEventResumed), int32(libvirt.DomainEventResumedMigrated), at)
		if tr.s.Status != "running" || !tr.s.Incoming || !tr.s.StartedAt.Equal(at) {
			t.Errorf("%+v", tr.s)
		}
		tr.reboot(at.Add(time.Minute))
		if tr.s.Incoming || tr.s.Resets != 1 {
			t.Errorf("%+v", tr.s)
		}
		tr.reading(read(running, int(libvirt.DomainRunningMigrated)), at.Add(2*time.Minute))
		if tr.s.Incoming {
			t.Error("libvirt's reason outlives the reset and must not bring Incoming back")
		}
	})
	t.Run("migration out", func(t *testing.T) {
		var tr libvirtTracker
		tr.reading(read(running, booted), t0)
		tr.lifecycle(dom, int32(libvirt.DomainEventSuspended), int32(libvirt.DomainEventSuspendedMigrated), t0.Add(time.Second))
		if tr.s.Status != "finish-migrate" || tr.s.PauseReason != "migration" {
			t.Errorf("%+v", tr.s)
		}
		tr.lifecycle(dom, int32(libvirt.DomainEventStopped), int32(libvirt.DomainEventStoppedMigrated), t0.Add(2*time.Second))
		if tr.s.Link != LinkGone || tr.s.Shutdown == nil || tr.s.Shutdown.Reason != "migrated" {
			t.Errorf("%+v", tr.s)
		}
	})
	t.Run("a daemon that is stuck", func(t *testing.T) {
		var tr libvirtTracker
		tr.reading(read(running, booted), t0)
		tr.s.Link = LinkStuck
		tr.lifecycle(dom, int32(libvirt.DomainEventSuspended), int32(libvirt.DomainEventSuspendedPaused), t0)
		if tr.s.Status != "paused" || tr.s.Link != LinkStuck {
			t.Errorf("it still tells events: %+v", tr.s)
		}
		tr.following = false // on a new connection, where nothing has been read
		tr.lifecycle(dom, int32(libvirt.DomainEventResumed), 0, t0)
		if tr.s.Status != "paused" {
			t.Errorf("an event that others may have come before: %+v", tr.s)
		}
	})
	t.Run("gone, says a daemon that is stuck", func(t *testing.T) {
		w := &libvirtWatcher{notify: func(VMState) {}, command: time.Second, spoke: true}
		w.tracker.reading(read(running, booted), t0)
		w.tracker.lifecycle(dom, int32(libvirt.DomainEventStopped), int32(libvirt.DomainEventStoppedDestroyed), t0)
		f := libvirtFollower{w: w, asked: time.Now()}
		if err := f.late(); err != nil || w.tracker.s.Link != LinkGone {
			t.Errorf("%v, %+v", err, w.tracker.s)
		}
	})
	t.Run("two resets for one", func(t *testing.T) {
		var tr libvirtTracker
		tr.reading(libvirtReading{}, t0)
		tr.reading(read(running, booted), t0)
		tr.s.StartedAt, tr.lastBoot = t0, t0
		for _, ms := range []int{40, 60_000, 60_040, 90_000} {
			tr.reboot(t0.Add(time.Duration(ms) * time.Millisecond))
		}
		if tr.s.Resets != 2 || !tr.s.StartedAt.Equal(t0.Add(90*time.Second)) {
			t.Errorf("%d resets, started %v", tr.s.Resets, tr.s.StartedAt)
		}
	})
	t.Run("reset while paused", func(t *testing.T) {
		var tr libvirtTracker
		tr.reading(read(running, booted), t0)
		tr.reading(read(libvirt.DomainPaused, int(libvirt.DomainPausedUser)), t0)
		tr.reboot(t0.Add(time.Minute))
		if !tr.s.StartedAt.IsZero() || tr.s.Status != "paused" {
			t.Errorf("%+v", tr.s)
		}
		tr.lifecycle(dom, int32(libvirt.DomainEventResumed), 0, t0.Add(time.Hour))
		if !tr.s.StartedAt.Equal(t0.Add(time.Hour)) {
			t.Errorf("%+v", tr.s)
		}
	})
	t.Run("the daemon counts anew", func(t *testing.T) {
		var tr libvirtTracker
		tr.reading(read(running, booted), t0)
		before := tr.s.Instance
		tr.detach()
		again := read(running, booted)
		tr.reading(again, t0)
		if tr.s.Instance != before {
			t.Error("a reconnect made a new instance")
		}
		again.boundAt = t0.Add(time.Hour)
		tr.reading(again, t0)
		if tr.s.Instance == before {
			t.Error("another QEMU under the same number is taken for the same instance")
		}
	})
	t.Run("restored", func(t *testing.T) {
		var tr libvirtTracker
		tr.reading(libvirtReading{}, t0)
		tr.lifecycle(dom, int32(libvirt.DomainEventStarted), int32(libvirt.DomainEventStartedRestored), t0)
		tr.reading(read(running, int(libvirt.DomainRunningRestored)), t0)
		if !tr.s.Incoming {
			t.Errorf("%+v", tr.s)
		}
	})
	t.Run("QEMU's event of a panic comes first", func(t *testing.T) {
		var tr libvirtTracker
		tr.reading(read(running, booted), t0)
		tr.panicDetail(Panic{Type: "hyper-v"})
		if tr.s.Panic != nil || tr.s.Status != "running" {
			t.Errorf("%+v", tr.s)
		}
		tr.lifecycle(dom, int32(libvirt.DomainEventCrashed), 0, t0)
		if tr.s.Panic == nil || tr.s.Panic.Type != "hyper-v" || tr.s.Panics != 1 {
			t.Errorf("%+v", tr.s)
		}
		tr.lifecycle(dom, int32(libvirt.DomainEventCrashed), 0, t0)
		if tr.s.Panic.Type != "" || tr.s.Panics != 2 {
			t.Errorf("an old detail in a new panic: %+v", tr.s.Panic)
		}
	})
	t.Run("QEMU's event of a disk comes first", func(t *testing.T) {
		var tr libvirtTracker
		tr.reading(read(running, booted), t0)
		tr.ioDetail(IOError{Device: "vda"})
		tr.lifecycle(dom, int32(libvirt.DomainEventSuspended), int32(libvirt.DomainEventSuspendedIoerror), t0)
		if tr.s.IOError == nil || tr.s.IOError.Device != "vda" {
			t.Errorf("%+v", tr.s.IOError)
		}
		tr.lifecycle(dom, int32(libvirt.DomainEventResumed), 0, t0)
		tr.lifecycle(dom, int32(libvirt.DomainEventSuspended), int32(libvirt.DomainEventSuspendedIoerror), t0)
		if *tr.s.IOError != (IOError{}) {
			t.Errorf("an old detail in a new error: %+v", tr.s.IOError)
		}
	})
	t.Run("a channel of another name", func(t *testing.T) {
		tr := libvirtTracker{otherPort: true}
		tr.reading(read(running, booted), t0)
		tr.agent(1)
		if tr.s.AgentPort != PortClosed {
			t.Errorf("%+v", tr.s)
		}
	})
}

func TestLibvirtXML(t *testing.T) {
	x, err := parseLibvirtXML(`<domain><devices>
		<channel type='unix'><source mode='bind' path='/a'/><target type='virtio' name='org.qemu.guest_agent.0' state='connected'/><alias name='channel0'/></channel>
		<channel type='unix'><source mode='bind' path='/b'/><target type='virtio' name='other' state='disconnected'/><alias name='channel1'/></channel>
		<channel type='spicevmc'><target type='virtio' name='com.redhat.spice.0'/><alias name='channel2'/></channel>
		</devices></domain>`)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		want string
		port Port
		path string
	}{
		{"", PortOpen, "/a"},
		{"/b", PortClosed, "/b"},
		{"channel1", PortClosed, "/b"},
		{"other", PortClosed, "/b"},
		{"com.redhat.spice.0", PortUnknown, ""},
		{"nothing", PortUnknown, ""},
	} {
		if port, path := x.agentPort(tt.want); port != tt.port || path != tt.path {
			t.Errorf("%q: %v %q", tt.want, port, path)
		}
	}
	for _, text := range []string{"", "<domain>", "{}", "\xff"} {
		if _, err := parseLibvirtXML(text); !errors.Is(err, ErrProtocol) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzLibvirtXML(f *testing.F) {
	f.Add(`<domain><devices><channel type='unix'><target name='org.qemu.guest_agent.0' state='connected'/></channel></devices></domain>`)
	f.Fuzz(func(t *testing.T, text string) {
		x, err := parseLibvirtXML(text)
		if err != nil && !errors.Is(err, ErrProtocol) {
			t.Error(err)
		}
		if port, _ := x.agentPort(""); port < PortUnknown || port > PortClosed {
			t.Error(fmt.Sprint(port))
		}
	})
}
