package libvirt_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/qga"
)

// A record is all that a Watch has told.
type record struct {
	t *testing.T

	mu      sync.Mutex
	states  []qga.VMState
	times   []time.Time
	changed chan struct{}
}

// watch follows the domain until the test ends.
func watch(t *testing.T, addr qga.Addr) *record {
	t.Helper()
	m, err := qga.NewMonitor(addr, &qga.MonitorConfig{PollInterval: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	r := &record{t: t, changed: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Watch(ctx, r.add) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch: %v", err)
		}
		if t.Failed() {
			t.Logf("what the monitor told:\n%s", r)
		}
	})
	return r
}

func (r *record) add(s qga.VMState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.states = append(r.states, s)
	r.times = append(r.times, time.Now())
	close(r.changed)
	r.changed = make(chan struct{})
}

// last returns the state told last.
func (r *record) last() qga.VMState {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.states) == 0 {
		return qga.VMState{}
	}
	return r.states[len(r.states)-1]
}

// mark returns a place in the record, for since.
func (r *record) mark() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.states)
}

// since returns what was told since the mark.
func (r *record) since(mark int) []qga.VMState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.states[mark:])
}

// await waits until the last state satisfies ok, and returns it.
func (r *record) await(what string, ok func(qga.VMState) bool) qga.VMState {
	r.t.Helper()
	limit := time.After(patience)
	for {
		r.mu.Lock()
		changed := r.changed
		r.mu.Unlock()
		if s := r.last(); ok(s) {
			return s
		}
		select {
		case <-changed:
		case <-limit:
			r.t.Fatalf("%s: not after %v; the last state was %s", what, patience, format(r.last()))
		}
	}
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for i, s := range r.states {
		fmt.Fprintln(&b, r.times[i].Format("15:04:05.000"), format(s))
	}
	return b.String()
}

func format(s qga.VMState) string {
	text := fmt.Sprintf("%v %q %s port=%v resets=%d panics=%d ioerrors=%d started=%s instance=%q",
		s.Link, s.Status, s.PauseReason, s.AgentPort, s.Resets, s.Panics, s.IOErrors, s.StartedAt.Format("15:04:05.000"), s.Instance)
	if s.Shutdown != nil {
		text += fmt.Sprintf(" shutdown=%+v", *s.Shutdown)
	}
	if s.IOError != nil {
		text += fmt.Sprintf(" ioerror=%+v", *s.IOError)
	}
	if s.LinkErr != nil {
		text += fmt.Sprintf(" (%v)", s.LinkErr)
	}
	return text
}

// An agent is the client under test, running until the test ends.
type agent struct {
	*qga.Agent
	t *testing.T
}

func startAgent(t *testing.T, addr qga.Addr) *agent {
	t.Helper()
	a, err := qga.NewAgent(addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return &agent{a, t}
}

// ping pings within a limit.
func (a *agent) ping(limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return a.Ping(ctx)
}

// awaitPing pings until the agent answers.
func (a *agent) awaitPing() {
	a.t.Helper()
	a.await("the agent's answer", func(err error) bool { return err == nil })
}

// await pings until the outcome is as wanted.
func (a *agent) await(what string, ok func(error) bool) {
	a.t.Helper()
	limit := time.After(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := a.ping(3 * time.Second)
		if ok(err) {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			a.t.Fatalf("%s: not after %v: %v", what, patience, err)
		}
	}
}

// wantErr checks the error's kind: what it must match, and what it must not.
func wantErr(t *testing.T, err, is error, not ...error) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Errorf("error %v, want one that is %q", err, is)
	}
	for _, n := range not {
		if errors.Is(err, n) {
			t.Errorf("error %v must not be %q", err, n)
		}
	}
}
