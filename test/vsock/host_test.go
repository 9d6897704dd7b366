package vsock_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/guestprobe/guestprobe/test/guest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inGuest is set in the half that runs inside the guest, to the arguments of the agent.
const inGuest = "GUESTPROBE_VSOCK_IN_GUEST"

// agentArgs returns the arguments that the documentation's service unit gives the agent.
func agentArgs(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(guest.Root(t), "docs", "vsock.md"))
	if err != nil {
		t.Fatal(err)
	}
	const start = "\nExecStart=/usr/sbin/qemu-ga "
	_, rest, ok := strings.Cut(string(text), start)
	if !ok {
		t.Fatalf("docs/vsock.md has no line %q", start)
	}
	args, _, _ := strings.Cut(rest, "\n")
	return args
}

// TestVsock runs TestInGuest inside a guest.
func TestVsock(t *testing.T) {
	if os.Getenv(inGuest) != "" {
		t.Skip("this is the half on the host")
	}
	binary := filepath.Join(t.TempDir(), "vsock.test")
	build := exec.Command("go", "test", "-c", "-trimpath", "-ldflags", "-s -w", "-o", binary, "./test/vsock")
	build.Dir = guest.Root(t)
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // the guest has no C library of ours
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the half for the guest: %v\n%s", err, out)
	}
	vm := guest.Start(t, guest.Options{Files: map[string]string{"/opt/vsock.test": binary}})
	vm.WaitReady()
	vm.Run("rm -f /dev/vsock") // the documentation says that a client needs none
	out := vm.Run(inGuest + "='" + agentArgs(t) + "' /opt/vsock.test -test.v -test.run '^TestInGuest$' -test.timeout 100s")
	if !strings.Contains(out, "--- PASS: TestInGuest ") {
		t.Errorf("not passed inside the guest:\n%s", out)
	}
	for line := range strings.Lines(out) {
		t.Log("guest: " + strings.TrimSpace(line))
	}
}
