package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// rig is a worker in a synctest bubble with a handler that takes notes.
type rig struct {
	*Worker
	t       *testing.T
	began   time.Time
	mu      sync.Mutex      // guards calls and logs: sleeping orders nothing for the race detector
	calls   []time.Duration // when each attempt began
	active  atomic.Int32
	changes atomic.Int32
	handle  func(ctx context.Context, n int) error // n counts attempts from 1
	logs    strings.Builder
}

const second = time.Second

// newRig starts a worker; it is stopped and joined when the test ends.
func newRig(t *testing.T, spec Spec, handle func(ctx context.Context, n int) error) *rig {
	t.Helper()
	r := &rig{t: t, began: time.Now(), handle: handle}
	r.Worker = NewWorker(spec, r.probe, &Config{
		OnChange: func() { r.changes.Add(1); r.Snapshot() },
		Logger:   slog.New(slog.NewTextHandler(r, nil)),
		History:  4,
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
	synctest.Wait()
	return r
}

func (r *rig) probe(ctx context.Context) error {
	if r.active.Add(1) != 1 {
		r.t.Error("probes overlap")
	}
	defer r.active.Add(-1)
	r.mu.Lock()
	r.calls = append(r.calls, time.Since(r.began))
	n := len(r.calls)
	r.mu.Unlock()
	if r.handle == nil {
		return nil
	}
	return r.handle(ctx, n)
}

// until sleeps until d after the start, and lets everything settle.
func (r *rig) until(d time.Duration) {
	time.Sleep(d - time.Since(r.began))
	synctest.Wait()
}

func (r *rig) wantCalls(want ...time.Duration) {
	r.t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.calls, want) {
		r.t.Errorf("probed at %v, want %v", r.calls, want)
	}
}

func (r *rig) attempts() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.calls)
}

// Write takes the worker's log.
func (r *rig) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.logs.Write(p)
}

func (r *rig) log() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.logs.String()
}

func (r *rig) want(state State, run int) {
	r.t.Helper()
	synctest.Wait()
	if s := r.Snapshot(); s.State != state || s.Run != run {
		r.t.Errorf("after %v: %v, run %d; want %v, run %d", time.Since(r.began), s.State, s.Run, state, run)
	}
}

// vm is a VM that runs and whose startup is over.
func vm(started time.Time) Target {
	return Target{Instance: "a", Running: true, Started: true, StartedAt: started}
}

func outcomes(script string) func(context.Context, int) error {
	return func(_ context.Context, n int) error {
		switch script[min(n, len(script))-1] {
		case 'S':
			return nil
		case 'W':
			return &Warning{errors.New("warned")}
		case 'E':
			return fmt.Errorf("wrapped: %w", &Indeterminate{errors.New("cannot tell")})
		default:
			return fmt.Errorf("failed %d", n)
		}
	}
}

// wait blocks until its context ends.
func wait(ctx context.Context, _ int) error {
	<-ctx.Done()
	return ctx.Err()
}
