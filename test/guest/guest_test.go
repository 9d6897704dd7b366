package guest_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/guestprobe/guestprobe/test/guest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestVM walks one machine through all that the package promises; each boot costs seconds, so the steps share it.
func TestVM(t *testing.T) {
	hello := filepath.Join(t.TempDir(), "hello")
	if err := os.WriteFile(hello, []byte("#!/bin/sh\necho \"hello $1\"\nexit 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	vm := guest.Start(t, guest.Options{SecondAgent: true, Files: map[string]string{"/opt/test/hello": hello}})
	vm.WaitReady()

	step(t, vm, "a file of the host runs in the guest", func(t *testing.T) {
		if got := vm.Run("/opt/test/hello you; echo again"); got != "hello you\nagain" {
			t.Errorf("got %q", got)
		}
	})
	step(t, vm, "both agents answer", func(t *testing.T) {
		for _, path := range []string{vm.Agent, vm.SecondAgent} {
			if err := ping(t, path, 10*time.Second); err != nil {
				t.Errorf("guest-ping: %v", err)
			}
		}
	})
	step(t, vm, "the web server answers what it is told to", func(t *testing.T) {
		before, _ := vm.Requests()
		for _, code := range []int{200, 500, 200} {
			vm.SetCode(code)
			if got := healthz(t, vm); got != code {
				t.Errorf("GET /healthz = %d, want %d", got, code)
			}
		}
		after, header := vm.Requests()
		if after-before != 3 || header.Get("Custom-Header") != "Awesome" {
			t.Errorf("the guest saw %d requests and the header %q", after-before, header)
		}
	})
	step(t, vm, "port 22 greets", func(t *testing.T) {
		conn, err := net.DialTimeout("tcp", vm.SSH, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || !strings.HasPrefix(line, "SSH-2.0-") {
			t.Errorf("read %q, %v", line, err)
		}
	})
	step(t, vm, "a stopped agent is silent and answers when it goes on", func(t *testing.T) {
		vm.AgentStop()
		if err := ping(t, vm.Agent, 300*time.Millisecond); err == nil {
			t.Error("a stopped agent answered")
		}
		vm.AgentContinue()
		if err := ping(t, vm.Agent, 10*time.Second); err != nil {
			t.Error(err)
		}
	})
	step(t, vm, "a killed agent can be started again", func(t *testing.T) {
		vm.AgentKill()
		vm.AgentStart()
		if err := ping(t, vm.Agent, 10*time.Second); err != nil {
			t.Error(err)
		}
	})
	step(t, vm, "pause", func(t *testing.T) {
		vm.Stop()
		if got := vm.Status(); got != "paused" {
			t.Errorf("status %q", got)
		}
		vm.Cont()
		if got := vm.Status(); got != "running" {
			t.Errorf("status %q", got)
		}
	})
	step(t, vm, "suspend to memory", func(t *testing.T) {
		vm.Suspend()
		if got := vm.Status(); got != "suspended" {
			t.Errorf("status %q", got)
		}
		vm.Wake()
		if got := vm.Run("echo awake"); got != "awake" {
			t.Errorf("got %q", got)
		}
	})
	step(t, vm, "what later tests stand on", func(t *testing.T) {
		vm.Run("grep -q vsock_loopback /proc/modules && grep -q virtio_blk /proc/modules && test -c /dev/vsock")
	})
	step(t, vm, "reset boots anew on the same agent socket", func(t *testing.T) {
		pid := vm.PID()
		vm.SetCode(500)
		vm.Reset()
		vm.WaitReady()
		if got := healthz(t, vm); got != http.StatusOK || vm.PID() != pid {
			t.Errorf("after a reset: /healthz %d, pid %d (was %d)", got, vm.PID(), pid)
		}
	})
	step(t, vm, "a panic pauses the machine", func(t *testing.T) {
		vm.Panic()
		if got := vm.Status(); got != "guest-panicked" {
			t.Errorf("status %q", got)
		}
	})
	step(t, vm, "a new QEMU takes over paths and ports", func(t *testing.T) {
		web, agent := vm.Web, vm.Agent
		vm.Kill()
		if _, err := net.Dial("unix", vm.Monitor); err == nil {
			t.Error("a killed QEMU still listens")
		}
		vm.StartAgain()
		vm.WaitReady()
		if vm.Web != web || vm.Agent != agent {
			t.Errorf("web %s, agent %s; want %s, %s", vm.Web, vm.Agent, web, agent)
		}
		if err := ping(t, vm.Agent, 10*time.Second); err != nil {
			t.Error(err)
		}
	})
}

// step runs a subtest and stops the walk when it failed: the machine is then in no known state.
func step(t *testing.T, vm *guest.VM, name string, f func(t *testing.T)) {
	t.Helper()
	if !t.Run(name, func(t *testing.T) { vm.Use(t); f(t) }) {
		t.FailNow()
	}
}

// ping speaks guest-ping over a bare socket, after a sync that skips what an earlier client has left.
func ping(t *testing.T, path string, limit time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	token := time.Now().UnixNano()
	fmt.Fprintf(conn, "\xff{\"execute\":\"guest-sync-delimited\",\"arguments\":{\"id\":%d}}\n", token)
	lines := bufio.NewReader(conn)
	for synced := false; ; {
		line, err := lines.ReadString('\n')
		switch {
		case err != nil:
			return err
		case !synced && strings.Contains(line, fmt.Sprint(token)):
			synced = true
			fmt.Fprintln(conn, `{"execute":"guest-ping"}`)
		case synced && strings.TrimSpace(line) == `{"return": {}}`:
			return nil
		case synced:
			return fmt.Errorf("guest-ping was answered with %q", line)
		}
	}
}

func healthz(t *testing.T, vm *guest.VM) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+vm.Web+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Custom-Header", "Awesome")
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	return response.StatusCode
}
