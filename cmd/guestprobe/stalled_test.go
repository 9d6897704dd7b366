package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/cmd/internal/cli"
	"github.com/guestprobe/guestprobe/qga/qgatest"
)

// stalled is a log's reader that takes nothing until it is released.
type stalled struct{ released chan struct{} }

func (s stalled) Write(p []byte) (int, error) {
	<-s.released
	return len(p), nil
}

// A log that nobody reads holds up neither the verdict nor the end.
func TestRunWithAStalledLog(t *testing.T) {
	dir, err := os.MkdirTemp("", "gp")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	vm, err := qgatest.Start(qgatest.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer vm.Close()
	vm.Boot()
	file, socket := filepath.Join(dir, "vm.yaml"), filepath.Join(dir, "s")
	const probes = "apiVersion: guestprobe.dev/v1alpha1\nkind: GuestProbes\nspec: {readinessProbe: {guestAgentPing: {}, periodSeconds: 1}}\n"
	if err := os.WriteFile(file, []byte(probes), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := stalled{released: make(chan struct{})}
	defer close(out.released)
	ended := make(chan int, 1)
	go func() { // ends with ctx
		ended <- program().Run(ctx, cli.Env{
			Args: []string{"run", "--manifest", file, "--monitor", vm.MonitorAddr(), "--agent", vm.AgentAddr(), "--listen", "",
				"--listen-unix", socket, "--log-level", "debug"},
			Stderr: out, LookupEnv: func(string) (string, bool) { return "", false },
		})
	}()
	answers := func(want string) {
		t.Helper()
		deadline := time.Now().Add(20 * time.Second)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			_, body, err := ask(ctx, socket, "readyz", true)
			if strings.Contains(body, want) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("no %q in %q, %v", want, body, err)
			}
			<-tick.C
		}
	}
	answers("readyz check passed")
	vm.Pause()
	answers("failed: Paused")
	vm.Resume()
	answers("readyz check passed")
	cancel()
	select {
	case code := <-ended:
		if code != 0 {
			t.Errorf("it ended with %d", code)
		}
	case <-time.After(20 * time.Second):
		t.Error("it does not end")
	}
}
