package libvirt_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/test/daemon"
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
	*daemon.Daemon

	t      *testing.T
	binary string
}

func (h *host) startSidecar() sidecar {
	h.t.Helper()
	binary := daemon.Build(h.t)
	d := daemon.Start(h.t, binary, "the sidecar", sidecarManifest, "--monitor", h.addr().String(), "--agent", h.addr().String())
	return sidecar{d, h.t, binary}
}

func (s sidecar) await(ready bool, reason string, live bool) {
	s.t.Helper()
	s.Await(daemon.Verdict{Ready: ready, Reason: reason, Live: live})
}

// steady asks at 10 Hz for a while, and fails the test if an answer is not 200.
func (s sidecar) steady(during string, d time.Duration, paths ...string) {
	s.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); {
		for _, path := range paths {
			if code, body, err := s.Get(path); code != http.StatusOK {
				s.t.Errorf("%s: %s answers %d %s %v", during, path, code, body, err)
				return
			}
		}
		<-tick.C
	}
}

// doctor points `guestprobe probe` at the sockets that libvirt holds, as one might who knows QEMU and not libvirt.
func (s sidecar) doctor(h *host) {
	s.t.Helper()
	monitors, err := filepath.Glob(filepath.Join(h.Dir, "conf/libvirt/qemu/lib/domain-*/monitor.sock"))
	channel := regexp.MustCompile(`path='([^']*org\.qemu\.guest_agent\.0)'`).FindStringSubmatch(h.Virsh("dumpxml", domainName))
	if err != nil || len(monitors) != 1 || channel == nil {
		s.t.Fatalf("libvirt's sockets: %q, %q, %v", monitors, channel, err)
	}
	out, err := exec.Command(s.binary, "probe", "--manifest", s.Manifest, "-o", "json",
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
	s.await(false, "Starting", true) // no daemon, no VM
	h.StartDaemon()
	s.await(false, "NoDomain", true)
	h.define("")
	line := h.Start()
	s.await(false, "Starting", true)
	s.await(true, "Ready", true)
	line.WaitBoots(1)
	s.doctor(h)
	s.steady("after the doctor", time.Second, "/livez", "/readyz")

	h.Virsh("suspend", domainName)
	s.await(false, "Paused", true)
	h.Virsh("resume", domainName)
	s.await(true, "Ready", true)

	line.Run("agent stop")
	s.await(false, "AgentTimeout", true)
	line.Run("agent cont")
	s.await(true, "Ready", true)

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
	s.await(false, "AgentNotConnected", false) // and for good, until the VM starts anew

	h.Virsh("destroy", domainName)
	s.await(false, "NoDomain", false)
	h.Start()
	s.await(true, "Ready", true)
	s.Stop()
}
