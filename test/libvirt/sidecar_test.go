package libvirt_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/test/guest"
)

const sidecarManifest = `apiVersion: guestprobe.dev/v1alpha1
kind: GuestProbes
spec:
  startupProbe:   {guestAgentPing: {}, periodSeconds: 1, failureThreshold: 120}
  readinessProbe: {guestAgentPing: {}, periodSeconds: 1, failureThreshold: 2}
  livenessProbe:  {guestAgentPing: {}, periodSeconds: 1, failureThreshold: 6}
`

// A sidecar is a running `guestprobe run`, with libvirt as its only way to the VM.
type sidecar struct {
	*guest.Process
	t                *testing.T
	client           *http.Client
	binary, manifest string
}

func (h *host) startSidecar() *sidecar {
	h.t.Helper()
	binary, manifest, socket := filepath.Join(h.t.TempDir(), "guestprobe"), filepath.Join(h.Dir, "vm/probes.yaml"), filepath.Join(h.Dir, "vm/gp.sock")
	build := exec.Command("go", "build", "-o", binary, "./cmd/guestprobe")
	build.Dir = guest.Root(h.t)
	if out, err := build.CombinedOutput(); err != nil {
		h.t.Fatalf("building guestprobe: %v\n%s", err, out)
	}
	h.must(os.WriteFile(manifest, []byte(sidecarManifest), 0o644))
	s := &sidecar{t: h.t, binary: binary, manifest: manifest}
	s.Process = guest.Spawn(h.t, exec.Command(binary, "run", "--manifest", manifest, "--listen", "", "--listen-unix", socket,
		"--monitor", h.addr().String(), "--agent", h.addr().String()))
	s.client = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
		DisableKeepAlives: true,
	}}
	h.t.Cleanup(func() {
		if h.t.Failed() {
			h.t.Logf("guestprobe said:\n%s", s.Output())
		}
	})
	return s
}

// get returns an endpoint's answer, "200 …" or "503 …", on one line.
func (s *sidecar) get(path string) string {
	res, err := s.client.Get("http://sidecar" + path)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d %s", res.StatusCode, strings.Join(strings.Fields(string(body)), " "))
}

// await polls until /readyz and /livez begin so, /readyz with a reason in it.
func (s *sidecar) await(ready, reason, live string) {
	s.t.Helper()
	start := time.Now()
	limit := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		r, l := s.get("/readyz"), s.get("/livez")
		if strings.HasPrefix(r, ready) && strings.Contains(r, reason) && strings.HasPrefix(l, live) {
			s.t.Logf("after %v: /readyz %.150s; /livez %.60s", time.Since(start).Round(time.Millisecond), r, l)
			return
		}
		select {
		case <-tick.C:
		case <-s.Done:
			s.t.Fatalf("guestprobe has ended:\n%s", s.Output())
		case <-limit:
			s.t.Fatalf("not within %v: %s %s, live %s; /readyz %s; /livez %s", patience, ready, reason, live, r, l)
		}
	}
}

// steady asks at 10 Hz for a while, and fails the test if an answer is not 200.
func (s *sidecar) steady(during string, d time.Duration, paths ...string) {
	s.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); {
		for _, path := range paths {
			if got := s.get(path); !strings.HasPrefix(got, "200") {
				s.t.Errorf("%s: %s answers %s", during, path, got)
				return
			}
		}
		<-tick.C
	}
}

// doctor points `guestprobe probe` at the sockets that libvirt holds, as one might who knows QEMU and not libvirt.
func (s *sidecar) doctor(h *host) {
	s.t.Helper()
	monitors, err := filepath.Glob(filepath.Join(h.Dir, "conf/libvirt/qemu/lib/domain-*/monitor.sock"))
	channel := regexp.MustCompile(`path='([^']*org\.qemu\.guest_agent\.0)'`).FindStringSubmatch(h.Virsh("dumpxml", domainName))
	if err != nil || len(monitors) != 1 || channel == nil {
		s.t.Fatalf("libvirt's sockets: %q, %q, %v", monitors, channel, err)
	}
	out, err := exec.Command(s.binary, "probe", "--manifest", s.manifest, "-o", "json",
		"--monitor", "unix:"+monitors[0], "--agent", "unix:"+channel[1]).Output()
	if exit, failed := errors.AsType[*exec.ExitError](err); !failed || exit.ExitCode() != 1 {
		s.t.Fatalf("guestprobe probe: %v: %s", err, out)
	}
	var findings []struct{ Layer, Reason, Help string }
	if err := json.Unmarshal(out, &findings); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []struct{ layer, reason, help string }{
		{"monitor", "MonitorBusy", "a monitor socket of its own"},
		{"agent", "AgentNotConnected", "Another client holds the agent's socket, as libvirt does"},
	} {
		i := slices.IndexFunc(findings, func(f struct{ Layer, Reason, Help string }) bool { return f.Layer == want.layer })
		if i < 0 || findings[i].Reason != want.reason || !strings.Contains(findings[i].Help, want.help) {
			s.t.Errorf("want %+v in %s", want, out)
		}
	}
}

// TestSidecar: what the program makes of a VM that it knows through libvirt alone.
func TestSidecar(t *testing.T) {
	h := newHost(t)
	s := h.startSidecar()
	s.await("503", "", "200") // no daemon, no VM
	h.StartDaemon()
	s.await("503", "NoDomain", "200")
	h.define("")
	line := h.Start()
	s.await("503", "Starting", "200")
	s.await("200", "", "200")
	line.WaitBoots(1)
	s.doctor(h)
	s.steady("after the doctor", time.Second, "/livez", "/readyz")

	h.Virsh("suspend", domainName)
	s.await("503", "Paused", "200")
	h.Virsh("resume", domainName)
	s.await("200", "", "200")

	line.Run("agent stop")
	s.await("503", "AgentTimeout", "200")
	line.Run("agent cont")
	s.await("200", "", "200")

	// More periods than any threshold, with a daemon that hangs and then with none.
	h.Daemon.Signal(t, syscall.SIGSTOP)
	s.steady("daemon stopped", 10*time.Second, "/livez", "/readyz")
	h.Daemon.Signal(t, syscall.SIGCONT)
	s.steady("daemon continued", 2*time.Second, "/livez", "/readyz")
	h.StopDaemon()
	s.steady("daemon ended", 10*time.Second, "/livez", "/readyz")
	h.StartDaemon()
	s.steady("daemon started", 4*time.Second, "/livez", "/readyz")

	line.Run("agent kill")
	s.await("503", "AgentNotConnected", "503") // and for good, until the VM starts anew

	h.Virsh("destroy", domainName)
	s.await("503", "NoDomain", "503")
	h.Start()
	s.await("200", "", "200")
	s.Signal(t, syscall.SIGTERM)
	if code := s.Wait(t, patience); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
