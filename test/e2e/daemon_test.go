package e2e_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/test/daemon"
	"github.com/guestprobe/guestprobe/test/guest"
)

// manifest returns a manifest of testdata whose ports are those that lead to the guest's.
func manifest(t testing.TB, name string, vm *guest.VM) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	for port, addr := range map[string]string{"1500": vm.Web, "22": vm.SSH} {
		_, forwarded, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		for _, end := range []string{"\n", ",", "}"} {
			text = bytes.ReplaceAll(text, []byte("port: "+port+end), []byte("port: "+forwarded+end))
		}
	}
	return string(text)
}

// watched is a running `guestprobe run` of which every way to ask it is asked.
type watched struct {
	*daemon.Daemon

	t      testing.TB
	binary string
}

// on runs the daemon against a VM, with one of the manifests of testdata.
func on(t testing.TB, binary string, vm *guest.VM, name string, flags ...string) watched {
	t.Helper()
	return watched{daemon.On(t, binary, name, vm, manifest(t, name, vm), flags...), t, binary}
}

// expect waits until the daemon has that verdict, and every endpoint, the metrics and `guestprobe check` agree on it.
func (d watched) expect(want daemon.Verdict) daemon.Status {
	d.t.Helper()
	d.Await(want)
	return d.Until("all to say "+want.Reason, func(s daemon.Status) error {
		if s.Reason != want.Reason {
			return fmt.Errorf("/status says %s (%s)", s.Reason, s.Detail)
		}
		return errors.Join(d.metricsAgree(want), d.checkAgrees(want))
	})
}

func (d watched) metrics() (map[string]float64, error) {
	_, body, err := d.Get("/metrics")
	if err != nil {
		return nil, err
	}
	values := make(map[string]float64)
	for line := range strings.Lines(body) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("/metrics has the line %q", line)
		}
		values[name] = v
	}
	return values, nil
}

func (d watched) metricsAgree(want daemon.Verdict) error {
	values, err := d.metrics()
	if err != nil {
		return err
	}
	for name, ok := range map[string]bool{"guestprobe_ready": want.Ready, "guestprobe_live": want.Live} {
		if v, there := values[name]; !there || (v == 1) != ok {
			return fmt.Errorf("the metric %s is %v, want %v", name, v, ok)
		}
	}
	var hot []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if reason, ok := strings.CutPrefix(name, `guestprobe_state{reason="`); ok && values[name] == 1 {
			hot = append(hot, strings.TrimSuffix(reason, `"}`))
		}
	}
	if !slices.Equal(hot, []string{want.Reason}) {
		return fmt.Errorf("the metric guestprobe_state is 1 for %v, want %s alone", hot, want.Reason)
	}
	return nil
}

// checkAgrees asks with what exec probes call.
func (d watched) checkAgrees(want daemon.Verdict) error {
	for endpoint, ok := range map[string]bool{"readyz": want.Ready, "livez": want.Live} {
		cmd := exec.Command(d.binary, "check", endpoint, "--socket", d.Socket, "--timeout", "10s")
		cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0") // else the race detector sleeps a second at the end
		out, err := cmd.CombinedOutput()
		exit := (*exec.ExitError)(nil)
		switch {
		case err == nil && !ok:
			return fmt.Errorf("guestprobe check %s succeeds: %s", endpoint, out)
		case err != nil && ok, err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1):
			return fmt.Errorf("guestprobe check %s: %w: %s", endpoint, err, out)
		}
	}
	return nil
}
