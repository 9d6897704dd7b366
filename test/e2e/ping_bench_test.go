package e2e_test

import (
	"bufio"
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/test/guest"
)

// BenchmarkGuestPing compares guest-ping through qga with a bare socket loop on the same agent in a real guest. The
// channel serves one client, so they take turns in blocks; the ratio is that of the medians.
func BenchmarkGuestPing(b *testing.B) {
	const blocks, pings = 4, 100
	vm := guest.Start(b, guest.Options{})
	vm.WaitReady()
	var bare, client []time.Duration
	for range blocks {
		bare = append(bare, bareLoop(b, vm.Agent, pings)...)
		client = append(client, clientLoop(b, vm.Agent, pings)...)
	}
	slices.Sort(bare)
	slices.Sort(client)
	median := func(all []time.Duration) float64 { return float64(all[len(all)/2]) }
	b.ReportMetric(median(client)/1e6, "ms-qga")
	b.ReportMetric(median(bare)/1e6, "ms-bare")
	b.ReportMetric(median(client)/median(bare), "ratio")
	b.ReportMetric(0, "ns/op") // the loop is of a fixed length
}

func bareLoop(b *testing.B, path string, n int) []time.Duration {
	b.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		b.Fatal(err)
	}
	lines := bufio.NewReader(conn)
	request := []byte(`{"execute":"guest-ping"}` + "\n")
	var took []time.Duration
	for range n + 1 {
		start := time.Now()
		if _, err := conn.Write(request); err != nil {
			b.Fatal(err)
		}
		if _, err := lines.ReadSlice('\n'); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	return took[1:] // the first finds the agent polling for a host
}

func clientLoop(b *testing.B, path string, n int) []time.Duration {
	b.Helper()
	agent, err := qga.NewAgent(qga.Addr{Scheme: "unix", Path: path}, nil)
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithTimeout(b.Context(), time.Minute)
	var running sync.WaitGroup
	running.Go(func() {
		if err := agent.Run(ctx); err != nil {
			b.Error(err)
		}
	})
	defer running.Wait()
	defer stop()
	var took []time.Duration
	for range n + 1 {
		start := time.Now()
		if err := agent.Ping(ctx); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	return took[1:]
}
