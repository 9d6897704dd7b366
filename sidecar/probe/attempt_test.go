package probe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestWorkerMapping(t *testing.T) {
	for path, file := range golden(t) {
		for _, c := range file.Mapping {
			t.Run(fmt.Sprintf("%s/%s/%v", path, c.Raw, c.RawError), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					raw := c.Raw
					if c.RawError {
						raw = "error"
					}
					r := newRig(t, Spec{Kind: Readiness, Period: 10 * second}, func(context.Context, int) error { return rawError(t, raw) })
					r.SetTarget(vm(time.Now()))
					synctest.Wait()
					s := r.Snapshot()
					if r.attempts() != c.Attempts || s.Attempts != c.Attempts || s.Runs != 1 {
						t.Errorf("%d calls, %+v; want %d attempts", r.attempts(), s, c.Attempts)
					}
					if got := s.Errors == 1; got != c.Discarded {
						t.Errorf("discarded = %v, want %v", got, c.Discarded)
					}
					if got, want := s.Failures == 1, c.Counter != nil && *c.Counter == "failed"; got != want {
						t.Errorf("counted as failure = %v, want %v", got, want)
					}
					if got, want := s.State == StateSuccess, !c.Discarded && c.Result == "Success"; got != want {
						t.Errorf("state %v, want %s", s.State, c.Result)
					}
					if (s.Err == nil) != (raw == "success") || (s.Cause == nil) != (raw == "success") {
						t.Errorf("error %v, cause %v", s.Err, s.Cause)
					}
				})
			})
		}
	}
}

func TestWorkerRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Each attempt has the whole timeout, and there is no pause between them.
		r := newRig(t, Spec{Period: 10 * second, Timeout: 2 * second}, func(ctx context.Context, n int) error {
			<-ctx.Done()
			if n < 3 {
				return &Indeterminate{ctx.Err()}
			}
			return nil
		})
		r.SetTarget(vm(time.Now()))
		r.until(7 * second)
		r.wantCalls(0, 2*second, 4*second)
		s := r.Snapshot()
		if s.State != StateSuccess || s.Attempts != 3 || s.Duration != 6*second || s.Errors != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestWorkerTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Spec{Period: 10 * second, Timeout: 3 * second, FailureThreshold: 2}, wait)
		r.SetTarget(vm(r.began))
		r.until(4 * second)
		s := r.Snapshot()
		if s.Failures != 1 || s.Duration != 3*second || !errors.Is(s.Err, context.DeadlineExceeded) || s.Stuck {
			t.Errorf("%+v", s)
		}
		r.until(14 * second)
		r.want(StateFailure, 2)
	})
}

func TestWorkerStuckHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		r := newRig(t, Spec{Period: 5 * second, FailureThreshold: 2}, func(_ context.Context, n int) error {
			if n == 2 {
				<-release // deaf to its context
			}
			return nil
		})
		r.SetTarget(vm(r.began))
		r.until(6 * second)
		if s := r.Snapshot(); s.Failures != 0 || s.Stuck {
			t.Errorf("given up too early: %+v", s)
		}
		r.until(8 * second) // 5 + 1 + 1
		s := r.Snapshot()
		if s.Failures != 1 || !s.Stuck || !errors.Is(s.Err, context.DeadlineExceeded) {
			t.Errorf("%+v", s)
		}
		r.until(21 * second) // ticks at 10, 15, 20
		s = r.Snapshot()
		if s.Failures != 1 || s.Errors != 3 || s.State != StateSuccess || s.Run != 1 {
			t.Errorf("rounds without a handler must be discarded: %+v", s)
		}
		r.wantCalls(0, 5*second)
		close(release)
		r.until(26 * second)
		r.wantCalls(0, 5*second, 25*second)
		if s := r.Snapshot(); s.Stuck || s.State != StateSuccess || s.Runs != 6 {
			t.Errorf("%+v", s)
		}
		if n := strings.Count(r.log(), "did not return"); n != 1 {
			t.Errorf("logged %d times", n)
		}
	})
}

func TestWorkerEndsWithStuckHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		w := NewWorker(Spec{}, func(context.Context) error { <-release; return nil }, nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan time.Time)
		go func() {
			if err := w.Run(ctx); err != nil {
				t.Error(err)
			}
			done <- time.Now()
		}()
		w.SetTarget(vm(time.Now()))
		synctest.Wait()
		cancelled := time.Now()
		cancel()
		if took := (<-done).Sub(cancelled); took != grace {
			t.Errorf("Run took %v to end", took)
		}
		close(release) // the handler's goroutine ends although nobody listens
	})
}

func TestWorkerCancelCountsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWorker(Spec{Kind: Liveness, FailureThreshold: 1}, func(ctx context.Context) error { return wait(ctx, 0) }, nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		w.SetTarget(vm(time.Now()))
		synctest.Wait()
		cancel()
		<-done
		if s := w.Snapshot(); s.State != StateSuccess || s.Runs != 0 {
			t.Errorf("%+v", s)
		}

		// The same if the loop sees the answer before the cancellation.
		w = NewWorker(Spec{Kind: Liveness, FailureThreshold: 1}, func(ctx context.Context) error { return wait(ctx, 0) }, nil)
		ctx, cancel = context.WithCancel(t.Context())
		timers := timers{time.NewTicker(time.Hour), time.NewTimer(time.Hour), time.NewTimer(time.Hour)}
		w.SetTarget(vm(time.Now()))
		w.advance(ctx, &timers)
		cancel()
		w.result(ctx, &timers, <-w.results)
		if s := w.Snapshot(); s.State != StateSuccess || s.Runs != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestWorkerPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Spec{Name: "web", Kind: Liveness, Period: 10 * second, FailureThreshold: 1}, func(context.Context, int) error { panic("boo") })
		r.SetTarget(vm(r.began))
		r.until(21 * second)
		s := r.Snapshot()
		if s.State != StateSuccess || s.Errors != 3 || r.attempts() != 9 || s.Err.Error() != "handler panicked: boo" {
			t.Errorf("%d calls, %+v", r.attempts(), s)
		}
		log := r.log()
		if strings.Count(log, "handler panicked") != 1 || !strings.Contains(log, "check=web") || !strings.Contains(log, "attempt_test.go") {
			t.Errorf("log: %s", log)
		}
	})
}

func TestClassify(t *testing.T) {
	tests := []struct {
		err  error
		want Outcome
	}{
		{nil, OutcomeSuccess},
		{errors.New("x"), OutcomeFailure},
		{context.DeadlineExceeded, OutcomeFailure},
		{&Warning{}, OutcomeWarning},
		{fmt.Errorf("x: %w", &Warning{errors.New("y")}), OutcomeWarning},
		{fmt.Errorf("x: %w", &Indeterminate{}), OutcomeError},
	}
	for _, tt := range tests {
		if got := Classify(tt.err); got != tt.want {
			t.Errorf("Classify(%v) = %v, want %v", tt.err, got, tt.want)
		}
	}
}
