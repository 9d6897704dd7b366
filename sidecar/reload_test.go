package sidecar

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/guestprobe/guestprobe/qga/qgatest"
	"github.com/guestprobe/guestprobe/sidecar/manifest"
	"github.com/guestprobe/guestprobe/sidecar/probe"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

func textLogger(w *lockedBuffer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

func (r *rig) reload(spec string) {
	r.t.Helper()
	if err := r.sidecar.Reload(config(r.t, r.vm, spec).Manifest); err != nil {
		r.t.Fatal(err)
	}
}

// worker returns the worker of a check in force.
func (r *rig) worker(name string) *probe.Worker {
	r.t.Helper()
	for _, c := range r.sidecar.state.get().checks {
		if c.Name == name {
			return c.worker
		}
	}
	r.t.Fatalf("no check %s", name)
	return nil
}

func TestReloadKeepsWhatDidNotChange(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	r := start(t, vm, config(t, vm, `
  readinessProbe: {httpGet: {port: 1500, path: /healthz}, periodSeconds: 1}
  livenessProbe: {guestAgentPing: {}, periodSeconds: 1}
  checks:
  - {name: changes, kind: readiness, guestAgentPing: {}, periodSeconds: 1}
  - {name: goes, kind: readiness, tcpSocket: {port: 1500}, periodSeconds: 1}
  - {name: moves, kind: readiness, tcpSocket: {port: 1500}, periodSeconds: 1}
`))
	vm.Boot()
	r.reason(verdict.Ready)
	r.eventually("some rounds", func(s Status) bool { return s.Checks[0].Runs > 3 && s.Checks[4].Runs > 3 })
	kept := []string{"readinessProbe", "livenessProbe", "moves"}
	workers := make(map[string]*probe.Worker)
	for _, name := range append(kept, "changes") {
		workers[name] = r.worker(name)
	}
	gone := r.worker("goes")
	before := r.status()

	r.reload(`
  readinessProbe: {httpGet: {port: 1500, path: /healthz}, periodSeconds: 1}
  livenessProbe: {guestAgentPing: {}, periodSeconds: 1}
  checks:
  - {name: moves, kind: readiness, severity: warn, tcpSocket: {port: 1500}, periodSeconds: 1}
  - {name: changes, kind: readiness, guestAgentPing: {}, periodSeconds: 1, failureThreshold: 5}
  - {name: new, kind: readiness, tcpSocket: {port: 1500}, periodSeconds: 1}
`)
	for _, name := range kept {
		if r.worker(name) != workers[name] {
			t.Errorf("%s was started anew", name)
		}
	}
	if r.worker("changes") == workers["changes"] {
		t.Error("a check with another threshold went on as it was")
	}
	st := r.eventually("ready by the new checks", func(s Status) bool {
		return s.Reason == verdict.Ready && s.Checks[3].Runs > 0 && s.Checks[4].Runs > 0
	})
	var names []string
	for _, c := range st.Checks {
		names = append(names, c.Name)
	}
	if got, want := strings.Join(names, " "), "readinessProbe livenessProbe moves changes new"; got != want {
		t.Errorf("checks %s, want %s", got, want)
	}
	if now, was := st.Checks[0], before.Checks[0]; now.Runs < was.Runs || !now.Changed.Equal(*was.Changed) {
		t.Errorf("readinessProbe: %d runs, then %d; changed at %v, then %v", was.Runs, now.Runs, was.Changed, now.Changed)
	}
	if st.Checks[2].Severity != "warn" {
		t.Error("the new severity did not reach the check that went on")
	}
	if !strings.Contains(r.logs.String(), `msg="manifest reloaded" kept=3 started=2 stopped=2`) {
		t.Errorf("the log does not tell of the reload:\n%s", r.logs)
	}
	_, metrics := r.get("/metrics")
	if strings.Contains(metrics, `check="goes"`) || !strings.Contains(metrics, `guestprobe_check_success{check="new",kind="readiness"} 1`) {
		t.Error("/metrics has not followed the reload")
	}
	// The check that goes has ended: its worker counts no more.
	runs := gone.Snapshot().Runs
	more := st.Checks[0].Runs + 5
	r.eventually("five more rounds of the others", func(s Status) bool { return s.Checks[0].Runs >= more })
	if now := gone.Snapshot().Runs; now > runs+1 {
		t.Errorf("a check that was removed ran %d times more", now-runs)
	}
}

func TestReloadOfTheSameChangesNothing(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	r := start(t, vm, config(t, vm, webSpec))
	vm.Boot()
	before := len(r.reason(verdict.Ready).Transitions)
	for range 5 {
		r.reload(webSpec)
	}
	runs := r.status().Checks[0].Runs
	st := r.eventually("two more rounds", func(s Status) bool { return s.Checks[0].Runs >= runs+2 })
	if len(st.Transitions) != before {
		t.Errorf("%d transitions by reloads of the same: %+v", len(st.Transitions)-before, st.Transitions)
	}
}

func TestReloadAppliesThePolicy(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	r := start(t, vm, config(t, vm, agentSpec))
	vm.Boot()
	r.reason(verdict.Ready)
	worker := r.worker("readinessProbe")
	vm.Panic()
	if st := r.reason(verdict.GuestPanicked); st.Live {
		t.Error("a panicked guest is live")
	}
	r.reload(agentSpec + "  policy: {guestPanicked: hold, agentPing: sync, runCounters: keep, freezeHoldSeconds: 0}\n")
	if st := r.status(); !st.Live || st.Reason != verdict.GuestPanicked {
		t.Errorf("by the new policy: live %v, %s; want true, GuestPanicked", st.Live, st.Reason)
	}
	if r.worker("readinessProbe") != worker {
		t.Error("a policy has restarted a check")
	}
	if !worker.Spec().KeepRuns {
		t.Error("runCounters did not reach the check")
	}
	if p := r.sidecar.guest().policy(); p.AgentPing != manifest.AgentPingSync || p.FreezeHold != 0 {
		t.Errorf("the handlers see %+v", p)
	}
}

func TestReloadThatCannotBeRunIsRefused(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	cfg := config(t, vm, "  readinessProbe: {httpGet: {port: 1500, path: /healthz}, periodSeconds: 1}\n")
	cfg.Agent = nil
	r := start(t, vm, cfg)
	vm.Boot()
	r.reason(verdict.Ready)
	worker := r.worker("readinessProbe")
	err := r.sidecar.Reload(config(t, vm, agentSpec).Manifest)
	if err == nil || !strings.Contains(err.Error(), "spec.readinessProbe: this probe asks the guest agent: --agent is missing") {
		t.Errorf("Reload = %v", err)
	}
	if r.worker("readinessProbe") != worker {
		t.Error("a manifest that was refused has changed a check")
	}
	if err := r.sidecar.Reload(nil); err == nil {
		t.Error("no manifest was accepted")
	}
}

// Readers never wait for a reload, and a reload for nobody.
func TestReloadsAmidReaders(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	r := start(t, vm, config(t, vm, webSpec))
	vm.Boot()
	r.reason(verdict.Ready)
	both := []*manifest.Manifest{config(t, vm, agentSpec).Manifest, config(t, vm, webSpec).Manifest}
	var group errgroup.Group
	for range 2 {
		group.Go(func() error {
			for i := range 50 {
				if err := r.sidecar.Reload(both[i%2]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for range 50 {
		r.get("/metrics")
		r.get("/status")
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	r.reload(webSpec)
	r.reason(verdict.Ready)
}

func TestSameWork(t *testing.T) {
	parse := func(probeStanza string) manifest.Check {
		t.Helper()
		m, err := manifest.Parse("test", []byte("apiVersion: guestprobe.dev/v1alpha1\nkind: GuestProbes\nspec:\n  checks:\n  - {name: a, kind: readiness, "+probeStanza+"}\n"))
		if err != nil {
			t.Fatal(err)
		}
		return m.Checks[0]
	}
	base := parse(`tcpSocket: {port: 22}, expect: "^SSH"`)
	for _, tt := range []struct {
		stanza string
		want   bool
	}{
		{`tcpSocket: {port: 22}, expect: "^SSH"`, true},
		{`tcpSocket: {port: 22}, expect: "^SSH", severity: warn`, true},
		{`tcpSocket: {port: 22}, expect: "^SSH-2"`, false},
		{`tcpSocket: {port: 22}`, false},
		{`tcpSocket: {port: 23}, expect: "^SSH"`, false},
		{`tcpSocket: {port: 22, host: h}, expect: "^SSH"`, false},
		{`tcpSocket: {port: 22}, expect: "^SSH", periodSeconds: 11`, false},
		{`tcpSocket: {port: 22}, expect: "^SSH", timeoutSeconds: 2`, false},
		{`tcpSocket: {port: 22}, expect: "^SSH", initialDelaySeconds: 1`, false},
		{`tcpSocket: {port: 22}, expect: "^SSH", successThreshold: 2`, false},
		{`tcpSocket: {port: 22}, expect: "^SSH", failureThreshold: 2`, false},
		{`guestAgentPing: {}`, false},
	} {
		if got := sameWork(base, parse(tt.stanza)); got != tt.want {
			t.Errorf("sameWork with %s = %v, want %v", tt.stanza, got, tt.want)
		}
	}
	named := base
	named.Path = "spec.checks[7]"
	grace := time.Minute
	named.TerminationGracePeriod = &grace
	if !sameWork(base, named) {
		t.Error("where a check stands in its file restarts it")
	}
	if base.Handler.TCPSocket.Expect == nil {
		t.Error("sameWork has changed what it compares")
	}
	live, warns := base, base
	live.Kind, warns.Kind, warns.Warn = probe.Liveness, probe.Liveness, true
	if sameWork(live, warns) {
		t.Error("a liveness check that only warns has the worker of one that ends with its failure")
	}
	other := base
	other.Name = "b"
	if sameWork(base, other) {
		t.Error("two checks share a worker")
	}
}
