package manifest

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// hostile returns large inputs, each made to be costly to some way of reading. They are a quarter of what is accepted:
// enough to tell work that grows with the square of the size, which would take minutes.
func hostile() map[string]string {
	const size = maxSize / 4
	fill := func(s string) string { return strings.Repeat(s, size/len(s)) }
	instance := "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nspec:\n"
	probes := "apiVersion: guestprobe.dev/v1alpha1\nkind: GuestProbes\nspec:\n"
	within := func(head, item, tail string) string {
		return head + strings.Repeat(item, (size-len(head)-len(tail))/len(item)) + tail
	}
	numbered := func(head, format string) string {
		var b strings.Builder
		b.WriteString(head)
		for i := 0; b.Len() < size; i++ {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	// levels has each line refer to the one before it several times over, and ends in a probe that is the last.
	levels := func(first, next string) string {
		var b strings.Builder
		fmt.Fprintf(&b, "x0: &x0 %s\n", first)
		for i := 1; i < 60; i++ {
			fmt.Fprintf(&b, "x%d: &x%d %s\n", i, i, strings.ReplaceAll(next, "*", fmt.Sprintf("*x%d", i-1)))
		}
		return b.String() + "spec: {readinessProbe: *x59}\n"
	}
	deepKeys := strings.Repeat("{"+strings.Repeat("k", 80)+": ", 90) +
		"{" + strings.Repeat("a: 1, ", 40_000) + "}" + strings.Repeat("}", 90)
	return map[string]string{
		"too large":           strings.Repeat(" ", maxSize+1),
		"open lists":          fill("["),
		"open mappings":       fill("{a: "),
		"nested lists":        strings.Repeat("[", 9000) + strings.Repeat("]", 9000),
		"nested json":         strings.Repeat(`{"a":`, 9000) + "1" + strings.Repeat("}", 9000),
		"deep json":           strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200),
		"open json":           fill(`{"a":`),
		"dashes":              fill("- "),
		"question marks":      fill("? "),
		"comments":            fill("#\n"),
		"elisions":            fill("...\n"),
		"bad elisions":        "a: [\n" + fill(" ...\n"),
		"documents":           fill("---\n"),
		"scalar documents":    fill("--- a\n"),
		"vms":                 fill(instance + "  domain: {}\n---\n"),
		"null bytes":          fill("\x00"),
		"bad utf-8":           fill("\xff\xfe"),
		"one key":             numbered(instance, "  k%d: 1\n"),
		"equal keys":          within(instance, "  k: 1\n", ""),
		"equal keys below":    deepKeys,
		"unknown fields":      numbered(probes, "  k%d: 1\n"),
		"unknown in handler":  numbered(probes+"  readinessProbe:\n    httpGet:\n", "      k%d: 1\n"),
		"long key":            probes + "  " + strings.Repeat("k", 250_000) + ": 1\n",
		"long value":          within(probes+"  readinessProbe: {httpGet: {port: \"", "p", "\"}}\n"),
		"long header":         within(probes+"  readinessProbe: {httpGet: {port: 80, httpHeaders: [{name: \"", "ä", "\"}]}}\n"),
		"long regexp":         within(probes+"  readinessProbe: {tcpSocket: {port: 80}, expect: \"", "(a|b)*", "\"}\n"),
		"large regexp":        probes + "  readinessProbe: {tcpSocket: {port: 80}, expect: \"" + strings.Repeat("(\\\\pL{99})", 90) + "\"}\n",
		"repeated regexp":     probes + "  readinessProbe: {tcpSocket: {port: 80}, expect: \"((a{100}){100}){100}\"}\n",
		"many checks":         numbered(probes+"  checks:\n", "  - {name: c%d, kind: readiness, guestAgentPing: {}}\n"),
		"many headers":        within(probes+"  readinessProbe: {httpGet: {port: 80, httpHeaders: [", "{name: A},", "]}}\n"),
		"many arguments":      within(probes+"  readinessProbe: {exec: {command: [", "a,", "]}}\n"),
		"many virt-probes":    within(probes+"  readinessProbe: {exec: {command: [", "virt-probe, --command, ", "x]}}\n"),
		"wrapped virt-probes": within(probes+"  readinessProbe: {exec: {command: [", "virt-probe, --command=virt-probe, --, ", "x]}}\n"),
		"many interfaces":     within(instance+"  domain: {devices: {interfaces: [", "{ports: [{name: a, port: 1}]},", "]}}\n"),
		"list bomb":           levels("[]", "[*, *, *, *]"),
		"mapping bomb":        levels("{}", "{httpGet: *, exec: *, tcpSocket: *}"),
		"merge bomb":          levels("{a: 1}", "{<<: [*, *, *]}"),
		"merge loop":          "spec: &a {readinessProbe: {guestAgentPing: {}, <<: *a}, <<: *a}\n",
		"merge itself":        "spec:\n  readinessProbe: &a\n    <<: [*a, *a, *a]\n    guestAgentPing: {}\n",
		"alias loop":          "spec: &a {readinessProbe: *a}\n",
		"annotation":          "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata:\n  annotations:\n    guestprobe.dev/probes: '" + strings.Repeat("[", 250_000) + "'\nspec: {}\n",
		"aliased headers": probes + "  readinessProbe: {httpGet: {port: 80, httpHeaders: &h [" + strings.Repeat("{name: A},", 20_000) + "]}}\n" +
			"  checks:\n" + strings.Repeat("  - {name: a, kind: readiness, httpGet: {port: 80, httpHeaders: *h}}\n", 100),
	}
}

// Whatever is given, the answer comes soon, and what is refused is refused in few and short lines.
func TestHostile(t *testing.T) {
	for name, text := range hostile() {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			m, err := Parse("hostile.yaml", []byte(text))
			if took := time.Since(start); took > time.Minute { // the slowest takes half a second where nothing else runs
				t.Errorf("took %v", took)
			}
			if err != nil {
				if size := len(err.Error()); size > 100_000 {
					t.Errorf("%d bytes of error", size)
				}
				return
			}
			if size := len(summary(m)); size > 3*maxSize {
				t.Errorf("%d bytes of summary", size)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	inputs := hostile()
	for name, want := range map[string]string{
		"too large":       "hostile.yaml: larger than 1048576 bytes",
		"nested lists":    "hostile.yaml:1: nested deeper than 100 levels",
		"deep json":       "hostile.yaml:1: nested deeper than 100 levels",
		"open lists":      "hostile.yaml: not valid YAML: exceeded max depth of 10000",
		"merge bomb":      "more than 100000 values to read, aliases counted each time",
		"aliased headers": "more than 100000 values to read, aliases counted each time",
		"merge itself":    "more than 100000 values to read, aliases counted each time",
		"alias loop":      "hostile.yaml:1: spec.readinessProbe.readinessProbe: unknown field",
		"many checks":     "must have at most 100 items",
		"long regexp":     "expect: Too long: may not be more than 1024 bytes",
		"repeated regexp": "invalid repeat count",
	} {
		_, err := Parse("hostile.yaml", []byte(inputs[name]))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %.300v, want %q in it", name, err, want)
		}
	}
}
