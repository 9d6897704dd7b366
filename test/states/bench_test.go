package states_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/test/daemon"
	"github.com/guestprobe/guestprobe/test/guest"
)

// BenchmarkBadNews measures how long it takes from the moment at which QEMU reports a fault, by the time in its event,
// until /readyz answers 503. The fault is a pause by somebody else. It makes a fixed number of faults; machines take
// turns, one fault at a time, because each has to run for a second before it is ready again.
func BenchmarkBadNews(b *testing.B) {
	const machines, faults = 4, 120
	binary := daemon.Build(b)
	type target struct {
		vm *guest.VM
		d  *daemon.Daemon
	}
	var targets []target
	for i := range machines {
		vm := guest.Start(b, guest.Options{})
		targets = append(targets, target{vm, daemon.On(b, binary, fmt.Sprintf("machine %d", i), vm, `
apiVersion: guestprobe.dev/v1alpha1
kind: GuestProbes
metadata: {name: bench}
spec:
  readinessProbe: {guestAgentPing: {}, periodSeconds: 1, failureThreshold: 10}
`)})
	}
	for _, x := range targets {
		x.vm.WaitReady()
	}
	var took []time.Duration
	for i := range faults {
		x := targets[i%machines]
		x.d.Until("readiness", func(s daemon.Status) error {
			if !s.Ready {
				return errors.New(s.Reason)
			}
			return nil
		})
		told := make(chan time.Time, 1)
		failed := make(chan error, 1)
		go func() { // ends with the first 503, or with the daemon
			at, err := notReady(x.d)
			told <- at
			failed <- err
		}()
		mark := x.vm.Mark()
		x.vm.Command("stop", nil, nil)
		at := x.vm.WaitEvent(mark, "STOP").At
		took = append(took, (<-told).Sub(at))
		if err := <-failed; err != nil {
			b.Fatal(err)
		}
		x.vm.Command("cont", nil, nil)
	}
	report(b, took)
}

// notReady asks every half millisecond, over one connection, and returns when the first 503 was here.
func notReady(d *daemon.Daemon) (time.Time, error) {
	tick := time.NewTicker(500 * time.Microsecond)
	defer tick.Stop()
	for {
		code, _, err := d.Get("/readyz")
		if err != nil || code == http.StatusServiceUnavailable {
			return time.Now(), err
		}
		<-tick.C
	}
}

// report prints the distribution.
func report(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	for _, q := range []struct {
		name string
		part float64
	}{{"p50-ms", 0.5}, {"p90-ms", 0.9}, {"p99-ms", 0.99}, {"max-ms", 1}} {
		i := min(int(q.part*float64(len(took))), len(took)-1)
		b.ReportMetric(float64(took[i].Microseconds())/1000, q.name)
	}
	b.ReportMetric(0, "ns/op") // the iterations are none
	var text strings.Builder
	for _, limit := range []time.Duration{1, 2, 5, 10, 20, 50, 1000} {
		n, _ := slices.BinarySearch(took, limit*time.Millisecond)
		fmt.Fprintf(&text, "  < %d ms: %d", limit, n)
	}
	b.Logf("from QEMU's event to a 503, %d faults:%s", len(took), text.String())
}
