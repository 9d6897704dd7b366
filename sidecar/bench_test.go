package sidecar

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

// A benchServer serves a handler as the sidecar does, and asks it over one connection.
type benchServer struct {
	client *http.Client
	stop   func()
}

func serveBench(b *testing.B, handler http.Handler) *benchServer {
	b.Helper()
	socket := filepath.Join(b.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		if err := serve(ctx, discard(), handler, []net.Listener{l}); err != nil {
			b.Error(err)
		}
	}()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	return &benchServer{&http.Client{Transport: transport}, func() {
		transport.CloseIdleConnections()
		cancel()
		<-done
	}}
}

func (s *benchServer) get(path string) error {
	resp, err := s.client.Get("http://sidecar" + path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// BenchmarkReadyzUnderLoad asks, in turns, /readyz and a bare handler that says the same, over sockets, while others
// ask for /metrics and /readyz without a pause and the VM changes its state a thousand times a second. It reports
// the ratio of the medians, and the slowest answer but for one in a hundred.
func BenchmarkReadyzUnderLoad(b *testing.B) {
	sc := &Sidecar{state: newState(discard(), true, verdict.Policy{})}
	ours := serveBench(b, newHandler(sc))
	defer ours.stop()
	bare := serveBench(b, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	defer bare.stop()

	ctx, cancel := context.WithCancel(context.Background())
	var load sync.WaitGroup
	defer func() {
		cancel()
		load.Wait()
	}()
	for _, path := range []string{"/metrics", "/readyz"} {
		load.Go(func() {
			for ctx.Err() == nil {
				if err := ours.get(path); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	load.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for status := ""; ctx.Err() == nil; <-tick.C {
			if status == "running" {
				status = "paused"
			} else {
				status = "running"
			}
			sc.state.setVM(qga.VMState{Link: qga.LinkUp, Status: status})
		}
	})

	var us, them []time.Duration
	for b.Loop() {
		start := time.Now()
		if err := ours.get("/readyz"); err != nil {
			b.Fatal(err)
		}
		middle := time.Now()
		if err := bare.get("/"); err != nil {
			b.Fatal(err)
		}
		us, them = append(us, middle.Sub(start)), append(them, time.Since(middle))
	}
	slices.Sort(us)
	slices.Sort(them)
	b.ReportMetric(float64(us[len(us)/2])/float64(them[len(them)/2]), "ratio")
	b.ReportMetric(us[len(us)*99/100].Seconds()*1000, "ms-p99")
}
