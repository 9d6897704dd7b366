package manifest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func mustParse(t *testing.T, text string) *Manifest {
	t.Helper()
	m, err := Parse("base", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func mustParseSpec(t *testing.T, text string) *Manifest {
	t.Helper()
	m, err := ParseSpec("extra", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

const mergeBase = `apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: vm, namespace: ns}
spec:
  domain: {devices: {interfaces: [{name: default, ports: [{name: ssh, port: 22}, {name: web, port: 80}]}]}}
  readinessProbe: {guestAgentPing: {}}
  livenessProbe: {httpGet: {port: web}}
`

func TestMerge(t *testing.T) {
	base := mustParse(t, mergeBase)
	extra := mustParseSpec(t, `
checks:
- {name: ssh, kind: readiness, tcpSocket: {port: ssh}}
readinessProbe: {httpGet: {port: web, path: /healthz}}
startupProbe: {guestAgentPing: {}, failureThreshold: 60}
policy: {agentPing: sync}
`)
	baseBefore, extraBefore := summary(base), summary(extra)
	m, err := Merge(base, extra)
	if err != nil {
		t.Fatal(err)
	}
	want := `VirtualMachineInstance ns/vm
  startupProbe (startup): guestAgentPing
    initialDelaySeconds 0, periodSeconds 10, timeoutSeconds 1, failureThreshold 60, successThreshold 1
  readinessProbe (readiness): httpGet http://<guest>:80/healthz (port "web")
    initialDelaySeconds 0, periodSeconds 10, timeoutSeconds 1, failureThreshold 3, successThreshold 1
  livenessProbe (liveness): httpGet http://<guest>:80/ (port "web")
    initialDelaySeconds 0, periodSeconds 10, timeoutSeconds 1, failureThreshold 3, successThreshold 1
  ssh (readiness): tcpSocket <guest>:22 (port "ssh")
    initialDelaySeconds 0, periodSeconds 10, timeoutSeconds 1, failureThreshold 3, successThreshold 1
  policy: freezeHoldSeconds 60, agentPing sync, guestPanicked fail, runCounters reset, httpBodyErrors ignore
`
	if diff := cmp.Diff(want, summary(m)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if summary(base) != baseBefore || summary(extra) != extraBefore {
		t.Error("Merge changed its arguments")
	}
	again, err := Merge(m, extra)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(summary(m), summary(again)); diff != "" {
		t.Errorf("merged twice (-once +twice):\n%s", diff)
	}
	checkRoundTrip(t, m)
}

// A policy field that is set to its default wins over the base's; one that is not set leaves the base's alone.
func TestMergePolicy(t *testing.T) {
	base := mustParseSpec(t, "policy: {freezeHoldSeconds: 5, agentPing: sync, guestPanicked: hold, runCounters: keep, httpBodyErrors: fail}")
	m, err := Merge(base, mustParseSpec(t, "policy: {agentPing: ping, freezeHoldSeconds: 0}"))
	if err != nil {
		t.Fatal(err)
	}
	want := Policy{FreezeHold: 0, AgentPing: AgentPingPing, GuestPanicked: GuestPanickedHold, RunCounters: RunCountersKeep, HTTPBodyErrors: HTTPBodyErrorsFail}
	if m.Policy != want {
		t.Errorf("got %+v, want %+v", m.Policy, want)
	}
	all := mustParseSpec(t, "policy: {freezeHoldSeconds: 60, agentPing: ping, guestPanicked: fail, runCounters: reset, httpBodyErrors: ignore}")
	if m, err = Merge(m, all); err != nil || m.Policy != DefaultPolicy() {
		t.Errorf("got %+v, %v", m.Policy, err)
	}
}

func TestMergeUnknownPort(t *testing.T) {
	extra := mustParseSpec(t, "readinessProbe:\n  tcpSocket:\n    port: db\nlivenessProbe: {httpGet: {port: nope}}\nchecks: [{name: a, kind: readiness, tcpSocket: {port: ssh}}]")
	if got := extra.Checks[0].String(); !strings.Contains(got, "tcpSocket <guest>:db") {
		t.Errorf("unresolved: %s", got)
	}
	_, err := Merge(mustParse(t, mergeBase), extra)
	want := `extra:3: readinessProbe.tcpSocket.port: Invalid value: "db": port "db" not found
extra:4: livenessProbe.httpGet.port: Invalid value: "nope": port "nope" not found`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want\n%s", err, want)
	}
}

func TestParseSpec(t *testing.T) {
	for _, text := range []string{"", "\n", "# nothing\n", "null", "{}", "---\n---\n"} {
		m, err := ParseSpec("annotation", []byte(text))
		if err != nil || len(m.Checks) != 0 || m.Policy != DefaultPolicy() || len(m.Warnings) != 0 {
			t.Errorf("%q: got %v, %v", text, m, err)
		}
	}
	for text, want := range map[string]string{
		"words":            `annotation:1: Invalid value: "words": must be a mapping`,
		"{}\n---\n{a: b}":  "annotation:3: more than one document",
		"[":                "annotation:2: not valid YAML: did not find expected node content",
		"{spec: {}}":       "annotation:1: spec: unknown field, here stands the spec alone",
		"readinessProbe: ": "",
	} {
		_, err := ParseSpec("annotation", []byte(text))
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestErrors(t *testing.T) {
	_, err := Parse("", []byte("spec:\n  readinessProbe:\n    httpGet: {port: 0}\n    periodSeconds: -2\n"))
	var list ErrorList
	var first *Error
	if !errors.As(err, &list) || !errors.As(err, &first) || len(list) != 2 || first != list[0] {
		t.Fatalf("got %#v", err)
	}
	want := &Error{Line: 3, Field: "spec.readinessProbe.httpGet.port", Type: ErrorTypeInvalid, Value: "0", Detail: "must be between 1 and 65535, inclusive"}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, want := list[1].Error(), "line 4: spec.readinessProbe.periodSeconds: Invalid value: -2: must be greater than or equal to 0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}

	var many strings.Builder
	many.WriteString("checks:\n")
	for range 90 {
		many.WriteString("- {kind: readiness, guestAgentPing: {}}\n")
	}
	_, err = ParseSpec("x", []byte(many.String()))
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 51 || lines[0] != "x:2: checks[0].name: Required value" || lines[50] != "x: and 40 more errors" {
		t.Errorf("%d lines: %q … %q", len(lines), lines[0], lines[len(lines)-1])
	}
}

func TestSuggest(t *testing.T) {
	words := []string{"httpGet", "tcpSocket", "exec", "grpc", "guestAgentPing", "periodSeconds", "timeoutSeconds", "name", "kind"}
	for got, want := range map[string]string{
		"httpget": "httpGet", "HTTPGet": "httpGet", "httpsGet": "httpGet", "tcpsocket": "tcpSocket", "tcp": "", "exce": "exec", "grcp": "grpc",
		"guestAgentPIng": "guestAgentPing", "guestPing": "", "period": "periodSeconds", "timeout": "timeoutSeconds", "nmae": "name", "": "",
		"zzzz": "", strings.Repeat("x", 1000): "",
	} {
		if w := suggest(got, words); w != want {
			t.Errorf("%q: suggested %q, want %q", got, w, want)
		}
	}
}

func TestGracePeriod(t *testing.T) {
	m := mustParseSpec(t, "livenessProbe: {guestAgentPing: {}, terminationGracePeriodSeconds: 9223372036}")
	if got := m.Checks[0].TerminationGracePeriod; got == nil || *got != 9223372036*time.Second {
		t.Errorf("got %v", got)
	}
}
