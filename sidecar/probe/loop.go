package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"
)

// maxAttempts is how often an error is tried before its round is discarded
// (k8s v1.37.2 pkg/kubelet/prober/prober.go, maxProbeRetries).
const maxAttempts = 3

// grace is how long a handler may take to return after its context has ended.
const grace = time.Second

// A flight is the attempt that has been started and has not returned.
type flight struct {
	active  bool
	voided  bool // what it returns does not count
	stuck   bool // it did not return in time
	attempt int
	round   time.Time // when the first attempt began
	cancel  context.CancelFunc
}

// void ends the attempt without a result.
func (f *flight) void() {
	if f.active && !f.voided {
		f.voided = true
		f.cancel()
	}
}

// A panicError is what a handler panicked with.
type panicError struct {
	value any
	stack []byte
}

func (p *panicError) Error() string { return fmt.Sprintf("handler panicked: %v", p.value) }

// timers wake the loop.
type timers struct {
	tick    *time.Ticker
	delay   *time.Timer // the initial delay is over
	overdue *time.Timer // the attempt in flight is stuck
}

// Run probes until ctx ends, then cancels the probe in flight, waits for it and
// returns nil. It waits no longer than a second: a handler that has not returned by
// then is logged and left behind. Run is called once.
func (w *Worker) Run(ctx context.Context) error {
	t := timers{time.NewTicker(w.spec.Period), time.NewTimer(time.Hour), time.NewTimer(time.Hour)}
	t.tick.Stop()
	t.delay.Stop()
	t.overdue.Stop()
	defer t.tick.Stop()
	defer t.delay.Stop()
	defer t.overdue.Stop()
	for {
		if w.advance(ctx, &t) && w.onChange != nil {
			w.onChange()
		}
		select {
		case <-ctx.Done():
			w.land()
			return nil
		case <-w.poke:
		case <-t.delay.C:
		case <-t.tick.C:
			w.mu.Lock()
			w.due = true
			w.mu.Unlock()
		case err := <-w.results:
			w.result(ctx, &t, err)
		case <-t.overdue.C:
			w.overdue()
		}
	}
}

// advance does what is to be done now, and reports whether OnChange is due.
func (w *Worker) advance(ctx context.Context, t *timers) (changed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.evaluate(now)
	switch w.snap.Step {
	case StepProbe:
		if w.rearm {
			t.tick.Reset(w.spec.Period)
		}
	case StepDelay:
		t.tick.Stop()
		// Never in the past, or a clock that creeps would make the loop spin.
		left := time.Duration(w.rules.Delay)*time.Second - w.boot.age(now)
		t.delay.Reset(max(left, time.Millisecond))
	default:
		t.tick.Stop()
	}
	w.rearm = false
	if w.due && w.snap.Step == StepProbe && ctx.Err() == nil {
		switch {
		case !w.flight.active:
			w.due = false
			w.flight.round = now
			w.start(ctx, t, 1)
		case w.flight.stuck:
			w.due = false
			w.finish(now, now, 0, &Indeterminate{errors.New("the handler of an earlier round has still not returned")})
		}
	}
	changed, w.dirty = w.dirty, false
	return changed
}

// start begins attempt n of a round.
func (w *Worker) start(ctx context.Context, t *timers, n int) {
	ctx, cancel := context.WithTimeout(ctx, w.spec.Timeout)
	w.flight = flight{active: true, attempt: n, round: w.flight.round, cancel: cancel}
	t.overdue.Reset(w.spec.Timeout + grace)
	// One goroutine per attempt: it ends with its handler, and only one is ever
	// started before the last has sent its result.
	go w.attempt(ctx)
}

func (w *Worker) attempt(ctx context.Context) {
	var err error
	returned := false
	defer func() {
		if !returned {
			// A nil value is runtime.Goexit, which ends the goroutine all the same.
			err = &Indeterminate{&panicError{recover(), debug.Stack()}}
		}
		w.results <- err
	}()
	err = w.fn(ctx)
	returned = true
}

// result takes in what the attempt in flight returned.
func (w *Worker) result(ctx context.Context, t *timers, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t.overdue.Stop()
	f := w.flight
	f.cancel()
	w.flight = flight{}
	switch {
	case f.voided || ctx.Err() != nil: // it was cancelled, or has been judged already
		w.dirty = w.dirty || f.stuck
	case f.attempt < maxAttempts && Classify(err) == OutcomeError:
		w.flight.round = f.round
		w.start(ctx, t, f.attempt+1)
	default:
		w.finish(time.Now(), f.round, f.attempt, err)
	}
}

// overdue gives up waiting for the attempt in flight.
func (w *Worker) overdue() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.flight.active || w.flight.stuck {
		return
	}
	w.flight.stuck, w.dirty = true, true
	w.log.Error("handler did not return after its context ended", "timeout", w.spec.Timeout)
	if !w.flight.voided {
		w.flight.void()
		w.finish(time.Now(), w.flight.round, w.flight.attempt,
			fmt.Errorf("no answer within %v, and the handler has not returned: %w", w.spec.Timeout, context.DeadlineExceeded))
	}
}

// finish ends a round.
func (w *Worker) finish(now, began time.Time, attempts int, err error) {
	outcome := Classify(err)
	before := w.machine.State()
	w.machine.Observe(outcome)
	if w.machine.State() != before {
		w.snap.Changed = now
	}
	w.snap.Runs++
	switch outcome {
	case OutcomeFailure:
		w.snap.Failures++
	case OutcomeError:
		w.snap.Errors++
	}
	r := Record{At: began, Duration: now.Sub(began), Outcome: outcome, Attempts: attempts, Err: err, State: w.machine.State()}
	w.all.add(r)
	if outcome != OutcomeSuccess {
		w.setbacks.add(r)
		w.snap.Cause = err
	} else if r.State == StateSuccess {
		w.snap.Cause = nil
	}
	w.report(r)
	w.snap.Outcome, w.snap.Err, w.snap.Attempts = outcome, err, attempts
	w.snap.LastRun, w.snap.Duration = began, r.Duration
	w.dirty = true
}

// report logs a round: at debug level, but for the first of several panics.
func (w *Worker) report(r Record) {
	if p, ok := errors.AsType[*panicError](r.Err); ok {
		if _, again := errors.AsType[*panicError](w.snap.Err); !again {
			w.log.Error("handler panicked", "value", fmt.Sprint(p.value), "stack", string(p.stack))
		}
	}
	ctx := context.Background()
	if !w.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	w.log.LogAttrs(ctx, slog.LevelDebug, "probed", slog.String("outcome", r.Outcome.String()), slog.String("state", r.State.String()),
		slog.Int("run", w.machine.Run()), slog.Int("attempts", r.Attempts), slog.Duration("took", r.Duration), slog.Any("error", r.Err))
}

// land ends the attempt in flight when Run ends.
func (w *Worker) land() {
	w.mu.Lock()
	w.flight.void()
	active := w.flight.active
	w.mu.Unlock()
	if !active {
		return
	}
	wait := time.NewTimer(grace)
	defer wait.Stop()
	select {
	case <-w.results:
		w.mu.Lock()
		w.flight = flight{}
		w.mu.Unlock()
	case <-wait.C:
		w.log.Error("handler left behind: it does not return though its context ended")
	}
}
