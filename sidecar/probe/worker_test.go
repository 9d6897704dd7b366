package probe

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestWorkerThresholds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Spec{Period: 10 * second, SuccessThreshold: 2, FailureThreshold: 3}, outcomes("SSFFFSSS"))
		r.want(StateFailure, 0)
		r.wantCalls()
		r.until(7 * second)
		r.SetTarget(vm(time.Now()))
		r.want(StateFailure, 1)
		for i, want := range []State{StateSuccess, StateSuccess, StateSuccess, StateFailure, StateFailure, StateSuccess} {
			r.until(time.Duration(17+10*i) * second)
			if got := r.Snapshot().State; got != want {
				t.Errorf("round %d: %v, want %v", i+2, got, want)
			}
		}
		r.wantCalls(7*second, 17*second, 27*second, 37*second, 47*second, 57*second, 67*second)
		s := r.Snapshot()
		if s.Runs != 7 || s.Failures != 3 || s.Errors != 0 || s.Cause != nil || s.Step != StepProbe {
			t.Errorf("%+v", s)
		}
		if got := s.Changed.Sub(r.began); got != 67*second {
			t.Errorf("changed after %v", got)
		}
		if len(s.History) != 4 || len(s.Setbacks) != 3 || s.Setbacks[0].Err.Error() != "failed 3" || s.History[3].State != StateSuccess {
			t.Errorf("history %+v, setbacks %+v", s.History, s.Setbacks)
		}
	})
}

func TestWorkerInitialDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Spec{Kind: Liveness, Period: 4 * second, InitialDelay: 10*second + 500*time.Millisecond}, nil)
		r.until(3 * second)
		r.SetTarget(vm(time.Now().Add(-2 * second))) // boots since second 1
		if s := r.Snapshot(); s.Step != StepDelay || s.State != StateSuccess {
			t.Errorf("%+v", s)
		}
		r.until(20 * second)
		r.wantCalls(12*second, 16*second, 20*second) // 10.5 s is 11
	})
}

func TestWorkerClock(t *testing.T) {
	delayed := Spec{Period: 100 * second, InitialDelay: 10 * second}
	t.Run("no start known", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, delayed, nil)
			r.SetTarget(Target{Instance: "a", Running: true, Held: true, Started: true})
			r.until(5 * second)
			r.SetTarget(vm(time.Time{}))
			r.until(20 * second)
			r.wantCalls(15 * second)
		})
	})
	t.Run("start in the future", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, delayed, nil)
			r.SetTarget(vm(time.Now().Add(time.Hour)))
			r.until(20 * second)
			r.wantCalls(10 * second)
		})
	})
	t.Run("learnt late, lost and set right are no reboots", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, delayed, nil)
			r.SetTarget(vm(time.Time{}))
			r.until(2 * second)
			r.SetTarget(vm(r.began.Add(-3 * second)))
			r.until(20 * second)
			r.SetTarget(vm(time.Time{}))
			r.want(StateSuccess, 1)
			r.SetTarget(vm(r.began.Add(-3 * second)))
			r.SetTarget(vm(r.began.Add(-5 * second)))
			r.want(StateSuccess, 1)
			r.wantCalls(7 * second)
		})
	})
	t.Run("migrated in", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, delayed, nil)
			target := vm(r.began.Add(-second)) // of QEMU's process: not a boot of this guest
			target.Booted, target.Held = true, true
			r.SetTarget(target)
			r.until(5 * second)
			target.StartedAt, target.Held = time.Now(), false
			r.SetTarget(target)
			r.wantCalls(5 * second)
			r.until(7 * second)
			target.StartedAt = time.Now()
			r.SetTarget(target)
			r.want(StateFailure, 0)
			r.until(20 * second)
			r.wantCalls(5*second, 17*second)
		})
	})
}

func TestWorkerReboot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Spec{Kind: Liveness, Period: second, InitialDelay: 10 * second, FailureThreshold: 3}, outcomes("FF"))
		r.SetTarget(vm(r.began.Add(-10 * second)))
		r.until(1500 * time.Millisecond)
		r.want(StateSuccess, 2)
		r.SetTarget(vm(time.Now())) // a RESET between two probes
		if s := r.Snapshot(); s.State != StateSuccess || s.Run != 0 || s.Step != StepDelay || s.Outcome != OutcomeNone || s.Err != nil {
			t.Errorf("not at once: %+v", s)
		}
		r.until(11 * second)
		r.wantCalls(0, second)
		r.until(14 * second)
		r.wantCalls(0, second, 11500*time.Millisecond, 12500*time.Millisecond, 13500*time.Millisecond)
		r.want(StateFailure, 0)
		r.until(30 * second) // on hold
		if n := r.attempts(); n != 5 {
			t.Errorf("%d probes, want 5: liveness failed, nothing more is probed", n)
		}
		next := vm(time.Now())
		next.Instance = "b"
		r.SetTarget(next)
		r.want(StateSuccess, 0)
		r.until(40 * second)
		if n := r.attempts(); n != 6 {
			t.Errorf("%d probes, want 6: a new instance ends the hold", n)
		}
	})
}

func TestWorkerHeldMidProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(ctx context.Context, n int) error {
			if n == 2 {
				return wait(ctx, n)
			}
			return nil
		}
		r := newRig(t, Spec{Period: 10 * second, Timeout: 5 * second, FailureThreshold: 1}, slow)
		target := vm(r.began)
		r.SetTarget(target)
		r.until(12 * second) // the second probe is in flight
		target.Held = true
		r.SetTarget(target)
		r.until(32 * second)
		r.wantCalls(0, 10*second)
		r.want(StateSuccess, 1)
		if s := r.Snapshot(); s.Runs != 1 || s.Failures != 0 || s.Step != StepHeld || len(s.History) != 1 {
			t.Errorf("a cancelled probe counted: %+v", s)
		}
		r.until(33 * second)
		target.Held = false
		r.SetTarget(target)
		r.until(45 * second) // at once, and in step from here
		r.wantCalls(0, 10*second, 33*second, 43*second)
	})
}

func TestWorkerNewInstanceMidProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Spec{Period: 10 * second, Timeout: 5 * second, FailureThreshold: 1, SuccessThreshold: 1}, func(ctx context.Context, n int) error {
			if n == 2 {
				<-ctx.Done()
				time.Sleep(100 * time.Millisecond) // slow to give up
				return nil
			}
			return errors.New("no")
		})
		r.SetTarget(vm(r.began))
		r.until(11 * second)
		next := vm(time.Now())
		next.Instance = "b"
		r.SetTarget(next)
		r.until(12 * second)
		r.wantCalls(0, 10*second, 11100*time.Millisecond)
		r.want(StateFailure, 1)
		if s := r.Snapshot(); s.Runs != 2 {
			t.Errorf("the old instance's answer counted for the new one: %+v", s)
		}
	})
}

func TestWorkerDroppedTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Spec{Period: 2 * second, Timeout: 7 * second}, func(ctx context.Context, n int) error {
			if n == 2 {
				return wait(ctx, n)
			}
			return nil
		})
		r.SetTarget(vm(r.began))
		r.until(13 * second)
		// From 2 to 9 it hangs; of the ticks at 4, 6 and 8 one is left, which is taken at
		// 9; the phase stays.
		r.wantCalls(0, 2*second, 9*second, 10*second, 12*second)
	})
}

func TestWorkerStartup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startup := newRig(t, Spec{Kind: Startup, Period: 5 * second, FailureThreshold: 60}, outcomes("FFS"))
		ready := newRig(t, Spec{Kind: Readiness, Period: 10 * second}, nil)
		target := Target{Instance: "a", Running: true, StartedAt: time.Now()}
		set := func() {
			target.Started = false
			startup.SetTarget(target)
			target.Started = startup.Snapshot().State == StateSuccess
			ready.SetTarget(target)
		}
		set()
		startup.until(10 * second)
		if s := ready.Snapshot(); s.Step != StepGate || s.Runs != 0 {
			t.Errorf("%+v", s)
		}
		set()
		ready.wantCalls(10 * second) // at once when the gate opens
		ready.until(12 * second)
		target.StartedAt = time.Now()
		set()
		if target.Started || ready.Snapshot().Step != StepGate || ready.Snapshot().State != StateFailure {
			t.Errorf("a reboot runs startup again: %+v", ready.Snapshot())
		}
		startup.wantCalls(0, 5*second, 10*second, 12*second)
	})
}

func TestWorkerAbsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Spec{Period: 10 * second}, nil)
		r.SetTarget(vm(r.began))
		r.until(time.Second)
		gone := vm(r.began)
		gone.Running = false
		r.SetTarget(gone)
		r.until(time.Minute)
		r.wantCalls(0)
		r.want(StateSuccess, 1)
		if s := r.Snapshot(); s.Step != StepAbsent {
			t.Errorf("%+v", s)
		}
	})
}

func TestWorkerOnChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Spec{Period: 10 * second}, nil)
		before := r.changes.Load()
		r.SetTarget(vm(r.began))
		synctest.Wait()
		if got := r.changes.Load(); got == before {
			t.Error("not called for the first result")
		}
		r.until(9 * second)
		quiet := r.changes.Load()
		r.SetTarget(vm(r.began)) // nothing new
		synctest.Wait()
		if got := r.changes.Load(); got != quiet {
			t.Error("called though nothing changed")
		}
		r.until(11 * second)
		if got := r.changes.Load(); got != quiet+1 {
			t.Errorf("called %d times for one round", got-quiet)
		}
	})
}

// TestWorkerOnChangeSets sets targets from OnChange, as the daemon does.
func TestWorkerOnChangeSets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w *Worker
		target := vm(time.Now())
		w = NewWorker(Spec{Period: second}, func(context.Context) error { return nil }, &Config{OnChange: func() {
			target.Held = w.Snapshot().Runs >= 3
			w.SetTarget(target)
		}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		w.SetTarget(target)
		time.Sleep(10 * second)
		if s := w.Snapshot(); s.Runs != 3 || s.Step != StepHeld {
			t.Errorf("%+v", s)
		}
		cancel()
		<-done
	})
}

func TestWorkerSetKeepRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Spec{Kind: Readiness, Period: second, SuccessThreshold: 2}, nil)
		target := Target{Instance: "a", Running: true, Started: true}
		r.SetTarget(target)
		r.until(3*second + second/2)
		target.Instance = "b"
		r.SetTarget(target)
		synctest.Wait()
		if s := r.Snapshot(); s.State != StateFailure || s.Run != 1 {
			t.Errorf("runs forgotten: %v after %d", s.State, s.Run)
		}
		r.SetKeepRuns(true)
		r.until(6 * second)
		target.Instance = "c"
		r.SetTarget(target)
		synctest.Wait()
		if s := r.Snapshot(); s.State != StateSuccess || s.Run < 3 {
			t.Errorf("runs kept: %v after %d", s.State, s.Run)
		}
		if !r.Spec().KeepRuns {
			t.Error("the spec does not say so")
		}
	})
}

func TestHistory(t *testing.T) {
	h := history{keep: 3}
	var views [][]Record
	for i := range 20 {
		h.add(Record{Attempts: i})
		views = append(views, h.last())
	}
	for i, v := range views {
		for j, r := range v {
			if want := i - len(v) + 1 + j; r.Attempts != want {
				t.Errorf("view %d: record %d is %d, want %d", i, j, r.Attempts, want)
			}
		}
		if len(v) != min(i+1, 3) || cap(v) != len(v) {
			t.Errorf("view %d: len %d, cap %d", i, len(v), cap(v))
		}
	}
}
