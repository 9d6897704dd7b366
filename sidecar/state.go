package sidecar

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/sidecar/probe"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

// maxTransitions is how many transitions are remembered.
const maxTransitions = 100

// A current is the published truth of one moment. It is never written to after it was published.
type current struct {
	verdict.Verdict
	checks      []*check
	since       time.Time // when ready, live, started and the reason became what they are
	vm          qga.VMState
	hold        *verdict.Hold // nil: none
	freeze      verdict.Freeze
	shadowed    bool // our TCP listener is answered by somebody else
	transitions []verdict.Transition
	total       map[verdict.Reason]uint64 // transitions to each reason
	goneSince   time.Time                 // when the VM that was once seen went away; zero: it has not
}

// state holds the facts and turns every change of them into the verdict. Whoever learns a fact calls
// update, and the verdict is published before update returns: bad news waits for nobody.
type state struct {
	log      *slog.Logger
	watching bool                            // a monitor is configured
	tell     func(ready bool, status string) // takes what run finds, and must not block

	published atomic.Pointer[current]
	wake      chan struct{} // tells run that there is something to log, or a new time to wake up at
	heart     heart         // run's

	mu          sync.Mutex // guards what follows
	policy      verdict.Policy
	checks      []*check // replaced as a whole, never written to
	vm          qga.VMState
	seen        bool // a VM was there
	goneSince   time.Time
	hold        *verdict.Hold
	freeze      verdict.Freeze
	shadowed    bool
	terminating bool
	damper      verdict.Damper
	transitions []verdict.Transition
	total       map[verdict.Reason]uint64
	tracker     verdict.Tracker
	unlogged    []verdict.Transition
	warnings    []warning // not logged yet
	again       time.Time // when the verdict may change by time alone; zero: never
}

func newState(log *slog.Logger, watching bool, policy verdict.Policy) *state {
	s := &state{
		log: log, watching: watching, tell: func(bool, string) {},
		wake: make(chan struct{}, 1), heart: make(heart),
		policy: policy, total: make(map[verdict.Reason]uint64),
	}
	s.published.Store(s.snapshot(verdict.Decide(s.input())))
	return s
}

// get returns the published truth.
func (s *state) get() *current { return s.published.Load() }

// agentPort is what the monitor last said of the guest's end of the agent channel.
func (s *state) agentPort() qga.Port {
	if !s.watching {
		return qga.PortUnknown
	}
	return s.get().vm.AgentPort
}

// update changes facts and publishes what follows from them.
func (s *state) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	s.refresh(time.Now())
}

// setVM takes over what the monitor has learned.
func (s *state) setVM(vm qga.VMState) {
	s.update(func() {
		switch {
		case vm.Link == qga.LinkUp:
			s.seen, s.goneSince = true, time.Time{}
		case vm.Link == qga.LinkGone && s.goneSince.IsZero() && (s.seen || errors.Is(vm.LinkErr, qga.ErrConnectionLost)):
			s.goneSince = time.Now() // a lost connection tells of a VM too, even of one that was gone before it had told its state
		case vm.Link == qga.LinkConnecting && s.vm.Status != "":
			vm.Status, vm.AgentPort = s.vm.Status, s.vm.AgentPort // bridges a reconnect
		}
		s.vm = vm
	})
}

// checkChanged is called by a worker after anything about its check has changed.
func (s *state) checkChanged() { s.update(func() {}) }

// refresh decides anew. It needs the lock.
func (s *state) refresh(now time.Time) {
	input := s.input()
	raw := verdict.Decide(input)
	s.retarget(raw.Held)
	// What the workers were just told may have changed what they publish: a new instance begins anew.
	input.Checks = s.checkInputs()
	s.warn(now, input.Checks)
	raw = verdict.Decide(input)
	next, wait := s.damper.Update(now, raw)
	s.again = time.Time{}
	if wait > 0 {
		s.again = now.Add(wait)
	}
	if t, ok := s.tracker.Observe(now, next); ok {
		s.record(t)
	}
	s.published.Store(s.snapshot(next))
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// record remembers a transition, and leaves it to run to log it. It needs the lock.
func (s *state) record(t verdict.Transition) {
	s.transitions = append(s.transitions, t)
	if drop := len(s.transitions) - maxTransitions; drop > 0 {
		s.transitions = slices.Clone(s.transitions[drop:])
	}
	s.total = maps.Clone(s.total)
	s.total[t.To.Reason]++
	s.unlogged = append(s.unlogged, t)
}

// snapshot is what others read without the lock. What it shares with s is only ever replaced or appended to.
func (s *state) snapshot(v verdict.Verdict) *current {
	_, since := s.tracker.Current()
	return &current{Verdict: v, checks: s.checks, since: since, vm: s.vm, hold: s.hold, freeze: s.freeze, shadowed: s.shadowed, goneSince: s.goneSince, transitions: s.transitions, total: s.total}
}

// retarget tells every worker what there is to probe: the startup checks first, because the others wait for them.
func (s *state) retarget(held bool) {
	target := probe.Target{
		Instance:  s.vm.Instance,
		Running:   !s.watching || s.vm.Link != qga.LinkGone,
		Held:      held,
		StartedAt: s.vm.StartedAt,
		Booted:    s.vm.Incoming,
	}
	started := true
	for _, c := range s.checks {
		if c.Kind != probe.Startup {
			continue
		}
		t := target
		t.Started = c.worker.Snapshot().State == probe.StateSuccess
		c.retarget(t)
		started = started && (c.Warn || c.worker.Snapshot().State == probe.StateSuccess)
	}
	target.Started = started
	for _, c := range s.checks {
		if c.Kind != probe.Startup {
			c.retarget(target)
		}
	}
}

// run wakes the verdict up when only time has passed, and tells what has come of it: one record per transition in the
// log, and all news to tell.
func (s *state) run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var asked chan struct{} // by the watchdog
	for {
		s.mu.Lock()
		again, unlogged, warnings := s.again, s.unlogged, s.warnings
		s.unlogged, s.warnings = nil, nil
		s.mu.Unlock()
		for _, t := range unlogged {
			s.logTransition(ctx, t)
			s.tell(t.To.Ready, summary(t.To.Reason, t.Detail))
		}
		for _, w := range warnings {
			w.log(ctx, s.log)
		}
		now := s.get()
		s.tell(now.Ready, summary(now.Reason, now.Detail))
		if asked != nil {
			close(asked)
			asked = nil
		}
		timer.Stop()
		var due <-chan time.Time
		if !again.IsZero() {
			timer.Reset(time.Until(again))
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case asked = <-s.heart:
		case <-due:
			s.checkChanged()
		}
	}
}

// summary is a verdict in one line.
func summary(reason verdict.Reason, detail string) string {
	if detail == "" {
		return string(reason)
	}
	return string(reason) + ": " + printable(detail)
}

func (s *state) logTransition(ctx context.Context, t verdict.Transition) {
	level := slog.LevelInfo
	if t.Worse() {
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{
		slog.String("reason", string(t.To.Reason)), slog.String("detail", t.Detail),
		slog.Bool("ready", t.To.Ready), slog.Bool("live", t.To.Live), slog.Bool("started", t.To.Started),
	}
	if !t.First() {
		attrs = append(attrs, slog.String("was", string(t.From.Reason)), slog.String("lasted", t.Lasted.Round(time.Millisecond).String()))
	}
	s.log.LogAttrs(ctx, level, "verdict", attrs...)
}
