package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/test/guest"
)

// BenchmarkFootprint measures what a sidecar costs beside every VM: the size of the stripped, static binary, and its
// resident memory after half a minute of three probes at 1 Hz against a real guest. It has no iterations to speak of.
func BenchmarkFootprint(b *testing.B) {
	const mib, rounds = 1 << 20, 30
	root := guest.Root(b)
	binary := filepath.Join(root, ".cache", "e2e", "guestprobe-static")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, "./cmd/guestprobe")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("building guestprobe: %v\n%s", err, out)
	}
	file, err := os.Stat(binary)
	if err != nil {
		b.Fatal(err)
	}
	vm := guest.Start(b, guest.Options{})
	vm.WaitReady()
	d := on(b, binary, vm, "three.yaml")
	tick := time.NewTicker(time.Second) // no oftener than a kubelet would ask
	defer tick.Stop()
	for done := false; !done; {
		select {
		case <-tick.C:
		case <-d.Done:
			b.Fatal("the daemon has ended")
		}
		s, err := d.Status()
		if err != nil {
			b.Fatal(err)
		}
		done = len(s.Checks) == 3
		for _, c := range s.Checks {
			done = done && c.Runs >= rounds
		}
	}
	b.ReportMetric(resident(b, d.PID(), "VmRSS")/mib, "MiB-resident")
	// The rest of it is the binary's own pages, clean and shared by all sidecars of a node.
	b.ReportMetric(resident(b, d.PID(), "RssAnon")/mib, "MiB-private")
	b.ReportMetric(float64(file.Size())/mib, "MiB-binary")
	b.ReportMetric(0, "ns/op") // nothing was timed
}

// resident reads a field of a process's memory, in bytes.
func resident(b *testing.B, pid int, field string) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kib int
		if _, err := fmt.Sscanf(line, field+": %d kB", &kib); err == nil {
			return float64(kib << 10)
		}
	}
	b.Fatal("no " + field + " in /proc")
	return 0
}
