package sidecar

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/qga/qgatest"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

// execVM is a fake VM whose guest runs every command as run does.
func execVM(t *testing.T, run func(qgatest.Exec) (qgatest.Process, error)) *qgatest.VM {
	t.Helper()
	return newVM(t, qgatest.Config{Agent: qgatest.AgentConfig{Exec: run}})
}

const execSpec = `
  readinessProbe: {exec: {command: [check, now]}, periodSeconds: 1, failureThreshold: 1}
`

// TestExecAsTheKubelet runs the kubelet's own cases through the whole sidecar. What differs is what a runner's error
// means: the agent that answers with one has not run the command, which fails the check, as with KubeVirt's
// virt-probe; the kubelet would never count it.
func TestExecAsTheKubelet(t *testing.T) {
	type golden struct {
		Exec []struct {
			Name string
			Run  struct {
				Output    string
				OutputLen int `json:"output_len"`
				Exit      int
				Error     string
				TimedOut  bool `json:"timed_out"`
			}
			Expect struct {
				Result     string
				ProbeError bool `json:"probe_error"`
			}
		}
	}
	for _, file := range []string{"testdata/kubelet-cases.json", "../../shared/cases/kubelet-cases.json"} {
		data, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) && !strings.HasPrefix(file, "testdata") {
			continue
		}
		var cases golden
		if err == nil {
			err = json.Unmarshal(data, &cases)
		}
		if err != nil || len(cases.Exec) == 0 {
			t.Fatalf("%s: %d cases, %v", file, len(cases.Exec), err)
		}
		for _, c := range cases.Exec {
			t.Run(file+"/"+c.Name, func(t *testing.T) {
				vm := execVM(t, func(qgatest.Exec) (qgatest.Process, error) {
					switch {
					case c.Run.TimedOut:
						return qgatest.Process{Running: make(chan struct{})}, nil
					case c.Run.Error != "":
						return qgatest.Process{}, errors.New(c.Run.Error)
					}
					out := c.Run.Output + strings.Repeat("x", c.Run.OutputLen)
					return qgatest.Process{ExitCode: c.Run.Exit, Stdout: []byte(out)}, nil
				})
				r := start(t, vm, config(t, vm, execSpec))
				vm.Boot()
				want, reason := "failure", verdict.ProbeFailed
				switch {
				case c.Expect.Result == "success":
					want, reason = "success", verdict.Ready
				case c.Expect.ProbeError:
					reason = verdict.AgentError
				}
				st := r.reason(reason)
				if got := st.Checks[0]; got.Outcome != want || got.Error == "" != (want == "success") {
					t.Errorf("outcome %s (%s), want %s", got.Outcome, got.Error, want)
				}
			})
		}
	}
}

// TestExecArgumentsArriveAsWritten: what a manifest says is what the guest's program gets, whatever characters it is
// made of, and whether or not KubeVirt has wrapped it on the way.
func TestExecArgumentsArriveAsWritten(t *testing.T) {
	args := []string{"", `"`, `\`, `\"`, "é€😀\u2028", "<>&", "a b", "${HOME}", "$(date)", "\t\n\x01", "--command", "--guestAgentPing", "--"}
	quoted, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	list := strings.TrimSuffix(strings.TrimPrefix(string(quoted), "["), "]")
	for name, command := range map[string]string{
		"plain":   `[/bin/a b, ` + list + `]`,
		"wrapped": `[virt-probe, --domainName, ns_vm, --timeoutSeconds, "5", --command, /bin/a b, --, ` + list + `]`,
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan qgatest.Exec, 100)
			vm := execVM(t, func(e qgatest.Exec) (qgatest.Process, error) {
				got <- e
				return qgatest.Process{}, nil
			})
			r := start(t, vm, config(t, vm, `
  readinessProbe: {exec: {command: `+command+`}, periodSeconds: 5}
`))
			vm.Boot()
			r.reason(verdict.Ready)
			if diff := cmp.Diff(qgatest.Exec{Path: "/bin/a b", Args: args}, <-got); diff != "" {
				t.Errorf("as it arrived (-want +got):\n%s", diff)
			}
		})
	}
}

// TestExecOutputIsKept: /status has 10 KiB of it, lines and all; the reason has its beginning on one line.
func TestExecOutputIsKept(t *testing.T) {
	stdout := strings.Repeat("first line\n", 500) + "\x1b[31m\xff"
	stderr := strings.Repeat("é", 6<<10)
	var code atomic.Int64
	code.Store(7)
	vm := execVM(t, func(qgatest.Exec) (qgatest.Process, error) {
		p := qgatest.Process{ExitCode: int(code.Load()), Stdout: []byte(stdout), Stderr: []byte(stderr)}
		if p.ExitCode > 100 {
			p.ExitCode, p.Signal, p.Stdout, p.Stderr = 0, 9, nil, nil
		}
		return p, nil
	})
	r := start(t, vm, config(t, vm, execSpec))
	vm.Boot()
	st := r.reason(verdict.ProbeFailed)
	output := st.Checks[0].Output
	if want := strings.Repeat("first line\n", 500) + "?[31m?éé"; !strings.HasPrefix(output, want) || len(output) < 10<<10-4 || len(output) > 10<<10 {
		t.Errorf("%d bytes of output, beginning with %.20q: want 10 KiB of stdout and stderr", len(output), output)
	}
	if !strings.HasPrefix(st.Detail, "readinessProbe: check: exit code 7: first line first line ") || len(st.Detail) > 600 {
		t.Errorf("detail of %d bytes: %q", len(st.Detail), st.Detail)
	}
	if _, body := r.get("/readyz?verbose"); !strings.Contains(body, "[-]readinessProbe failed: ProbeFailed: check: exit code 7: first line") {
		t.Error(body)
	}
	code.Store(109)
	st = r.eventually("a signal", func(s Status) bool { return strings.Contains(s.Detail, "killed by signal 9") })
	if st.Checks[0].Output != "" {
		t.Errorf("output %.20q of a command that printed nothing", st.Checks[0].Output)
	}
	code.Store(0)
	if st = r.reason(verdict.Ready); st.Checks[0].Output != "" {
		t.Errorf("output %.20q of a check that has succeeded", st.Checks[0].Output)
	}
}

// hung is a guest's command that does not end until it is told to.
type hung struct {
	started atomic.Int64
	end     chan struct{}
}

func (h *hung) run(qgatest.Exec) (qgatest.Process, error) {
	h.started.Add(1)
	return qgatest.Process{Running: h.end}, nil
}

// rounds waits for n more rounds of the first check.
func (r *rig) rounds(n uint64) Status {
	r.t.Helper()
	before := r.sidecar.Status().Checks[0].Runs
	return r.eventually(fmt.Sprintf("%d more rounds", n), func(s Status) bool { return s.Checks[0].Runs >= before+n })
}

func TestExecLeavesOneProcessBehind(t *testing.T) {
	h := &hung{end: make(chan struct{})}
	vm := execVM(t, h.run)
	vm.Boot() // a check that is held in mid-flight has no round to tell of
	r := start(t, vm, config(t, vm, execSpec+`
  checks:
  - {name: ping, kind: readiness, guestAgentPing: {}, periodSeconds: 1}
`))
	st := r.reason(verdict.ProbeFailed)
	if !slices.ContainsFunc(st.Checks[0].Setbacks, func(s RoundStatus) bool {
		return s.Error == "check: still running at the deadline, left in the guest as process 1001" ||
			strings.HasPrefix(s.Error, "check: process 1001 in the guest: no word of its end") // on a busy machine
	}) {
		t.Errorf("no round tells of the process that is left: %+v", st.Checks[0].Setbacks)
	}
	st = r.rounds(3)
	if want := "check: process 1001 of an earlier round still runs in the guest"; st.Checks[0].Error != want {
		t.Errorf("error %q, want %q", st.Checks[0].Error, want)
	}
	// Other workers, the same command: a reload ends no process.
	for _, period := range []string{"periodSeconds: 2", "periodSeconds: 1, successThreshold: 2", "periodSeconds: 1"} {
		r.reload(strings.Replace(execSpec, "periodSeconds: 1", period, 1))
		r.rounds(2)
	}
	// Nor does one that takes the check away and brings it back.
	r.reload(webSpec)
	r.reload(execSpec)
	r.rounds(2)
	if n := h.started.Load(); n != 1 {
		t.Errorf("%d processes in the guest, want 1", n)
	}
	if st := r.status(); st.Agent.Connects != 1 {
		t.Errorf("%d connections to the agent", st.Agent.Connects)
	}
	close(h.end)
	r.reason(verdict.Ready)
	r.eventually("a round of a new process", func(Status) bool { return h.started.Load() >= 2 })
}

// TestExecStartedLateIsOneToo: the agent is silent when a command is sent, runs it when it goes on, and the command hangs.
func TestExecStartedLateIsOneToo(t *testing.T) {
	h := &hung{end: make(chan struct{})}
	vm := execVM(t, h.run)
	cfg := config(t, vm, `
  readinessProbe: {guestAgentPing: {}, periodSeconds: 1}
`)
	r := start(t, vm, cfg)
	vm.Boot()
	r.reason(verdict.Ready)
	vm.AgentStop()
	r.reload(execSpec)
	r.reason(verdict.AgentTimeout)
	r.rounds(2)
	vm.AgentContinue()
	r.eventually("the late process is found", func(s Status) bool {
		return s.Checks[0].Error == "check: process 1001 of an earlier round still runs in the guest"
	})
	r.rounds(2)
	if n := h.started.Load(); n != 1 {
		t.Errorf("%d processes in the guest, want 1", n)
	}
	close(h.end)
	r.reason(verdict.Ready)
}

// TestExecForgetsWithTheBoot: after a reset, and with a new VM, the process of before is gone, and its number means
// nothing, or another process.
func TestExecForgetsWithTheBoot(t *testing.T) {
	h := &hung{end: make(chan struct{})}
	vm := execVM(t, h.run)
	r := start(t, vm, config(t, vm, execSpec))
	vm.Boot()
	leftBehind := func(n int64) {
		t.Helper()
		r.eventually("a process left behind", func(s Status) bool {
			return h.started.Load() == n && strings.Contains(s.Checks[0].Error, "of an earlier round still runs")
		})
	}
	leftBehind(1)
	vm.Reset()
	leftBehind(2)
	vm.Kill()
	r.reason(verdict.NoDomain)
	if err := vm.Restart(); err != nil {
		t.Fatal(err)
	}
	vm.Boot()
	leftBehind(3)
	close(h.end)
	r.reason(verdict.Ready)
}

func TestExecNumbersAreUsedAgain(t *testing.T) {
	cs := newCommands()
	a, b := cs.get("a", []string{"x"}), cs.get("b", []string{"x"})
	if a == b || cs.get("a", []string{"x"}) != a || cs.get("a", []string{"x", ""}) == a || cs.get("ab", []string{"x"}) == cs.get("a", []string{"bx"}) {
		t.Fatal("commands are mixed up")
	}
	first, second := boot{"1", 0}, boot{"1", 1}
	cs.started(a, 7, first)
	if got := cs.left(a, boot{}); got != 7 {
		t.Errorf("with the monitor away %d is left, want 7", got)
	}
	if got := cs.left(a, first); got != 7 {
		t.Errorf("in the same boot %d is left, want 7", got)
	}
	cs.started(b, 7, first)
	if got := cs.left(a, first); got != 0 {
		t.Errorf("process 7 is another's, and %d is asked for", got)
	}
	if got := cs.left(b, second); got != 0 {
		t.Errorf("after a reset %d is left", got)
	}
}

func TestExecDisabledByTheGuest(t *testing.T) {
	for blocked, want := range map[string]int{"guest-exec": 0, "guest-exec-status": 1} {
		t.Run(blocked, func(t *testing.T) {
			h := &hung{end: make(chan struct{})}
			vm := newVM(t, qgatest.Config{Agent: qgatest.AgentConfig{Exec: h.run, Blocked: []string{blocked}}})
			r := start(t, vm, config(t, vm, execSpec+`
  livenessProbe: {guestAgentPing: {}, periodSeconds: 1}
`))
			vm.Boot()
			before := r.reason(verdict.AgentUnsupported).Checks[1]
			st := r.rounds(5)
			if c := st.Checks[1]; c.Outcome != "success" || c.Failures+c.Errors != before.Failures+before.Errors || !st.Live {
				t.Errorf("the ping: %s, %d failures, live %v", c.Outcome, c.Failures, st.Live)
			}
			// One question a round, and no reconnecting.
			if n, runs := vm.Agent().Calls(blocked), int(st.Checks[0].Runs); n > runs+2 || st.Agent.Connects != 1 || st.Agent.Resyncs > 1 {
				t.Errorf("%d calls in %d rounds, %d connections, %d resyncs", n, runs, st.Agent.Connects, st.Agent.Resyncs)
			}
			if n := int(h.started.Load()); n != want {
				t.Errorf("%d processes in the guest, want %d", n, want)
			}
		})
	}
}

// TestExecCommandsAreForgotten: reloads leave nothing behind but what is in the guest.
func TestExecCommandsAreForgotten(t *testing.T) {
	vm := execVM(t, func(qgatest.Exec) (qgatest.Process, error) { return qgatest.Process{}, nil })
	r := start(t, vm, config(t, vm, execSpec))
	vm.Boot()
	for i := range 20 {
		r.reload(strings.Replace(execSpec, "now", fmt.Sprint("now", i), 1))
	}
	r.eventually("the last command alone", func(Status) bool {
		r.sidecar.commands.mu.Lock()
		defer r.sidecar.commands.mu.Unlock()
		return len(r.sidecar.commands.all) == 1
	})
	r.reload(webSpec)
	r.reason(verdict.Ready)
}
