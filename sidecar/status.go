package sidecar

import (
	"errors"
	"time"

	"github.com/guestprobe/guestprobe/netprobe"
	"github.com/guestprobe/guestprobe/sidecar/probe"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

// Status is all that the sidecar knows, as /status serves it. It comes from memory. Fields may be added.
type Status struct {
	Version string         `json:"version"`
	Ready   bool           `json:"ready"`
	Live    bool           `json:"live"`
	Started bool           `json:"started"`
	Reason  verdict.Reason `json:"reason"`
	Detail  string         `json:"detail,omitempty"`
	Help    string         `json:"help,omitempty"` // what to do about the reason
	Since   time.Time      `json:"since"`
	Held    bool           `json:"held"` // no probe runs
	// Hold is the operator's hold, whatever else there is to say of the VM; nil: none.
	Hold *HoldStatus `json:"hold,omitempty"`
	// NothingChecked: no readiness probe is configured.
	NothingChecked bool          `json:"nothingChecked,omitempty"`
	VM             *VMStatus     `json:"vm,omitempty"`    // nil: no monitor is configured
	Agent          *AgentStatus  `json:"agent,omitempty"` // nil: no agent is configured
	Checks         []CheckStatus `json:"checks"`
	// Transitions are the last 100, oldest first.
	Transitions []TransitionStatus `json:"transitions"`
}

// HoldStatus is a hold for maintenance.
type HoldStatus struct {
	Source string     `json:"source"`          // the hold file's path
	Until  *time.Time `json:"until,omitempty"` // nil: until the file is removed
}

// TransitionStatus is one change of the verdict.
type TransitionStatus struct {
	At            time.Time      `json:"at"`
	From          verdict.Reason `json:"from,omitempty"` // empty: the first
	To            verdict.Reason `json:"to"`
	Detail        string         `json:"detail,omitempty"`
	Ready         bool           `json:"ready"`
	Live          bool           `json:"live"`
	Started       bool           `json:"started"`
	LastedSeconds float64        `json:"lastedSeconds"` // how long it had been as before
}

// VMStatus is what the monitor says.
type VMStatus struct {
	Monitor     string     `json:"monitor"`            // its address
	Fallback    bool       `json:"fallback,omitempty"` // the direct monitor is out of reach; the rest is what the other one says
	Link        string     `json:"link"`               // connecting, up, busy, stuck, unreachable, gone
	LinkError   string     `json:"linkError,omitempty"`
	Name        string     `json:"name,omitempty"`
	UUID        string     `json:"uuid,omitempty"`
	Hypervisor  string     `json:"hypervisor,omitempty"` // its version
	Instance    string     `json:"instance,omitempty"`
	Status      string     `json:"status,omitempty"` // QEMU's run state
	PauseReason string     `json:"pauseReason,omitempty"`
	StartedAt   *time.Time `json:"startedAt,omitempty"`
	Incoming    bool       `json:"incoming,omitempty"` // it came by live migration
	AgentPort   string     `json:"agentPort"`          // open, closed, unknown
	IOError     string     `json:"ioError,omitempty"`
	Panic       string     `json:"panic,omitempty"`
	CrashDump   bool       `json:"crashDumping,omitempty"`
	Shutdown    string     `json:"shutdown,omitempty"`
	Resets      uint64     `json:"resets"`
	Panics      uint64     `json:"panics"`
	IOErrors    uint64     `json:"ioErrors"`
}

// AgentStatus is the connection to the guest agent.
type AgentStatus struct {
	Address          string  `json:"address"`
	Connected        bool    `json:"connected"`
	Fallback         bool    `json:"fallback,omitempty"` // the direct channel does not answer; this is the other one
	Connects         uint64  `json:"connects"`
	Resyncs          uint64  `json:"resyncs"`
	StaleReplies     uint64  `json:"staleReplies"`
	RoundTripSeconds float64 `json:"roundTripSeconds"` // of the last answered exchange
}

// CheckStatus is one check.
type CheckStatus struct {
	Name             string        `json:"name"`
	Kind             string        `json:"kind"`
	Severity         string        `json:"severity"` // fail or warn
	Handler          string        `json:"handler"`
	InitialDelay     float64       `json:"initialDelaySeconds"`
	Period           float64       `json:"periodSeconds"`
	Timeout          float64       `json:"timeoutSeconds"`
	SuccessThreshold int           `json:"successThreshold"`
	FailureThreshold int           `json:"failureThreshold"`
	State            string        `json:"state"` // published: success, failure, unknown
	Changed          *time.Time    `json:"changed,omitempty"`
	Step             string        `json:"step"`    // probe, or why nothing is probed: held, absent, delay, gate, done
	Outcome          string        `json:"outcome"` // of the last round: success, warning, failure, error, none
	Run              int           `json:"run"`     // equal outcomes in a row
	Error            string        `json:"error,omitempty"`
	Cause            string        `json:"cause,omitempty"`  // of a network failure, one of netprobe's, such as Refused or TLSName
	Output           string        `json:"output,omitempty"` // of an exec check that failed: up to 10 KiB, stdout before stderr
	LastRun          *time.Time    `json:"lastRun,omitempty"`
	DurationSeconds  float64       `json:"durationSeconds"`
	Stuck            bool          `json:"stuck,omitempty"`
	Runs             uint64        `json:"runs"`
	Failures         uint64        `json:"failures"`
	Errors           uint64        `json:"errors"`
	History          []RoundStatus `json:"history"`  // the last rounds, oldest first
	Setbacks         []RoundStatus `json:"setbacks"` // the last that were no plain success
}

// RoundStatus is one finished round of a check.
type RoundStatus struct {
	At              time.Time `json:"at"`
	DurationSeconds float64   `json:"durationSeconds"`
	Outcome         string    `json:"outcome"`
	Attempts        int       `json:"attempts"`
	Error           string    `json:"error,omitempty"`
	Cause           string    `json:"cause,omitempty"`
	State           string    `json:"state"` // published after it
}

// Status returns all that is known now. It never waits for the guest.
func (s *Sidecar) Status() Status {
	now := s.state.get()
	st := Status{
		Version: s.cfg.Version,
		Ready:   now.Ready, Live: now.Live, Started: now.Started,
		Reason: now.Reason, Detail: now.Detail, Help: now.Reason.Help(), Since: now.since,
		Held: now.Held, NothingChecked: now.NothingChecked,
		Checks:      make([]CheckStatus, 0, len(now.checks)),
		Transitions: transitions(now.transitions),
	}
	if h := now.hold; h != nil {
		st.Hold = &HoldStatus{Source: h.Source, Until: optional(h.Until)}
	}
	if s.monitor != nil {
		st.VM = s.vmStatus(now)
	}
	if s.agent != nil {
		a := s.agent.Stats()
		st.Agent = &AgentStatus{
			Address: s.cfg.Agent.String(), Connected: a.Connected, Fallback: a.Fallback, Connects: a.Connects,
			Resyncs: a.Resyncs, StaleReplies: a.StaleReplies, RoundTripSeconds: a.RoundTrip.Seconds(),
		}
	}
	for _, c := range now.checks {
		st.Checks = append(st.Checks, c.status(s.cfg.GuestHost))
	}
	return st
}

func (s *Sidecar) vmStatus(now *current) *VMStatus {
	vm := now.vm
	st := &VMStatus{
		Monitor: s.cfg.Monitor.String(), Link: vm.Link.String(),
		Name: printable(vm.Name), UUID: printable(vm.UUID), Hypervisor: printable(vm.Version), Instance: vm.Instance,
		Status: printable(vm.Status), PauseReason: vm.PauseReason, StartedAt: optional(vm.StartedAt), Incoming: vm.Incoming,
		AgentPort: vm.AgentPort.String(), CrashDump: vm.CrashDumping,
		Resets: vm.Resets, Panics: vm.Panics, IOErrors: vm.IOErrors,
	}
	if s.fallback != nil {
		st.Fallback = s.fallback.used()
	}
	if vm.LinkErr != nil {
		st.LinkError = printable(vm.LinkErr.Error())
	}
	if e := vm.IOError; e != nil {
		st.IOError = printable(e.Device + ": " + e.Reason)
	}
	if p := vm.Panic; p != nil {
		st.Panic = printable(p.Type + " " + p.Detail)
	}
	if d := vm.Shutdown; d != nil {
		st.Shutdown = orElse(printable(d.Reason), "yes")
	}
	return st
}

func (c *check) status(guestHost string) CheckStatus {
	s := c.worker.Snapshot()
	st := CheckStatus{
		Name: c.Name, Kind: c.Kind.String(), Severity: "fail", Handler: c.describe(guestHost),
		InitialDelay: c.InitialDelay.Seconds(), Period: c.Period.Seconds(), Timeout: c.Timeout.Seconds(),
		SuccessThreshold: c.SuccessThreshold, FailureThreshold: c.FailureThreshold,
		State: s.State.String(), Changed: optional(s.Changed), Step: s.Step.String(),
		Outcome: s.Outcome.String(), Run: s.Run, LastRun: optional(s.LastRun), DurationSeconds: s.Duration.Seconds(), Stuck: s.Stuck,
		Runs: s.Runs, Failures: s.Failures, Errors: s.Errors,
		History: rounds(s.History), Setbacks: rounds(s.Setbacks),
	}
	if c.Warn {
		st.Severity = "warn"
	}
	if s.Err != nil {
		st.Error, st.Cause = printable(s.Err.Error()), causeOf(s.Err)
	}
	if c.command != nil {
		st.Output = c.command.lastOutput()
	}
	return st
}

// causeOf names what was wrong in the network, if err is a failure that tells: a word from a closed list, which no
// guest can add to.
func causeOf(err error) string {
	if f, ok := errors.AsType[*netprobe.Failure](err); ok {
		return f.Cause.String()
	}
	return ""
}

func rounds(records []probe.Record) []RoundStatus {
	all := make([]RoundStatus, 0, len(records))
	for _, r := range records {
		st := RoundStatus{At: r.At, DurationSeconds: r.Duration.Seconds(), Outcome: r.Outcome.String(), Attempts: r.Attempts, State: r.State.String()}
		if r.Err != nil {
			st.Error, st.Cause = printable(r.Err.Error()), causeOf(r.Err)
		}
		all = append(all, st)
	}
	return all
}

func transitions(all []verdict.Transition) []TransitionStatus {
	out := make([]TransitionStatus, 0, len(all))
	for _, t := range all {
		out = append(out, TransitionStatus{
			At: t.At, From: t.From.Reason, To: t.To.Reason, Detail: t.Detail,
			Ready: t.To.Ready, Live: t.To.Live, Started: t.To.Started, LastedSeconds: t.Lasted.Seconds(),
		})
	}
	return out
}

func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
