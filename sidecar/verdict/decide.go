package verdict

import (
	"fmt"
	"time"

	"github.com/guestprobe/guestprobe/sidecar/probe"
)

// Decide returns what may be said about the VM. It never says more than the facts do:
//
//   - Ready needs a VM that runs, or whose state nobody can tell.
//   - Not live needs a positive verdict: a published failure of a liveness or startup
//     check, or a VM state without a way back. The monitor's trouble is never one. A
//     failed startup check counts as the kubelet's does
//     (k8s v1.37.2 pkg/kubelet/kuberuntime/kuberuntime_manager.go): it ends the VM.
//   - While the probes are held, what they published stays.
//   - An operator's hold (maintenance) outranks even a dead VM for liveness, and never
//     makes a VM ready that does not run.
func Decide(in Input) Verdict {
	d := decision{in: &in, vm: in.vm()}
	v := Verdict{
		Held:           d.vm.reason != "" && !d.vm.runs || in.Freeze == Frozen || in.Hold != nil || in.Terminating,
		NothingChecked: true,
	}
	for _, c := range in.Checks {
		if c.Kind == probe.Readiness {
			v.NothingChecked = v.NothingChecked && c.Warn
		}
		if fails(c) {
			c.Reason, c.Detail = d.explain(c)
			v.Failing = append(v.Failing, c)
		}
	}
	v.Readyz, v.FromVM = d.readyz(v.NothingChecked)
	v.Livez = d.livez()
	v.Startupz = d.startupz()
	v.Ready, v.Live, v.Started = v.Readyz.OK, v.Livez.OK, v.Startupz.OK
	v.Reason, v.Detail = v.Readyz.Reason, v.Readyz.Detail
	return v
}

// fails reports whether c's published state fails or withholds its verdict.
func fails(c Check) bool {
	if c.Warn {
		return false
	}
	if c.Kind == probe.Liveness {
		return c.State == probe.StateFailure
	}
	return c.State != probe.StateSuccess
}

// A decision is one Decide at work.
type decision struct {
	in *Input
	vm vmState
}

// A cause is what keeps an answer from being OK; its zero value is nothing.
type cause struct {
	reason Reason
	detail string
}

// readyz tries the layers from the outside in: the first that fails is the reason.
func (d *decision) readyz(nothingChecked bool) (a Answer, fromVM bool) {
	in := d.in
	ending := cause{Terminating, "guestprobe was told to stop"}
	shadow := cause{ListenerShadowed, "connections to our TCP endpoints are answered by somebody else, most likely the guest"}
	checks := d.checks()
	const nothing = "no readiness probe is configured: nothing else is checked"

	if in.Terminating {
		a.Components = append(a.Components, Component{"shutdown", false, ending.reason, ending.detail})
	}
	a.Components = append(a.Components, d.surroundings(d.vm.reason != "")...)
	a.Components = append(a.Components, d.lines(probe.Startup)...)
	a.Components = append(a.Components, d.lines(probe.Readiness)...)
	if nothingChecked {
		c := Component{Name: "readiness", OK: true, Detail: nothing}
		if u := d.unknown(); u.reason != "" {
			c = Component{"readiness", false, u.reason, line(u.detail + "; " + nothing)}
			if checks.reason == "" {
				checks = u
			}
		}
		a.Components = append(a.Components, c)
	}
	if in.ListenerShadowed {
		a.Components = append(a.Components, Component{"listener", true, shadow.reason, shadow.detail})
	}

	held := cause{}
	switch {
	case in.Hold != nil:
		held = cause{Maintenance, in.Hold.String()}
	case in.Freeze == Frozen:
		held = cause{FilesystemFrozen, "the guest's file systems are frozen"}
	}
	switch {
	case in.Terminating:
		a.fail(ending)
		return a, true
	case d.vm.reason != "":
		a.fail(cause{d.vm.reason, d.vm.detail})
		return a, true
	case held.reason != "" && checks.reason != "":
		a.fail(cause{held.reason, held.detail + "; before that " + string(checks.reason) + ": " + checks.detail})
	case checks.reason != "":
		a.fail(checks)
	case held.reason != "":
		a.OK, a.Reason, a.Detail = true, held.reason, line(held.detail+"; the last state is kept")
	case in.ListenerShadowed:
		// Whoever reads this did reach us. It must not take a VM out of service that
		// is asked over the unix socket.
		a.OK, a.Reason, a.Detail = true, shadow.reason, shadow.detail
	default:
		a.OK, a.Reason = true, Ready
		if nothingChecked {
			a.Detail = nothing
		}
	}
	return a, false
}

// livez fails only on a positive verdict.
func (d *decision) livez() Answer {
	dead := d.vm.dead && d.in.Hold == nil
	a := Answer{OK: true, Components: d.surroundings(dead)}
	if dead {
		a.fail(cause{d.vm.reason, d.vm.detail})
	}
	for _, c := range d.in.Checks {
		if c.Kind != probe.Liveness && (c.Kind != probe.Startup || c.State != probe.StateFailure) {
			continue
		}
		a.Components = append(a.Components, d.line(c))
		if fails(c) && a.OK {
			a.fail(d.cause(c))
		}
	}
	return a
}

// startupz is OK once the VM has run here and its startup checks have succeeded.
func (d *decision) startupz() Answer {
	a := Answer{OK: true, Components: d.surroundings(d.vm.young)}
	if d.vm.young {
		a.fail(cause{d.vm.reason, d.vm.detail})
	}
	for _, c := range d.in.Checks {
		if c.Kind != probe.Startup {
			continue
		}
		a.Components = append(a.Components, d.line(c))
		if fails(c) && a.OK {
			a.fail(d.cause(c))
		}
	}
	return a
}

func (a *Answer) fail(c cause) { a.OK, a.Reason, a.Detail = false, c.reason, line(c.detail) }

// checks returns the first cause among the checks that bear on readiness.
func (d *decision) checks() cause {
	// A startup check that has failed for good says more than one that is pending.
	for _, c := range d.in.Checks {
		if c.Kind == probe.Startup && c.State == probe.StateFailure && fails(c) {
			return d.cause(c)
		}
	}
	for _, kind := range []probe.Kind{probe.Startup, probe.Readiness} {
		for _, c := range d.in.Checks {
			if c.Kind == kind && fails(c) {
				return d.cause(c)
			}
		}
	}
	return cause{}
}

// unknown is the cause if readiness follows the VM's state and nobody tells that.
func (d *decision) unknown() cause {
	const what = "the VM's state is not known: "
	switch {
	case d.in.Link == LinkBusy, d.in.Link == LinkStuck, d.in.Link == LinkUnreachable:
		m := d.monitor()
		return cause{m.Reason, what + m.Detail}
	case d.in.Link != LinkNone && d.in.Link != LinkGone && d.in.Status == "":
		return cause{Starting, what + "waiting for the monitor to tell it"}
	default:
		return cause{}
	}
}

// explain returns why c is not a plain success.
func (d *decision) explain(c Check) (Reason, string) {
	reason, detail := c.Reason, c.Detail
	if reason == Ready {
		reason = "" // no reason to fail
	}
	if reason != "" && !reason.IsValid() || reason == "" && c.Kind == probe.Liveness {
		reason = ProbeFailed
	}
	if c.Agent && d.in.AgentPort == PortClosed {
		switch reason {
		case AgentTimeout, AgentNotConnected, ProbeFailed:
			// Nobody has the port open, so there is nobody to be slow.
			reason, detail = AgentNotConnected, "no guest agent has connected since the VM was started"
			if d.in.AgentEverOpen {
				detail = "the guest agent has closed its channel"
			}
		}
	}
	switch {
	case c.Kind == probe.Startup && c.State == probe.StateFailure:
		return StartupTimeout, beside(reason, detail, "out of attempts")
	case c.Kind == probe.Startup && c.State == probe.StateUnknown:
		// Failures within the startup budget are a part of starting.
		return Starting, beside(reason, detail, "not started up yet")
	case reason == "" && c.State != probe.StateSuccess:
		return Starting, beside("", detail, "not enough successes yet")
	}
	return reason, detail
}

// beside puts a startup check's own reason into the detail, as the headline has
// another.
func beside(r Reason, detail, otherwise string) string {
	switch {
	case r == "" && detail == "":
		return otherwise
	case r == "":
		return detail
	case detail == "":
		return string(r)
	default:
		return string(r) + ": " + detail
	}
}

// cause is explain for an answer's headline, which has to name the check.
func (d *decision) cause(c Check) cause {
	reason, detail := d.explain(c)
	if detail == "" {
		return cause{reason, c.Name}
	}
	return cause{reason, c.Name + ": " + detail}
}

// line is c's component.
func (d *decision) line(c Check) Component {
	out := Component{Name: c.Name, OK: !fails(c)}
	if c.State != probe.StateSuccess || c.Reason != "" && c.Reason != Ready {
		out.Reason, out.Detail = d.explain(c)
		out.Detail = line(out.Detail)
	}
	return out
}

func (d *decision) lines(k probe.Kind) []Component {
	var out []Component
	for _, c := range d.in.Checks {
		if c.Kind == k {
			out = append(out, d.line(c))
		}
	}
	return out
}

// surroundings are the components above the checks. vmFails: the VM's state, if it is
// anything, fails the answer.
func (d *decision) surroundings(vmFails bool) []Component {
	in := d.in
	out := make([]Component, 0, 8)
	if in.Link != LinkNone && in.Link != LinkGone {
		out = append(out, d.monitor())
	}
	switch {
	case d.vm.reason != "":
		out = append(out, Component{"vm", !vmFails, d.vm.reason, line(d.vm.detail)})
	case in.status() != "":
		out = append(out, Component{Name: "vm", OK: true})
	}
	if in.Hold != nil {
		out = append(out, Component{"maintenance", true, Maintenance, line(in.Hold.String())})
	}
	switch in.Freeze {
	case Frozen:
		out = append(out, Component{"filesystems", true, FilesystemFrozen, "the last state is kept for a bounded time"})
	case Overdue:
		out = append(out, Component{"filesystems", true, FilesystemFrozen, "frozen for longer than freezeHoldSeconds; nothing is held any more"})
	}
	return out
}

// monitor is the monitor's component; it fails nothing by itself.
func (d *decision) monitor() Component {
	c := Component{Name: "monitor", OK: true}
	switch d.in.Link {
	case LinkConnecting:
		c.Reason, c.Detail = MonitorUnreachable, "connecting"
	case LinkBusy:
		c.Reason, c.Detail = MonitorBusy, "another client holds the monitor"
	case LinkStuck:
		c.Reason, c.Detail = MonitorUnreachable, "the monitor does not answer any more"
	case LinkUnreachable:
		c.Reason, c.Detail = MonitorUnreachable, "the monitor cannot be used"
	default:
		return c
	}
	if d.in.LinkDetail != "" {
		c.Detail = line(c.Detail + ": " + d.in.LinkDetail)
	}
	return c
}

// String says for how long the hold is and where it comes from.
func (h *Hold) String() string {
	s := "probing is held"
	if !h.Until.IsZero() {
		s += fmt.Sprintf(" until %s", h.Until.Format(time.RFC3339))
	}
	if h.Source != "" {
		s += " by " + h.Source
	}
	return s
}
