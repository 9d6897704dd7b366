package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/netprobe"
	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/qga/qgatest"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

// Each broken set-up is told by its layer, and with what to do.
func TestDiagnose(t *testing.T) {
	const spec = `
  readinessProbe: {httpGet: {port: 1500, path: /healthz}}
  livenessProbe: {guestAgentPing: {}}
  checks: [{name: command, kind: readiness, exec: {command: ["true"]}}]
`
	find := func(findings []Finding, layer string) Finding {
		for _, f := range findings {
			if f.Layer == layer || f.Name == layer {
				return f
			}
		}
		t.Fatalf("no finding about %s: %+v", layer, findings)
		return Finding{}
	}
	for _, tt := range []struct {
		name   string
		change func(*qgatest.VM)
		layer  string
		ok     bool
		reason verdict.Reason
		help   string
	}{
		{"all well", func(*qgatest.VM) {}, "command", true, "", ""},
		{"paused", (*qgatest.VM).Pause, "vm", false, verdict.Paused, "Resume the VM"},
		{"paused, seen from the agent", (*qgatest.VM).Pause, "agent", false, verdict.AgentTimeout, "The VM does not run"},
		{"agent's port closed", (*qgatest.VM).AgentKill, "agent", false, verdict.AgentNotConnected, "Install or start qemu-guest-agent"},
		{"agent hung", (*qgatest.VM).AgentStop, "agent", false, verdict.AgentTimeout, "hung"},
		{"web server stopped, or on the guest's loopback alone", (*qgatest.VM).StopWeb, "readinessProbe", false, verdict.ProbeFailed, "not on 127.0.0.1 alone"},
		{"web server sick", func(vm *qgatest.VM) { vm.SetHTTPStatus(503) }, "readinessProbe", false, verdict.ProbeFailed, "says that it is not well"},
		{"monitor held", func(vm *qgatest.VM) { vm.SetMonitorSilent(true) }, "monitor", false, verdict.MonitorBusy, "a monitor socket of its own"},
		{"no VM", (*qgatest.VM).Quit, "monitor", false, verdict.NoDomain, "Start the VM, or correct the address"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			vm := newVM(t, qgatest.Config{Agent: qgatest.AgentConfig{Exec: func(qgatest.Exec) (qgatest.Process, error) { return qgatest.Process{}, nil }}})
			cfg := config(t, vm, spec)
			vm.Boot()
			tt.change(vm)
			findings, err := Diagnose(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			f := find(findings, tt.layer)
			if f.OK != tt.ok || f.Reason != tt.reason || !strings.Contains(f.Help, tt.help) {
				t.Errorf("%+v\nwant ok %v, %s, help with %q", f, tt.ok, tt.reason, tt.help)
			}
		})
	}
	t.Run("exec disabled", func(t *testing.T) {
		vm := newVM(t, qgatest.Config{Agent: qgatest.AgentConfig{Blocked: []string{"guest-exec"}}})
		cfg := config(t, vm, spec)
		vm.Boot()
		findings, err := Diagnose(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		f := find(findings, "command")
		if f.OK || f.Reason != verdict.AgentUnsupported || !strings.Contains(f.Help, "allow-rpcs") {
			t.Errorf("%+v", f)
		}
		if f := find(findings, "livenessProbe"); !f.OK {
			t.Errorf("the ping of an agent whose exec is disabled: %+v", f)
		}
	})
}

// What only the fallbacks answer is a warning, and the VM is known all the same.
func TestDiagnoseFallback(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	cfg := config(t, vm, "  readinessProbe: {guestAgentPing: {}}")
	vm.Boot()
	cfg.MonitorFallback, cfg.AgentFallback = cfg.Monitor, cfg.Agent
	none := func(name string) *qga.Addr {
		addr := mustAddr(t, "unix:"+filepath.Join(t.TempDir(), name))
		return &addr
	}
	cfg.Monitor, cfg.Agent = none("monitor"), none("agent")
	findings, err := Diagnose(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range findings {
		got = append(got, fmt.Sprintf("%s %s %v %v %s", f.Layer, f.Name, f.OK, f.Warning, f.Reason))
	}
	want := []string{
		fmt.Sprintf("monitor %s true true NoDomain", cfg.Monitor),
		fmt.Sprintf("monitor %s true false ", cfg.MonitorFallback),
		"vm guest true false ",
		fmt.Sprintf("agent %s true true AgentNotConnected", cfg.Agent),
		"readiness readinessProbe true false ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if monitor := findings[0]; !strings.Contains(monitor.Help, "until then "+cfg.MonitorFallback.String()+" is asked") {
		t.Errorf("%+v", monitor)
	}
	if agent := findings[3]; !strings.Contains(agent.Detail, "through "+cfg.AgentFallback.String()) || !strings.Contains(agent.Help, "second guest agent") {
		t.Errorf("%+v", agent)
	}

	vm.Quit() // now neither monitor has a VM
	if findings, err = Diagnose(t.Context(), cfg); err != nil || findings[0].OK || findings[1].OK || findings[1].Layer != "monitor" {
		t.Errorf("without a VM: %+v, %v", findings, err)
	}
}

// A diagnosis that is interrupted is none.
func TestDiagnoseInterrupted(t *testing.T) {
	vm := newVM(t, qgatest.Config{})
	cfg := config(t, vm, "  readinessProbe: {guestAgentPing: {}}")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Diagnose(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
}

func TestErrorHelp(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("dial: %w", fs.ErrPermission), "Run as the user who owns the socket"},
		{fmt.Errorf("agent: %w", &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", syscall.EACCES)}), "owns the socket"},
		{fmt.Errorf("agent: %w", &net.OpError{Op: "dial", Net: "vsock", Err: os.NewSyscallError("socket", syscall.EPERM)}), "seccomp"},
		{fmt.Errorf("agent: %w", qga.ErrWrongPeer), "another kind of socket"},
		{fmt.Errorf("agent: %w", qga.ErrLibvirtsChannel), "Another client holds the agent's socket, as libvirt does"},
		{fmt.Errorf("agent: %w", qga.ErrUnread), "Another client holds the agent's socket"},
		{&netprobe.Failure{Cause: netprobe.CauseTLSName}, "tls.serverName"},
		{fmt.Errorf("something else"), ""},
	} {
		if got := errorHelp(tt.err); !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("errorHelp(%v) = %q, want %q in it", tt.err, got, tt.want)
		}
	}
}
