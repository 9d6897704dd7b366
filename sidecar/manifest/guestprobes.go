package manifest

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/sidecar/probe"
)

// maxChecks is how many entries checks: may have. Each is a loop of its own and several time series.
const maxChecks = 100

// guestProbes reads the spec of a GuestProbes document. All of it is strict.
func (r *reader) guestProbes(spec *object, m *Manifest) {
	for _, s := range stanzas() {
		o := spec.child(s.name)
		if o == nil {
			continue
		}
		raw := o.readProbe(true)
		hint := "only entries of checks have it"
		o.finish(map[string]string{"name": hint, "kind": hint, "severity": hint})
		m.Checks = append(m.Checks, r.check(raw, s.name, s.kind))
	}
	names := map[string]int{}
	path := join(spec.path, "checks")
	items := spec.items("checks")
	if len(items) > maxChecks {
		r.fail(spec.lines["checks"], path, ErrorTypeTooMany, fmt.Sprint(len(items)), fmt.Sprintf("must have at most %d items", maxChecks))
		items = nil
	}
	for i, n := range items {
		o := r.object(n, r.src.line(n.Line), fmt.Sprintf("%s[%d]", path, i), "")
		if o == nil {
			continue
		}
		m.Checks = append(m.Checks, r.namedCheck(o, names))
	}
	r.policy(spec, m)
	spec.finish(map[string]string{
		"apiVersion": "here stands the spec alone", "kind": "here stands the spec alone", "spec": "here stands the spec alone",
	})
	if !r.portsLater {
		r.nothingReady(m, spec)
	}
}

// namedCheck reads one entry of checks:. names holds those before it, with their lines.
func (r *reader) namedCheck(o *object, names map[string]int) Check {
	name, kind, severity := o.string("name"), o.word("kind"), o.word("severity")
	raw := o.readProbe(true)
	o.finish(nil)

	label := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	at := join(o.path, "name")
	switch line, taken := names[name.value]; {
	case isNull(o.nodes["name"]):
		r.fail(o.line, at, ErrorTypeRequired, "", "")
	case !name.set: // no string, as has been reported
	case len(name.value) > 63 || !label.MatchString(name.value):
		r.fail(name.line, at, ErrorTypeInvalid, quote(name.value), "must be at most 63 lower case alphanumeric characters or '-', "+
			"and must start and end with an alphanumeric character (e.g. 'my-name')")
	case taken:
		r.fail(name.line, at, ErrorTypeDuplicate, quote(name.value), fmt.Sprintf("the check on line %d has that name", line))
	default:
		names[name.value] = name.line
	}
	if isNull(o.nodes["kind"]) {
		r.fail(o.line, join(o.path, "kind"), ErrorTypeRequired, "", `must be one of "readiness", "liveness", "startup"`)
	}
	k := probe.Readiness
	switch r.oneOf(kind, join(o.path, "kind"), "readiness", "liveness", "startup") {
	case "liveness":
		k = probe.Liveness
	case "startup":
		k = probe.Startup
	}
	c := r.check(raw, name.value, k)
	c.Warn = r.oneOf(severity, join(o.path, "severity"), "fail", "warn") == "warn"
	return c
}

// policy reads the policy and fills in the defaults.
func (r *reader) policy(spec *object, m *Manifest) {
	o := spec.child("policy")
	if o == nil {
		return
	}
	if f := o.int32("freezeHoldSeconds"); f.set {
		if f.value < 0 {
			r.fail(f.line, join(o.path, "freezeHoldSeconds"), ErrorTypeInvalid, fmt.Sprint(f.value), "must be greater than or equal to 0")
		}
		m.Policy.FreezeHold = time.Duration(f.value) * time.Second
		m.policySet = append(m.policySet, "freezeHoldSeconds")
	}
	word := func(key string, supported ...string) (string, bool) {
		f := o.word(key)
		if f.set {
			r.oneOf(f, join(o.path, key), supported...)
			m.policySet = append(m.policySet, key)
		}
		return f.value, f.set
	}
	if v, ok := word("agentPing", string(AgentPingPing), string(AgentPingSync)); ok {
		m.Policy.AgentPing = AgentPing(v)
	}
	if v, ok := word("guestPanicked", string(GuestPanickedFail), string(GuestPanickedHold)); ok {
		m.Policy.GuestPanicked = GuestPanicked(v)
	}
	if v, ok := word("runCounters", string(RunCountersReset), string(RunCountersKeep)); ok {
		m.Policy.RunCounters = RunCounters(v)
	}
	if v, ok := word("httpBodyErrors", string(HTTPBodyErrorsIgnore), string(HTTPBodyErrorsFail)); ok {
		m.Policy.HTTPBodyErrors = HTTPBodyErrors(v)
	}
	o.finish(nil)
}

// printable returns text as it is if it is plain, else quoted, so that it cannot pose as something else on a terminal.
func printable(s string) string {
	plain := strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }) < 0
	if plain && s != "" {
		return s
	}
	return fmt.Sprintf("%q", s)
}
