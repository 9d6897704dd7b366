package qga

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/qga/qgatest"
)

// patience bounds each wait for something that is bound to come.
const patience = 20 * time.Second

// shortDir returns a folder whose sockets' paths fit into sun_path.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func startVM(t testing.TB, cfg qgatest.Config) *qgatest.VM {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = shortDir(t)
	}
	vm, err := qgatest.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(vm.Close)
	return vm
}

func newMonitor(t testing.TB, addr string, cfg *MonitorConfig) *Monitor {
	t.Helper()
	a, err := ParseAddr(addr)
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewMonitor(a, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// quick is a configuration with patience for tests of what is slow by design.
func quick(agentPath string) *MonitorConfig {
	return &MonitorConfig{
		AgentPath:       agentPath,
		GreetingTimeout: 200 * time.Millisecond,
		CommandTimeout:  200 * time.Millisecond,
		PollInterval:    100 * time.Millisecond,
	}
}

// A recorder collects what Watch tells.
type recorder struct {
	t    testing.TB
	seen chan struct{} // holds a token when states has grown
	stop func()

	mu     sync.Mutex
	states []VMState
	next   int // the first state that no wait has looked at
}

// record runs Watch until the test ends.
func record(t testing.TB, m *Monitor) *recorder {
	t.Helper()
	r := &recorder{t: t, seen: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Watch(ctx, r.notify) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch, ended by its context: %v", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

func (r *recorder) notify(s VMState) {
	r.mu.Lock()
	r.states = append(r.states, s)
	r.mu.Unlock()
	select {
	case r.seen <- struct{}{}:
	default:
	}
}

// wait returns the first state told since the last wait that is as wanted.
func (r *recorder) wait(what string, want func(VMState) bool) VMState {
	r.t.Helper()
	deadline := time.After(patience)
	for {
		r.mu.Lock()
		for r.next < len(r.states) {
			s := r.states[r.next]
			r.next++
			if want(s) {
				r.mu.Unlock()
				return s
			}
		}
		r.mu.Unlock()
		select {
		case <-r.seen:
		case <-deadline:
			r.t.Fatalf("never told: %s\n%s", what, r)
		}
	}
}

func (r *recorder) waitStatus(status string) VMState {
	r.t.Helper()
	return r.wait("status "+status, func(s VMState) bool { return s.Link == LinkUp && s.Status == status })
}

func (r *recorder) waitLink(l Link) VMState {
	r.t.Helper()
	return r.wait("link "+l.String(), func(s VMState) bool { return s.Link == l })
}

// waitStuck waits for silence that is explained by the word, or with "!" in
// front, not by it. On a busy machine the explanation may change on the way.
func (r *recorder) waitStuck(word string) VMState {
	r.t.Helper()
	s := r.wait("stuck: "+word, func(s VMState) bool {
		if s.Link != LinkStuck {
			return false
		}
		unwanted, without := strings.CutPrefix(word, "!")
		return strings.Contains(s.LinkErr.Error(), unwanted) != without
	})
	if !errors.Is(s.LinkErr, context.DeadlineExceeded) {
		r.t.Errorf("silence is %v", s.LinkErr)
	}
	return s
}

func (r *recorder) waitPort(p Port) VMState {
	r.t.Helper()
	return r.wait("port "+p.String(), func(s VMState) bool { return s.AgentPort == p })
}

// String lists all that was told.
func (r *recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, s := range r.states {
		fmt.Fprintf(&b, "%v (%v) %q %q port %v io %+v panic %+v end %+v resets %d\n",
			s.Link, s.LinkErr, s.Instance, s.Status, s.AgentPort, s.IOError, s.Panic, s.Shutdown, s.Resets)
	}
	return b.String()
}

func TestWatchLife(t *testing.T) {
	dir := shortDir(t)
	path := filepath.Join(dir, "qmp.sock")
	r := record(t, newMonitor(t, "unix:"+path, &MonitorConfig{AgentPath: filepath.Join(dir, "qga.sock")}))

	s := r.waitLink(LinkGone)
	if !errors.Is(s.LinkErr, fs.ErrNotExist) || !errors.Is(s.LinkErr, ErrNotConnected) {
		t.Errorf("a missing socket: %v", s.LinkErr)
	}

	vm := startVM(t, qgatest.Config{Dir: dir, Name: "fedora", UUID: "5b0f9bd8-4e0b-4a8c-8d4d-0a7c9e3b2f11"})
	s = r.waitStatus("prelaunch")
	if s.Name != "fedora" || s.UUID == "" || s.Version == "" || !s.StartedAt.IsZero() || s.AgentPort != PortClosed {
		t.Errorf("found: %+v", s)
	}

	vm.Boot()
	s = r.waitStatus("running")
	if age := time.Since(s.StartedAt); age < 0 || age > patience {
		t.Errorf("began to run %v ago", age)
	}
	if s = r.waitPort(PortOpen); !s.AgentEverOpen {
		t.Error("open, but never open")
	}

	vm.Pause()
	if p := r.waitStatus("paused"); !p.StartedAt.Equal(s.StartedAt) {
		t.Error("a pause moved the start")
	}
	vm.Resume()
	r.waitStatus("running")
	vm.AgentKill()
	if s := r.waitPort(PortClosed); !s.AgentEverOpen {
		t.Error("closed, and never open")
	}
	vm.AgentStart()
	r.waitPort(PortOpen)

	vm.Reset()
	reset := r.wait("a reset", func(s VMState) bool { return s.Resets == 1 })
	if !reset.StartedAt.After(s.StartedAt) || reset.Instance != s.Instance {
		t.Errorf("reset: %+v", reset)
	}

	vm.Shutdown()
	s = r.waitLink(LinkGone)
	if s.Shutdown == nil || !s.Shutdown.Guest || s.Shutdown.Reason != "guest-shutdown" || s.Status != "" || s.Resets != 1 {
		t.Errorf("gone: %+v", s)
	}

	if err := vm.Restart(); err != nil {
		t.Fatal(err)
	}
	next := r.waitStatus("prelaunch")
	if next.Instance == s.Instance || next.Shutdown != nil || next.AgentEverOpen {
		t.Errorf("another VM: %+v", next)
	}

	vm.Kill()
	s = r.waitLink(LinkGone)
	if s.Shutdown != nil || !errors.Is(s.LinkErr, syscall.ECONNREFUSED) {
		t.Errorf("killed: %+v", s)
	}
}

func TestWatchBadNewsComesWithItsCause(t *testing.T) {
	vm := startVM(t, qgatest.Config{Status: "running"})
	r := record(t, newMonitor(t, vm.MonitorAddr(), nil))
	r.waitStatus("running")

	// The reply to query-status would be too late, so there is none.
	vm.SetMainLoopStuck(true)
	vm.IOError("disk7", true)
	s := r.waitStatus("io-error")
	if s.IOError == nil || *s.IOError != (IOError{Device: "disk7", NoSpace: true, Reason: "No space left on device"}) {
		t.Errorf("%+v", s.IOError)
	}
	vm.SetMainLoopStuck(false)
	vm.Resume()
	if s := r.waitStatus("running"); s.IOError != nil || s.IOErrors != 1 {
		t.Errorf("resumed: %+v", s)
	}

	vm.SetMainLoopStuck(true)
	vm.Panic("hyper-v")
	s = r.waitStatus("guest-panicked")
	if s.Panic == nil || s.Panic.Type != "hyper-v" || !strings.Contains(s.Panic.Detail, "0xd1") || s.Panics != 1 {
		t.Errorf("%+v", s.Panic)
	}
}

func TestWatchFindsWhatItMissed(t *testing.T) {
	vm := startVM(t, qgatest.Config{Status: "running"})
	vm.IOError("disk3", true)
	r := record(t, newMonitor(t, vm.MonitorAddr(), nil))
	r.wait("the device, without its event", func(s VMState) bool {
		return s.Status == "io-error" && s.IOError != nil && *s.IOError == IOError{Device: "disk3", NoSpace: true}
	})

	// Across a lost connection.
	before := vm.MonitorRequests()
	vm.SetMonitorSilent(true)
	vm.DropMonitor()
	r.waitLink(LinkConnecting)
	vm.Resume()
	vm.SetStatus("save-vm")
	vm.SetMonitorSilent(false)
	vm.DropMonitor()
	s := r.waitStatus("save-vm")
	if s.IOError != nil || len(vm.MonitorRequests()) == len(before) {
		t.Errorf("%+v", s)
	}
	// A state that passes is asked for again without an event.
	vm.SetReply("query-status", map[string]any{"status": "running", "running": true})
	r.waitStatus("running")
}

func TestWatchInstance(t *testing.T) {
	vm := startVM(t, qgatest.Config{Status: "running"})
	r := record(t, newMonitor(t, vm.MonitorAddr(), nil))
	s := r.waitStatus("running")
	if s.StartedAt.IsZero() || s.StartedAt.After(time.Now()) {
		t.Errorf("found running since %v", s.StartedAt)
	}
	for range 3 {
		vm.DropMonitor()
		if c := r.waitLink(LinkConnecting); !errors.Is(c.LinkErr, ErrConnectionLost) || c.Status != "" || c.Instance != s.Instance {
			t.Errorf("lost: %+v", c)
		}
		if again := r.waitStatus("running"); again.Instance != s.Instance || !again.StartedAt.Equal(s.StartedAt) {
			t.Errorf("a reconnect made %q of %q", again.Instance, s.Instance)
		}
	}
	vm.Quit()
	r.waitLink(LinkGone)
	if err := vm.Restart(); err != nil {
		t.Fatal(err)
	}
	if next := r.waitStatus("prelaunch"); next.Instance == s.Instance {
		t.Errorf("another QEMU is %q again", next.Instance)
	}
}

func TestWatchIncoming(t *testing.T) {
	vm := startVM(t, qgatest.Config{Status: "inmigrate"})
	r := record(t, newMonitor(t, vm.MonitorAddr(), nil))
	if s := r.waitStatus("inmigrate"); !s.Incoming || !s.StartedAt.IsZero() {
		t.Errorf("%+v", s)
	}
	vm.Event("MIGRATION", map[string]string{"status": "active"})
	vm.SetStatus("running")
	if s := r.waitStatus("running"); !s.Incoming || s.StartedAt.IsZero() {
		t.Errorf("%+v", s)
	}
	vm.SetStatus("finish-migrate")
	r.waitStatus("finish-migrate")
	vm.SetStatus("postmigrate") // no event tells
	r.waitStatus("postmigrate")
}

func TestWatchBigReply(t *testing.T) {
	vm := startVM(t, qgatest.Config{Status: "running"})
	var list []chardev
	for i := range 5000 {
		list = append(list, chardev{Label: fmt.Sprintf("c%d", i), Filename: "null"})
	}
	list = append(list, chardev{Label: "qga0", Filename: "unix:/d/qga.sock,server=on", Open: true})
	vm.SetReply("query-chardev", list) // 300 KB
	r := record(t, newMonitor(t, vm.MonitorAddr(), &MonitorConfig{AgentPath: "qga0"}))
	r.waitPort(PortOpen)
}

func TestWatchSurvivesABurst(t *testing.T) {
	vm := startVM(t, qgatest.Config{Status: "running"})
	release := make(chan struct{})
	m := newMonitor(t, vm.MonitorAddr(), nil)
	ctx, cancel := context.WithCancel(context.Background())
	states := make(chan VMState, 100000)
	done := make(chan error, 1)
	go func() {
		done <- m.Watch(ctx, func(s VMState) {
			states <- s
			<-release // a slow one, to begin with
		})
	}()
	t.Cleanup(func() { cancel(); <-done })

	<-states
	for range 2 * maxInboxItems {
		vm.Event("BLOCK_IO_ERROR", map[string]string{"device": "d", "action": "report"})
	}
	vm.Panic()
	close(release)
	deadline := time.After(patience)
	for {
		select {
		case s := <-states:
			if s.Status == "guest-panicked" { // read anew if its event was one too many
				return
			}
		case <-deadline:
			t.Fatal("the panic behind a burst of events was never told")
		}
	}
}

func TestWatchAlone(t *testing.T) {
	vm := startVM(t, qgatest.Config{Status: "running"})
	m := newMonitor(t, vm.MonitorAddr(), nil)
	if err := m.Connect(); err != nil {
		t.Fatal(err)
	}
	if err := m.Watch(t.Context(), func(VMState) {}); err == nil {
		t.Error("Watch beside Connect")
	}
	if err := m.Disconnect(); err != nil {
		t.Fatal(err)
	}
	r := record(t, m)
	r.waitStatus("running")
	if err := m.Watch(t.Context(), func(VMState) {}); err == nil {
		t.Error("two Watches")
	}

	// Its connection is shared, for there can be only one.
	if err := m.Connect(); err != nil {
		t.Errorf("Connect while Watch is up: %v", err)
	}
	var name struct{}
	if err := m.Do(t.Context(), "query-name", nil, &name); err != nil {
		t.Errorf("Do while Watch is up: %v", err)
	}
	if err := m.Disconnect(); err != nil || !m.conn.alive() {
		t.Errorf("Disconnect ended Watch's connection (%v)", err)
	}
	vm.Kill()
	r.waitLink(LinkGone)
	if err := m.Do(t.Context(), "query-name", nil, nil); !errors.Is(err, ErrNotConnected) || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("Do while Watch is down: %v", err)
	}
	if err := m.Connect(); !errors.Is(err, ErrNotConnected) {
		t.Errorf("Connect while Watch is down: %v", err)
	}
}
