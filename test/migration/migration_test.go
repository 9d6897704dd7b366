package migration_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/guestprobe/guestprobe/test/daemon"
	"github.com/guestprobe/guestprobe/test/guest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	period     = time.Second            // of the probes, see manifest
	sampleRate = 100 * time.Millisecond // 10 Hz
)

// manifest has an initial delay that a guest which has booted elsewhere must not be made to wait for.
const manifest = `
apiVersion: guestprobe.dev/v1alpha1
kind: GuestProbes
metadata: {name: migration}
spec:
  startupProbe:   {guestAgentPing: {}, initialDelaySeconds: 4, periodSeconds: 1, failureThreshold: 60}
  readinessProbe: {httpGet: {port: WEB, path: /healthz}, initialDelaySeconds: 5, periodSeconds: 1}
  livenessProbe:  {guestAgentPing: {}, initialDelaySeconds: 4, periodSeconds: 1, failureThreshold: 8}
  checks:
  - {name: agent, kind: readiness, guestAgentPing: {}, periodSeconds: 1}
`

func ready() daemon.Verdict { return daemon.Verdict{Reason: "Ready", Ready: true, Live: true} }

// A side is one of the hosts that the guest is on.
type side struct {
	vm     *guest.VM
	daemon *daemon.Daemon
}

func (s *side) use(t *testing.T) { s.vm.Use(t); s.daemon.Use(t) }

// A move is one migration.
type move struct {
	source, target *side
	uri            string
	stop           func() []daemon.Sample // ends the sampling
}

// prepare starts a QEMU that waits for the guest, and the sidecar beside it, and begins to sample all sides.
func prepare(t *testing.T, root testing.TB, binary, name string, source *side) *move {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpm")
	if err != nil {
		t.Fatal(err)
	}
	root.Cleanup(func() { _ = os.RemoveAll(dir) })
	m := &move{source: source, uri: "unix:" + filepath.Join(dir, "migrate")}
	vm := guest.Start(root, guest.Options{Args: []string{"-incoming", m.uri}})
	m.target = &side{vm, daemon.On(root, binary, name, vm, manifest)}
	m.target.use(t)
	m.source.use(t)
	s := m.target.daemon.Await(daemon.Verdict{Reason: "MigratingIn", Live: true, Detail: "inmigrate"})
	if !s.Held || s.Started || !s.VM.Incoming || !s.VM.StartedAt.IsZero() {
		t.Errorf("before the migration the target says: held %v, started %v, %+v", s.Held, s.Started, s.VM)
	}
	// The target is asked first: a source that is still ready after the target was is a fault, for it was ready then, too.
	m.stop = daemon.Watch(t, sampleRate, m.target.daemon, m.source.daemon)
	return m
}

// run migrates the guest and returns when it began to run on the target, by QEMU's clock.
func (m *move) run(t *testing.T) time.Time {
	t.Helper()
	before, after := m.source.vm.Mark(), m.target.vm.Mark()
	m.source.vm.Command("migrate", map[string]any{"uri": m.uri}, nil)
	stopped := m.source.vm.WaitEvent(before, "STOP")
	resumed := m.target.vm.WaitEvent(after, "RESUME")
	t.Logf("the guest stood still for %.1f ms", ms(resumed.At.Sub(stopped.At)))
	return resumed.At
}

// finish waits for the source's last words, ends its QEMU, and judges the samples of the whole move.
func (m *move) finish(t *testing.T) {
	t.Helper()
	s := m.source.daemon.Await(daemon.Verdict{Reason: "MigratingOut", Live: true, Detail: "postmigrate"})
	if !s.Held || s.VM.Status != "postmigrate" {
		t.Errorf("after the migration the source says: held %v, %+v", s.Held, s.VM)
	}
	m.source.vm.Kill()
	m.source.daemon.Await(daemon.Verdict{Reason: "NoDomain", Live: true})
	runs := m.target.daemon.MustStatus().Check("livenessProbe").Runs
	m.target.daemon.Until("two more rounds", func(s daemon.Status) error {
		if now := s.Check("livenessProbe").Runs; now < runs+2 {
			return fmt.Errorf("%d rounds, and %d before", now, runs)
		}
		return nil
	})

	samples := m.stop()
	seen := map[string]int{}
	for _, s := range samples {
		if s.Ready[0] == http.StatusOK && s.Ready[1] == http.StatusOK {
			t.Errorf("at %v both sides were ready", s.At)
		}
		if s.Live[0] != http.StatusOK || s.Live[1] != http.StatusOK {
			t.Errorf("at %v /livez answered %d on the target and %d on the source", s.At, s.Live[0], s.Live[1])
		}
		seen[fmt.Sprintf("target %d source %d", s.Ready[0], s.Ready[1])]++
	}
	span := samples[len(samples)-1].At.Sub(samples[0].At)
	t.Logf("%d samples in %.1f s, /readyz by sample: %v", len(samples), span.Seconds(), seen)
	if rate := float64(len(samples)) / span.Seconds(); rate < 5 {
		t.Errorf("sampled at %.1f Hz only", rate)
	}
}

// onceReady asks of two sides' transitions, which are more exact than samples, that the source was not ready any more
// when the target was, and never became ready again. It returns when the target was first ready.
func (m *move) onceReady(t *testing.T, since time.Time) time.Time {
	t.Helper()
	from, to := m.source.daemon.MustStatus().Since(since), m.target.daemon.MustStatus()
	arrived := slices.IndexFunc(to.Transitions, func(x daemon.Transition) bool { return x.Ready })
	if arrived < 0 {
		t.Fatalf("the target was never ready: %+v", to.Transitions)
	}
	at := to.Transitions[arrived].At
	left := slices.IndexFunc(from, func(x daemon.Transition) bool { return !x.Ready })
	switch {
	case left < 0:
		t.Errorf("the source was never not ready: %+v", from)
	case from[left].At.After(at):
		t.Errorf("the source was ready until %v, the target from %v on", from[left].At, at)
	}
	for _, x := range from {
		if x.Ready && x.At.After(at) {
			t.Errorf("the source was ready again at %v", x.At)
		}
	}
	return at
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// TestLiveMigration moves one guest from QEMU to QEMU; each part begins where the former has left it.
func TestLiveMigration(t *testing.T) {
	root, binary := t, daemon.Build(t)
	vm := guest.Start(t, guest.Options{})
	here := &side{vm, daemon.On(t, binary, "the first host", vm, manifest)}
	vm.WaitReady()
	here.daemon.Await(ready())
	for _, part := range []struct {
		name string
		run  func(t *testing.T, root testing.TB, binary string, here *side) *side
	}{
		{"a migration that fails changes nothing", failing},
		{"a running guest", running},
		{"a guest whose agent is stopped meanwhile", agentStopped},
	} {
		if !t.Run(part.name, func(t *testing.T) { here.use(t); here = part.run(t, root, binary, here) }) {
			t.FailNow() // the guest is in no known place
		}
	}
	here.daemon.Stop()
}

// failing ends the target in the midst of the transfer.
func failing(t *testing.T, root testing.TB, binary string, here *side) *side {
	began := time.Now()
	m := prepare(t, root, binary, "a host that dies", here)
	here.vm.Command("migrate-set-parameters", map[string]any{"max-bandwidth": 256 << 10}, nil)
	here.vm.Command("migrate", map[string]any{"uri": m.uri}, nil)
	await := func(what string, status string) {
		t.Helper()
		here.daemon.Until(what, func(daemon.Status) error {
			var info struct{ Status string }
			here.vm.Command("query-migrate", nil, &info)
			if info.Status != status {
				return errors.New("query-migrate says " + info.Status)
			}
			return nil
		})
	}
	await("the transfer", "active")
	m.target.vm.Kill()
	m.target.daemon.Await(daemon.Verdict{Reason: "NoDomain", Live: true})
	await("its failure", "failed")
	here.daemon.Await(ready())
	if got := here.daemon.MustStatus().Since(began); len(got) > 0 {
		t.Errorf("on the source the verdict went through %v", daemon.Reasons(got))
	}
	for _, s := range m.stop() {
		if s.Ready[0] == http.StatusOK || s.Ready[1] != http.StatusOK || s.Live[0] != http.StatusOK || s.Live[1] != http.StatusOK {
			t.Errorf("at %v the target and the source answered %v on /readyz and %v on /livez", s.At, s.Ready, s.Live)
		}
	}
	here.vm.Command("migrate-set-parameters", map[string]any{"max-bandwidth": 128 << 20}, nil)
	return here
}

func running(t *testing.T, root testing.TB, binary string, here *side) *side {
	began := time.Now()
	m := prepare(t, root, binary, "the second host", here)
	// As libvirt does: QEMU then tells of the migration, and the source need not ask why its guest has stopped.
	here.vm.Command("migrate-set-capabilities", map[string]any{
		"capabilities": []any{map[string]any{"capability": "events", "state": true}},
	}, nil)
	resumed := m.run(t)
	s := m.target.daemon.Await(ready())
	m.finish(t)
	took := m.onceReady(t, began).Sub(resumed)
	t.Logf("the target was ready %.1f ms after it ran", ms(took))
	if took > period {
		t.Errorf("the target was ready only %v after it ran, more than a period", took)
	}
	if s.VM.Status != "running" || !s.VM.Incoming || !s.Started || s.VM.StartedAt.IsZero() {
		t.Errorf("the target says: started %v, %+v", s.Started, s.VM)
	}
	if got := daemon.Reasons(m.source.daemon.MustStatus().Since(began)); !slices.Equal(got, []string{"MigratingOut", "NoDomain"}) {
		t.Errorf("the source went through %v", got)
	}
	if got := daemon.Reasons(m.target.daemon.MustStatus().Transitions); !endsWith(got, "MigratingIn", "Starting", "Ready") && !endsWith(got, "MigratingIn", "Ready") {
		t.Errorf("the target went through %v", got)
	}
	m.source.daemon.Stop()
	return m.target
}

func endsWith(all []string, tail ...string) bool {
	return len(all) >= len(tail) && slices.Equal(all[len(all)-len(tail):], tail)
}

// agentStopped leaves a request of the source's unanswered in the guest, which takes it along: the answer comes out of
// the target's channel, where nobody has asked for it.
func agentStopped(t *testing.T, root testing.TB, binary string, here *side) *side {
	m := prepare(t, root, binary, "the third host", here)
	here.vm.AgentStop()
	stopped := time.Now()
	here.daemon.Until("a request that is not answered", func(s daemon.Status) error {
		for _, r := range s.Check("livenessProbe").History {
			if r.At.After(stopped) && r.Outcome == "failure" { // a second after the request was written
				return nil
			}
		}
		return errors.New("no ping has failed")
	})
	m.run(t)
	asked := func(s daemon.Status) (rounds []daemon.Round) {
		for _, name := range []string{"startupProbe", "livenessProbe", "agent"} {
			rounds = append(rounds, s.Check(name).History...)
		}
		return rounds
	}
	s := m.target.daemon.Until("a ping of the target that fails", func(s daemon.Status) error {
		if len(asked(s)) == 0 {
			return errors.New("no ping has ended")
		}
		return nil
	})
	if s.Ready || !s.Live || s.Agent.StaleReplies != 0 || s.VM.AgentPort != "open" {
		t.Errorf("with the agent stopped the target says %s, ready %v, live %v, port %s, %+v", s.Reason, s.Ready, s.Live, s.VM.AgentPort, s.Agent)
	}
	continued := time.Now()
	m.target.vm.AgentContinue()
	s = m.target.daemon.Await(ready())
	for _, r := range asked(s) {
		if r.End().Before(continued) && r.Outcome != "failure" {
			t.Errorf("a ping ended with %s at %v, before the agent went on at %v", r.Outcome, r.End(), continued)
		}
	}
	if s.Agent.StaleReplies == 0 {
		t.Error("the target has seen no answer to another's request")
	}
	t.Logf("the target has dropped %d answers to the source's requests, after %d synchronisations", s.Agent.StaleReplies, s.Agent.Resyncs)
	s = m.source.daemon.MustStatus()
	for _, r := range asked(s) {
		if r.At.After(stopped) && r.Outcome == "success" {
			t.Errorf("on the source a ping succeeded at %v, and the agent had been stopped at %v", r.At, stopped)
		}
	}
	m.finish(t)
	m.onceReady(t, stopped)
	m.source.daemon.Stop()
	return m.target
}
