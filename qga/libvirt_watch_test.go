package qga

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
)

// A libvirtRecord collects what a Watch tells.
type libvirtRecord struct {
	t       *testing.T
	mu      sync.Mutex
	states  []VMState
	changed chan struct{}
}

func watchLibvirt(t *testing.T, addr Addr, cfg MonitorConfig) *libvirtRecord {
	t.Helper()
	m, err := NewMonitor(addr, &cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &libvirtRecord{t: t, changed: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- m.Watch(ctx, func(s VMState) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.states = append(r.states, s)
			close(r.changed)
			r.changed = make(chan struct{})
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch: %v", err)
		}
		if t.Failed() {
			for _, s := range r.states {
				t.Logf("%v %q %q port %v err %v %+v", s.Link, s.Status, s.PauseReason, s.AgentPort, s.LinkErr, s)
			}
		}
	})
	return r
}

func (r *libvirtRecord) await(what string, ok func(VMState) bool) VMState {
	r.t.Helper()
	limit := time.After(plenty)
	for {
		r.mu.Lock()
		changed := r.changed
		var last VMState
		if n := len(r.states); n > 0 {
			last = r.states[n-1]
		}
		r.mu.Unlock()
		if last.Link != LinkConnecting && ok(last) {
			return last
		}
		select {
		case <-changed:
		case <-limit:
			r.t.Fatalf("not within %v: %s; last %+v", plenty, what, last)
		}
	}
}

func (r *libvirtRecord) awaitStatus(status string) VMState {
	r.t.Helper()
	return r.await(status, func(s VMState) bool { return s.Link == LinkUp && s.Status == status })
}

func (r *libvirtRecord) all() []VMState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.states[:len(r.states):len(r.states)]
}

// setState changes the domain's state without an event.
func (f *fakeLibvirt) setState(state libvirt.DomainState, reason int) {
	f.set(func(f *fakeLibvirt) { f.state = libvirtState{int32(state), int32(reason)} })
}

func TestLibvirtWatch(t *testing.T) {
	f := newFakeLibvirt(t)
	r := watchLibvirt(t, f.addr(), MonitorConfig{PollInterval: time.Hour})
	s := r.await("no domain", func(s VMState) bool { return s.Link == LinkGone })
	if !errors.Is(s.LinkErr, fs.ErrNotExist) || errors.Is(s.LinkErr, ErrDaemon) {
		t.Errorf("error %v", s.LinkErr)
	}

	dom := f.dom
	f.set(func(f *fakeLibvirt) { f.defined, f.state = true, libvirtState{int32(libvirt.DomainShutoff), 0} })
	f.lifecycle(dom, libvirt.DomainEventDefined, 0)
	s = r.await("shut off", func(s VMState) bool { return s.Link == LinkGone && !errors.Is(s.LinkErr, fs.ErrNotExist) })
	if s.Instance != "" || s.Shutdown != nil {
		t.Errorf("state %+v", s)
	}

	dom.ID = 7
	f.set(func(f *fakeLibvirt) { f.dom, f.state = dom, libvirtState{int32(libvirt.DomainRunning), 1} })
	f.lifecycle(dom, libvirt.DomainEventStarted, 0)
	s = r.await("running", func(s VMState) bool { return s.Status == "running" && s.Version != "" })
	if s.AgentPort != PortClosed || s.StartedAt.IsZero() || s.Incoming || s.Name != "vm" ||
		s.UUID != "ab000000-0000-0000-0000-000000000001" || s.Version != "7.2.22" {
		t.Errorf("state %+v", s)
	}
	first := s

	f.set(func(f *fakeLibvirt) { f.port = "connected" })
	f.agentEvent(dom, 1)
	r.await("port open", func(s VMState) bool { return s.AgentPort == PortOpen && s.AgentEverOpen })

	// Another domain's events are not ours.
	other := libvirt.Domain{Name: "other", UUID: libvirt.UUID{1}, ID: 3}
	f.lifecycle(other, libvirt.DomainEventStopped, 1)
	f.reboot(other)
	f.agentEvent(other, 2)

	f.setState(libvirt.DomainPaused, int(libvirt.DomainPausedUser))
	f.lifecycle(dom, libvirt.DomainEventSuspended, int(libvirt.DomainEventSuspendedPaused))
	r.await("paused by a user", func(s VMState) bool { return s.Status == "paused" && s.PauseReason == "user" })
	f.setState(libvirt.DomainRunning, int(libvirt.DomainRunningUnpaused))
	f.lifecycle(dom, libvirt.DomainEventResumed, 0)
	if s := r.awaitStatus("running"); s.PauseReason != "" || !s.StartedAt.Equal(first.StartedAt) {
		t.Errorf("state %+v", s)
	}

	// The event of the disk may come after that of the pause: they are two
	// streams.
	f.setState(libvirt.DomainPaused, int(libvirt.DomainPausedIoerror))
	f.lifecycle(dom, libvirt.DomainEventSuspended, int(libvirt.DomainEventSuspendedIoerror))
	s = r.awaitStatus("io-error")
	if s.PauseReason != "ioerror" || s.IOError == nil {
		t.Errorf("state %+v", s)
	}
	f.ioError(dom, "virtio-disk0", 1, "enospc")
	s = r.await("the disk is known", func(s VMState) bool { return s.IOErrors == 1 && s.IOError != nil && s.IOError.NoSpace })
	if *s.IOError != (IOError{Device: "virtio-disk0", NoSpace: true, Reason: "enospc"}) {
		t.Errorf("%+v", *s.IOError)
	}
	f.setState(libvirt.DomainRunning, int(libvirt.DomainRunningUnpaused))
	f.lifecycle(dom, libvirt.DomainEventResumed, 0)
	if s := r.awaitStatus("running"); s.IOError != nil {
		t.Errorf("state %+v", s)
	}
	f.ioError(dom, "virtio-disk0", 2, "") // reported to the guest, which goes on
	r.await("counted", func(s VMState) bool { return s.IOErrors == 2 && s.Status == "running" && s.IOError == nil })

	f.lifecycle(dom, libvirt.DomainEventCrashed, int(libvirt.DomainEventCrashedCrashloaded))
	r.await("dumping", func(s VMState) bool { return s.CrashDumping && s.Status == "running" && s.Panics == 0 })

	f.setState(libvirt.DomainCrashed, 1)
	f.lifecycle(dom, libvirt.DomainEventCrashed, 0)
	r.await("panicked", func(s VMState) bool { return s.Status == "guest-panicked" && s.Panics == 1 && s.Panic != nil })

	f.setState(libvirt.DomainShutoff, int(libvirt.DomainShutoffDestroyed))
	f.set(func(f *fakeLibvirt) { f.dom.ID = -1 })
	f.lifecycle(dom, libvirt.DomainEventStopped, int(libvirt.DomainEventStoppedDestroyed))
	s = r.await("gone", func(s VMState) bool { return s.Link == LinkGone })
	if s.Instance != first.Instance || s.Status != "" || s.AgentPort != PortUnknown || s.Shutdown == nil || *s.Shutdown != (Shutdown{Reason: "destroyed"}) {
		t.Errorf("state %+v", s)
	}

	dom.ID = 8
	f.set(func(f *fakeLibvirt) {
		f.dom, f.state, f.port = dom, libvirtState{int32(libvirt.DomainRunning), 1}, "disconnected"
	})
	f.lifecycle(dom, libvirt.DomainEventStarted, 0)
	s = r.awaitStatus("running")
	if s.Instance == first.Instance || s.Shutdown != nil || s.AgentEverOpen || s.Panic != nil || s.Panics != 1 || s.CrashDumping {
		t.Errorf("state %+v", s)
	}
	f.lifecycle(dom, libvirt.DomainEventShutdown, int(libvirt.DomainEventShutdownGuest))
	f.set(func(f *fakeLibvirt) { f.dom.ID, f.state = -1, libvirtState{int32(libvirt.DomainShutoff), 1} })
	f.lifecycle(dom, libvirt.DomainEventStopped, int(libvirt.DomainEventStoppedShutdown))
	s = r.await("gone", func(s VMState) bool { return s.Link == LinkGone })
	if s.Shutdown == nil || !s.Shutdown.Guest {
		t.Errorf("state %+v", s)
	}
	f.set(func(f *fakeLibvirt) { f.defined = false })
	f.lifecycle(dom, libvirt.DomainEventUndefined, 0)
	r.await("no domain", func(s VMState) bool { return errors.Is(s.LinkErr, fs.ErrNotExist) })
}

// QEMU's own events say more than libvirt's.
func TestLibvirtWatchDetails(t *testing.T) {
	f := runningFake(t, obedient)
	r := watchLibvirt(t, f.addr(), MonitorConfig{PollInterval: time.Hour})
	r.awaitStatus("running")
	// When the subscription, made once the domain is known, takes effect,
	// nobody tells; so an event is sent until it has been seen.
	until := func(what string, send func(), ok func(VMState) bool) VMState {
		t.Helper()
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for {
				send()
				select {
				case <-tick.C:
				case <-stop:
					return
				}
			}
		}()
		s := r.await(what, ok)
		close(stop)
		<-stopped
		return s
	}

	const bugCheck = `{"action":"pause","info":{"type":"hyper-v","arg1":209,"arg2":1,"arg3":2,"arg4":3,"arg5":4}}`
	f.setState(libvirt.DomainCrashed, 1)
	f.lifecycle(f.dom, libvirt.DomainEventCrashed, 0)
	s := until("bug check", func() {
		f.qemuEvent(f.dom, "RTC_CHANGE", `{"offset":1}`)
		f.qemuEvent(f.dom, "GUEST_PANICKED", bugCheck)
	}, func(s VMState) bool { return s.Panic != nil && s.Panic.Type == "hyper-v" })
	if s.Panics != 1 || s.Panic.Detail == "" || s.Status != "guest-panicked" {
		t.Errorf("%+v, %+v", s, s.Panic)
	}

	f.setState(libvirt.DomainRunning, 5)
	f.reboot(f.dom)
	f.lifecycle(f.dom, libvirt.DomainEventResumed, 0)
	r.await("the panic is over", func(s VMState) bool { return s.Status == "running" && s.Panic == nil })
	f.setState(libvirt.DomainPaused, int(libvirt.DomainPausedIoerror))
	f.lifecycle(f.dom, libvirt.DomainEventSuspended, int(libvirt.DomainEventSuspendedIoerror))
	f.qemuEvent(f.dom, "BLOCK_IO_ERROR", `{"device":"","node-name":"libvirt-1-format","qom-path":"/machine/peripheral/virtio-disk0/virtio-backend","action":"stop","nospace":true,"reason":"No space left on device"}`)
	s = r.await("disk", func(s VMState) bool { return s.IOError != nil && s.IOError.NoSpace })
	if s.IOError.Device == "" || s.IOError.Reason != "No space left on device" {
		t.Errorf("%+v", s.IOError)
	}
}

// The daemon ends and starts: the VM is the same one, and what happened
// meanwhile is read.
func TestLibvirtWatchRestart(t *testing.T) {
	f := runningFake(t, obedient)
	r := watchLibvirt(t, f.addr(), MonitorConfig{PollInterval: time.Hour})
	before := r.awaitStatus("running")
	f.stop()
	s := r.await("unreachable", func(s VMState) bool { return s.Link == LinkUnreachable })
	if s.Status != "" || s.Instance != before.Instance || !errors.Is(s.LinkErr, ErrDaemon) || !errors.Is(s.LinkErr, ErrNotConnected) {
		t.Errorf("state %+v", s)
	}
	f.setState(libvirt.DomainPaused, int(libvirt.DomainPausedUser))
	f.listen()
	s = r.awaitStatus("paused")
	if s.Instance != before.Instance || s.PauseReason != "user" || !s.StartedAt.Equal(before.StartedAt) {
		t.Errorf("state %+v, before %+v", s, before)
	}
}

// A daemon that stops answering is stuck; the last that was heard stands.
func TestLibvirtWatchStuck(t *testing.T) {
	f := runningFake(t, obedient)
	r := watchLibvirt(t, f.addr(), MonitorConfig{PollInterval: 50 * time.Millisecond, CommandTimeout: 100 * time.Millisecond, GreetingTimeout: 100 * time.Millisecond})
	r.awaitStatus("running")
	mark := len(r.all()) // before that a slow machine may have taken it for busy
	f.set(func(f *fakeLibvirt) {
		f.intercept = func(*fakeLibvirtConn, libvirtFakeCall) bool { return true }
	})
	s := r.await("stuck", func(s VMState) bool { return s.Link == LinkStuck })
	if s.Status != "running" || !errors.Is(s.LinkErr, context.DeadlineExceeded) || !errors.Is(s.LinkErr, ErrDaemon) {
		t.Errorf("state %+v", s)
	}
	// In the end the connection is made anew, and again.
	for range 3 {
		select {
		case <-f.accepted:
		case <-time.After(plenty):
			t.Fatal("no new connection")
		}
	}
	f.set(func(f *fakeLibvirt) { f.intercept = nil })
	r.awaitStatus("running")
	for _, s := range r.all()[mark:] {
		if s.Status != "running" && s.Link != LinkConnecting {
			t.Errorf("state %+v", s)
		}
	}
}

// A daemon whose workers all wait answers nothing, and what it tells counts.
func TestLibvirtWatchStuckTells(t *testing.T) {
	f := runningFake(t, obedient)
	r := watchLibvirt(t, f.addr(), MonitorConfig{PollInterval: 50 * time.Millisecond})
	r.awaitStatus("running")
	release := make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	defer free()
	f.set(func(f *fakeLibvirt) {
		f.intercept = func(c *fakeLibvirtConn, call libvirtFakeCall) bool {
			f.wg.Go(func() {
				<-release
				f.answer(c, call)
			})
			return true
		}
	})
	r.await("stuck", func(s VMState) bool { return s.Link == LinkStuck && s.Status == "running" })
	f.agentEvent(f.dom, 1)
	r.await("port open", func(s VMState) bool { return s.AgentPort == PortOpen })
	f.ioError(f.dom, "virtio-disk0", 1, "enospc")
	r.await("the disk", func(s VMState) bool { return s.Status == "io-error" && s.IOError.Device == "virtio-disk0" })
	f.lifecycle(f.dom, libvirt.DomainEventResumed, 0)
	r.await("running", func(s VMState) bool { return s.Status == "running" })
	f.lifecycle(f.dom, libvirt.DomainEventCrashed, 0)
	r.await("panicked", func(s VMState) bool { return s.Status == "guest-panicked" && s.Panics == 1 })
	f.lifecycle(f.dom, libvirt.DomainEventStopped, int(libvirt.DomainEventStoppedDestroyed))
	s := r.await("gone", func(s VMState) bool { return s.Link == LinkGone })
	if s.Shutdown == nil {
		t.Errorf("gone as %+v", s)
	}
	free()
	r.awaitStatus("running")
}

// A daemon that never answered is busy.
func TestLibvirtWatchBusy(t *testing.T) {
	f := runningFake(t, obedient)
	f.set(func(f *fakeLibvirt) {
		f.intercept = func(*fakeLibvirtConn, libvirtFakeCall) bool { return true }
	})
	r := watchLibvirt(t, f.addr(), MonitorConfig{CommandTimeout: 100 * time.Millisecond, GreetingTimeout: 100 * time.Millisecond})
	s := r.await("busy", func(s VMState) bool { return s.Link == LinkBusy })
	if s.Status != "" || !errors.Is(s.LinkErr, context.DeadlineExceeded) {
		t.Errorf("state %+v", s)
	}
}

// A reading that began before an event is older than the event.
func TestLibvirtWatchStaleReading(t *testing.T) {
	f := runningFake(t, obedient)
	r := watchLibvirt(t, f.addr(), MonitorConfig{PollInterval: time.Hour})
	r.awaitStatus("running")
	reading, release := make(chan struct{}, 10), make(chan struct{})
	var hold atomic.Bool
	hold.Store(true)
	f.set(func(f *fakeLibvirt) {
		f.intercept = func(c *fakeLibvirtConn, call libvirtFakeCall) bool {
			if call.proc != procGetState || !hold.Swap(false) {
				return false
			}
			f.wg.Go(func() { // answers "running" late
				reading <- struct{}{}
				<-release
				var w xdrWriter
				w.u32(uint32(libvirt.DomainRunning)).u32(1)
				c.reply(call, w.Bytes())
			})
			return true
		}
	})
	f.agentEvent(f.dom, 1)
	<-reading
	f.setState(libvirt.DomainPaused, int(libvirt.DomainPausedUser))
	f.lifecycle(f.dom, libvirt.DomainEventSuspended, 0)
	r.awaitStatus("paused")
	mark := len(r.all())
	close(release)
	r.await("the reason", func(s VMState) bool { return s.PauseReason == "user" })
	for _, s := range r.all()[mark:] {
		if s.Status != "paused" {
			t.Errorf("the stale reading came through: %+v", s)
		}
	}
}

// More events than are read while the daemon is slow to answer.
func TestLibvirtWatchFlood(t *testing.T) {
	f := runningFake(t, obedient)
	r := watchLibvirt(t, f.addr(), MonitorConfig{PollInterval: time.Hour})
	r.awaitStatus("running")
	const n = 2000
	for range n {
		f.ioError(f.dom, "virtio-disk0", 2, "")
	}
	r.await("all counted", func(s VMState) bool { return s.IOErrors == n })
	f.setState(libvirt.DomainPaused, int(libvirt.DomainPausedUser))
	f.lifecycle(f.dom, libvirt.DomainEventSuspended, 0)
	r.await("paused", func(s VMState) bool { return s.PauseReason == "user" })
}

func TestLibvirtWatchRefused(t *testing.T) {
	f := runningFake(t, obedient)
	f.set(func(f *fakeLibvirt) {
		f.intercept = func(c *fakeLibvirtConn, call libvirtFakeCall) bool {
			if call.proc == procGetState {
				c.refuse(call, libvirt.Error{Code: 88, Message: "access denied"})
			}
			return call.proc == procGetState
		}
	})
	r := watchLibvirt(t, f.addr(), MonitorConfig{})
	s := r.await("unreachable", func(s VMState) bool { return s.Link == LinkUnreachable })
	if !errors.Is(s.LinkErr, fs.ErrPermission) || !errors.Is(s.LinkErr, ErrDaemon) {
		t.Errorf("error %v", s.LinkErr)
	}
}

func TestLibvirtMonitorSendsNothing(t *testing.T) {
	m, err := NewMonitor(Addr{Scheme: "libvirt", Domain: "vm"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Connect(); err == nil {
		t.Error("Connect succeeded")
	}
	if _, err := m.Run([]byte(`{"execute":"query-status"}`)); err == nil {
		t.Error("Run succeeded")
	}
	if err := m.Do(t.Context(), "query-status", nil, nil); err == nil {
		t.Error("Do succeeded")
	}
}
