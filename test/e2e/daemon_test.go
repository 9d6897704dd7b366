package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/test/guest"
)

// patience is how long a verdict may take that one waits for; the slowest is a boot with nothing left of the CPU.
const patience = 90 * time.Second

// build compiles the binary under test. It lies in the cache, where go build leaves it alone while it is up to date.
func build(t testing.TB) string {
	t.Helper()
	root := guest.Root(t)
	path := filepath.Join(root, ".cache", "e2e", "guestprobe")
	args := append([]string{"build", "-o", path}, buildFlags()...)
	cmd := exec.Command("go", append(args, "./cmd/guestprobe")...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building guestprobe: %v\n%s", err, out)
	}
	return path
}

// manifest returns the path of a manifest of testdata whose ports are those that lead to the guest's.
func manifest(t testing.TB, name string, vm *guest.VM) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	for port, addr := range map[string]string{"1500": vm.Web, "22": vm.SSH} {
		_, forwarded, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		for _, end := range []string{"\n", ",", "}"} {
			text = bytes.ReplaceAll(text, []byte("port: "+port+end), []byte("port: "+forwarded+end))
		}
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A daemon is a running `guestprobe run`.
type daemon struct {
	*guest.Process

	t      testing.TB
	binary string
	socket string
	client *http.Client
}

// start runs the daemon with endpoints on a unix socket, beside what the flags say.
func start(t testing.TB, binary string, flags ...string) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpe") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	args := append([]string{"run", "--listen", "127.0.0.1:0", "--listen-unix", socket}, flags...)
	d := &daemon{Process: guest.Spawn(t, exec.Command(binary, args...)), t: t, binary: binary, socket: socket}
	d.client = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
		DisableKeepAlives: true,
	}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("guestprobe said:\n%s", d.Output())
		}
	})
	d.until("the daemon to answer", func() error {
		_, _, err := d.get("/healthz")
		return err
	})
	return d
}

// on runs the daemon against a VM, with one of the manifests of testdata.
func on(t testing.TB, binary string, vm *guest.VM, name string, flags ...string) *daemon {
	t.Helper()
	return start(t, binary, append([]string{
		"--manifest", manifest(t, name, vm), "--guest-host", "127.0.0.1",
		"--monitor", "unix:" + vm.Monitor, "--agent", "unix:" + vm.Agent,
	}, flags...)...)
}

// until polls a condition until it holds, and fails the test with its last complaint when patience runs out. The
// daemon's endpoints are all there is to wait on, and they answer from memory.
func (d *daemon) until(what string, condition func() error) {
	d.t.Helper()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-d.Done:
			d.t.Fatalf("waiting for %s: the daemon has ended; %v", what, err)
		case <-deadline:
			d.t.Fatalf("waiting for %s: %v", what, err)
		}
	}
}

func (d *daemon) get(path string) (status int, body string, err error) {
	response, err := d.client.Get("http://guestprobe" + path)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// status is what the tests read of /status.
type status struct {
	Ready, Live, Started bool
	Reason, Detail       string
	Held                 bool
	VM                   struct {
		Link, Status, Instance string
		StartedAt              time.Time
		Resets                 int
	}
	Agent       struct{ Connects, Resyncs int }
	Checks      []check
	Transitions []struct{ From, To string }
}

type check struct {
	Name, Kind, State, Step, Error string
	Runs, Failures                 int
	History, Setbacks              []round
}

type round struct {
	At             time.Time
	Outcome, State string
}

func (s status) check(kind string) check {
	if i := slices.IndexFunc(s.Checks, func(c check) bool { return c.Kind == kind }); i >= 0 {
		return s.Checks[i]
	}
	return check{}
}

func (d *daemon) status() (s status, err error) {
	code, body, err := d.get("/status")
	if err != nil {
		return s, err
	}
	if code != http.StatusOK {
		return s, fmt.Errorf("/status answers %d", code)
	}
	return s, json.Unmarshal([]byte(body), &s)
}

// verdict is what a step expects all endpoints to agree on.
type verdict struct {
	reason      string
	ready, live bool
	detail      string // a part of the detail
}

// expect waits until the daemon has that verdict, and every endpoint, the metrics and `guestprobe check` agree on it.
func (d *daemon) expect(want verdict) status {
	d.t.Helper()
	began := time.Now()
	var s status
	d.until(want.reason, func() (err error) {
		if s, err = d.status(); err != nil {
			return err
		}
		if s.Reason != want.reason || s.Ready != want.ready || s.Live != want.live {
			return fmt.Errorf("/status says %s, ready %v, live %v (%s)", s.Reason, s.Ready, s.Live, s.Detail)
		}
		if !strings.Contains(s.Detail, want.detail) {
			return fmt.Errorf("the detail is %q and does not mention %q", s.Detail, want.detail)
		}
		return errors.Join(d.endpointsAgree(want), d.metricsAgree(want), d.checkAgrees(want))
	})
	d.t.Logf("after %.1fs %s: %s", time.Since(began).Seconds(), s.Reason, s.Detail)
	return s
}

func (d *daemon) endpointsAgree(want verdict) error {
	for path, ok := range map[string]bool{"/readyz": want.ready, "/livez": want.live} {
		code, body, err := d.get(path + "?verbose")
		switch {
		case err != nil:
			return err
		case code != map[bool]int{true: http.StatusOK, false: http.StatusServiceUnavailable}[ok]:
			return fmt.Errorf("%s answers %d: %s", path, code, body)
		case !ok && !(strings.Contains(body, "[-]") && strings.Contains(body, " failed: ")):
			return fmt.Errorf("%s answers %d without saying what failed: %s", path, code, body)
		case path == "/readyz" && !ok && !strings.Contains(body, want.reason+":"):
			return fmt.Errorf("%s does not name %s: %s", path, want.reason, body)
		}
	}
	return nil
}

func (d *daemon) metrics() (map[string]float64, error) {
	_, body, err := d.get("/metrics")
	if err != nil {
		return nil, err
	}
	values := make(map[string]float64)
	for line := range strings.Lines(body) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("/metrics has the line %q", line)
		}
		values[name] = v
	}
	return values, nil
}

func (d *daemon) metricsAgree(want verdict) error {
	values, err := d.metrics()
	if err != nil {
		return err
	}
	for name, ok := range map[string]bool{"guestprobe_ready": want.ready, "guestprobe_live": want.live} {
		if v, there := values[name]; !there || (v == 1) != ok {
			return fmt.Errorf("the metric %s is %v, want %v", name, v, ok)
		}
	}
	var hot []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if reason, ok := strings.CutPrefix(name, `guestprobe_state{reason="`); ok && values[name] == 1 {
			hot = append(hot, strings.TrimSuffix(reason, `"}`))
		}
	}
	if !slices.Equal(hot, []string{want.reason}) {
		return fmt.Errorf("the metric guestprobe_state is 1 for %v, want %s alone", hot, want.reason)
	}
	return nil
}

// checkAgrees asks with what exec probes call.
func (d *daemon) checkAgrees(want verdict) error {
	for endpoint, ok := range map[string]bool{"readyz": want.ready, "livez": want.live} {
		cmd := exec.Command(d.binary, "check", endpoint, "--socket", d.socket, "--timeout", "10s")
		cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0") // else the race detector sleeps a second at the end
		out, err := cmd.CombinedOutput()
		exit := (*exec.ExitError)(nil)
		switch {
		case err == nil && !ok:
			return fmt.Errorf("guestprobe check %s succeeds: %s", endpoint, out)
		case err != nil && ok, err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1):
			return fmt.Errorf("guestprobe check %s: %w: %s", endpoint, err, out)
		}
	}
	return nil
}

// reasons returns the reasons that the verdict has gone through since it had mark transitions.
func (s status) reasons(mark int) []string {
	var to []string
	for _, t := range s.Transitions[min(mark, len(s.Transitions)):] {
		if len(to) == 0 || to[len(to)-1] != t.To {
			to = append(to, t.To)
		}
	}
	return to
}

// stop ends the daemon as an orchestrator would.
func (d *daemon) stop() {
	d.t.Helper()
	d.Signal(d.t, syscall.SIGTERM)
	if code := d.Wait(d.t, 10*time.Second); code != 0 {
		d.t.Errorf("after SIGTERM the daemon ended with %d", code)
	}
}
