package verdict

import (
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/sidecar/probe"
)

// check is a short way to write one: "r+ name", kind (r, l, s) and state (+, -, ?), a
// "w" in front for severity warn, an "a" for one that asks the agent.
func check(spec string, reason Reason, detail string) Check {
	flags, name, _ := strings.Cut(spec, " ")
	c := Check{Name: name, Reason: reason, Detail: detail}
	for _, f := range flags {
		switch f {
		case 'r':
			c.Kind = probe.Readiness
		case 'l':
			c.Kind = probe.Liveness
		case 's':
			c.Kind = probe.Startup
		case '+':
			c.State = probe.StateSuccess
		case '-':
			c.State = probe.StateFailure
		case '?':
			c.State = probe.StateUnknown
		case 'w':
			c.Warn = true
		case 'a':
			c.Agent = true
		default:
			panic("bad flag in " + spec)
		}
	}
	return c
}

// well is a VM that runs with all its checks passing.
func well() Input {
	return Input{
		Link: LinkUp, Status: "running", AgentPort: PortOpen, AgentEverOpen: true,
		Checks: []Check{check("s+ boot", "", ""), check("r+ web", "", ""), check("al+ agent", "", "")},
	}
}

type want struct {
	is     string // of "ready", "live", "started", "held"
	reason Reason
	detail string // a part of it
	livez  Reason // where it is not live
}

func (w want) check(t *testing.T, v Verdict) {
	t.Helper()
	for word, got := range map[string]bool{"ready": v.Ready, "live": v.Live, "started": v.Started, "held": v.Held} {
		if wanted := strings.Contains(w.is, word); got != wanted {
			t.Errorf("%s = %v, want %v", word, got, wanted)
		}
	}
	if v.Reason != w.reason || !strings.Contains(v.Detail, w.detail) {
		t.Errorf("reason %s: %s; want %s: …%s…", v.Reason, v.Detail, w.reason, w.detail)
	}
	if v.Livez.Reason != w.livez {
		t.Errorf("livez: %q, want %q", v.Livez.Reason, w.livez)
	}
	sound(t, v)
}

// sound is what holds for every verdict.
func sound(t *testing.T, v Verdict) {
	t.Helper()
	if !v.Reason.IsValid() {
		t.Errorf("reason %q is not in the list", v.Reason)
	}
	if !v.Ready && v.Reason == Ready {
		t.Error("not ready because Ready")
	}
	for name, a := range map[string]Answer{"readyz": v.Readyz, "livez": v.Livez, "startupz": v.Startupz} {
		ok := true
		for _, c := range a.Components {
			ok = ok && c.OK
			if !c.OK && !c.Reason.IsValid() || c.Name == "" {
				t.Errorf("%s: component %q fails for no valid reason", name, c)
			}
			if strings.ContainsAny(c.String(), "\n\r") {
				t.Errorf("%s: component %q has more than a line", name, c)
			}
		}
		if ok != a.OK {
			t.Errorf("%s: OK = %v, but of its components %v:\n%s", name, a.OK, ok, a.Body(name, true))
		}
		if !a.OK && (!a.Reason.IsValid() || a.Reason == Ready) {
			t.Errorf("%s: 503 for %q", name, a.Reason)
		}
		for _, verbose := range []bool{false, true} {
			body := a.Body(name, verbose)
			if !a.OK && !strings.Contains(body, string(a.Reason)) {
				t.Errorf("%s: 503 without its reason: %q", name, body)
			}
			if !verbose && strings.Count(body, "\n") != 1 {
				t.Errorf("%s: %q is not a line", name, body)
			}
		}
	}
}

func TestDecideVMStates(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Input)
		want   want
	}{
		{"running", func(in *Input) {}, want{is: "ready live started", reason: Ready}},
		{"prelaunch", func(in *Input) { in.Status = "prelaunch" }, want{is: "live held", reason: Starting, detail: `"prelaunch"`}},
		{"preconfig", func(in *Input) { in.Status = "preconfig" }, want{is: "live held", reason: Starting}},
		{"inmigrate", func(in *Input) { in.Status = "inmigrate" }, want{is: "live held", reason: MigratingIn}},
		{"paused", func(in *Input) { in.Status = "paused" }, want{is: "live started held", reason: Paused}},
		{"suspended", func(in *Input) { in.Status = "suspended" }, want{is: "live started held", reason: Suspended}},
		{"save-vm", func(in *Input) { in.Status = "save-vm" }, want{is: "live started held", reason: Paused, detail: "saved"}},
		{"restore-vm", func(in *Input) { in.Status = "restore-vm" }, want{is: "live started held", reason: Paused, detail: "restored"}},
		{"finish-migrate", func(in *Input) { in.Status = "finish-migrate" }, want{is: "live started held", reason: MigratingOut}},
		{"postmigrate", func(in *Input) { in.Status = "postmigrate" }, want{is: "live started held", reason: MigratingOut}},
		{"io-error", func(in *Input) {
			in.Status, in.IOError = "io-error", &IOError{Device: "virtio-disk0", NoSpace: true, Text: "No space left on device"}
		}, want{is: "live started held", reason: StorageIOError, detail: "on virtio-disk0: No space left on device (ENOSPC"}},
		{"io-error, untold", func(in *Input) { in.Status = "io-error" }, want{is: "live started held", reason: StorageIOError, detail: "I/O error"}},
		{"guest-panicked", func(in *Input) {
			in.Status, in.Panic = "guest-panicked", &Panic{Type: "hyper-v", Detail: "bug check 0x3b"}
		}, want{is: "started held", reason: GuestPanicked, detail: "(hyper-v): bug check 0x3b", livez: GuestPanicked}},
		{"guest-panicked, hold", func(in *Input) { in.Status, in.Policy.HoldOnPanic = "guest-panicked", true },
			want{is: "live started held", reason: GuestPanicked}},
		{"internal-error", func(in *Input) { in.Status, in.Policy.HoldOnPanic = "internal-error", true },
			want{is: "started held", reason: InternalError, livez: InternalError}},
		{"shutdown", func(in *Input) { in.Status, in.Shutdown = "shutdown", &Shutdown{Guest: true, Reason: "guest-shutdown"} },
			want{is: "live started held", reason: ShutDown, detail: "ended by the guest (guest-shutdown)"}},
		{"colo", func(in *Input) { in.Status = "colo" }, want{is: "live started held", reason: Paused, detail: `QEMU reports "colo"`}},
		{"debug", func(in *Input) { in.Status = "debug" }, want{is: "live started held", reason: Paused, detail: `QEMU reports "debug"`}},
		{"watchdog", func(in *Input) { in.Status = "watchdog" }, want{is: "live started held", reason: Paused, detail: `QEMU reports "watchdog"`}},
		{"a new word", func(in *Input) { in.Status = "quantum\nleap" }, want{is: "live started held", reason: Paused, detail: `"quantum\nleap"`}},
		{"kdump", func(in *Input) { in.CrashDumping = true }, want{is: "live started held", reason: GuestCrashDumping}},
		{"panic that lets it run", func(in *Input) { in.Panic = &Panic{} }, want{is: "live started", reason: GuestPanicked, detail: "let it run"}},

		{"libvirt: user", func(in *Input) { in.Status, in.PauseReason = "paused", "user" }, want{is: "live started held", reason: Paused, detail: "(user)"}},
		{"libvirt: migration", func(in *Input) { in.Status, in.PauseReason = "paused", "migration" }, want{is: "live started held", reason: MigratingOut}},
		{"libvirt: post-copy", func(in *Input) { in.Status, in.PauseReason = "paused", "post-copy" }, want{is: "live started held", reason: MigratingOut}},
		{"libvirt: post-copy failed", func(in *Input) { in.Status, in.PauseReason = "paused", "postcopy-failed" },
			want{is: "live started held", reason: Paused, detail: "post-copy migration has failed"}},
		{"libvirt: I/O error", func(in *Input) { in.Status, in.PauseReason = "paused", "ioerror" }, want{is: "live started held", reason: StorageIOError}},
		{"libvirt: crashed", func(in *Input) { in.Status, in.PauseReason = "paused", "crashed" },
			want{is: "started held", reason: GuestPanicked, livez: GuestPanicked}},
		{"libvirt: starting", func(in *Input) { in.Status, in.PauseReason = "paused", "starting-up" }, want{is: "live held", reason: Starting}},
		{"libvirt: ending", func(in *Input) { in.Status, in.PauseReason = "paused", "shutting-down" }, want{is: "live started held", reason: ShutDown}},
		{"libvirt: snapshot", func(in *Input) { in.Status, in.PauseReason = "paused", "snapshot" },
			want{is: "live started held", reason: Paused, detail: "(snapshot)"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := well()
			tt.change(&in)
			v := Decide(in)
			tt.want.check(t, v)
			if fromVM := v.Reason != Ready; v.FromVM != fromVM {
				t.Errorf("FromVM = %v", v.FromVM)
			}
			// While held, what liveness published stays, and a dead VM stays dead.
			in.Checks[2] = check("l- agent", AgentTimeout, "no answer")
			if v := Decide(in); v.Live || v.Livez.Reason == "" {
				t.Error("a published liveness failure was taken back")
			}
		})
	}
}

func TestDecideMonitor(t *testing.T) {
	probes := []Check{check("r+ web", "", ""), check("l+ ping", "", "")}
	sick := []Check{check("r- web", ProbeFailed, "500"), check("l- ping", "", "")}
	tests := []struct {
		name   string
		in     Input
		want   want
		readyz string // a line of the verbose answer
	}{
		{"none, well", Input{Checks: probes}, want{is: "ready live started", reason: Ready}, "[+]web ok"},
		{"none, sick", Input{Checks: sick}, want{is: "started", reason: ProbeFailed, detail: "web: 500", livez: ProbeFailed}, "[-]web failed: ProbeFailed: 500"},
		{"none, nothing checked", Input{}, want{is: "ready live started", reason: Ready, detail: "nothing else is checked"}, "[+]readiness ok: no readiness"},
		{"connecting, well", Input{Link: LinkConnecting, Checks: probes}, want{is: "ready live started", reason: Ready}, "[+]monitor warning: MonitorUnreachable: connecting"},
		{"connecting, last known paused", Input{Link: LinkConnecting, Status: "paused", Checks: probes}, want{is: "live started held", reason: Paused}, "[-]vm failed: Paused"},
		{"connecting, nothing checked", Input{Link: LinkConnecting}, want{is: "live started", reason: Starting, detail: "waiting for the monitor"}, "[-]readiness failed: Starting"},
		{"connecting, last known running, nothing checked", Input{Link: LinkConnecting, Status: "running"}, want{is: "ready live started", reason: Ready}, "[+]vm ok"},
		{"up, not told yet, nothing checked", Input{Link: LinkUp}, want{is: "live started", reason: Starting}, ""},
		{"up, not told yet, well", Input{Link: LinkUp, Checks: probes}, want{is: "ready live started", reason: Ready}, "[+]monitor ok"},
		{"busy, well", Input{Link: LinkBusy, LinkDetail: "no greeting within 2s", Checks: probes}, want{is: "ready live started", reason: Ready},
			"[+]monitor warning: MonitorBusy: another client holds the monitor: no greeting within 2s"},
		{"busy, sick", Input{Link: LinkBusy, Checks: sick}, want{is: "started", reason: ProbeFailed, livez: ProbeFailed}, ""},
		{"busy, nothing checked", Input{Link: LinkBusy}, want{is: "live started", reason: MonitorBusy}, "[-]readiness failed: MonitorBusy"},
		{"busy, a status from before does not count", Input{Link: LinkBusy, Status: "paused", Checks: probes}, want{is: "ready live started", reason: Ready}, ""},
		{"stuck, well", Input{Link: LinkStuck, Status: "running", Checks: probes}, want{is: "ready live started", reason: Ready}, "[+]monitor warning: MonitorUnreachable"},
		{"stuck while paused", Input{Link: LinkStuck, Status: "paused", Checks: probes}, want{is: "live started held", reason: Paused}, ""},
		{"stuck, nothing checked", Input{Link: LinkStuck, Status: "running"}, want{is: "live started", reason: MonitorUnreachable}, ""},
		{"unreachable, well", Input{Link: LinkUnreachable, LinkDetail: "permission denied", Checks: probes}, want{is: "ready live started", reason: Ready}, "permission denied"},
		{"unreachable, nothing checked", Input{Link: LinkUnreachable}, want{is: "live started", reason: MonitorUnreachable}, ""},
		{"gone", Input{Link: LinkGone, Status: "running", LinkDetail: "no such file", Checks: probes},
			want{is: "live held", reason: NoDomain, detail: "there is no VM: no such file"}, "[-]vm failed: NoDomain"},
		{"gone after shutdown", Input{Link: LinkGone, Shutdown: &Shutdown{Reason: "host-qmp-quit"}, Checks: probes},
			want{is: "live held", reason: NoDomain, detail: "ended by the host (host-qmp-quit)"}, ""},
		{"gone after a panic", Input{Link: LinkGone, Panic: &Panic{Detail: "x"}}, want{is: "live held", reason: NoDomain, detail: "panicked: x"}, ""},
		{"running, nothing checked", Input{Link: LinkUp, Status: "running"}, want{is: "ready live started", reason: Ready, detail: "nothing else is checked"}, "[+]readiness ok: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := Decide(tt.in)
			tt.want.check(t, v)
			if body := v.Readyz.Body("readyz", true); !strings.Contains(body, tt.readyz) {
				t.Errorf("no %q in\n%s", tt.readyz, body)
			}
			if v.NothingChecked != (len(tt.in.Checks) == 0) {
				t.Errorf("NothingChecked = %v", v.NothingChecked)
			}
		})
	}
}

func TestDecideChecks(t *testing.T) {
	tests := []struct {
		name   string
		checks []Check
		port   Port
		ever   bool
		want   want
	}{
		{"readiness fails", []Check{check("r- web", ProbeFailed, "HTTP probe failed with statuscode: 500")}, PortUnknown, false,
			want{is: "live started", reason: ProbeFailed, detail: "web: HTTP probe failed with statuscode: 500"}},
		{"the first failing one is the reason", []Check{check("r+ a", "", ""), check("ar- b", AgentError, "b"), check("r- c", ProbeFailed, "c")}, PortOpen, true,
			want{is: "live started", reason: AgentError, detail: "b: b"}},
		{"no result yet", []Check{check("r- web", "", "")}, PortUnknown, false, want{is: "live started", reason: Starting, detail: "web: not enough successes"}},
		{"warn fails nothing", []Check{check("r+ web", "", ""), check("awr- agent", AgentTimeout, "mute"), check("wl- x", ProbeFailed, ""), check("ws- y", "", "")},
			PortOpen, true, want{is: "ready live started", reason: Ready}},
		{"only warn is nothing", []Check{check("wr- web", ProbeFailed, "")}, PortOpen, true, want{is: "ready live started", reason: Ready, detail: "nothing else is checked"}},
		{"liveness fails", []Check{check("r+ web", "", ""), check("al- ping", AgentTimeout, "no answer within 1s")}, PortOpen, true,
			want{is: "ready started", reason: Ready, livez: AgentTimeout}},
		{"a reason of nobody's", []Check{check("r- web", "Gremlins", "x")}, PortOpen, true, want{is: "live started", reason: ProbeFailed}},

		{"agent never connected", []Check{check("ar- ping", AgentTimeout, "x")}, PortClosed, false,
			want{is: "live started", reason: AgentNotConnected, detail: "ping: no guest agent has connected"}},
		{"agent's port closed", []Check{check("ar- ping", AgentTimeout, "x")}, PortClosed, true,
			want{is: "live started", reason: AgentNotConnected, detail: "ping: the guest agent has closed"}},
		{"agent silent", []Check{check("ar- ping", AgentTimeout, "no answer within 1s")}, PortOpen, true,
			want{is: "live started", reason: AgentTimeout, detail: "ping: no answer within 1s"}},
		{"agent said no", []Check{check("ar- exec", AgentError, "no such file")}, PortOpen, true,
			want{is: "live started", reason: AgentError, detail: "exec: no such file"}},
		{"command disabled", []Check{check("ar- exec", AgentUnsupported, "guest-exec has been disabled")}, PortOpen, true,
			want{is: "live started", reason: AgentUnsupported}},
		{"a ping disabled is no death", []Check{check("al+ ping", AgentUnsupported, "guest-ping has been disabled")}, PortOpen, true,
			want{is: "ready live started", reason: Ready}},
		{"the port says nothing about a web server", []Check{check("r- web", ProbeFailed, "refused")}, PortClosed, false,
			want{is: "live started", reason: ProbeFailed, detail: "refused"}},

		{"startup pending", []Check{check("s? boot", "", ""), check("r- web", "", "")}, PortOpen, true, want{is: "live", reason: Starting, detail: "boot: not started up yet"}},
		{"startup failing so far", []Check{check("as? boot", AgentTimeout, "mute"), check("r- web", "", "")}, PortClosed, false,
			want{is: "live", reason: Starting, detail: "boot: AgentNotConnected: no guest agent"}},
		{"startup failed for good", []Check{check("s? a", "", ""), check("s- boot", ProbeFailed, "refused"), check("r- web", "", "")}, PortOpen, true,
			want{is: "", reason: StartupTimeout, detail: "boot: ProbeFailed: refused", livez: StartupTimeout}},
		{"startup done", []Check{check("s+ boot", "", ""), check("r+ web", "", "")}, PortOpen, true, want{is: "ready live started", reason: Ready}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := Input{Link: LinkUp, Status: "running", Checks: tt.checks, AgentPort: tt.port, AgentEverOpen: tt.ever}
			tt.want.check(t, Decide(in))
		})
	}
}

func TestDecideHolds(t *testing.T) {
	hold := &Hold{Source: "/run/hold", Until: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)}
	sick := func(in *Input) { in.Checks[1] = check("r- web", ProbeFailed, "refused") }
	tests := []struct {
		name   string
		change func(*Input)
		want   want
	}{
		{"maintenance, was ready", func(in *Input) { in.Hold = hold },
			want{is: "ready live started held", reason: Maintenance, detail: "probing is held until 2030-01-02T03:04:05Z by /run/hold"}},
		{"maintenance, was not ready", func(in *Input) { in.Hold = &Hold{}; sick(in) },
			want{is: "live started held", reason: Maintenance, detail: "probing is held; before that ProbeFailed: web: refused"}},
		{"maintenance makes no paused VM ready", func(in *Input) { in.Hold, in.Status = hold, "paused" }, want{is: "live started held", reason: Paused}},
		{"maintenance keeps a panicked VM", func(in *Input) { in.Hold, in.Status = hold, "guest-panicked" }, want{is: "live started held", reason: GuestPanicked}},
		{"maintenance, gone", func(in *Input) { in.Hold, in.Link = hold, LinkGone }, want{is: "live held", reason: NoDomain}},
		{"maintenance, listener shadowed", func(in *Input) { in.Hold, in.ListenerShadowed = hold, true }, want{is: "ready live started held", reason: Maintenance}},
		{"frozen, was ready", func(in *Input) { in.Freeze = Frozen }, want{is: "ready live started held", reason: FilesystemFrozen}},
		{"frozen, was not ready", func(in *Input) { in.Freeze = Frozen; sick(in) }, want{is: "live started held", reason: FilesystemFrozen, detail: "web: refused"}},
		{"frozen for too long", func(in *Input) { in.Freeze = Overdue }, want{is: "ready live started", reason: Ready}},
		{"frozen for too long, mute", func(in *Input) { in.Freeze = Overdue; in.Checks[1] = check("ar- ping", AgentTimeout, "mute") },
			want{is: "live started", reason: AgentTimeout}},
		{"terminating", func(in *Input) { in.Terminating = true }, want{is: "live started held", reason: Terminating}},
		{"terminating outranks all", func(in *Input) { in.Terminating, in.Link, in.Hold = true, LinkGone, hold }, want{is: "live held", reason: Terminating}},
		{"listener shadowed", func(in *Input) { in.ListenerShadowed = true }, want{is: "ready live started", reason: ListenerShadowed}},
		{"listener shadowed and sick", func(in *Input) { in.ListenerShadowed = true; sick(in) }, want{is: "live started", reason: ProbeFailed}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := well()
			tt.change(&in)
			tt.want.check(t, Decide(in))
		})
	}
}

func TestFailing(t *testing.T) {
	in := well()
	in.Checks = append(in.Checks, check("wr- a", ProbeFailed, ""), check("ar- b", AgentTimeout, "mute"), check("l- c", "", ""), check("s? d", "", ""))
	in.AgentPort = PortClosed
	var got []string
	for _, c := range Decide(in).Failing {
		got = append(got, c.Name+" "+string(c.Reason))
	}
	if s := strings.Join(got, ", "); s != "b AgentNotConnected, c ProbeFailed, d Starting" {
		t.Error(s)
	}
}
