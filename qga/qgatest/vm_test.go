package qgatest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

func startVM(t *testing.T, cfg Config) *VM {
	t.Helper()
	dir, err := os.MkdirTemp("", "gp") // short: a socket's path must be
	if err != nil {
		t.Fatal(err)
	}
	cfg.Dir = dir
	vm, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		vm.Close()
		vm.Close() // once more does no harm
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return vm
}

// get asks the guest's web server, on a connection of its own.
func get(ctx context.Context, vm *VM) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+vm.HTTPAddr()+"/healthz", nil)
	if err != nil {
		return 0, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

func TestWeb(t *testing.T) {
	vm := startVM(t, Config{})
	refused := func(when string) {
		t.Helper()
		if _, err := get(t.Context(), vm); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v, want a refusal", when, err)
		}
	}
	answers := func(when string, want int) {
		t.Helper()
		if status, err := get(t.Context(), vm); err != nil || status != want {
			t.Errorf("%s: %d, %v", when, status, err)
		}
	}
	silent := func(when string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := get(ctx, vm); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want silence", when, err)
		}
	}

	refused("before it boots")
	vm.Boot()
	answers("booted", 200)
	vm.SetHTTPStatus(500)
	answers("failing", 500)
	vm.SetHTTPStalled(true)
	silent("stalled")
	vm.SetHTTPStalled(false)
	answers("no longer stalled", 200)
	vm.StopWeb()
	refused("its web server stopped")
	if err := vm.StartWeb(); err != nil {
		t.Fatal(err)
	}
	answers("started", 200)
	vm.Pause()
	silent("paused")
	vm.Resume()
	answers("resumed", 200)

	// A request put to a paused VM is answered when it goes on.
	vm.Pause()
	result := make(chan error, 1)
	go func() {
		status, err := get(t.Context(), vm)
		if err == nil && status != 200 {
			err = fmt.Errorf("status %d", status)
		}
		result <- err
	}()
	vm.Resume()
	if err := <-result; err != nil {
		t.Errorf("across a pause: %v", err)
	}

	vm.Quit()
	refused("gone")
	vm.Boot() // nothing is there
	refused("still gone")
	if err := vm.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := vm.Restart(); err == nil {
		t.Error("restarted while it is there")
	}
	vm.Boot()
	answers("another VM on the same address", 200)
}

func TestSockets(t *testing.T) {
	vm := startVM(t, Config{Status: "running"})
	for what, end := range map[string]struct {
		f    func()
		want error
	}{
		"quit": {vm.Quit, os.ErrNotExist},
		"kill": {vm.Kill, syscall.ECONNREFUSED},
	} {
		if vm.Status() == "" {
			if err := vm.Restart(); err != nil {
				t.Fatal(err)
			}
		}
		end.f()
		for _, addr := range []string{vm.MonitorAddr(), vm.AgentAddr()} {
			if _, err := net.Dial("unix", strings.TrimPrefix(addr, "unix:")); !errors.Is(err, end.want) {
				t.Errorf("%s: %s: %v, want %v", what, addr, err, end.want)
			}
		}
	}
}

// TestMonitorBytes holds the monitor's bytes against those of QEMU 7.2.
func TestMonitorBytes(t *testing.T) {
	vm := startVM(t, Config{Name: "fedora"})
	conn, err := net.Dial("unix", strings.TrimPrefix(vm.MonitorAddr(), "unix:"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	line := func() string {
		t.Helper()
		s, err := r.ReadString('\n')
		if err != nil || !strings.HasSuffix(s, "\r\n") {
			t.Fatalf("%q, %v", s, err)
		}
		return strings.TrimSuffix(s, "\r\n")
	}
	if got := line(); !strings.HasPrefix(got, `{"QMP": {"version": `) {
		t.Errorf("greeting %s", got)
	}
	for _, x := range []struct{ send, want string }{
		{`{"execute":"query-version","id":"early"}`, `{"id": "early", "error": {"class": "CommandNotFound", "desc": "Expecting capabilities negotiation with 'qmp_capabilities'"}}`},
		{`{"execute":"qmp_capabilities","arguments":{"enable":["oob"]},"id":1}`, `{"return": {}, "id": 1}`},
		{`{"execute":"qmp_capabilities"}`, `{"error": {"class": "CommandNotFound", "desc": "Capabilities negotiation is already complete, command ignored"}}`},
		{`{"execute":"query-name"} {"execute":"query-uuid","id":null}`, `{"return": {"name": "fedora"}}`},
		{``, `{"return": {"UUID": "00000000-0000-0000-0000-000000000000"}, "id": null}`},
		{`{"exec-oob":"query-yank","id":"o"}`, `{"return": [], "id": "o"}`},
		{`{"execute":"nonsense","id":2}`, `{"id": 2, "error": {"class": "CommandNotFound", "desc": "The command nonsense has not been found"}}`},
	} {
		if _, err := fmt.Fprintln(conn, x.send); err != nil {
			t.Fatal(err)
		}
		if got := line(); got != x.want {
			t.Errorf("%s: got %s, want %s", x.send, got, x.want)
		}
	}
	if _, err := fmt.Fprintf(conn, "nonsense}\n{\"execute\":\"query-name\",\"id\":3}\n"); err != nil {
		t.Fatal(err)
	}
	if got := line(); !strings.Contains(got, "JSON parse error") {
		t.Errorf("nonsense: %s", got)
	}
	if got := line(); got != `{"return": {"name": "fedora"}, "id": 3}` {
		t.Errorf("after nonsense: %s", got)
	}

	vm.Boot()
	vm.IOError("disk0", true)
	for _, want := range []string{
		`"event": "RESUME"}`,
		`"event": "VSERPORT_CHANGE", "data": {"open": true, "id": "channel0"}}`,
		`"event": "BLOCK_IO_ERROR", "data": {"device": "disk0", "nospace": true, "node-name": "#block042", "reason": "No space left on device", "operation": "write", "action": "stop"}}`,
		`"event": "STOP"}`,
	} {
		if got := line(); !strings.HasPrefix(got, `{"timestamp": {"seconds": `) || !strings.HasSuffix(got, want) {
			t.Errorf("event %s, want %s", got, want)
		}
	}
}

func TestBootTime(t *testing.T) {
	vm := startVM(t, Config{BootTime: 30 * time.Millisecond})
	vm.Boot()
	if vm.Agent().PortOpen() {
		t.Error("up at once")
	}
	vm.Reset() // while it boots
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for !vm.Agent().PortOpen() {
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatal("never up")
		}
	}
	vm.Reset()
	vm.Quit() // while it boots: nothing comes up any more
	if vm.Agent() != nil || vm.Status() != "" {
		t.Error("still there")
	}
}
