package sidecar

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/qga/qgatest"
	"github.com/guestprobe/guestprobe/sidecar/manifest"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

// speedup makes the periods of a manifest pass faster. Timeouts stay as they are: the machine may be busy.
const speedup = 20

// patience bounds every wait of a test; it is never what a test is about.
const patience = 20 * time.Second

// A rig is a fake VM and the sidecar that watches it.
type rig struct {
	t       *testing.T
	vm      *qgatest.VM
	sidecar *Sidecar
	socket  string
	client  *http.Client
	logs    *lockedBuffer
	stop    context.CancelFunc
	done    chan struct{}
	err     error // Run's, once done is closed
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// shortDir is a directory whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// newVM starts a fake VM that has not booted. Each has sockets of its own, so tests run side by side.
func newVM(t *testing.T, cfg qgatest.Config) *qgatest.VM {
	t.Helper()
	t.Parallel()
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

// config returns a configuration for vm. 1500 in the spec stands for the port of the guest's web server.
func config(t *testing.T, vm *qgatest.VM, spec string) Config {
	t.Helper()
	host, port, err := net.SplitHostPort(vm.HTTPAddr())
	if err != nil {
		t.Fatal(err)
	}
	m, err := manifest.Parse("test", []byte("apiVersion: guestprobe.dev/v1alpha1\nkind: GuestProbes\nspec:\n"+strings.ReplaceAll(spec, "1500", port)))
	if err != nil {
		t.Fatal(err)
	}
	for i := range m.Checks {
		c := &m.Checks[i]
		c.Period /= speedup
	}
	monitor, agent := mustAddr(t, vm.MonitorAddr()), mustAddr(t, vm.AgentAddr())
	return Config{Manifest: m, Monitor: &monitor, Agent: &agent, GuestHost: host}
}

func mustAddr(t *testing.T, s string) qga.Addr {
	t.Helper()
	addr, err := qga.ParseAddr(s)
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// start runs a sidecar until the test ends.
func start(t *testing.T, vm *qgatest.VM, cfg Config) *rig {
	t.Helper()
	r := &rig{t: t, vm: vm, logs: new(lockedBuffer), done: make(chan struct{})}
	r.socket = filepath.Join(shortDir(t), "s")
	cfg.ListenUnix = r.socket
	cfg.Logger = slog.New(slog.NewTextHandler(r.logs, &slog.HandlerOptions{Level: slog.LevelInfo}))
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.sidecar = s
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", r.socket)
	}}
	r.client = &http.Client{Transport: transport, Timeout: patience}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() { // joined by the clean-up
		defer close(r.done)
		r.err = s.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-r.done
		transport.CloseIdleConnections()
		if r.err != nil {
			t.Errorf("Run: %v", r.err)
		}
		if t.Failed() {
			t.Logf("the sidecar's log:\n%s", r.logs)
		}
	})
	r.eventually("the sidecar listens", func(Status) bool { return strings.Contains(r.logs.String(), "msg=listening") })
	return r
}

// get asks an endpoint.
func (r *rig) get(path string) (status int, body string) {
	r.t.Helper()
	resp, err := r.client.Get("http://sidecar" + path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

// status asks /status.
func (r *rig) status() Status {
	r.t.Helper()
	_, body := r.get("/status")
	var st Status
	if err := json.Unmarshal([]byte(body), &st); err != nil {
		r.t.Fatalf("/status: %v\n%s", err, body)
	}
	return st
}

// eventually waits until the sidecar's own view satisfies the condition.
func (r *rig) eventually(what string, condition func(Status) bool) Status {
	r.t.Helper()
	return eventually(r.t, r.sidecar, what, condition)
}

func eventually(t *testing.T, s *Sidecar, what string, condition func(Status) bool) Status {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		st := s.Status()
		if condition(st) {
			return st
		}
		select {
		case <-tick.C:
		case <-deadline:
			data, _ := json.MarshalIndent(st, "", "  ")
			t.Fatalf("not seen in time: %s\n%s", what, data)
		}
	}
}

// reason waits for a verdict with the monitor in it: without it the probes may have decided already.
func (r *rig) reason(want verdict.Reason) Status {
	r.t.Helper()
	return r.eventually(string(want), func(s Status) bool {
		return s.Reason == want && (s.VM == nil || s.VM.Link != qga.LinkConnecting.String())
	})
}
