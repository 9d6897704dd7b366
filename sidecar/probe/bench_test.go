package probe

import (
	"context"
	"testing"
	"time"
)

// BenchmarkRound is a round through the loop, to be compared with the context alone
// that every attempt needs.
func BenchmarkRound(b *testing.B) {
	w := NewWorker(Spec{Period: time.Hour}, func(context.Context) error { return nil }, nil)
	ctx := b.Context()
	t := timers{time.NewTicker(time.Hour), time.NewTimer(time.Hour), time.NewTimer(time.Hour)}
	defer t.tick.Stop()
	defer t.delay.Stop()
	defer t.overdue.Stop()
	w.SetTarget(vm(time.Now()))
	b.ReportAllocs()
	for b.Loop() {
		w.mu.Lock()
		w.due = true
		w.mu.Unlock()
		w.advance(ctx, &t)
		w.result(ctx, &t, <-w.results)
	}
}

func BenchmarkRoundContextAlone(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_, cancel := context.WithTimeout(b.Context(), time.Second)
		cancel()
	}
}

func BenchmarkSnapshot(b *testing.B) {
	w := NewWorker(Spec{}, func(context.Context) error { return nil }, nil)
	for range 50 {
		w.finish(time.Now(), time.Now(), 1, nil)
	}
	b.ReportAllocs()
	for b.Loop() {
		w.Snapshot()
	}
}
