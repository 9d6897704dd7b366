package sidecar

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/sidecar/manifest"
	"github.com/guestprobe/guestprobe/sidecar/probe"
)

// pipes returns n connections that nobody speaks on.
func pipes(t *testing.T, n int) []net.Conn {
	t.Helper()
	conns := make([]net.Conn, n)
	for i := range conns {
		here, there := net.Pipe()
		conns[i] = here
		t.Cleanup(func() {
			here.Close()
			there.Close()
		})
	}
	return conns
}

func TestConnLimitClosesTheIdlest(t *testing.T) {
	l := newConnLimit(2)
	c := pipes(t, 4)
	for _, step := range []struct {
		conn, victim int // -1: none
		state        http.ConnState
	}{
		{0, -1, http.StateNew},
		{1, -1, http.StateNew},
		{0, -1, http.StateActive},
		{2, 1, http.StateNew},
		{1, -1, http.StateClosed}, // the server notices; it was forgotten before
		{2, -1, http.StateClosed},
		{3, -1, http.StateNew},
		{0, -1, http.StateIdle},
		{1, 3, http.StateNew},
	} {
		victim := l.move(c[step.conn], step.state)
		if got := slices.Index(c, victim); got != step.victim {
			t.Fatalf("%v of %d: the victim is %d, want %d", step.state, step.conn, got, step.victim)
		}
	}
	if l.order.Len() != 2 || len(l.known) != 2 {
		t.Errorf("%d in order, %d known", l.order.Len(), len(l.known))
	}
}

// Clients that dribble cannot keep others from an answer.
func TestSlowClientsLose(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(shortDir(t), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { // ends with ctx
		ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
		ended <- serve(ctx, discard(), ok, []net.Listener{l})
	}()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	first, last := net.Conn(nil), net.Conn(nil)
	for range connsAllowed() + 1 {
		if last, err = net.Dial("unix", socket); err != nil {
			t.Fatal(err)
		}
		defer last.Close()
		if _, err := last.Write([]byte("GET / HT")); err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = last
		}
	}
	// The first was closed before its time, and the last one is served.
	_ = first.SetReadDeadline(time.Now().Add(3 * time.Second))
	if _, err := first.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "timeout") {
		t.Errorf("the first of too many clients still has its connection: %v", err)
	}
	if _, err := last.Write([]byte("TP/1.0\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(last).ReadString('\n'); !strings.Contains(line, "200 OK") {
		t.Errorf("the last client got %q, %v", line, err)
	}
}

// What this process cannot do for want of files is no failure of the guest's.
func TestOwnTroubleIsNoFailure(t *testing.T) {
	m, err := manifest.Parse("test", []byte(`
apiVersion: guestprobe.dev/v1alpha1
kind: GuestProbes
spec: {readinessProbe: {guestAgentPing: {}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		dial error
		want probe.Outcome
	}{
		{syscall.EMFILE, probe.OutcomeError},
		{syscall.ENFILE, probe.OutcomeError},
		{syscall.ECONNREFUSED, probe.OutcomeFailure},
	} {
		agent, err := qga.NewAgent(mustAddr(t, "unix:/nowhere"), &qga.AgentConfig{Dial: func(context.Context) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "unix", Err: c.dial}
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- agent.Run(ctx) }() // ends with ctx
		g := &guest{
			agent: agent, agentPort: func() qga.Port { return qga.PortUnknown }, vm: func() qga.VMState { return qga.VMState{} },
			policy: func() *manifest.Policy { return &m.Policy },
		}
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		err = g.handler(m.Checks[0])(attempt)
		cancel()
		if got := probe.Classify(err); got != c.want {
			t.Errorf("%v: %v (%v), want %v", c.dial, got, err, c.want)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// A hold file of any kind holds, and none can block the one who looks at it.
func TestHoldFileThatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, dir} {
		hold, err := readHold(path, time.Now())
		if hold == nil || !hold.Until.IsZero() || err == nil || !strings.Contains(err.Error(), "no regular file") {
			t.Errorf("%s: %v, %v", path, hold, err)
		}
	}
}

func TestConfigRefusesWhatIsNoAddress(t *testing.T) {
	m, err := manifest.Parse("test", []byte("apiVersion: guestprobe.dev/v1alpha1\nkind: GuestProbes\nspec: {readinessProbe: {tcpSocket: {port: 22}}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	base := Config{Manifest: m, GuestHost: "guest"}
	for _, good := range []string{":9958", ":0", "127.0.0.1:9958", "[::1]:80", "host:http", ":http"} {
		cfg := base
		if cfg.Listen = good; cfg.Validate() != nil {
			t.Errorf("--listen %q: %v", good, cfg.Validate())
		}
	}
	for _, bad := range []string{"9958", "abc", "x:y:z", "[::1", ":99999", ":-1", "127.0.0.1:nothing-of-the-kind"} {
		cfg := base
		if cfg.Listen = bad; cfg.Validate() == nil || !strings.Contains(cfg.Validate().Error(), fmt.Sprintf("--listen: %q is no address", bad)) {
			t.Errorf("--listen %q: %v", bad, cfg.Validate())
		}
	}
	for _, good := range []string{"10.0.2.2", "fd00::1", "[fd00::1]", "fe80::1%eth0", "guest", "my_guest.example.", "10.0.2.2,[fd00::2]"} {
		cfg := base
		if cfg.GuestHost = good; cfg.Validate() != nil {
			t.Errorf("--guest-host %q: %v", good, cfg.Validate())
		}
	}
	for _, bad := range []string{"bad host", "http://x", "1.2.3.4:80", "[fd00::1]:80", "x/y", ".", "10.0.2.2,a b", strings.Repeat("x", 300)} {
		cfg := base
		if cfg.GuestHost = bad; cfg.Validate() == nil || !strings.HasPrefix(cfg.Validate().Error(), "--guest-host: ") {
			t.Errorf("--guest-host %q: %v", bad, cfg.Validate())
		}
	}
	cfg := base
	if cfg.ListenUnix = "/" + strings.Repeat("x", maxSocketPath); cfg.Validate() == nil || !strings.Contains(cfg.Validate().Error(), "108 bytes") {
		t.Errorf("a socket's path that is too long: %v", cfg.Validate())
	}
}
