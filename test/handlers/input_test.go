package handlers_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/test/daemon"
	"github.com/guestprobe/guestprobe/test/guest"
)

// TestBadInput: the program does not start with a probe that is none, and says of each in the words of Kubernetes'
// API where it stands and what is wrong.
func TestBadInput(t *testing.T) {
	binary := daemon.Build(t)
	file := filepath.Join(t.TempDir(), "bad.yaml")
	manifest := `apiVersion: guestprobe.dev/v1alpha1
kind: GuestProbes
spec:
  readinessProbe:
    httpGet: {port: 70000, httpHeaders: [{name: "X Y", value: a}]}
    tcpSocket: {port: 22}
  livenessProbe: {guestAgentPing: {}, successThreshold: 2}
  startupProbe: {periodSeconds: 3}
  checks:
  - {name: ssh, kind: readiness, tcpSocket: {port: 22}, expect: "["}
`
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	p := guest.Spawn(t, exec.Command(binary, "run", "--listen", "127.0.0.1:0", "--manifest", file))
	if code := p.Wait(t, time.Minute); code != 2 {
		t.Errorf("exit code %d, want 2", code)
	}
	want := `5: spec.readinessProbe.httpGet.port: Invalid value: 70000: must be between 1 and 65535, inclusive
5: spec.readinessProbe.httpGet.httpHeaders: Invalid value: "X Y": a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')
6: spec.readinessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type
7: spec.livenessProbe.successThreshold: Invalid value: 2: must be 1
8: spec.startupProbe: Required value: must specify a handler type
10: spec.checks[0].expect: Invalid value: "[": error parsing regexp: missing closing ]: ` + "`[`"
	got := strings.TrimSpace(strings.ReplaceAll(strings.TrimPrefix(p.Output(), "guestprobe run: "), file+":", ""))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestTimeoutAsLongAsThePeriod is legal in Kubernetes: the program says so once, and runs.
func TestTimeoutAsLongAsThePeriod(t *testing.T) {
	d := daemon.Start(t, daemon.Build(t), "no VM", `apiVersion: guestprobe.dev/v1alpha1
kind: GuestProbes
spec:
  readinessProbe: {tcpSocket: {port: 1, host: 127.0.0.1}, periodSeconds: 5, timeoutSeconds: 5}
`)
	d.Await(daemon.Verdict{Reason: "Starting", Live: true, Detail: "connection refused"})
	if n := strings.Count(d.Output(), "spec.readinessProbe.timeoutSeconds: 5 is not less than periodSeconds (5): legal in Kubernetes"); n != 1 {
		t.Errorf("%d warnings", n)
	}
	d.Stop()
}
