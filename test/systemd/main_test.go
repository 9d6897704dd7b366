package systemd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/qga/qgatest"
	"github.com/guestprobe/guestprobe/test/guest"
)

// patience bounds every wait; it is never what a test is about.
const patience = 30 * time.Second

// built is the binary under test.
var built string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "gps")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	built = filepath.Join(dir, "guestprobe")
	if out, err := exec.Command("go", "build", "-o", built, "../../cmd/guestprobe").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building guestprobe: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// find returns the path of a program of Debian's systemd package.
func find(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		guest.Unavailable(t, "%v (Debian: systemd)", err)
	}
	return path
}

// shortDir is a directory whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gps")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// A peer is a fake VM and the manifest for it.
type peer struct {
	*qgatest.VM
	manifest string
}

const (
	webProbe   = "  readinessProbe: {httpGet: {host: HOST, port: PORT, path: /healthz}, periodSeconds: 1}\n"
	agentProbe = "  livenessProbe: {guestAgentPing: {}, periodSeconds: 1}\n"
)

func newPeer(t *testing.T, spec string) *peer {
	t.Helper()
	dir := shortDir(t)
	vm, err := qgatest.Start(qgatest.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(vm.Close)
	p := &peer{VM: vm, manifest: filepath.Join(dir, "vm.yaml")}
	p.write(t, spec)
	return p
}

// write writes the manifest with another spec.
func (p *peer) write(t *testing.T, spec string) {
	t.Helper()
	host, port, err := net.SplitHostPort(p.HTTPAddr())
	if err != nil {
		t.Fatal(err)
	}
	spec = strings.NewReplacer("HOST", host, "PORT", port).Replace(spec)
	text := "apiVersion: guestprobe.dev/v1alpha1\nkind: GuestProbes\nspec:\n" + spec
	if err := os.WriteFile(p.manifest, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// args are those of a run that watches the peer.
func (p *peer) args(more ...string) []string {
	return append([]string{"run", "--manifest", p.manifest, "--monitor", p.MonitorAddr(), "--agent", p.AgentAddr()}, more...)
}

// A process is a program that a test has started.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	log  *log
	done chan struct{} // closed when it has ended
	err  error         // then: Wait's
}

type log struct {
	mu    sync.Mutex
	bytes bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes.String()
}

// start starts a program, and kills it when the test ends.
func start(t *testing.T, env []string, stdin io.Reader, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(name, args...), log: new(log), done: make(chan struct{})}
	p.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GUESTPROBE_") }), env...)
	p.cmd.Stdin = stdin
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.WaitDelay = patience // for children of a program that was killed
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // joined by the clean-up
		defer close(p.done)
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.done
		if t.Failed() {
			t.Logf("output of %s:\n%s", filepath.Base(name), p.log)
		}
	})
	return p
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// wait waits until the process has ended, and returns how.
func (p *process) wait() error {
	p.t.Helper()
	select {
	case <-p.done:
		return p.err
	case <-time.After(patience):
		p.t.Fatal("the process does not end")
		return nil
	}
}

// eventually waits for a condition that nothing tells of.
func (p *process) eventually(what string, condition func() bool) {
	p.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-p.done:
			p.t.Fatalf("waiting until %s: the process has ended: %v", what, p.err)
		case <-deadline:
			p.t.Fatalf("not in time: %s", what)
		}
	}
}

// ask gets an endpoint over a socket; the status is 0 if nobody answers.
func ask(network, addr, path string) (status int, body string) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	client := &http.Client{Transport: transport, Timeout: patience}
	resp, err := client.Get("http://guestprobe" + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(data)
}
