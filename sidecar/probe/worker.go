package probe

import (
	"log/slog"
	"math"
	"sync"
	"time"
)

// A Worker runs one check by the kubelet's rules. NewWorker starts nothing; Run is
// the loop. SetTarget and Snapshot may be called from any goroutine, before, during
// and after Run.
//
// Probes of a worker never overlap. A round that takes longer than the period drops
// the ticks it misses, but for one: the next round follows at once.
//
// A handler that has not returned a second after its deadline is stuck: it has failed
// that round by its timeout, whatever it says later. While it still has not returned,
// no other is started, and each further round is discarded as an error: it says
// nothing about the VM, and should not kill it.
//
// A handler that panics could not find anything out: that is an *Indeterminate.
type Worker struct {
	spec     Spec
	rules    Rules
	fn       Func
	log      *slog.Logger
	onChange func()

	poke    chan struct{} // the target has changed
	results chan error    // of the attempt in flight; room for one, so it never blocks

	mu      sync.Mutex // guards what follows; held for moments, never while a Func or OnChange runs
	machine *Machine
	target  Target
	boot    boot
	flight  flight
	due     bool // a round should begin as soon as it may
	rearm   bool // the ticker's phase should begin now
	dirty   bool // OnChange should be called

	snap     Snapshot // without what machine and the histories know
	all      history
	setbacks history
}

// A boot is what the worker knows about the guest's clock.
type boot struct {
	number    uint64
	instance  string    // the last known one
	startedAt time.Time // the last known one, as told
	clock     time.Time // the same on our monotonic clock: steps of the wall clock do not move ages
	exposed   bool      // it has been probeable, as far as the VM goes
}

// NewWorker returns a worker that probes nothing until it has a target. A nil cfg
// stands for an empty one.
func NewWorker(spec Spec, fn Func, cfg *Config) *Worker {
	if cfg == nil {
		cfg = &Config{}
	}
	if spec.Period <= 0 {
		spec.Period = 10 * time.Second
	}
	if spec.Timeout <= 0 {
		spec.Timeout = time.Second
	}
	keep := cfg.History
	if keep <= 0 {
		keep = 20
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	rules := Rules{
		Kind:             spec.Kind,
		SuccessThreshold: spec.SuccessThreshold,
		FailureThreshold: spec.FailureThreshold,
		Delay:            seconds(spec.InitialDelay + time.Second - 1),
		KeepRuns:         spec.KeepRuns,
		NoHold:           spec.NoHold,
	}
	return &Worker{
		spec:     spec,
		rules:    rules,
		fn:       fn,
		log:      log.With("check", spec.Name, "kind", spec.Kind.String()),
		onChange: cfg.OnChange,
		poke:     make(chan struct{}, 1),
		results:  make(chan error, 1),
		machine:  NewMachine(rules),
		all:      history{keep: keep},
		setbacks: history{keep: keep},
	}
}

// seconds cuts d to whole seconds, as the kubelet's int32 does but without its
// overflow.
func seconds(d time.Duration) int32 {
	return int32(min(max(d/time.Second, math.MinInt32), math.MaxInt32))
}

// Spec returns the spec with its defaults filled in.
func (w *Worker) Spec() Spec {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.spec
}

// SetKeepRuns changes Spec.KeepRuns, the one part of a spec that matters only when a new instance appears. It may be
// called at any time.
func (w *Worker) SetKeepRuns(keep bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spec.KeepRuns, w.machine.rules.KeepRuns = keep, keep
}

// SetTarget tells the worker what it probes now. It does not block, and has taken
// effect on Snapshot when it returns: a new instance or a reboot shows the initial
// state, and a probe in flight that must not count any more is cancelled.
func (w *Worker) SetTarget(t Target) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t == w.target {
		return
	}
	now := time.Now()
	w.boot.follow(t, now)
	w.target = t
	w.evaluate(now)
	w.wake()
}

func (w *Worker) wake() {
	select {
	case w.poke <- struct{}{}:
	default: // it is awake already
	}
}

// follow brings the clock up to date.
func (b *boot) follow(t Target, now time.Time) {
	if t.Instance != "" && t.Instance != b.instance {
		if b.instance != "" {
			*b = boot{number: b.number}
		}
		b.instance = t.Instance
	}
	if !t.StartedAt.IsZero() && !t.StartedAt.Equal(b.startedAt) {
		// Only a later start than the known one is a reboot, and only if the boot it
		// ends had begun for us: what is learnt late, or set right, is none.
		if b.exposed && !b.startedAt.IsZero() && t.StartedAt.After(b.startedAt) {
			b.number++
			b.exposed = false
		}
		b.startedAt = t.StartedAt
		// A start in the future is a stepped wall clock.
		b.clock = now.Add(-max(0, now.Sub(t.StartedAt)))
	}
	if t.Running && !t.Held {
		b.exposed = true
		if b.clock.IsZero() {
			b.clock = now
		}
	}
}

// age returns how long the guest has been booting or running.
func (b *boot) age(now time.Time) time.Duration {
	if b.clock.IsZero() {
		return 0
	}
	return now.Sub(b.clock)
}

// evaluate asks the machine what may be done now and takes the consequences that
// cannot wait for the loop.
func (w *Worker) evaluate(now time.Time) {
	life := Absent
	if w.target.Running {
		life = Running
	}
	state, begun := w.machine.State(), w.machine.Begun()
	step := w.machine.Round(Facts{
		Life:     life,
		Held:     w.target.Held,
		Instance: w.target.Instance,
		Boot:     w.boot.number,
		Age:      seconds(w.boot.age(now)),
		Booted:   w.target.Booted,
		Started:  w.target.Started,
	})
	anew := w.machine.Begun() != begun
	if anew {
		w.snap.Outcome, w.snap.Err, w.snap.Attempts = OutcomeNone, nil, 0
		w.snap.LastRun, w.snap.Duration, w.snap.Cause = time.Time{}, 0, nil
	}
	if w.machine.State() != state {
		w.snap.Changed = now
	}
	if anew || step != StepProbe {
		w.due = false
		w.flight.void()
	}
	if step == StepProbe && (anew || w.snap.Step != StepProbe) {
		w.due, w.rearm = true, true
	}
	if anew || step != w.snap.Step {
		w.dirty = true
	}
	w.snap.Step = step
}

// Snapshot returns what is known now. It allocates nothing.
func (w *Worker) Snapshot() Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.snap
	s.State, s.Run, s.OnHold = w.machine.State(), w.machine.Run(), w.machine.OnHold()
	s.Stuck = w.flight.stuck
	s.History, s.Setbacks = w.all.last(), w.setbacks.last()
	return s
}
