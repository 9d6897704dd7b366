package sidecar

import (
	"context"
	"reflect"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/sidecar/manifest"
	"github.com/guestprobe/guestprobe/sidecar/probe"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

// Reload puts another manifest in force. Checks that did not change keep their state, counters and rhythm; the others
// are stopped or begin anew, as they would with a new VM: a readiness check has failed until it has succeeded. The
// policy applies at once, but for a freeze that is being held already. If the configuration gives no way to run one
// of the new checks, an error says so, each on a line of its own, and the old manifest stays in force. Reload may be
// called at any time, from any goroutine.
func (s *Sidecar) Reload(m *manifest.Manifest) error {
	cfg := s.cfg
	cfg.Manifest = m
	if err := cfg.Validate(); err != nil {
		return err
	}
	s.notifier.reload(func() {
		kept, stopped := s.apply(m)
		s.log.Info("manifest reloaded", "kept", kept, "started", len(m.Checks)-kept, "stopped", stopped)
	})
	return nil
}

// apply makes m the manifest in force, and returns how many checks of the former one go on, and how many do not.
func (s *Sidecar) apply(m *manifest.Manifest) (kept, stopped int) {
	policy := m.Policy
	s.policy.Store(&policy)
	s.state.update(func() {
		old := s.state.checks
		checks := make([]*check, 0, len(m.Checks))
		for _, c := range m.Checks {
			i := slices.IndexFunc(old, func(o *check) bool { return sameWork(o.Check, c) })
			if i < 0 {
				checks = append(checks, s.newCheck(c, policy))
				continue
			}
			next := *old[i] // readers without the lock have the old one
			next.Check = c
			next.worker.SetKeepRuns(policy.RunCounters == manifest.RunCountersKeep)
			checks = append(checks, &next)
			kept++
		}
		stopped = len(old) - kept
		s.state.checks = checks
		s.commands.retire(m)
		s.state.policy = verdict.Policy{HoldOnPanic: policy.GuestPanicked == manifest.GuestPanickedHold}
	})
	select {
	case s.reloaded <- struct{}{}:
	default:
	}
	return kept, stopped
}

func (s *Sidecar) newCheck(c manifest.Check, policy manifest.Policy) *check {
	spec := probe.Spec{
		Name: c.Name, Kind: c.Kind,
		InitialDelay: c.InitialDelay, Period: c.Period, Timeout: c.Timeout,
		SuccessThreshold: c.SuccessThreshold, FailureThreshold: c.FailureThreshold,
		KeepRuns: policy.RunCounters == manifest.RunCountersKeep, NoHold: c.Warn,
	}
	attempt := s.guest().handler(c)
	if s.freezer != nil {
		attempt = s.freezer.guard(attempt)
	}
	worker := probe.NewWorker(spec, attempt, &probe.Config{Logger: s.log, OnChange: s.state.checkChanged})
	next := &check{Check: c, worker: worker}
	if c.Handler.Exec != nil {
		next.command = s.commands.get(c.Name, c.Handler.Exec.Command)
	}
	return next
}

func (s *Sidecar) guest() *guest {
	return &guest{
		host: s.cfg.GuestHost, agent: s.agent, agentPort: s.state.agentPort, policy: s.policy.Load,
		vm: func() qga.VMState { return s.state.get().vm }, commands: s.commands,
	}
}

// sameWork reports whether one worker can do for both: they ask the same, by the same numbers. Where the file has
// them, how a port was named, and what a failure means to others is no concern of the
// worker's, save that liveness ends with it.
func sameWork(a, b manifest.Check) bool {
	a, b = workOf(a), workOf(b)
	if t, u := a.Handler.TCPSocket, b.Handler.TCPSocket; t != nil && u != nil {
		if (t.Expect == nil) != (u.Expect == nil) || t.Expect != nil && t.Expect.String() != u.Expect.String() {
			return false
		}
		t.Expect, u.Expect = nil, nil
	}
	return reflect.DeepEqual(a, b)
}

// workOf copies what a worker depends on.
func workOf(c manifest.Check) manifest.Check {
	c.Path, c.TerminationGracePeriod = "", nil
	c.Warn = c.Warn && c.Kind == probe.Liveness // see probe.Rules.NoHold
	if h := c.Handler.HTTPGet; h != nil {
		get := *h
		get.PortName = ""
		c.Handler.HTTPGet = &get
	}
	if h := c.Handler.TCPSocket; h != nil {
		socket := *h
		socket.PortName = ""
		c.Handler.TCPSocket = &socket
	}
	return c
}

// runChecks runs the worker of each check in force until ctx is done.
func (s *Sidecar) runChecks(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	running := make(map[*probe.Worker]context.CancelFunc)
	for {
		checks := s.state.get().checks
		for worker, stop := range running {
			if !slices.ContainsFunc(checks, func(c *check) bool { return c.worker == worker }) {
				stop()
				delete(running, worker)
			}
		}
		for _, c := range checks {
			if running[c.worker] != nil {
				continue
			}
			ctx, stop := context.WithCancel(ctx)
			running[c.worker] = stop
			group.Go(func() error { return named(c.Name, c.worker.Run(ctx)) })
		}
		select {
		case <-ctx.Done():
			return group.Wait()
		case <-s.reloaded:
		}
	}
}
