package sidecar

import (
	"context"
	"errors"
	"time"

	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/sidecar/probe"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

const (
	// freezeTimeout bounds one question whether the file systems are frozen. It adds to a failed attempt, so it stays
	// well within the worker's patience with a handler that is past its deadline.
	freezeTimeout = 500 * time.Millisecond
	// freezeInterval is how often a frozen guest is asked whether it has thawed.
	freezeInterval = time.Second
	// freezeRest is the least time between two questions to a guest that was not frozen: a failing check asks at each
	// round, and a freeze begins rarely.
	freezeRest = 5 * time.Second
)

// A freezer watches for frozen file systems, during which a guest cannot do what its checks ask. It speaks to the
// guest only when that can matter: when a check fails, and then until the guest has thawed. Frozen holds the
// verdict for at most hold; after that it is Overdue, and the checks tell the truth.
type freezer struct {
	agent *qga.Agent
	hold  func() time.Duration // 0: a freeze is not asked about
	state *state

	wake chan struct{}
}

func newFreezer(agent *qga.Agent, hold func() time.Duration, s *state) *freezer {
	return &freezer{agent: agent, hold: hold, state: s, wake: make(chan struct{}, 1)}
}

// guard looks, when an attempt has failed, whether a freeze is the cause. If it is, the state holds the check, and
// its worker discards the round. It asks at the first failure of a row, and then rests.
func (f *freezer) guard(attempt probe.Func) probe.Func {
	var asked time.Time // in this row of failures; a worker's attempts never overlap
	return func(ctx context.Context) error {
		err := attempt(ctx)
		if probe.Classify(err) != probe.OutcomeFailure {
			asked = time.Time{}
			return err
		}
		switch {
		case f.hold() <= 0, !answers(err), !asked.IsZero() && time.Since(asked) < freezeRest:
			return err
		case f.state.get().freeze != verdict.Thawed:
			return err // known, and followed until the thaw
		}
		asked = time.Now()
		if f.isFrozen(context.WithoutCancel(ctx)) {
			f.begin()
		}
		return err
	}
}

// begin begins to hold. A freeze that is Overdue is the same one still: another check that fails of it must not
// begin the hold anew.
func (f *freezer) begin() {
	began := false
	f.state.update(func() {
		if f.state.freeze == verdict.Thawed {
			f.state.freeze, began = verdict.Frozen, true
		}
	})
	if !began {
		return
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// answers reports whether asking the agent can tell anything: not if it has just been silent, or talked garbage.
func answers(err error) bool {
	if _, answered := errors.AsType[*qga.Error](err); answered {
		return true
	}
	switch reasonOf(err) {
	case verdict.AgentTimeout, verdict.AgentNotConnected, verdict.AgentError:
		return false
	}
	return true
}

func (f *freezer) isFrozen(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, freezeTimeout)
	defer cancel()
	status, err := f.agent.FSFreezeStatus(ctx)
	return err == nil && status == "frozen"
}

// run follows a freeze until the guest has thawed, for as long as ctx lasts.
func (f *freezer) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
		}
		f.follow(ctx)
	}
}

// follow waits for the thaw. An agent that falls silent meanwhile is still held, but no longer than the hold lasts.
func (f *freezer) follow(ctx context.Context) {
	overdue := time.NewTimer(f.hold())
	defer overdue.Stop()
	ticker := time.NewTicker(freezeInterval)
	defer ticker.Stop()
	set := func(freeze verdict.Freeze) { f.state.update(func() { f.state.freeze = freeze }) }
	instance := f.state.get().vm.Instance
	for {
		select {
		case <-ctx.Done():
			return
		case <-overdue.C:
			set(verdict.Overdue)
		case <-ticker.C:
			if f.state.get().vm.Instance != instance || f.thawed(ctx) {
				set(verdict.Thawed)
				return
			}
		}
	}
}

// thawed reports whether the guest says that it has thawed; silence says nothing.
func (f *freezer) thawed(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, freezeTimeout)
	defer cancel()
	status, err := f.agent.FSFreezeStatus(ctx)
	return err == nil && status == "thawed"
}
