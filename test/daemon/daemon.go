package daemon

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/test/guest"
)

// patience is how long an answer may take that one waits for; the slowest is a boot with nothing left of the CPU.
const patience = 90 * time.Second

// Build compiles the program and returns its path. It lies in the cache, under the name of the package whose test this
// is; go build leaves it alone while it is up to date.
func Build(t testing.TB) string {
	t.Helper()
	root := guest.Root(t)
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, ".cache", filepath.Base(dir), "guestprobe")
	cmd := exec.Command("go", append(append([]string{"build", "-o", path}, buildFlags()...), "./cmd/guestprobe")...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building guestprobe: %v\n%s", err, out)
	}
	return path
}

// A Daemon is a running `guestprobe run`. It ends with the test that started it.
type Daemon struct {
	*guest.Process

	// Socket is the path of the unix socket on which it answers.
	Socket string
	// Manifest is the path of the file with its probes.
	Manifest string

	t      testing.TB
	name   string
	client *http.Client
}

// Start writes a manifest to a file and runs the program on it, with its endpoints on a unix socket. name is for
// messages. It returns when the daemon answers.
func Start(t testing.TB, binary, name, manifest string, flags ...string) *Daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpd") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file, socket := filepath.Join(dir, "manifest.yaml"), filepath.Join(dir, "s")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"run", "--listen", "", "--listen-unix", socket, "--manifest", file}, flags...)
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0") // else one built with -race takes a second to end
	d := &Daemon{Process: guest.Spawn(t, cmd), Socket: socket, Manifest: file, t: t, name: name}
	d.client = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	t.Cleanup(func() {
		d.Kill()
		d.client.CloseIdleConnections()
		if t.Failed() {
			t.Logf("the daemon of %s said:\n%s", name, d.Output())
		}
	})
	d.until("an answer", func() error {
		_, _, err := d.Get("/healthz")
		return err
	})
	return d
}

// On runs the program against a VM. In the manifest "port: WEB" and "port: SSH" stand for what leads to the guest's web
// server and to its SSH banner. Flags come last, so they win.
func On(t testing.TB, binary, name string, vm *guest.VM, manifest string, flags ...string) *Daemon {
	t.Helper()
	port := func(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }
	manifest = strings.NewReplacer("port: WEB", "port: "+port(vm.Web), "port: SSH", "port: "+port(vm.SSH)).Replace(manifest)
	return Start(t, binary, name, manifest, append([]string{
		"--guest-host", "127.0.0.1", "--monitor", "unix:" + vm.Monitor, "--agent", "unix:" + vm.Agent,
	}, flags...)...)
}

// Use makes what fails from here on, until the subtest t ends, fail t.
func (d *Daemon) Use(t testing.TB) {
	former := d.t
	d.t = t
	t.Cleanup(func() { d.t = former })
}

// Get asks an endpoint.
func (d *Daemon) Get(path string) (status int, body string, err error) {
	response, err := d.client.Get("http://guestprobe" + path)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// until polls a condition until it holds: the endpoints are all there is to wait on, and they answer from memory.
func (d *Daemon) until(what string, condition func() error) {
	d.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
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
			d.t.Fatalf("%s, waiting for %s: the daemon has ended; %v", d.name, what, err)
		case <-deadline:
			d.t.Fatalf("%s, waiting for %s: %v", d.name, what, err)
		}
	}
}

// Stop ends the daemon as an orchestrator would, and asks that it ends well. A daemon built with -race that has seen
// a data race does not.
func (d *Daemon) Stop() {
	d.t.Helper()
	d.Signal(d.t, syscall.SIGTERM)
	if code := d.Wait(d.t, 10*time.Second); code != 0 {
		d.t.Errorf("%s: after SIGTERM the daemon ended with %d and said:\n%s", d.name, code, d.Output())
	}
}

func statusOf(ok bool) int {
	if ok {
		return http.StatusOK
	}
	return http.StatusServiceUnavailable
}

// agree asks that the endpoints say the same as /status, and name the reason where they say no.
func (d *Daemon) agree(want Verdict) error {
	for path, ok := range map[string]bool{"/readyz": want.Ready, "/livez": want.Live} {
		code, body, err := d.Get(path + "?verbose")
		switch {
		case err != nil:
			return err
		case code != statusOf(ok):
			return fmt.Errorf("%s answers %d: %s", path, code, body)
		case !ok && !(strings.Contains(body, "[-]") && strings.Contains(body, " failed: ")):
			return fmt.Errorf("%s answers %d without saying what failed: %s", path, code, body)
		case path == "/readyz" && !ok && !strings.Contains(body, " failed: "+want.Reason):
			return fmt.Errorf("%s does not name %s: %s", path, want.Reason, body)
		}
	}
	return nil
}
