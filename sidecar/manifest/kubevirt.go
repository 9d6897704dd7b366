package manifest

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/guestprobe/guestprobe/sidecar/probe"
)

// A stanza is a field that holds a probe.
type stanza struct {
	name string
	kind probe.Kind
}

// stanzas lists them in the order of Manifest.Checks.
func stanzas() []stanza {
	return []stanza{{StartupProbe, probe.Startup}, {ReadinessProbe, probe.Readiness}, {LivenessProbe, probe.Liveness}}
}

// virtualMachine reads spec.template of a VirtualMachine, which is an instance in all but name.
func (r *reader) virtualMachine(spec *object, m *Manifest) *Manifest {
	r.misplaced(spec, "spec.template.spec")
	if isNull(spec.nodes["template"]) {
		r.fail(spec.line, join(spec.path, "template"), ErrorTypeRequired, "", "")
		return nil
	}
	template := spec.child("template")
	if template == nil {
		return nil
	}
	r.misplaced(template, "spec.template.spec")
	if isNull(template.nodes["spec"]) {
		r.fail(template.line, join(template.path, "spec"), ErrorTypeRequired, "", "")
		return nil
	}
	inner := template.child("spec")
	if inner == nil {
		return nil
	}
	return r.instance(template, inner, m)
}

// misplaced refuses probes where KubeVirt does not look for them: nobody would notice that they never run.
func (r *reader) misplaced(o *object, home string) {
	for _, s := range stanzas() {
		if !isNull(o.nodes[s.name]) {
			r.fail(o.lines[s.name], join(o.path, s.name), ErrorTypeForbidden, "", "a VirtualMachine has its probes in "+home)
		}
	}
}

// instance reads the spec of a VirtualMachineInstance. owner is what its metadata are in: the object, or a VM's template.
func (r *reader) instance(owner, spec *object, m *Manifest) *Manifest {
	r.ports = interfacePorts(spec)
	m.ports = r.ports
	for _, s := range stanzas() {
		o := spec.child(s.name)
		if o == nil {
			continue
		}
		if s.name == StartupProbe {
			r.warn(o.line, o.path, "KubeVirt's API has no such field and drops it; it counts only where Guestprobe is given this file")
		}
		raw := o.readProbe(false)
		o.finish(nil)
		m.Checks = append(m.Checks, r.check(raw, s.name, s.kind))
	}
	r.nearMisses(spec)
	m = r.annotated(owner, m)
	r.nothingReady(m, spec)
	return m
}

// nearMisses warns of fields that look like a misspelt probe: reading is lenient here, and KubeVirt is not.
func (r *reader) nearMisses(spec *object) {
	names := []string{StartupProbe, ReadinessProbe, LivenessProbe}
	for _, key := range spec.keys {
		if word := suggest(key, names); word != "" && word != key && strings.Contains(strings.ToLower(key), "prob") {
			r.warn(spec.lines[key], join(spec.path, key), "not read: did you mean %q?", word)
		}
	}
}

// nothingReady warns that no check says whether the VM may be sent work.
func (r *reader) nothingReady(m *Manifest, spec *object) {
	if m == nil {
		return
	}
	for _, c := range m.Checks {
		if c.Kind == probe.Readiness && !c.Warn {
			return
		}
	}
	r.warn(spec.line, spec.path, "no readiness probe: readiness follows the VM's state alone")
}

// interfacePorts returns the named ports of the VM's interfaces, of which KubeVirt makes the compute container's
// (rendercontainer.go:230). What is not as expected there is not ours to judge.
func interfacePorts(spec *object) map[string]int {
	ports := map[string]int{}
	devices := spec.peek("domain", "devices")
	if devices == nil {
		return ports
	}
	for _, iface := range devices.peekObjects("interfaces") {
		for _, p := range iface.peekObjects("ports") {
			name := p.peekString("name")
			if _, taken := ports[name]; name == "" || taken || isNull(p.nodes["port"]) {
				continue
			}
			if number, whole := wholeNumber(p.nodes["port"]); whole && number > 0 && number <= 65535 {
				ports[name] = int(number)
			}
		}
	}
	return ports
}

// peekObjects returns the mappings in a list where reading is lenient.
func (o *object) peekObjects(key string) []*object {
	n := o.nodes[key]
	if n == nil || n.Kind != yaml.SequenceNode {
		return nil
	}
	var objects []*object
	for i, item := range n.Content {
		item = resolve(item)
		if !o.r.step(o.lines[key]) {
			return nil
		}
		if item.Kind == yaml.MappingNode {
			objects = append(objects, o.r.object(item, o.r.src.line(item.Line), fmt.Sprintf("%s[%d]", join(o.path, key), i), ""))
		}
	}
	return objects
}

// annotated merges what the annotation of the object says over its probes.
func (r *reader) annotated(owner *object, m *Manifest) *Manifest {
	annotations := owner.peek("metadata", "annotations")
	if annotations == nil || isNull(annotations.nodes[Annotation]) {
		return m
	}
	n := annotations.nodes[Annotation]
	src := source{file: r.src.file, path: join(annotations.path, Annotation), base: annotations.lines[Annotation], flat: true}
	text, ok := r.string(n, src.base, src.path)
	if !ok {
		return m
	}
	if n.Style&yaml.LiteralStyle != 0 { // its lines are lines of the file
		src.flat, src.base = false, n.Line
	}
	extra, err := parseSpec(src, []byte(text))
	if err != nil {
		r.addAll(err)
		return m
	}
	merged, err := Merge(m, extra)
	if err != nil {
		r.addAll(err)
		return m
	}
	r.warnings = append(r.warnings, extra.Warnings...)
	for _, c := range extra.Checks {
		if i := slices.IndexFunc(m.Checks, func(b Check) bool { return b.Name == c.Name }); i >= 0 {
			r.warn(src.base, c.Path, "takes the place of %s", m.Checks[i].Path)
		}
	}
	return merged
}
