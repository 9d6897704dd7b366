package probe

// A Kind says what a check is for, and by that its initial state and its hold.
type Kind uint8

// The kinds of a check.
const (
	Readiness Kind = iota // may the VM be sent work?
	Liveness              // is the VM beyond repair?
	Startup               // has the VM finished booting?
)

// String returns the kind as in a metric's label: "readiness", "liveness" or
// "startup".
func (k Kind) String() string {
	switch k {
	case Readiness:
		return "readiness"
	case Liveness:
		return "liveness"
	case Startup:
		return "startup"
	default:
		return "invalid"
	}
}

// An Outcome is the result of one round.
type Outcome uint8

// The outcomes of a round.
const (
	OutcomeNone    Outcome = iota // no round yet
	OutcomeSuccess                // counts as a success
	OutcomeWarning                // counts as a success; there is something to tell
	OutcomeFailure                // counts as a failure
	OutcomeError                  // the kubelet's "error": counts as nothing, changes nothing
)

// String returns the outcome in one lower-case word.
func (o Outcome) String() string {
	switch o {
	case OutcomeNone:
		return "none"
	case OutcomeSuccess:
		return "success"
	case OutcomeWarning:
		return "warning"
	case OutcomeFailure:
		return "failure"
	case OutcomeError:
		return "error"
	default:
		return "invalid"
	}
}

// A State is the published result of a check: what its rounds add up to.
type State uint8

// The published states.
const (
	StateUnknown State = iota
	StateSuccess
	StateFailure
)

// String returns the state in one lower-case word.
func (s State) String() string {
	switch s {
	case StateUnknown:
		return "unknown"
	case StateSuccess:
		return "success"
	case StateFailure:
		return "failure"
	default:
		return "invalid"
	}
}

// Initial returns what a check of kind k publishes before its first result:
// readiness fails, liveness succeeds, startup is unknown
// (k8s v1.37.2 pkg/kubelet/prober/worker.go, newWorker).
func Initial(k Kind) State {
	switch k {
	case Readiness:
		return StateFailure
	case Liveness:
		return StateSuccess
	default:
		return StateUnknown
	}
}

// A Life is the condition of the probed thing, as far as it bears on a round.
// Where several hold, the first in this list counts.
type Life uint8

// The lives. A VM is Absent or Running; the others are the kubelet's.
const (
	Absent  Life = iota // nothing there to be probed, or nothing known about it
	Ended               // it is over for good, and nothing is published about it
	Over                // it has stopped for good
	Stopped             // it does not run, but will again
	Leaving             // it was already being deleted when its worker was made
	Running             // it can be probed
)

// Facts are what a round knows about the probed thing.
type Facts struct {
	Life Life
	// Held: it is there, but must not be judged now. No probe runs and nothing
	// moves; a change of Instance or Boot still counts.
	Held bool
	// Instance is its identity (a container ID, a QEMU process). A new one starts
	// anew. Empty means not known, and is never a new one.
	Instance string
	// Boot numbers the boots within the instance; a machine's first is 0. A change is a reboot: published
	// state and runs go back to the beginning, the hold ends, and the initial
	// delay holds again. So a reboot, however slow, cannot fail liveness by the
	// failures of the boot before or during its delay; and readiness does not
	// claim anything for a guest that is rebooting. A guest that reboots in a
	// loop faster than it can be judged never fails liveness, as a container that
	// restarts in a loop never does; it is never ready either.
	Boot uint64
	// Age is the number of whole seconds since it was started or rebooted.
	Age int32
	// Booted: it had booted elsewhere before it came here (a live migration), so
	// there is no initial delay. It does not outlast a reboot.
	Booted bool
	// Started: its startup check, if there is one, has succeeded.
	Started bool
}

// A Step is what a round may do, and if nothing, why.
type Step uint8

// The steps.
const (
	StepAbsent  Step = iota // nothing there to be probed
	StepHeld                // it must not be judged now
	StepDone                // the verdict of this boot or instance has been given
	StepStopped             // it does not run
	StepDelay               // its initial delay is not over
	StepGate                // liveness and readiness wait for startup; startup is over
	StepProbe               // probe now
	StepEnd                 // nothing more will ever be probed
)

// String returns the step in one lower-case word.
func (s Step) String() string {
	switch s {
	case StepAbsent:
		return "absent"
	case StepHeld:
		return "held"
	case StepDone:
		return "done"
	case StepStopped:
		return "stopped"
	case StepDelay:
		return "delay"
	case StepGate:
		return "gate"
	case StepProbe:
		return "probe"
	case StepEnd:
		return "end"
	default:
		return "invalid"
	}
}

// Rules are the fixed part of a Machine.
type Rules struct {
	Kind Kind
	// SuccessThreshold and FailureThreshold are how many equal counted results in
	// a row publish a state. Values below 1 behave as 1.
	SuccessThreshold, FailureThreshold int
	// Delay is the initial delay in seconds; negative behaves as 0.
	Delay int32
	// KeepRuns: runs survive a new instance, as the kubelet's survive a new
	// container. They never survive a reboot.
	KeepRuns bool
	// NoHold: a liveness check that has failed is probed on. The kubelet stops
	// there because it ends the container; where nobody acts on the failure, the
	// check would stay failed for good.
	NoHold bool
}

// A Machine is the kubelet's probe worker without its clock and its probe. It is
// not safe for use by several goroutines at once.
type Machine struct {
	rules    Rules
	instance string
	boot     uint64
	rebooted bool // in this instance
	state    State
	failing  bool // the last counted result was a failure
	run      int  // how many of them in a row
	onHold   bool
	begun    uint64 // how often it started anew
}

// NewMachine returns a machine that publishes the initial state.
func NewMachine(r Rules) *Machine {
	return &Machine{rules: r, state: Initial(r.Kind)}
}

// State returns the published state.
func (m *Machine) State() State { return m.state }

// Run returns how many equal counted results in a row were seen; a hold makes it 0.
func (m *Machine) Run() int { return m.run }

// OnHold reports whether the verdict of this boot has been given: liveness has
// failed, or startup has succeeded or failed. Only a new instance or a reboot
// ends a hold.
func (m *Machine) OnHold() bool { return m.onHold }

// Begun returns how often a new instance or a reboot has made it start anew.
func (m *Machine) Begun() uint64 { return m.begun }

// Round begins a round and returns what it may do. It may be asked at any time and
// as often as one likes: it moves nothing unless the facts did. After StepProbe the
// caller probes and hands the outcome to Observe. The order of the steps is that of
// k8s v1.37.2 pkg/kubelet/prober/worker.go, doProbe.
func (m *Machine) Round(f Facts) Step {
	if f.Life == Ended {
		return StepEnd
	}
	m.identify(f)
	switch {
	case f.Held:
		return StepHeld
	case f.Life == Absent:
		return StepAbsent
	case m.onHold:
		return StepDone
	case f.Life == Over:
		m.state = StateFailure
		return StepEnd
	case f.Life == Stopped:
		m.state = StateFailure // past all thresholds
		return StepStopped
	case f.Life == Leaving && m.rules.Kind != Readiness:
		m.state = StateSuccess
		return StepEnd
	case f.Age < m.rules.Delay && (!f.Booted || m.rebooted):
		return StepDelay
	case f.Started == (m.rules.Kind == Startup):
		return StepGate
	default:
		return StepProbe
	}
}

// identify starts anew if another instance or another boot is there.
func (m *Machine) identify(f Facts) {
	if f.Instance != "" && f.Instance != m.instance {
		// The first name is only a name for what was probed before.
		if m.instance != "" {
			m.boot, m.rebooted = f.Boot, false
			m.begin()
			if !m.rules.KeepRuns {
				m.forget()
			}
		}
		m.instance = f.Instance
	}
	if f.Boot != m.boot {
		m.boot, m.rebooted = f.Boot, true
		m.begin()
		m.forget()
	}
}

func (m *Machine) begin() {
	m.state, m.onHold = Initial(m.rules.Kind), false
	m.begun++
}

func (m *Machine) forget() { m.failing, m.run = false, 0 }

// Observe ends a round that was allowed to probe.
func (m *Machine) Observe(o Outcome) {
	var failing bool
	switch o {
	case OutcomeSuccess, OutcomeWarning:
	case OutcomeFailure:
		failing = true
	default:
		return // an error is as if the round had not been
	}
	if failing != m.failing {
		m.failing, m.run = failing, 0
	}
	m.run++
	threshold, state := m.rules.SuccessThreshold, StateSuccess
	if failing {
		threshold, state = m.rules.FailureThreshold, StateFailure
	}
	if m.run < threshold {
		return
	}
	m.state = state
	if m.rules.Kind == Startup || m.rules.Kind == Liveness && failing && !m.rules.NoHold {
		m.onHold, m.run = true, 0
	}
}
