package qga

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/qga/qgatest"
)

// BenchmarkEventToNotify measures what lies between the moment a monitor sends
// a fault and the call of notify that tells it: socket, decoding, state.
func BenchmarkEventToNotify(b *testing.B) {
	for _, bm := range []struct {
		name   string
		status string
		fault  func(*qgatest.VM)
	}{
		{"io-error", "io-error", func(vm *qgatest.VM) { vm.IOError("disk0", true) }},
		{"panic", "guest-panicked", func(vm *qgatest.VM) { vm.Panic("hyper-v") }},
		{"stop", "paused", func(vm *qgatest.VM) { vm.Pause() }},
	} {
		b.Run(bm.name, func(b *testing.B) {
			vm := startVM(b, qgatest.Config{Status: "running"})
			told := make(chan VMState, 16)
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan error, 1)
			m := newMonitor(b, vm.MonitorAddr(), nil)
			go func() { done <- m.Watch(ctx, func(s VMState) { told <- s }) }()
			defer func() { cancel(); <-done }()
			until := func(status string) {
				for s := range told {
					if s.Link == LinkUp && s.Status == status {
						return
					}
				}
			}
			until("running")

			took := make([]time.Duration, 0, b.N)
			b.ReportAllocs()
			for b.Loop() {
				start := time.Now()
				bm.fault(vm)
				until(bm.status)
				took = append(took, time.Since(start))
				b.StopTimer()
				vm.SetStatus("running")
				until("running")
				b.StartTimer()
			}
			slices.Sort(took)
			at := func(q float64) float64 {
				return float64(took[int(q*float64(len(took)-1))]) / float64(time.Microsecond)
			}
			b.ReportMetric(at(0.50), "p50-µs")
			b.ReportMetric(at(0.99), "p99-µs")
			b.ReportMetric(at(1), "max-µs")
		})
	}
}

// BenchmarkDecodeQMP measures the decoding of what is decoded most.
func BenchmarkDecodeQMP(b *testing.B) {
	for _, bm := range []struct{ name, line string }{
		{"status", `{"return": {"status": "running", "singlestep": false, "running": true}, "id": 2}`},
		{"event", `{"timestamp": {"seconds": 1796079297, "microseconds": 234649}, "event": "RESET", "data": {"guest": false, "reason": "host-qmp-system-reset"}}`},
	} {
		b.Run(bm.name, func(b *testing.B) {
			line := []byte(bm.line)
			b.ReportAllocs()
			b.SetBytes(int64(len(line)))
			for b.Loop() {
				if _, err := decodeQMP(line); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
