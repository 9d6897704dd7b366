package sidecar

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/guestprobe/guestprobe/qga/qgatest"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

// stallingServer answers with a good header and half a body, and returns its port.
func stallingServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // joined by the clean-up
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"))
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// TestBodyErrorsAreTheKubeletsUnlessAskedFor: a body that breaks off counts for nothing, or with
// policy.httpBodyErrors: fail as a failure.
func TestBodyErrorsAreTheKubeletsUnlessAskedFor(t *testing.T) {
	port := stallingServer(t)
	vm := newVM(t, qgatest.Config{Status: "running"})
	spec := "\n  livenessProbe: {httpGet: {port: " + port + "}, periodSeconds: 1, failureThreshold: 2}\n"
	r := start(t, vm, config(t, vm, spec))
	st := r.eventually("discarded rounds", func(s Status) bool { return s.Checks[0].Errors >= 4 })
	if c := st.Checks[0]; c.Failures != 0 || !st.Live || c.History[0].Attempts != 3 || c.Cause != "" {
		t.Errorf("%d failures, live %v, %d attempts, cause %q", c.Failures, st.Live, c.History[0].Attempts, c.Cause)
	}
	r.reload(spec + "  policy: {httpBodyErrors: fail}\n")
	st = r.eventually("the failure", func(s Status) bool { return !s.Live })
	if c := st.Checks[0]; c.Cause != "Body" || !strings.Contains(c.Error, "reading the body after statuscode 200") {
		t.Errorf("cause %q, error %q", c.Cause, c.Error)
	}
}

// TestFailedLivenessIsFinal until the guest boots again: whoever acts on it must not see it come and go.
func TestFailedLivenessIsFinal(t *testing.T) {
	vm := newVM(t, qgatest.Config{Status: "running"})
	r := start(t, vm, config(t, vm, `
  livenessProbe: {httpGet: {port: 1500, path: /healthz}, periodSeconds: 1, failureThreshold: 2}
  readinessProbe: {httpGet: {port: 1500, path: /healthz}, periodSeconds: 1}
`))
	r.eventually("successes", func(s Status) bool { return s.Checks[0].Runs > 2 && s.Ready })
	vm.SetHTTPStatus(500)
	st := r.eventually("the failure", func(s Status) bool { return !s.Live })
	runs := st.Checks[1].Runs
	vm.SetHTTPStatus(200)
	st = r.eventually("the web server is well", func(s Status) bool { return s.Ready && s.Checks[0].Outcome == "success" })
	st = r.rounds(5)
	if c := st.Checks[1]; st.Live || c.Step != "done" || c.Runs != runs {
		t.Errorf("live %v, step %s, %d rounds after the failure", st.Live, c.Step, c.Runs-runs)
	}
	vm.Reset()
	r.eventually("another boot", func(s Status) bool { return s.Live && s.Checks[1].Outcome == "success" })
}

// TestRunsOfAnotherVMCountOnlyIfAskedFor: of a threshold of many, failures before a new VM count with
// policy.runCounters: keep, as the kubelet's do over a container's restart, and else do not.
func TestRunsOfAnotherVMCountOnlyIfAskedFor(t *testing.T) {
	for policy, kept := range map[string]bool{"reset": false, "keep": true} {
		t.Run(policy, func(t *testing.T) {
			var broken atomic.Bool
			vm := execVM(t, func(qgatest.Exec) (qgatest.Process, error) {
				if broken.Load() {
					return qgatest.Process{ExitCode: 1}, nil
				}
				return qgatest.Process{}, nil
			})
			r := start(t, vm, config(t, vm, `
  livenessProbe: {exec: {command: [x]}, periodSeconds: 1, failureThreshold: 1000000}
  policy: {runCounters: `+policy+`}
`))
			vm.Boot()
			r.eventually("successes", func(s Status) bool { return s.Checks[0].Outcome == "success" && s.Checks[0].Run > 2 })
			broken.Store(true)
			r.eventually("failures", func(s Status) bool { return s.Checks[0].Outcome == "failure" && s.Checks[0].Run >= 10 })
			vm.Kill()
			run := r.reason(verdict.NoDomain).Checks[0].Run
			if err := vm.Restart(); err != nil {
				t.Fatal(err)
			}
			vm.Boot()
			st := r.eventually("a failure with the new VM", func(s Status) bool { return s.VM.Link == "up" && s.Checks[0].Outcome == "failure" })
			if now := st.Checks[0].Run; (now > run) != kept {
				t.Errorf("%d failures in a row, %d of them before the new VM", now, run)
			}
		})
	}
}

// TestResultsAreToldWhenTheyChange is the kubelet's rule of its results cache: an update is told when a value is new
// or another one, and the same value again tells nothing.
func TestResultsAreToldWhenTheyChange(t *testing.T) {
	data, err := os.ReadFile("testdata/kubelet-cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Rules []struct{ Rule string } `json:"results_cache"`
	}
	if err := json.Unmarshal(data, &golden); err != nil || len(golden.Rules) != 1 ||
		!strings.HasPrefix(golden.Rules[0].Rule, "an update is emitted when a value is new or differs from the cached one; setting the same value again emits nothing") {
		t.Fatalf("the rule is another one: %+v, %v", golden.Rules, err)
	}
	vm := newVM(t, qgatest.Config{Status: "running"})
	r := start(t, vm, config(t, vm, "\n  readinessProbe: {httpGet: {port: 1500, path: /healthz}, periodSeconds: 1, failureThreshold: 1}\n"))
	first := len(r.reason(verdict.Ready).Transitions)
	steps := []struct {
		status int
		reason verdict.Reason
	}{{500, verdict.ProbeFailed}, {200, verdict.Ready}}
	for i, step := range steps {
		vm.SetHTTPStatus(step.status)
		r.reason(step.reason)
		st := r.rounds(5) // five times the same result
		if n := len(st.Transitions); n != first+i+1 {
			t.Errorf("%d transitions after %s, want %d: %+v", n, step.reason, first+i+1, st.Transitions)
		}
		r.eventually("one record each", func(Status) bool {
			return strings.Count(r.logs.String(), "msg=verdict") == first+i+1
		})
	}
	if n := strings.Count(r.logs.String(), fmt.Sprintf("reason=%s", verdict.ProbeFailed)); n != 1 {
		t.Errorf("%d records of the failure", n)
	}
}
