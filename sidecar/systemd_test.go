package sidecar

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/guestprobe/guestprobe/qga/qgatest"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

// A manager is the service manager's end of the notify protocol, on a real socket.
type manager struct {
	t        *testing.T
	path     string
	messages chan string
	seen     []string // what was received and looked at
}

func newManager(t *testing.T) *manager {
	t.Helper()
	m := &manager{t: t, path: filepath.Join(shortDir(t), "notify"), messages: make(chan string, 1000)}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // joined by the clean-up
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			m.messages <- string(buf[:n])
		}
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	return m
}

// notify is what go-systemd does, with the socket's path from here and not from the environment, which tests share.
func (m *manager) notify(message string) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: m.path, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte(message))
	return err
}

// next waits for the next message that is no ping.
func (m *manager) next() string {
	m.t.Helper()
	for {
		select {
		case message := <-m.messages:
			m.seen = append(m.seen, message)
			if message != "WATCHDOG=1" {
				return message
			}
		case <-time.After(patience):
			m.t.Fatalf("no message; so far:\n%q", m.seen)
		}
	}
}

// until waits for a message that holds text.
func (m *manager) until(text string) string {
	m.t.Helper()
	for {
		if message := m.next(); strings.Contains(message, text) {
			return message
		}
	}
}

func (m *manager) saw(line string) bool {
	return slices.ContainsFunc(m.seen, func(message string) bool { return slices.Contains(strings.Split(message, "\n"), line) })
}

func TestSystemdIsToldHowTheVMIs(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	m := newManager(t)
	cfg := config(t, vm, webSpec)
	cfg.Notify, cfg.ShutdownDelay = m.notify, time.Hour
	r := start(t, vm, cfg)
	m.until("STATUS=Starting")
	if m.saw("READY=1") {
		t.Fatalf("READY before the VM was: %q", m.seen)
	}
	vm.Boot()
	if got, want := m.until("READY=1"), "READY=1\nSTATUS=Ready"; !strings.HasPrefix(got, want) {
		t.Errorf("the VM became ready: %q, want %q", got, want)
	}
	if st := r.status(); !st.Ready {
		t.Errorf("READY, but the verdict is %s", st.Reason)
	}
	vm.IOError("drive0", true)
	if got := m.until("STATUS=StorageIOError"); !strings.Contains(got, "drive0") {
		t.Errorf("the status does not say which disk: %q", got)
	}

	if err := r.sidecar.Reload(cfg.Manifest); err != nil {
		t.Fatal(err)
	}
	clock, ok := strings.CutPrefix(m.until("RELOADING=1"), "RELOADING=1\nMONOTONIC_USEC=")
	if usec, err := strconv.ParseUint(strings.TrimSuffix(clock, "\n"), 10, 64); !ok || err != nil || usec == 0 {
		t.Errorf("RELOADING with the clock %q", clock)
	}
	if got := m.next(); got != "READY=1" {
		t.Errorf("after RELOADING: %q, want READY=1", got)
	}

	r.stop()
	if got, want := m.until("STOPPING=1"), "STOPPING=1\nSTATUS=Terminating"; got != want {
		t.Errorf("at the end: %q, want %q", got, want)
	}
	for _, message := range m.seen[:len(m.seen)-1] {
		if strings.Contains(message, "Terminating") {
			t.Errorf("%q before STOPPING", message)
		}
	}
	r.reason(verdict.Terminating)
	if err := r.sidecar.Reload(cfg.Manifest); err != nil {
		t.Fatal(err)
	}
	vm.Quit()
	<-r.done
	for len(m.messages) > 0 {
		if got := <-m.messages; !strings.HasPrefix(got, "STATUS=") {
			t.Errorf("after STOPPING: %q", got)
		}
	}
}

// READY=1 ends a reload, but would end the start as well.
func TestReloadBeforeTheVMIsReadyIsNoREADY(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	m := newManager(t)
	cfg := config(t, vm, webSpec)
	cfg.Notify = m.notify
	r := start(t, vm, cfg)
	m.until("STATUS=Starting")
	if err := r.sidecar.Reload(cfg.Manifest); err != nil {
		t.Fatal(err)
	}
	vm.SetStatus("internal-error")
	m.until("STATUS=InternalError")
	if m.saw("READY=1") || m.saw("RELOADING=1") {
		t.Errorf("the reload was told: %q", m.seen)
	}
}

func TestEndWithTheVMIsAnnounced(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	m := newManager(t)
	cfg := config(t, vm, webSpec)
	cfg.Notify, cfg.ExitWithVM = m.notify, true
	r := start(t, vm, cfg)
	vm.Boot()
	m.until("READY=1")
	vm.Quit()
	m.until("STOPPING=1")
	<-r.done
}

func TestWatchdogStopsWithTheDaemon(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	m := newManager(t)
	cfg := config(t, vm, webSpec)
	cfg.Notify, cfg.Watchdog = m.notify, time.Second
	r := start(t, vm, cfg)
	ping := func() {
		t.Helper()
		for {
			select {
			case message := <-m.messages:
				if message == "WATCHDOG=1" {
					return
				}
			case <-time.After(patience):
				t.Fatal("no ping")
			}
		}
	}
	for range 3 {
		ping()
	}
	r.sidecar.state.mu.Lock()
	blocked := true
	unblock := func() {
		if blocked {
			blocked = false
			r.sidecar.state.mu.Unlock()
		}
	}
	defer unblock()
	eventually(t, r.sidecar, "the missing ping in the log", func(Status) bool {
		return strings.Contains(r.logs.String(), "no ping for systemd's watchdog")
	})
	for len(m.messages) > 0 {
		<-m.messages // from before
	}
	quiet := time.After(3 * cfg.Watchdog)
	for done := false; !done; {
		select {
		case message := <-m.messages:
			if message == "WATCHDOG=1" {
				t.Fatal("a ping from a daemon that is stuck")
			}
		case <-quiet:
			done = true
		}
	}
	unblock()
	ping()
	if n := strings.Count(r.logs.String(), "no ping for systemd's watchdog"); n != 1 {
		t.Errorf("%d records of one trouble", n)
	}
}

func TestAliveNeedsBothLoops(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	s, err := New(config(t, vm, webSpec))
	if err != nil {
		t.Fatal(err)
	}
	alive := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		return s.alive(ctx)
	}
	if err := alive(); err == nil || !strings.Contains(err.Error(), "the loop that decides") {
		t.Errorf("without any loop: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { // joined below
		defer close(done)
		_ = s.state.run(ctx) // it returns nil
	}()
	if err := alive(); err == nil || !strings.Contains(err.Error(), "the loop that ends the daemon") {
		t.Errorf("without the loop that ends the daemon: %v", err)
	}
	stop()
	<-done
}

// A READY that is lost would make the start of the unit fail.
func TestLostMessagesAreSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		failures := 3
		var got []string
		logs := new(lockedBuffer)
		n := newNotifier(textLogger(logs), &Config{Notify: func(message string) error {
			if failures > 0 {
				failures--
				return errors.New("connection refused")
			}
			got = append(got, message)
			return nil
		}})
		done := make(chan struct{})
		go func() { // joined below
			defer close(done)
			_ = n.run(ctx, func(context.Context) error { return nil }) // it returns nil
		}()
		n.tell(true, "Ready")
		n.tell(false, "Paused")
		time.Sleep(10 * notifyRetry)
		stop()
		<-done
		if want := []string{"READY=1\nSTATUS=Paused"}; !slices.Equal(got, want) {
			t.Errorf("sent %q, want %q", got, want)
		}
		if n := strings.Count(logs.String(), "telling systemd"); n != 1 {
			t.Errorf("%d log records of one trouble:\n%s", n, logs)
		}
	})
}

func TestInherit(t *testing.T) {
	dir := shortDir(t)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	local, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	datagrams, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "d"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer datagrams.Close()
	file := func(s interface{ File() (*os.File, error) }) *os.File {
		t.Helper()
		f, err := s.File()
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	got, err := inherit([]*os.File{file(tcp.(*net.TCPListener)), file(local.(*net.UnixListener))})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{tcp.Addr().String(), local.Addr().String()} {
		if addr := got[i].Addr().String(); addr != want {
			t.Errorf("listener %d is at %s, want %s", i, addr, want)
		}
	}
	closeAll(got)
	if _, err := os.Stat(local.Addr().String()); err != nil {
		t.Errorf("the service manager's socket was removed: %v", err)
	}
	_, err = inherit([]*os.File{file(tcp.(*net.TCPListener)), file(datagrams)})
	if err == nil || !strings.Contains(err.Error(), "it accepts no connections") {
		t.Errorf("a datagram socket: %v", err)
	}
	plain, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := inherit([]*os.File{plain}); err == nil || !strings.Contains(err.Error(), `socket "/dev/null" from systemd: `) {
		t.Errorf("no socket: %v", err)
	}
}

func TestOutsideSystemd(t *testing.T) {
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"} {
		t.Setenv(name, "")
	}
	cfg := Config{Listen: ":9958", ListenUnix: "/s"}
	if err := cfg.UseSystemd(); err != nil {
		t.Fatal(err)
	}
	if cfg.Listen != ":9958" || cfg.ListenUnix != "/s" || len(cfg.Listeners) != 0 || cfg.Watchdog != 0 {
		t.Errorf("changed to %+v", cfg)
	}
	if err := cfg.Notify("READY=1"); err != nil {
		t.Errorf("Notify: %v", err)
	}
	t.Setenv("WATCHDOG_USEC", "soon")
	if err := cfg.UseSystemd(); err == nil || !strings.Contains(err.Error(), "systemd's watchdog: ") {
		t.Errorf("a watchdog interval of %q: %v", "soon", err)
	}
}
