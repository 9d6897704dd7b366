package e2e_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/guestprobe/guestprobe/test/daemon"
	"github.com/guestprobe/guestprobe/test/guest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRealVM walks one real VM through what breaks in practice, one daemon after the other. The steps share the VM
// and build on one another: each boot takes seconds.
func TestRealVM(t *testing.T) {
	binary := daemon.Build(t)
	vm := guest.Start(t, guest.Options{})
	for _, part := range []struct {
		name string
		run  func(t *testing.T, vm *guest.VM, binary string)
	}{
		{"http readiness through boot, failure, pause, reset and a new QEMU", httpReadiness},
		{"agent ping through silence, death and pause", agentPing},
		{"http liveness", httpLiveness},
		{"every handler, once and for good", allHandlers},
		{"tcp readiness ends with its VM", tcpReadiness},
	} {
		if !t.Run(part.name, func(t *testing.T) { vm.Use(t); part.run(t, vm, binary) }) {
			t.FailNow() // the VM is in no known state
		}
	}
}

func httpReadiness(t *testing.T, vm *guest.VM, binary string) {
	d := on(t, binary, vm, "http.yaml")
	starting := daemon.Verdict{Reason: "Starting", Live: true}
	ready := daemon.Verdict{Reason: "Ready", Ready: true, Live: true}
	const initialDelay, successThreshold, failureThreshold = 8 * time.Second, 2, 3

	// notBefore asks that the boot which began at startedAt was left alone for the initial delay.
	notBefore := func(s daemon.Status) {
		t.Helper()
		history := s.Check("readinessProbe").History
		first := slices.IndexFunc(history, func(r daemon.Round) bool { return r.At.After(s.VM.StartedAt) })
		if first < 0 {
			t.Fatalf("no round since %v: %+v", s.VM.StartedAt, history)
		}
		if waited := history[first].At.Sub(s.VM.StartedAt); waited < initialDelay {
			t.Errorf("the first probe came %v after the start, not after %v", waited, initialDelay)
		}
	}
	// exactly asks that of the rounds since a moment, all of one outcome, it took n to publish the state.
	exactly := func(s daemon.Status, since time.Time, outcome, state string, n int) {
		t.Helper()
		var rounds []daemon.Round
		for _, r := range s.Check("readinessProbe").History {
			if r.At.After(since) && (len(rounds) > 0 || r.Outcome == outcome) {
				rounds = append(rounds, r)
			}
		}
		for i, r := range rounds {
			if r.Outcome != outcome || (r.State == state) != (i+1 >= n) {
				t.Errorf("round %d of %s published %q; %q was due after %d: %+v", i+1, r.Outcome, r.State, state, n, rounds)
			}
		}
		if len(rounds) < n {
			t.Errorf("after %d rounds, not %d: %+v", len(rounds), n, rounds)
		}
	}

	// Boot.
	d.expect(starting)
	vm.WaitReady()
	s := d.expect(ready)
	notBefore(s)
	if !s.Started {
		t.Error("not started, and yet ready")
	}
	if n, header := vm.Requests(); n < successThreshold || header.Get("Custom-Header") != "Awesome" || !strings.HasPrefix(header.Get("User-Agent"), "kube-probe/") {
		t.Errorf("the guest saw %d requests, the last with %v", n, header)
	}

	// The application fails and recovers.
	mark, since := len(s.Transitions), time.Now()
	vm.SetCode(500)
	s = d.expect(daemon.Verdict{Reason: "ProbeFailed", Live: true, Detail: "500"})
	exactly(s, since, "failure", "failure", failureThreshold)
	since = time.Now()
	vm.SetCode(200)
	s = d.expect(ready)
	exactly(s, since, "success", "success", successThreshold)
	if got, want := daemon.Reasons(s.Transitions[mark:]), []string{"ProbeFailed", "Ready"}; !slices.Equal(got, want) {
		t.Errorf("the verdict went through %v, want %v", got, want)
	}

	// A pause is no failure: nothing is probed meanwhile, and the VM lives.
	mark = len(s.Transitions)
	vm.Stop()
	s = d.expect(daemon.Verdict{Reason: "Paused", Live: true})
	if c := s.Check("readinessProbe"); !s.Held || c.Step != "held" || c.State != "success" {
		t.Errorf("paused: held %v, step %q, state %q", s.Held, c.Step, c.State)
	}
	runs := s.Check("readinessProbe").Runs
	vm.Cont()
	s = d.expect(ready)
	if got, want := daemon.Reasons(s.Transitions[mark:]), []string{"Paused", "Ready"}; !slices.Equal(got, want) {
		t.Errorf("the verdict went through %v, want %v", got, want)
	}
	d.Until("a probe after the pause", func(s daemon.Status) error {
		if s.Check("readinessProbe").Runs <= runs {
			return errors.New("no further round")
		}
		return nil
	})

	// A reset: the guest boots anew, and is left alone for the initial delay again.
	before := s
	vm.Reset()
	s = d.expect(starting)
	if s.VM.Instance != before.VM.Instance || !s.VM.StartedAt.After(before.VM.StartedAt) || s.VM.Resets <= before.VM.Resets {
		t.Errorf("after a reset: %+v, before: %+v", s.VM, before.VM)
	}
	vm.WaitReady()
	s = d.expect(ready)
	notBefore(s)
	if values, err := d.metrics(); err != nil || values["guestprobe_guest_resets_total"] != float64(s.VM.Resets) {
		t.Errorf("guestprobe_guest_resets_total = %v, /status says %d, %v", values["guestprobe_guest_resets_total"], s.VM.Resets, err)
	}

	// QEMU dies; a new one on the same paths is picked up.
	before = s
	vm.Kill()
	d.expect(daemon.Verdict{Reason: "NoDomain", Live: true})
	vm.StartAgain()
	s = d.expect(starting)
	if s.VM.Instance == before.VM.Instance {
		t.Errorf("a new QEMU has the old one's identity %q", s.VM.Instance)
	}
	vm.WaitReady()
	notBefore(d.expect(ready))
	d.Stop()
}

func agentPing(t *testing.T, vm *guest.VM, binary string) {
	d := on(t, binary, vm, "agent.yaml")
	ready := daemon.Verdict{Reason: "Ready", Ready: true, Live: true}
	before := d.expect(ready)

	// Silence: the port is open, and nobody answers. The connection is kept, so that the late answer is the recovery.
	vm.AgentStop()
	s := d.expect(daemon.Verdict{Reason: "AgentTimeout", Live: true})
	if got := s.Check("readinessProbe").Failures; got < 2 {
		t.Errorf("AgentTimeout after %d failures, want the threshold's 2", got)
	}
	vm.AgentContinue()
	s = d.expect(ready)
	if s.Agent.Connects != before.Agent.Connects {
		t.Errorf("%d connections before the silence, %d after it: a reconnect storm", before.Agent.Connects, s.Agent.Connects)
	}
	if got, want := daemon.Reasons(s.Transitions[len(before.Transitions):]), []string{"AgentTimeout", "Ready"}; !slices.Equal(got, want) {
		t.Errorf("the verdict went through %v, want %v", got, want)
	}

	// Death: the port is closed, which the monitor tells.
	vm.AgentKill()
	d.expect(daemon.Verdict{Reason: "AgentNotConnected", Live: true})
	vm.AgentStart()
	s = d.expect(ready)
	if s.Agent.Connects != before.Agent.Connects {
		t.Errorf("%d connections before the agent's death, %d after it, on one socket", before.Agent.Connects, s.Agent.Connects)
	}

	// A pause is not a silent agent.
	mark := len(s.Transitions)
	vm.Stop()
	d.expect(daemon.Verdict{Reason: "Paused", Live: true})
	vm.Cont()
	s = d.expect(ready)
	if got, want := daemon.Reasons(s.Transitions[mark:]), []string{"Paused", "Ready"}; !slices.Equal(got, want) {
		t.Errorf("the verdict went through %v, want %v", got, want)
	}
	if values, err := d.metrics(); err != nil || values["guestprobe_agent_connected"] != 1 || values["guestprobe_agent_round_trip_seconds"] <= 0 {
		t.Errorf("agent metrics: connected %v, round trip %v s, %v",
			values["guestprobe_agent_connected"], values["guestprobe_agent_round_trip_seconds"], err)
	}
	d.Stop()
}

func httpLiveness(t *testing.T, vm *guest.VM, binary string) {
	d := on(t, binary, vm, "liveness.yaml")
	s := d.expect(daemon.Verdict{Reason: "Ready", Ready: true, Live: true, Detail: "nothing else is checked"})
	vm.SetCode(500)
	s = d.expect(daemon.Verdict{Reason: s.Reason, Ready: true, Live: false})
	if c := s.Check("livenessProbe"); c.State != "failure" {
		t.Errorf("dead, and the check's state is %q", c.State)
	}
	vm.SetCode(200)
	d.Stop()
}

func allHandlers(t *testing.T, vm *guest.VM, binary string) {
	file := filepath.Join(t.TempDir(), "all.yaml")
	if err := os.WriteFile(file, []byte(manifest(t, "all.yaml", vm)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(binary, "probe", "--manifest", file, "--guest-host", "127.0.0.1",
		"--monitor", "unix:"+vm.Monitor, "--agent", "unix:"+vm.Agent).CombinedOutput()
	if err != nil {
		t.Fatalf("guestprobe probe: %v\n%s", err, out)
	}
	t.Logf("guestprobe probe says:\n%s", out)

	d := on(t, binary, vm, "all.yaml")
	d.expect(daemon.Verdict{Reason: "Ready", Ready: true, Live: true})
	s := d.Until("every check to succeed", func(s daemon.Status) error {
		for _, c := range s.Checks {
			if c.State != "success" || c.Runs == 0 {
				return fmt.Errorf("%s: %s after %d rounds: %s", c.Name, c.State, c.Runs, c.Error)
			}
		}
		return nil
	})
	if len(s.Checks) != 5 || !s.Started {
		t.Errorf("%d checks, started %v", len(s.Checks), s.Started)
	}
	d.Stop()
}

func tcpReadiness(t *testing.T, vm *guest.VM, binary string) {
	d := on(t, binary, vm, "tcp.yaml", "--exit-with-vm")
	d.expect(daemon.Verdict{Reason: "Ready", Ready: true, Live: true})
	vm.Kill()
	if code := d.Wait(t, 20*time.Second); code != 0 {
		t.Errorf("with --exit-with-vm the daemon ended with %d", code)
	}
}
