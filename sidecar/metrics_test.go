package sidecar

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/guestprobe/guestprobe/qga/qgatest"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

func TestMetricsAgreeWithTheVerdict(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	r := start(t, vm, config(t, vm, webSpec))
	vm.Boot()
	r.reason(verdict.Ready)
	vm.IOError("drive0", false)
	r.reason(verdict.StorageIOError)
	want := `
# HELP guestprobe_agent_connected 1 if the connection to the guest agent's channel stands; it does not mean that the agent answers.
# TYPE guestprobe_agent_connected gauge
guestprobe_agent_connected 1
# HELP guestprobe_build_info 1, with the version of guestprobe as a label.
# TYPE guestprobe_build_info gauge
guestprobe_build_info{version="unknown"} 1
# HELP guestprobe_check_success 1 if the check's published state, after its thresholds, is success.
# TYPE guestprobe_check_success gauge
guestprobe_check_success{check="livenessProbe",kind="liveness"} 1
guestprobe_check_success{check="readinessProbe",kind="readiness"} 1
# HELP guestprobe_filesystem_frozen 1 if the guest's file systems were last seen frozen; they are asked about only when a check fails.
# TYPE guestprobe_filesystem_frozen gauge
guestprobe_filesystem_frozen 0
# HELP guestprobe_guest_panics_total Panics that the guest has reported.
# TYPE guestprobe_guest_panics_total counter
guestprobe_guest_panics_total 0
# HELP guestprobe_live 1 if the VM is not beyond repair: what /livez answers.
# TYPE guestprobe_live gauge
guestprobe_live 1
# HELP guestprobe_monitor_connected 1 if the monitor is connected and its state is trusted.
# TYPE guestprobe_monitor_connected gauge
guestprobe_monitor_connected 1
# HELP guestprobe_ready 1 if the VM can take work: what /readyz answers.
# TYPE guestprobe_ready gauge
guestprobe_ready 0
# HELP guestprobe_started 1 if the guest has finished booting: what /startupz answers.
# TYPE guestprobe_started gauge
guestprobe_started 1
# HELP guestprobe_storage_io_errors_total Block I/O errors that QEMU has reported.
# TYPE guestprobe_storage_io_errors_total counter
guestprobe_storage_io_errors_total 1
`
	c := newCollector(r.sidecar)
	if err := testutil.CollectAndCompare(c, strings.NewReader(want),
		"guestprobe_agent_connected", "guestprobe_build_info", "guestprobe_check_success", "guestprobe_filesystem_frozen",
		"guestprobe_guest_panics_total", "guestprobe_live", "guestprobe_monitor_connected", "guestprobe_ready",
		"guestprobe_started", "guestprobe_storage_io_errors_total"); err != nil {
		t.Error(err)
	}
	problems, err := testutil.CollectAndLint(c)
	if err != nil {
		t.Error(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	_, body := r.get("/metrics")
	for _, line := range []string{
		`guestprobe_state{reason="StorageIOError"} 1`, `guestprobe_state{reason="Ready"} 0`,
		`guestprobe_vm_status{status="io-error"} 1`, `guestprobe_vm_status{status="running"} 0`,
		`guestprobe_transitions_total{to="StorageIOError"} 1`,
	} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("/metrics lacks %s", line)
		}
	}
	if ones := strings.Count(body, "\nguestprobe_state{"); ones != len(verdict.Reasons()) {
		t.Errorf("%d series of guestprobe_state, want one for each of %d reasons", ones, len(verdict.Reasons()))
	}
}

// The set of series must not depend on what happens: what a guest does is never a new series.
func TestSeriesAreFixed(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	r := start(t, vm, config(t, vm, webSpec))
	series := func() int {
		_, body := r.get("/metrics")
		n := 0
		for line := range strings.Lines(body) {
			if !strings.HasPrefix(line, "#") {
				n++
			}
		}
		return n
	}
	before := series()
	vm.Boot()
	r.reason(verdict.Ready)
	vm.SetStatus("a-status-of-tomorrow's")
	r.reason(verdict.Paused)
	if after := series(); after != before {
		t.Errorf("%d series, then %d", before, after)
	}
}

func TestEndpoints(t *testing.T) {
	vm := newVM(t, qgatest.Config{Name: "<b>vm</b>"})
	r := start(t, vm, config(t, vm, webSpec))
	vm.Boot()
	r.reason(verdict.Ready)
	_, verbose := r.get("/readyz?verbose")
	if want := "[+]monitor ok\n[+]vm ok\n[+]readinessProbe ok\nreadyz check passed\n"; verbose != want {
		t.Errorf("/readyz?verbose:\n%swant:\n%s", verbose, want)
	}
	for path, want := range map[string]string{"/startupz": "ok\n", "/healthz": "ok\n", "/livez": "ok\n"} {
		if code, body := r.get(path); code != http.StatusOK || body != want {
			t.Errorf("%s = %d %q", path, code, body)
		}
	}
	if _, page := r.get("/"); strings.Contains(page, "http://") || strings.Contains(page, "https://") {
		t.Error("the page loads something from elsewhere")
	}
	if code, _ := r.get("/nothing"); code != http.StatusNotFound {
		t.Errorf("/nothing = %d, want 404", code)
	}
	w := httptest.NewRecorder()
	r.sidecar.handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/readyz", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST /readyz = %d, want 405", w.Code)
	}
}

// BenchmarkReadyz measures the handler alone; the kernel and the client are not in it.
func BenchmarkReadyz(b *testing.B) {
	s := newState(discard(), false, verdict.Policy{})
	sc := &Sidecar{state: s}
	s.checkChanged()
	handler := newHandler(sc)
	req := httptest.NewRequest(http.MethodGet, "/readyz", nil)
	b.ReportAllocs()
	for b.Loop() {
		handler.ServeHTTP(httptest.NewRecorder(), req)
	}
}
