package probe

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// A Func makes one attempt of a check. The deadline is the context's. It returns
//
//   - nil for success,
//   - a *Warning for a success that has something to tell,
//   - an *Indeterminate if it could not be found out (the kubelet's "error"),
//   - any other error for a failure.
//
// Both types are found through wrapping. It should return soon after its context
// ends; what happens if it does not is told at Worker.
type Func func(context.Context) error

// A Warning is the error of an attempt that succeeded, with something to tell.
type Warning struct{ Err error }

// Error returns the text of Err.
func (w *Warning) Error() string { return text(w.Err) }

// Unwrap returns Err.
func (w *Warning) Unwrap() error { return w.Err }

// An Indeterminate is the error of an attempt that says nothing about the checked
// thing. It is tried up to three times without a pause; then the round is discarded.
type Indeterminate struct{ Err error }

// Error returns the text of Err.
func (i *Indeterminate) Error() string { return text(i.Err) }

// Unwrap returns Err.
func (i *Indeterminate) Unwrap() error { return i.Err }

func text(err error) string {
	if err == nil {
		return "no reason given"
	}
	return err.Error()
}

// Classify returns the outcome of one attempt that ended with err
// (k8s v1.37.2 pkg/kubelet/prober/prober.go, probe).
func Classify(err error) Outcome {
	if err == nil {
		return OutcomeSuccess
	}
	if _, ok := errors.AsType[*Indeterminate](err); ok {
		return OutcomeError
	}
	if _, ok := errors.AsType[*Warning](err); ok {
		return OutcomeWarning
	}
	return OutcomeFailure
}

// A Spec says how a check is run. It is not validated here: values that cannot
// work take the API's defaults, as told at each.
type Spec struct {
	Name string // for logs
	Kind Kind
	// InitialDelay is counted in whole seconds from Target.StartedAt, a fraction
	// rounded up.
	InitialDelay time.Duration
	// Period is the time from one round's begin to the next; not above 0: 10 s.
	Period time.Duration
	// Timeout is each attempt's own; not above 0: 1 s. It may exceed Period: then
	// ticks are dropped.
	Timeout time.Duration
	// SuccessThreshold and FailureThreshold: below 1 behaves as 1.
	SuccessThreshold, FailureThreshold int
	// KeepRuns and NoHold: as in Rules.
	KeepRuns, NoHold bool
}

// A Target is what a Worker must know about the VM it probes. Its zero value is "no
// VM": nothing is probed.
type Target struct {
	// Instance is the identity of this run of the VM. Empty: not known, which is
	// never a new one.
	Instance string
	// Running: there is a VM. Held: it must not be judged now (it is paused,
	// migrates, is frozen or in maintenance). If it does not run or is held, no
	// probe runs, no counter moves and the published state stays; becoming so
	// cancels the probe in flight and discards its result.
	Running, Held bool
	// StartedAt is when the guest last began to boot. A later one in the same
	// instance is a reboot, see Facts.Boot. Zero: not known; then the last known one
	// holds, or else the moment when the worker first saw the instance run.
	StartedAt time.Time
	// Booted: the instance came by live migration: no initial delay until it
	// reboots.
	Booted bool
	// Started: the startup checks have succeeded, or there are none. As SetTarget
	// takes effect before it returns, the order after a change is: SetTarget on the
	// startup workers, Started from their Snapshots, then SetTarget on the others.
	Started bool
}

// A Record is one finished round.
type Record struct {
	At       time.Time     // when it began
	Duration time.Duration // all attempts together
	Outcome  Outcome
	Attempts int
	Err      error // of the last attempt; nil for a plain success
	State    State // published after it
}

// A Snapshot is all there is to know about a check at one moment. Its slices are
// shared between snapshots and must not be written to.
type Snapshot struct {
	State   State
	Changed time.Time // when State became what it is; zero: it never changed
	Run     int       // equal counted results in a row
	OnHold  bool      // as Machine.OnHold
	Step    Step      // why nothing is probed, or StepProbe
	// Outcome, Err, Attempts, LastRun (its begin) and Duration are those of the last
	// round since the instance or its last reboot began; zero before the first.
	Outcome  Outcome
	Err      error
	Attempts int
	LastRun  time.Time
	Duration time.Duration
	// Cause is what speaks against the check: the error of the last round that was no
	// plain success, kept until one comes while State is StateSuccess, or until it
	// starts anew. Nil: nothing does, or there was no round yet.
	Cause error
	// Stuck: the handler did not return after its deadline and still has not.
	Stuck bool
	// Runs counts finished rounds, Failures those that counted as a failure, Errors
	// those that were discarded as errors. Cancelled rounds are in none of them. They
	// only grow, over all instances.
	Runs, Failures, Errors uint64
	// History has the last rounds, oldest first; Setbacks the last that were no plain
	// success, which so outlive a long stretch of successes.
	History, Setbacks []Record
}

// A Config has what a Worker may be given besides. Nil stands for its zero value.
type Config struct {
	// Logger takes a record per round at debug level, and panics and stuck handlers
	// above it. Nil: none.
	Logger *slog.Logger
	// OnChange is called after anything in the Snapshot has changed, from Run's
	// goroutine, without a lock held; it may call Snapshot and SetTarget. It must
	// return soon, for no probe starts meanwhile. Calls may stand for several changes.
	OnChange func()
	// History is how many rounds Snapshot.History and Setbacks each keep; not above
	// 0: 20.
	History int
}
