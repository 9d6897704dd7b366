package qga

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/digitalocean/go-qemu/qmp"
	"github.com/digitalocean/go-qemu/qmp/raw"

	"github.com/guestprobe/guestprobe/qga/qgatest"
)

const testGreeting = `{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ""}, "capabilities": ["oob"]}}` + "\r\n"

// A qmpScript plays a monitor that misbehaves, on one connection. line returns
// the next line of the client.
type qmpScript func(conn net.Conn, line func() string)

// scripted serves a script to each client and returns the address.
func scripted(t *testing.T, script qmpScript) string {
	t.Helper()
	path := filepath.Join(shortDir(t), "qmp.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(conn)
			script(conn, func() string {
				line, _ := r.ReadString('\n') // "" at the end
				return line
			})
			conn.Close()
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return "unix:" + path
}

func say(conn net.Conn, format string, args ...any) {
	_, _ = fmt.Fprintf(conn, format, args...) // the client may be gone
}

// idOf returns the id of a command, as raw JSON.
func idOf(line string) string {
	var cmd qmpCommand
	_ = json.Unmarshal([]byte(line), &cmd)
	return string(cmd.ID)
}

// negotiate plays the beginning of every monitor.
func negotiate(conn net.Conn, line func() string) {
	say(conn, testGreeting)
	say(conn, "{\"return\": {}, \"id\": %s}\r\n", idOf(line()))
}

func connect(t *testing.T, addr string, cfg *MonitorConfig) *Monitor {
	t.Helper()
	m := newMonitor(t, addr, cfg)
	if err := m.Connect(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Disconnect(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// TestMonitorUnderGoQEMU runs go-qemu's typed commands over our connection. Its
// RunState is a list of 2011 to 2017 whose zero value reads "debug": fit for a
// look, not for a verdict.
func TestMonitorUnderGoQEMU(t *testing.T) {
	vm := startVM(t, qgatest.Config{Status: "running"})
	typed := raw.NewMonitor(connect(t, vm.MonitorAddr(), nil))
	status, err := typed.QueryStatus()
	if err != nil || !status.Running || status.Status != raw.RunStateRunning {
		t.Errorf("query-status: %+v, %v", status, err)
	}
	version, err := typed.QueryVersion()
	if err != nil || version.Qemu.Major != 7 || version.Qemu.Minor != 2 {
		t.Errorf("query-version: %+v, %v", version, err)
	}
	if err := typed.Stop(); err == nil || vm.Status() != "running" {
		t.Errorf("stop: %v, and the VM is %s", err, vm.Status())
	}
}

func TestMonitorRefusesHere(t *testing.T) {
	vm := startVM(t, qgatest.Config{Status: "running"})
	m := connect(t, vm.MonitorAddr(), nil)
	for _, command := range []string{
		`{"execute": "quit"}`, `{"execute": "human-monitor-command", "arguments": {"command-line": "quit"}}`,
		`{"exec-oob": "yank"}`, `{}`, `{"execute": 7}`, `quit`, ``, `{"execute": "query-status"} {"execute": "quit"}`,
	} {
		if _, err := m.Run([]byte(command)); err == nil {
			t.Errorf("%s is let through", command)
		}
	}
	if err := m.Do(t.Context(), "system_reset", nil, nil); err == nil || !strings.Contains(err.Error(), "system_reset") {
		t.Errorf("system_reset: %v", err)
	}
	for _, r := range vm.MonitorRequests() {
		if !strings.Contains(r, "qmp_capabilities") {
			t.Errorf("this went out: %s", r)
		}
	}
}

func TestMonitorRun(t *testing.T) {
	vm := startVM(t, qgatest.Config{Status: "paused", Name: "fedora"})
	m := connect(t, vm.MonitorAddr(), nil)
	reply, err := m.Run([]byte(`{"execute": "query-name", "id": {"mine": [1]}}`))
	if want := `{"return":{"name":"fedora"},"id":{"mine":[1]}}`; err != nil || string(reply) != want {
		t.Errorf("%s, %v; want %s", reply, err, want)
	}
	if _, err := m.Run([]byte(`{"exec-oob": "query-yank"}`)); err != nil {
		t.Errorf("out of band: %v", err)
	}
	var no *Error
	if _, err = m.Run([]byte(`{"execute": "query-named-block-nodes"}`)); !errors.As(err, &no) || !errors.Is(err, ErrUnsupported) {
		t.Errorf("a command it has not: %v", err)
	}
	var status struct{ Status string }
	if err := m.Do(t.Context(), "query-status", struct{}{}, &status); err != nil || status.Status != "paused" {
		t.Errorf("%+v, %v", status, err)
	}
	var wrong int
	if err := m.Do(t.Context(), "query-status", nil, &wrong); !errors.Is(err, ErrProtocol) {
		t.Errorf("a reply of another shape: %v", err)
	}
}

func TestNewMonitorRefusesOtherAddresses(t *testing.T) {
	for _, addr := range []string{"vsock:3:1024"} {
		a, err := ParseAddr(addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := NewMonitor(a, nil); err == nil || !strings.Contains(err.Error(), addr) {
			t.Errorf("%s: %v", addr, err)
		}
	}
}

// The twelve faults of go-qemu's SocketMonitor that ours must not have: a
// subtest each.
func TestMonitorHasNotGoQEMUsFaults(t *testing.T) {
	event := "{\"timestamp\": {\"seconds\": 1, \"microseconds\": 2}, \"event\": \"RTC_CHANGE\", \"data\": {\"offset\": 0}}\r\n"

	t.Run("1 replies alias the reader's buffer", func(t *testing.T) {
		m := connect(t, scripted(t, func(conn net.Conn, line func() string) {
			negotiate(conn, line)
			for cmd := line(); cmd != ""; cmd = line() {
				id := idOf(cmd)
				// The event comes while the reply is still being looked at.
				say(conn, "{\"return\": {\"name\": \"%s\"}, \"id\": %s}\r\n%s", strings.Repeat(id[len(id)-1:], 300), id, event)
			}
		}), nil)
		for i := range 2000 {
			var got struct{ Name string }
			if err := m.Do(t.Context(), "query-name", nil, &got); err != nil {
				t.Fatal(err)
			}
			if want := strings.Repeat(fmt.Sprint((i+2)%10), 300); got.Name != want {
				t.Fatalf("reply %d is %.20q…, want %.20q…", i, got.Name, want)
			}
		}
	})

	t.Run("2 no deadline", func(t *testing.T) {
		silent := newMonitor(t, scripted(t, func(_ net.Conn, line func() string) { line() }), quick(""))
		if err := silent.Connect(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Connect to a silent peer: %v", err)
		}
		vm := startVM(t, qgatest.Config{})
		m := connect(t, vm.MonitorAddr(), quick(""))
		vm.SetMainLoopStuck(true)
		if _, err := m.Run([]byte(`{"execute": "query-status"}`)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Run on a stuck VM: %v", err)
		}
		// The late reply is not taken for another's, and the connection lives.
		vm.SetMainLoopStuck(false)
		reply, err := m.Run([]byte(`{"execute": "query-kvm"}`))
		if err != nil || !strings.Contains(string(reply), "present") {
			t.Errorf("Run afterwards: %s, %v", reply, err)
		}
	})

	t.Run("3 lines of 64 KiB", func(t *testing.T) {
		vm := startVM(t, qgatest.Config{})
		m := connect(t, vm.MonitorAddr(), &MonitorConfig{CommandTimeout: patience})
		for _, size := range []int{70 << 10, 1 << 20, 70 << 10} {
			vm.SetReply("query-name", map[string]string{"name": strings.Repeat("x", size)})
			reply, err := m.Run([]byte(`{"execute": "query-name"}`))
			if err != nil || len(reply) < size {
				t.Fatalf("%d bytes, %v", len(reply), err)
			}
		}
	})

	t.Run("4 what is glued to the negotiation is lost", func(t *testing.T) {
		m := connect(t, scripted(t, func(conn net.Conn, line func() string) {
			say(conn, "%s%s", testGreeting, event)
			id := idOf(line())
			say(conn, "%s{\"return\": {}, \"id\": %s}\r\n%s", event, id, event)
			for cmd := line(); cmd != ""; cmd = line() {
				say(conn, "%s{\"return\": {\"name\": \"right\"}, \"id\": %s}\r\n%s", event, idOf(cmd), event)
			}
		}), nil)
		for range 3 {
			reply, err := m.Run([]byte(`{"execute": "query-name"}`))
			if err != nil || !strings.Contains(string(reply), "right") {
				t.Fatalf("%s, %v", reply, err)
			}
		}
	})

	t.Run("5 an unasked reply answers the next command", func(t *testing.T) {
		m := connect(t, scripted(t, func(conn net.Conn, line func() string) {
			negotiate(conn, line)
			say(conn, "{\"return\": {\"name\": \"unasked\"}}\r\n{\"return\": {\"name\": \"unasked\"}, \"id\": \"2\"}\r\n{\"id\": 99, \"error\": {\"class\": \"GenericError\", \"desc\": \"unasked\"}}\r\n")
			cmd := line()
			say(conn, "{\"return\": {\"name\": \"unasked\"}, \"id\": null}\r\n{\"return\": {\"name\": \"right\"}, \"id\": %s}\r\n", idOf(cmd))
			line()
		}), nil)
		reply, err := m.Run([]byte(`{"execute": "query-name"}`))
		if err != nil || !strings.Contains(string(reply), "right") {
			t.Errorf("%s, %v", reply, err)
		}
	})

	t.Run("6 a number as id is an error", func(t *testing.T) {
		vm := startVM(t, qgatest.Config{})
		m := connect(t, vm.MonitorAddr(), nil)
		reply, err := m.Run([]byte(`{"execute": "query-kvm", "id": 9007199254740993}`))
		if err != nil || !strings.Contains(string(reply), "9007199254740993") {
			t.Errorf("%s, %v", reply, err)
		}
	})

	t.Run("7 an error without a text is success", func(t *testing.T) {
		m := connect(t, scripted(t, func(conn net.Conn, line func() string) {
			negotiate(conn, line)
			say(conn, "{\"id\": %s, \"error\": {\"class\": \"DeviceNotFound\", \"desc\": \"\"}}\r\n", idOf(line()))
			line()
		}), nil)
		_, err := m.Run([]byte(`{"execute": "query-name"}`))
		var no *Error
		if !errors.As(err, &no) || no.Class != "DeviceNotFound" {
			t.Errorf("%v", err)
		}
	})

	t.Run("8 events that nobody reads block commands", func(t *testing.T) {
		vm := startVM(t, qgatest.Config{})
		m := connect(t, vm.MonitorAddr(), nil)
		events, err := m.Events(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 2 * maxQueuedEvents {
			vm.Event("RTC_CHANGE", map[string]int{"offset": 0})
		}
		if _, err := m.Run([]byte(`{"execute": "query-name"}`)); err != nil {
			t.Fatal(err)
		}
		vm.Event("STOP", nil)
		for e := range events { // the newest are there
			if e.Event == "STOP" {
				break
			}
		}
	})

	t.Run("9 a lost connection is no error of its own", func(t *testing.T) {
		m := newMonitor(t, scripted(t, func(conn net.Conn, line func() string) {
			negotiate(conn, line)
			line()
		}), nil)
		for range 2 {
			if err := m.Connect(); err != nil {
				t.Fatal(err)
			}
			for _, try := range []string{"in the middle", "later"} {
				if _, err := m.Run([]byte(`{"execute": "query-name"}`)); !errors.Is(err, ErrConnectionLost) {
					t.Errorf("%s: %v", try, err)
				}
			}
		}
		if err := m.Disconnect(); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Run([]byte(`{"execute": "query-name"}`)); !errors.Is(err, ErrNotConnected) {
			t.Errorf("disconnected: %v", err)
		}
	})

	t.Run("10 Disconnect during Connect leaves it connected", func(t *testing.T) {
		dialing, goOn := make(chan struct{}), make(chan struct{})
		addr := scripted(t, func(conn net.Conn, line func() string) {
			negotiate(conn, line)
			line()
		})
		path := strings.TrimPrefix(addr, "unix:")
		m := newMonitor(t, addr, &MonitorConfig{Dial: func(context.Context) (net.Conn, error) {
			conn, err := net.Dial("unix", path)
			close(dialing)
			<-goOn
			return conn, err
		}})
		result := make(chan error, 1)
		go func() { result <- m.Connect() }()
		<-dialing
		if err := m.Connect(); err == nil {
			t.Error("two Connects at once")
		}
		if err := m.Disconnect(); err != nil {
			t.Fatal(err)
		}
		close(goOn)
		if err := <-result; err == nil {
			t.Error("Connect succeeded after Disconnect")
		}
		if _, err := m.Run([]byte(`{"execute": "query-name"}`)); !errors.Is(err, ErrNotConnected) {
			t.Errorf("Run: %v", err)
		}
	})

	t.Run("11 events leak a goroutine", func(t *testing.T) {
		vm := startVM(t, qgatest.Config{})
		m := connect(t, vm.MonitorAddr(), nil)
		ctx, cancel := context.WithCancel(t.Context())
		abandoned, err := m.Events(ctx)
		if err != nil {
			t.Fatal(err)
		}
		vm.Event("STOP", nil) // waits for a reader that never comes
		if _, err := m.Run([]byte(`{"execute": "query-name"}`)); err != nil {
			t.Fatal(err)
		}
		cancel()
		drained(t, abandoned)

		left, err := m.Events(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		vm.Event("STOP", nil)
		if err := m.Disconnect(); err != nil {
			t.Fatal(err)
		}
		drained(t, left)
		if _, err := m.Events(t.Context()); !errors.Is(err, ErrNotConnected) {
			t.Errorf("Events without a connection: %v", err)
		}
	})

	t.Run("12 lines that are no JSON are skipped", func(t *testing.T) {
		m := connect(t, scripted(t, func(conn net.Conn, line func() string) {
			negotiate(conn, line)
			say(conn, "Warning: something\r\n{\"return\": {}, \"id\": %s}\r\n", idOf(line()))
			line()
		}), nil)
		if _, err := m.Run([]byte(`{"execute": "query-name"}`)); !errors.Is(err, ErrProtocol) {
			t.Errorf("%v", err)
		}
	})
}

// drained waits until the channel is closed, whatever it still holds.
func drained(t *testing.T, events <-chan qmp.Event) {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case _, ok := <-events:
			if !ok {
				return
			}
		case <-timeout:
			t.Fatal("the channel was never closed")
		}
	}
}

func TestMonitorEvents(t *testing.T) {
	vm := startVM(t, qgatest.Config{Status: "running"})
	m := newMonitor(t, vm.MonitorAddr(), nil)
	r := record(t, m)
	r.waitStatus("running")
	events, err := m.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	vm.IOError("disk0", true)
	for _, want := range []string{"BLOCK_IO_ERROR", "STOP"} {
		e := <-events
		if e.Event != want || e.Timestamp.Seconds == 0 {
			t.Errorf("%+v, want %s", e, want)
		}
		if want == "BLOCK_IO_ERROR" && e.Data["device"] != "disk0" {
			t.Errorf("%+v", e)
		}
	}
	r.stop()
	drained(t, events)
}

func TestConnectWrongPeer(t *testing.T) {
	tests := []struct {
		name, bytes string
		want        error
	}{
		{"an agent's late reply", "{\"return\": {}}\n", ErrWrongPeer},
		{"an agent's sync", "\xff{\"return\": 7}\n", ErrWrongPeer},
		{"something else", "SSH-2.0-OpenSSH_9.2\r\n", ErrProtocol},
		{"nothing", "", ErrConnectionLost},
		{"half a greeting", testGreeting[:20], ErrConnectionLost},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMonitor(t, scripted(t, func(conn net.Conn, _ func() string) { say(conn, "%s", tt.bytes) }), nil)
			if err := m.Connect(); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
}

func TestConnectSplitBytes(t *testing.T) {
	m := newMonitor(t, scripted(t, func(conn net.Conn, line func() string) {
		for _, b := range []byte(testGreeting) {
			say(conn, "%c", b)
		}
		say(conn, "\r\n\n{\"return\"")
		say(conn, ": {}, \"id\": %s}", idOf(line()))
		say(conn, "\r")
		say(conn, "\n")
		line()
	}), nil)
	if err := m.Connect(); err != nil {
		t.Fatal(err)
	}
	if err := m.Disconnect(); err != nil {
		t.Fatal(err)
	}
}
