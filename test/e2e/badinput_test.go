package e2e_test

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/test/daemon"
	"github.com/guestprobe/guestprobe/test/guest"
)

// TestRefusals asks of each mistake one line that names what and where, and the exit code that says whose it is.
func TestRefusals(t *testing.T) {
	binary := daemon.Build(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good.yaml", "apiVersion: guestprobe.dev/v1alpha1\nkind: GuestProbes\nspec:\n  readinessProbe: {tcpSocket: {port: 22, host: 127.0.0.1}}\n")
	bad := write("bad.yaml", "apiVersion: guestprobe.dev/v1alpha1\nkind: GuestProbes\nspec:\n  readinessProbe: {httpGet: {port: 99999}}\n")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()

	for _, tt := range []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"unknown flag", []string{"run", "--manifets", good}, 2, []string{"-manifets"}},
		{"no manifest", []string{"run", "--listen", ""}, 2, []string{"--manifest"}},
		{"unreadable manifest", []string{"run", "--manifest", filepath.Join(dir, "none.yaml")}, 2, []string{"none.yaml", "no such file"}},
		{"invalid manifest", []string{"run", "--manifest", bad}, 2, []string{"bad.yaml", "spec.readinessProbe.httpGet.port"}},
		{"address", []string{"run", "--manifest", good, "--monitor", "tcp:1"}, 2, []string{"--monitor", `"tcp:1"`}},
		{"port taken", []string{"run", "--manifest", good, "--listen", taken.Addr().String()}, 1, []string{taken.Addr().String(), "in use"}},
		{"agent missing", []string{"run", "--manifest", write("ping.yaml", "apiVersion: guestprobe.dev/v1alpha1\nkind: GuestProbes\nspec:\n  readinessProbe: {guestAgentPing: {}}\n")}, 2, []string{"readinessProbe", "--agent"}},
		{"validate", []string{"validate", bad}, 2, []string{"bad.yaml", "spec.readinessProbe.httpGet.port"}},
		{"check without a sidecar", []string{"check", "--socket", filepath.Join(dir, "none.sock")}, 1, []string{"none.sock"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := guest.Spawn(t, exec.Command(binary, tt.args...))
			code := p.Wait(t, 30*time.Second)
			out := strings.TrimSpace(p.Output())
			if code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			for _, want := range tt.want {
				if !strings.Contains(out, want) {
					t.Errorf("%q is not mentioned", want)
				}
			}
			if strings.Contains(out, "\n") {
				t.Errorf("more than one line")
			}
			if t.Failed() {
				t.Logf("guestprobe said: %s", out)
			}
		})
	}
}

// TestNoVM starts the daemon before there is any VM: it waits and says so.
func TestNoVM(t *testing.T) {
	binary := daemon.Build(t)
	dir := t.TempDir()
	d := daemon.Start(t, binary, "agent.yaml", agentPings(t),
		"--monitor", "unix:"+filepath.Join(dir, "qmp"), "--agent", "unix:"+filepath.Join(dir, "qga"))
	d.Await(daemon.Verdict{Reason: "NoDomain", Live: true})
	d.Stop()
}

// TestBadPeers puts peers on the sockets that are no QEMU and no agent.
func TestBadPeers(t *testing.T) {
	binary := daemon.Build(t)
	t.Run("a monitor that accepts and stays silent", func(t *testing.T) {
		path := peer(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
		d := daemon.Start(t, binary, "agent.yaml", agentPings(t), "--monitor", "unix:"+path, "--agent", "unix:"+path+".none")
		d.Until("MonitorBusy", func(daemon.Status) error {
			_, body, err := d.Get("/readyz?verbose")
			if err == nil && !strings.Contains(body, "MonitorBusy") {
				err = errors.New(body)
			}
			return err
		})
		d.Await(daemon.Verdict{Reason: "AgentNotConnected", Live: true})
		d.Stop()
	})
	t.Run("an agent that answers garbage", func(t *testing.T) {
		path := peer(t, func(c net.Conn) {
			buf := make([]byte, 4096)
			for {
				if _, err := c.Read(buf); err != nil {
					return
				}
				if _, err := io.WriteString(c, "220 mail.example.org ESMTP \x1b[31m\r\n"); err != nil {
					return
				}
			}
		})
		d := daemon.Start(t, binary, "agent.yaml", agentPings(t), "--agent", "unix:"+path)
		d.Await(daemon.Verdict{Reason: "AgentError", Live: true})
		if strings.Contains(d.Output(), "\x1b") {
			t.Error("the peer's escape sequence is in the log")
		}
		d.Stop()
	})
}

func agentPings(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("testdata/agent.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// peer listens on a unix socket, hands every connection to serve, and ends with the test.
func peer(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "p")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
		_ = os.RemoveAll(dir)
	})
	return path
}
