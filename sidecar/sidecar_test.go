package sidecar

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/qga/qgatest"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

const (
	webSpec = `
  readinessProbe: {httpGet: {port: 1500, path: /healthz}, periodSeconds: 1, failureThreshold: 3, successThreshold: 2}
  livenessProbe: {guestAgentPing: {}, periodSeconds: 1, failureThreshold: 3}
`
	agentSpec = `
  readinessProbe: {guestAgentPing: {}, periodSeconds: 1, failureThreshold: 3}
`
)

func TestReadyFollowsTheWebServerByItsThresholds(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	r := start(t, vm, config(t, vm, webSpec))
	r.reason(verdict.Starting)
	if code, body := r.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "Starting") {
		t.Errorf("before the boot /readyz = %d %q", code, body)
	}
	vm.Boot()
	r.reason(verdict.Ready)
	if code, body := r.get("/readyz"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("/readyz = %d %q, want 200 ok", code, body)
	}
	vm.SetHTTPStatus(500)
	st := r.reason(verdict.ProbeFailed)
	c := st.Checks[0]
	failed, booted := 0, false
	for _, round := range c.History {
		if round.Outcome == "success" {
			failed, booted = 0, true
		}
		if round.Outcome != "failure" || !booted { // what failed before is of the boot
			continue
		}
		if failed++; round.State == "failure" {
			break // what follows was asked before we looked
		}
	}
	if failed != 3 {
		t.Errorf("ProbeFailed at failure %d, want 3", failed)
	}
	if code, body := r.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "[-]readinessProbe failed: ProbeFailed: HTTP probe failed with statuscode: 500") {
		t.Errorf("/readyz = %d %q", code, body)
	}
	if code, _ := r.get("/livez"); code != http.StatusOK {
		t.Errorf("/livez = %d, want 200: the agent answers", code)
	}
	vm.SetHTTPStatus(200)
	st = r.reason(verdict.Ready)
	if c := st.Checks[0]; c.Run < 2 {
		t.Errorf("ready again after %d successes, want 2", c.Run)
	}
	for _, tr := range st.Transitions {
		if tr.From == verdict.ProbeFailed && tr.To != verdict.Ready {
			t.Errorf("ProbeFailed turned into %s on its way to Ready", tr.To)
		}
	}
}

func TestVMStatesDecideFirst(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	r := start(t, vm, config(t, vm, webSpec))
	vm.Boot()
	r.reason(verdict.Ready)
	for _, step := range []struct {
		name string
		do   func()
		want verdict.Reason
		live bool
	}{
		{"paused", vm.Pause, verdict.Paused, true},
		{"io-error", func() { vm.IOError("drive0", true) }, verdict.StorageIOError, true},
		{"suspended", vm.Suspend, verdict.Suspended, true},
		{"finish-migrate", func() { vm.SetStatus("finish-migrate") }, verdict.MigratingOut, true},
		{"internal-error", func() { vm.SetStatus("internal-error") }, verdict.InternalError, false},
		{"a word of tomorrow's", func() { vm.SetStatus("hibernating") }, verdict.Paused, true},
	} {
		t.Run(step.name, func(t *testing.T) {
			step.do()
			st := r.reason(step.want)
			if st.Ready || st.Live != step.live || !st.Held {
				t.Errorf("ready %v, live %v, held %v; want false, %v, true", st.Ready, st.Live, st.Held, step.live)
			}
			before := st.Checks[0].Runs
			if step.want == verdict.Paused {
				// A held check does not run, however many of its periods pass by.
				r.eventually("ten periods held", func(s Status) bool { return time.Since(s.Since) > 10*time.Second/speedup })
				if now := r.status().Checks[0].Runs; now != before {
					t.Errorf("%d rounds while held", now-before)
				}
			}
			vm.Resume()
			r.reason(verdict.Ready)
		})
	}
}

func TestAgentConditionsAreToldApart(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	r := start(t, vm, config(t, vm, agentSpec))
	vm.Boot()
	r.reason(verdict.Ready)
	connects := r.status().Agent.Connects

	vm.AgentStop()
	r.reason(verdict.AgentTimeout)
	vm.AgentContinue()
	r.reason(verdict.Ready)
	if now := r.status().Agent.Connects; now != connects {
		t.Errorf("%d new connections after a hang, want none", now-connects)
	}

	vm.AgentKill()
	st := r.reason(verdict.AgentNotConnected)
	if !strings.Contains(st.Detail, "has closed its channel") {
		t.Errorf("detail %q does not say that the agent was there before", st.Detail)
	}
	vm.AgentStart()
	r.reason(verdict.Ready)
}

func TestAgentNeverConnected(t *testing.T) {
	vm := newVM(t, qgatest.Config{Status: "running"})
	vm.AgentKill()
	vm.Quit()
	if err := vm.Restart(); err != nil {
		t.Fatal(err)
	}
	vm.SetStatus("running") // it runs, and no agent was ever there
	r := start(t, vm, config(t, vm, agentSpec))
	st := r.reason(verdict.AgentNotConnected)
	if !strings.Contains(st.Detail, "no guest agent has connected since the VM was started") {
		t.Errorf("detail %q", st.Detail)
	}
}

func TestVMGoesAndComesBack(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	r := start(t, vm, config(t, vm, webSpec))
	vm.Boot()
	first := r.reason(verdict.Ready).VM.Instance
	vm.Kill()
	st := r.reason(verdict.NoDomain)
	if !st.Live {
		t.Error("a VM that is gone failed liveness")
	}
	if err := vm.Restart(); err != nil {
		t.Fatal(err)
	}
	vm.Boot()
	st = r.reason(verdict.Ready)
	if st.VM.Instance == first {
		t.Error("the new VM has the old one's identity")
	}
}

func TestExitWithVM(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	cfg := config(t, vm, webSpec)
	cfg.ExitWithVM = true
	r := start(t, vm, cfg)
	vm.Boot()
	r.reason(verdict.Ready)
	vm.Quit()
	select {
	case <-r.done: // its error is looked at by the clean-up
	case <-time.After(patience):
		t.Fatal("still running after the VM has gone")
	}
}

func TestMissingSocketsAreWaitedFor(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	cfg := config(t, vm, webSpec)
	vm.Quit()
	r := start(t, vm, cfg)
	r.reason(verdict.NoDomain)
	if err := vm.Restart(); err != nil {
		t.Fatal(err)
	}
	vm.Boot()
	r.reason(verdict.Ready)
}

func TestSilentMonitorIsNotTheGuestsFault(t *testing.T) {
	vm := newVM(t, qgatest.Config{Status: "running"})
	vm.SetMonitorSilent(true)
	r := start(t, vm, config(t, vm, webSpec))
	st := r.eventually("ready by the probes alone", func(s Status) bool { return s.Ready && s.VM.Link == "busy" })
	if !st.Live {
		t.Error("not live for want of a monitor")
	}
	if _, body := r.get("/readyz?verbose"); !strings.Contains(body, "[+]monitor warning: MonitorBusy") {
		t.Errorf("the monitor's trouble is not told:\n%s", body)
	}
}

func TestTermination(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	cfg := config(t, vm, webSpec)
	cfg.ShutdownDelay = time.Hour
	r := start(t, vm, cfg)
	vm.Boot()
	r.reason(verdict.Ready)
	r.stop()
	r.reason(verdict.Terminating)
	if code, body := r.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "Terminating") {
		t.Errorf("while terminating /readyz = %d %q", code, body)
	}
	if code, _ := r.get("/livez"); code != http.StatusOK {
		t.Errorf("while terminating /livez = %d, want 200", code)
	}
	vm.Quit() // nobody is left to answer for, so the delay is cut short
	<-r.done
}

func TestHoldFile(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	cfg := config(t, vm, webSpec)
	cfg.HoldFile = filepath.Join(t.TempDir(), "hold")
	r := start(t, vm, cfg)
	vm.Boot()
	r.reason(verdict.Ready)
	if err := os.WriteFile(cfg.HoldFile, []byte(time.Now().Add(time.Hour).UTC().Format(time.RFC3339)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	st := r.reason(verdict.Maintenance)
	if !st.Ready || !st.Live || !st.Held {
		t.Errorf("held: ready %v, live %v, held %v; the last state stays", st.Ready, st.Live, st.Held)
	}
	vm.SetHTTPStatus(500)
	if err := os.WriteFile(cfg.HoldFile, []byte("2001-01-01T00:00:00Z"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.reason(verdict.ProbeFailed)
}

// A hold is shown and told although the VM's state is what the verdict is about, and ends by its own time.
func TestHoldOfAVMThatDoesNotRun(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	cfg := config(t, vm, webSpec)
	cfg.HoldFile = filepath.Join(t.TempDir(), "hold")
	r := start(t, vm, cfg)
	vm.Boot()
	r.reason(verdict.Ready)
	vm.Pause()
	r.reason(verdict.Paused)
	if _, body := r.get("/metrics"); !strings.Contains(body, "guestprobe_maintenance_hold 0\n") {
		t.Error("no metric of a hold")
	}
	hold := func(d time.Duration) (until time.Time) {
		until = time.Now().Add(d).UTC().Truncate(time.Second)
		if err := os.WriteFile(cfg.HoldFile, []byte(until.Format(time.RFC3339)), 0o600); err != nil {
			t.Fatal(err)
		}
		return until
	}
	until := hold(time.Hour)
	held := r.eventually("the hold", func(s Status) bool { return s.Hold != nil && s.Hold.Until != nil })
	if held.Hold.Source != cfg.HoldFile || !held.Hold.Until.Equal(until) || held.Reason != verdict.Paused {
		t.Errorf("%+v, reason %s", held.Hold, held.Reason)
	}
	ends := hold(2 * time.Second)
	r.eventually("the end of the hold", func(s Status) bool { return s.Hold == nil })
	if now := time.Now(); now.Before(ends) {
		t.Errorf("it ended %v too early", ends.Sub(now))
	}
	r.eventually("the log", func(Status) bool {
		logs := r.logs.String()
		return strings.Contains(logs, "maintenance: probing is held until "+until.Format(time.RFC3339)) && strings.Contains(logs, "maintenance: the hold is over")
	})
	if err := os.WriteFile(cfg.HoldFile, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.eventually("a hold without an end", func(s Status) bool { return s.Hold != nil && s.Hold.Until == nil })
	if _, body := r.get("/metrics"); !strings.Contains(body, "guestprobe_maintenance_hold 1\n") {
		t.Error("the metrics do not show the hold")
	}
}

// Without a probe nothing but time ends the wait after a bad state.
func TestGoodNewsComesByItself(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	r := start(t, vm, config(t, vm, "  policy: {freezeHoldSeconds: 60}\n"))
	vm.Boot()
	r.reason(verdict.Ready)
	vm.Pause()
	r.reason(verdict.Paused)
	vm.Resume()
	r.reason(verdict.Ready)
}

// A VM that came by live migration has booted elsewhere, so no initial delay is waited for.
func TestArrivalHasNoInitialDelay(t *testing.T) {
	vm := newVM(t, qgatest.Config{Status: "inmigrate"})
	r := start(t, vm, config(t, vm, "  readinessProbe: {httpGet: {port: 1500, path: /healthz}, initialDelaySeconds: 3600, periodSeconds: 1}\n"))
	r.reason(verdict.MigratingIn)
	vm.SetStatus("running")
	r.eventually("a round", func(s Status) bool { return s.Checks[0].Runs > 0 })
}

func TestFrozenFilesystemsHold(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	cfg := config(t, vm, webSpec)
	cfg.Manifest.Policy.FreezeHold = 2 * time.Second
	r := start(t, vm, cfg)
	vm.Boot()
	r.reason(verdict.Ready)
	vm.Agent().SetFrozen(true)
	vm.SetHTTPStatus(500)
	st := r.reason(verdict.FilesystemFrozen)
	if !st.Ready || !st.Held {
		t.Errorf("frozen: ready %v, held %v; want true, true", st.Ready, st.Held)
	}
	r.reason(verdict.ProbeFailed) // the hold has an end
	vm.Agent().SetFrozen(false)
	vm.SetHTTPStatus(200)
	r.reason(verdict.Ready)
}

// Each check that fails of a freeze asks about it once, and a hold that has ended must not begin anew of that.
func TestFrozenFilesystemsHoldOnce(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	cfg := config(t, vm, webSpec+
		"  checks:\n  - {name: another, kind: readiness, httpGet: {port: 1500, path: /healthz}, periodSeconds: 1}\n")
	cfg.Manifest.Policy.FreezeHold = time.Second
	r := start(t, vm, cfg)
	vm.Boot()
	r.reason(verdict.Ready)
	vm.Agent().SetFrozen(true)
	vm.SetHTTPStatus(500)
	r.reason(verdict.FilesystemFrozen)
	r.reason(verdict.ProbeFailed)
	st := r.eventually("both readiness checks to fail", func(s Status) bool {
		failed := 0
		for _, c := range s.Checks {
			if c.State == "failure" {
				failed++
			}
		}
		return failed == 2
	})
	held := 0
	for _, x := range st.Transitions {
		if x.To == verdict.FilesystemFrozen {
			held++
		}
	}
	if held != 1 || st.Reason != verdict.ProbeFailed {
		t.Errorf("%s, and one freeze was held %d times: %+v", st.Reason, held, st.Transitions)
	}
}

func TestListenersOpenAllOrNone(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	vm := newVM(t, qgatest.Config{})
	cfg := config(t, vm, webSpec)
	cfg.Listen = taken.Addr().String()
	cfg.ListenUnix = filepath.Join(shortDir(t), "s")
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	err = s.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "--listen: ") || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("Run = %v, want the address in use", err)
	}
	if _, err := os.Stat(cfg.ListenUnix); !os.IsNotExist(err) {
		t.Errorf("the unix socket was left behind: %v", err)
	}
}

func TestStaleSocketIsReplacedAndALiveOneIsNot(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := removeStaleSocket(path); err == nil || !strings.Contains(err.Error(), "another process answers there") {
		t.Errorf("a live socket: %v", err)
	}
	l.Close()
	if err := removeStaleSocket(path); err != nil {
		t.Errorf("a stale socket: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := removeStaleSocket(path); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a plain file: %v", err)
	}
}

func TestOneRecordPerTransition(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	r := start(t, vm, config(t, vm, webSpec))
	vm.Boot()
	r.reason(verdict.Ready)
	logged := func(Status) bool {
		return strings.Count(r.logs.String(), "msg=verdict") >= len(r.sidecar.Status().Transitions)
	}
	r.eventually("the records so far", logged)
	before := strings.Count(r.logs.String(), "\n")
	// Twenty rounds, and nothing to tell.
	runs := r.status().Checks[0].Runs
	r.eventually("twenty more rounds", func(s Status) bool { return s.Checks[0].Runs >= runs+20 })
	if after := strings.Count(r.logs.String(), "\n"); after != before {
		t.Errorf("%d log records without a transition:\n%s", after-before, r.logs)
	}
	vm.Pause()
	r.reason(verdict.Paused)
	vm.Resume()
	r.reason(verdict.Ready)
	r.eventually("the records", func(Status) bool {
		return strings.Count(r.logs.String(), "msg=verdict") >= len(r.sidecar.Status().Transitions)
	})
	if got, want := strings.Count(r.logs.String(), "msg=verdict"), len(r.sidecar.Status().Transitions); got != want {
		t.Errorf("%d records of %d transitions", got, want)
	}
	if !strings.Contains(r.logs.String(), "was=Ready lasted=") {
		t.Errorf("no record tells how long the former state lasted:\n%s", r.logs)
	}
}

// The monitor's trouble fails no check, so it has a record of its own: one, with what and where.
func TestMonitorTroubleIsLogged(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	vm.Boot()
	vm.SetMonitorSilent(true)
	r := start(t, vm, config(t, vm, "\n  readinessProbe: {guestAgentPing: {}, periodSeconds: 1}\n"))
	r.eventually("the monitor is busy", func(s Status) bool { return s.VM.Link == qga.LinkBusy.String() })
	logs := r.logs.String()
	busy := fmt.Sprintf("level=WARN msg=monitor monitor=%s link=%s error=", vm.MonitorAddr(), qga.LinkBusy)
	if n := strings.Count(logs, busy); n != 1 {
		t.Errorf("%d records of a busy monitor", n)
	}
}

func TestMonitorConnectedIsLogged(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	vm.Boot()
	r := start(t, vm, config(t, vm, agentSpec))
	r.reason(verdict.Ready)
	vm.Pause()
	r.reason(verdict.Paused)
	if up := `msg="monitor connected" monitor=` + vm.MonitorAddr(); strings.Count(r.logs.String(), up) != 1 {
		t.Error("not one record of the monitor's connection")
	}
}
