package systemd

import (
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A manager is the service manager's end of the notify protocol.
type manager struct {
	t    *testing.T
	conn *net.UnixConn
}

func newManager(t *testing.T) (*manager, []string) {
	t.Helper()
	path := filepath.Join(shortDir(t), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &manager{t, conn}, []string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=400000"}
}

// until returns the messages up to the first that holds text.
func (m *manager) until(text string) []string {
	m.t.Helper()
	var messages []string
	buf := make([]byte, 4096)
	for {
		if err := m.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			m.t.Fatal(err)
		}
		n, err := m.conn.Read(buf)
		if err != nil {
			m.t.Fatalf("waiting for %s: %v; so far %q", text, err, messages)
		}
		messages = append(messages, string(buf[:n]))
		if strings.Contains(string(buf[:n]), text) {
			return messages
		}
	}
}

func TestService(t *testing.T) {
	t.Parallel()
	vm := newPeer(t, webProbe+agentProbe)
	m, env := newManager(t)
	socket := filepath.Join(shortDir(t), "s")
	p := start(t, env, nil, built, vm.args("--listen", "", "--listen-unix", socket)...)
	before := append(m.until("STATUS=Starting"), m.until("WATCHDOG=1")...)
	vm.Boot()
	before = append(before, m.until("READY=1")...)
	for _, message := range before[:len(before)-1] {
		if strings.Contains(message, "READY=1") {
			t.Errorf("%q before the VM was ready", message)
		}
	}
	if status, body := ask("unix", socket, "/readyz"); status != http.StatusOK {
		t.Errorf("READY, but /readyz is %d %s", status, body)
	}

	t.Log("a manifest with mistakes")
	vm.write(t, "  readinessProbe: {httpGet: {port: 0}, periodSeconds: -1}\n")
	p.signal(syscall.SIGHUP)
	p.eventually("the refusal is in the log", func() bool {
		return strings.Count(p.log.String(), "reload refused, the former manifest stays in force") == 2
	})
	for _, field := range []string{"spec.readinessProbe.httpGet.port", "spec.readinessProbe.periodSeconds"} {
		if !strings.Contains(p.log.String(), field) {
			t.Errorf("the log does not name %s", field)
		}
	}
	if status, body := ask("unix", socket, "/readyz"); status != http.StatusOK {
		t.Errorf("after a refused reload /readyz is %d %s", status, body)
	}

	t.Log("a good one")
	vm.write(t, webProbe)
	p.signal(syscall.SIGHUP)
	for _, message := range m.until("RELOADING=1") {
		if strings.Contains(message, "READY=1") {
			t.Errorf("the refused reload was told: %q", message)
		}
	}
	if messages := m.until("READY=1"); strings.Contains(strings.Join(messages, " "), "STATUS=") {
		t.Errorf("between RELOADING and READY: %q", messages)
	}
	if _, body := ask("unix", socket, "/metrics"); strings.Contains(body, "livenessProbe") {
		t.Error("a check that was removed still has metrics")
	}

	t.Log("the manifest is gone")
	if err := os.Remove(vm.manifest); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGHUP)
	p.eventually("the missing file is in the log", func() bool { return strings.Contains(p.log.String(), "no such file") })

	p.signal(syscall.SIGTERM)
	for _, message := range m.until("STOPPING=1") {
		if strings.Contains(message, "Terminating") && !strings.HasPrefix(message, "STOPPING=1") {
			t.Errorf("%q before STOPPING", message)
		}
	}
	if err := p.wait(); err != nil {
		t.Errorf("the end: %v", err)
	}
}

func TestStandardInputCannotBeReloaded(t *testing.T) {
	t.Parallel()
	vm := newPeer(t, webProbe)
	manifest, err := os.Open(vm.manifest)
	if err != nil {
		t.Fatal(err)
	}
	defer manifest.Close()
	socket := filepath.Join(shortDir(t), "s")
	p := start(t, nil, manifest, built, "run", "--manifest", "-", "--monitor", vm.MonitorAddr(), "--listen", "", "--listen-unix", socket)
	vm.Boot()
	ready := func() bool { status, _ := ask("unix", socket, "/readyz"); return status == http.StatusOK }
	p.eventually("the VM is ready", ready)
	p.signal(syscall.SIGHUP)
	p.eventually("the refusal is in the log", func() bool { return strings.Contains(p.log.String(), "reload refused") })
	if n := strings.Count(p.log.String(), "reload refused"); n != 1 {
		t.Errorf("%d records of one refusal", n)
	}
	if !ready() {
		t.Error("not ready after a refused reload")
	}
}

func TestSecondSignalKills(t *testing.T) {
	t.Parallel()
	vm := newPeer(t, webProbe)
	socket := filepath.Join(shortDir(t), "s")
	p := start(t, nil, nil, built, vm.args("--listen", "", "--listen-unix", socket, "--shutdown-delay", "1h")...)
	vm.Boot()
	p.eventually("the VM is ready", func() bool { status, _ := ask("unix", socket, "/readyz"); return status == http.StatusOK })
	p.signal(syscall.SIGTERM)
	p.eventually("it says that it ends", func() bool {
		status, body := ask("unix", socket, "/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "Terminating")
	})
	p.signal(syscall.SIGTERM)
	exit, ok := errors.AsType[*exec.ExitError](p.wait())
	if !ok {
		t.Fatalf("the end by a second signal: %v", p.err)
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGTERM {
		t.Errorf("the end by a second signal: %v", exit)
	}
}

func TestSocketActivation(t *testing.T) {
	t.Parallel()
	activate := find(t, "systemd-socket-activate")
	vm := newPeer(t, webProbe)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().String()
	free.Close()
	socket := filepath.Join(shortDir(t), "s")
	// --listen names a port that is taken: it would fail if the sockets from systemd did not win.
	args := append([]string{"--listen=" + port, "--listen=" + socket, "--fdname=http:local", built},
		vm.args("--listen", taken.Addr().String(), "--listen-unix", socket)...)
	p := start(t, nil, nil, activate, args...)
	p.eventually("the sockets are there", func() bool { return strings.Count(p.log.String(), "Listening on") == 2 })
	vm.Boot()
	p.eventually("the VM is ready by TCP", func() bool { status, _ := ask("tcp", port, "/readyz"); return status == http.StatusOK })
	if status, body := ask("unix", socket, "/readyz"); status != http.StatusOK {
		t.Errorf("by the unix socket: %d %s", status, body)
	}
	if n := strings.Count(p.log.String(), "msg=listening"); n != 2 {
		t.Errorf("%d listeners, want the two from systemd", n)
	}
	p.signal(syscall.SIGTERM) // the activator has become the service
	if err := p.wait(); err != nil {
		t.Errorf("the end: %v", err)
	}
	if _, err := os.Stat(socket); err != nil {
		t.Errorf("the socket, which is systemd's, was removed: %v", err)
	}
}

func TestActivationByDatagramIsRefused(t *testing.T) {
	t.Parallel()
	activate := find(t, "systemd-socket-activate")
	vm := newPeer(t, webProbe)
	socket := filepath.Join(shortDir(t), "d")
	p := start(t, nil, nil, activate, append([]string{"--datagram", "--listen=" + socket, "--fdname=wrong", built}, vm.args()...)...)
	p.eventually("the socket is there", func() bool { return strings.Contains(p.log.String(), "Listening on") })
	conn, err := net.Dial("unixgram", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	exit, ok := errors.AsType[*exec.ExitError](p.wait())
	if !ok || exit.ExitCode() != 2 {
		t.Errorf("the end: %v, want exit code 2", p.err)
	}
	if want := `socket "wrong" from systemd: it accepts no connections: the unit needs ListenStream= and Accept=no`; !strings.Contains(p.log.String(), want) {
		t.Errorf("the output lacks %q", want)
	}
}
