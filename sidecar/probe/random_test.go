package probe

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestWorkerRandom drives workers through random targets and handlers. Whatever comes:
// probes do not overlap (the rig sees to that), none begins or counts while the target
// is held or absent, the counters add up, and liveness never fails within the initial
// delay of a boot.
func TestWorkerRandom(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 7))
			spec := Spec{
				Kind: Kind(seed % 3), Period: time.Duration(1+rng.IntN(4)) * second, Timeout: time.Duration(1+rng.IntN(6)) * second,
				InitialDelay: time.Duration(rng.IntN(4)) * second, SuccessThreshold: 1 + rng.IntN(2), FailureThreshold: 1 + rng.IntN(3),
			}
			target := Target{Instance: "a", StartedAt: time.Now()}
			var mu sync.Mutex // guards rng and target between here and the handler
			r := newRig(t, spec, func(ctx context.Context, _ int) error {
				mu.Lock()
				now, how, long := target, rng.IntN(10), time.Duration(rng.IntN(5000))*time.Millisecond
				mu.Unlock()
				if ctx.Err() == nil && (now.Held || !now.Running) {
					t.Error("probed what must not be probed")
				}
				select {
				case <-time.After(long):
				case <-ctx.Done():
					if how == 0 {
						time.Sleep(3 * second) // hears badly
					}
					return ctx.Err()
				}
				switch how {
				case 1, 2, 3:
					return errors.New("no")
				case 4:
					return &Indeterminate{errors.New("cannot tell")}
				case 5:
					panic("seed")
				}
				return nil
			})
			for range 150 {
				mu.Lock()
				switch rng.IntN(12) {
				case 0:
					target.Instance += "'"
					target.StartedAt = time.Now()
				case 1:
					target.StartedAt = time.Now()
				case 2, 3:
					target.Held = !target.Held
				case 4:
					target.Running = false
				case 5:
					target.Started = spec.Kind != Startup && rng.IntN(4) == 0
				default:
					target.Running, target.Started = true, spec.Kind != Startup
				}
				pause := time.Duration(rng.IntN(4000)) * time.Millisecond
				mu.Unlock()
				r.SetTarget(target)
				before := r.Snapshot()
				if before.OnHold && spec.Kind == Readiness {
					t.Error("readiness on hold")
				}
				time.Sleep(pause)
				synctest.Wait()
				after := r.Snapshot()
				if target.Held || !target.Running {
					if after.State != before.State || after.Runs != before.Runs || after.Run != before.Run {
						t.Errorf("moved while it must not: %+v, %+v", before, after)
					}
				}
				if spec.Kind == Liveness && after.State == StateFailure && time.Since(target.StartedAt) < spec.InitialDelay {
					t.Error("liveness failed within the initial delay")
				}
				if after.Failures+after.Errors > after.Runs || after.Runs < before.Runs {
					t.Errorf("counters: %+v", after)
				}
			}
			r.SetTarget(Target{})
			time.Sleep(4 * second) // the last one may hear badly
			if r.Snapshot().Runs == 0 {
				t.Errorf("seed %d probed nothing", seed)
			}
		})
	}
}
