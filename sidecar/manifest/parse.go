package manifest

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Parse reads a manifest, YAML or JSON. name is what messages call the file. The error is an [ErrorList] with everything
// that is wrong, one line each.
//
// Of several documents exactly one may be of a kind that is read here; empty ones are skipped, those of other kinds too,
// with a warning. A fragment without apiVersion and kind, as manuals print them, is recognised by its shape, with a
// warning that says what it was read as.
func Parse(name string, data []byte) (*Manifest, error) {
	r := &reader{src: source{file: name}}
	docs, ok := r.documents(data)
	if !ok {
		return nil, r.err()
	}
	m := r.manifest(r.choose(docs))
	if r.failed() {
		return nil, r.err()
	}
	m.Warnings = r.warnings
	return m, nil
}

// ParseSpec reads the bare spec of a GuestProbes document, as the annotation [Annotation] holds it. Named ports that
// it mentions stay unresolved (Port 0) until [Merge] finds them. No text at all is an empty spec.
func ParseSpec(name string, data []byte) (*Manifest, error) {
	return parseSpec(source{file: name}, data)
}

func parseSpec(src source, data []byte) (*Manifest, error) {
	r := &reader{src: src, portsLater: true}
	docs, ok := r.documents(data)
	if !ok {
		return nil, r.err()
	}
	m := &Manifest{Kind: KindGuestProbes, Policy: DefaultPolicy()}
	switch len(docs) {
	case 0:
	case 1:
		if spec := r.object(docs[0], src.line(docs[0].Line), src.path, ""); spec != nil {
			r.guestProbes(spec, m)
		}
	default:
		r.fail(src.line(docs[1].Line), src.path, ErrorTypeSyntax, "", "more than one document")
	}
	if r.failed() {
		return nil, r.err()
	}
	m.Warnings, m.unresolved = r.warnings, r.unresolved
	return m, nil
}

// documents reads the text and checks what holds for all of it; false if it cannot be read any further.
func (r *reader) documents(data []byte) ([]*yaml.Node, bool) {
	docs, elided, err := documents(data)
	if err != nil {
		r.add(syntaxError(r.src, err))
		return nil, false
	}
	if elided {
		r.warn(0, "", `lines of nothing but "..." were left out`)
	}
	for _, doc := range docs {
		r.checkTree(doc, nil, 0)
	}
	return docs, !r.failed()
}

// A document is the root of one, and what it was found to be.
type document struct {
	root             *object
	spec             *object // for a fragment that is nothing but a spec, the root itself
	kind, apiVersion string
	fragment         bool
}

func (d *document) usable() bool {
	switch d.kind {
	case KindVirtualMachine, KindVirtualMachineInstance:
		return d.apiVersion == "kubevirt.io/v1" || d.apiVersion == "kubevirt.io/v1alpha3"
	case KindGuestProbes:
		return d.apiVersion == APIVersion
	}
	return false
}

// choose returns the one document to read, or nil with an error reported.
func (r *reader) choose(nodes []*yaml.Node) *document {
	if len(nodes) == 0 {
		r.fail(0, "", ErrorTypeSyntax, "", "holds no document")
		return nil
	}
	var chosen *document
	var others []*document
	for _, n := range nodes {
		root := r.object(n, r.src.line(n.Line), "", " with apiVersion, kind and spec")
		if root == nil {
			continue
		}
		d := r.identify(root)
		switch {
		case !d.usable():
			others = append(others, d)
		case chosen == nil:
			chosen = d
		default:
			r.fail(root.line, "", ErrorTypeSyntax, "", fmt.Sprintf("a second document to read, %s; the first is %s on line %d: give exactly one", d.kind, chosen.kind, chosen.root.line))
		}
	}
	for _, d := range others {
		if chosen == nil {
			r.refuse(d)
		} else {
			r.warn(d.root.line, "", "a document of another kind is left out: %s", quote(d.kind))
		}
	}
	if r.failed() {
		return nil
	}
	return chosen
}

// identify finds out what a document is, from kind and apiVersion or, where both are missing, from its shape.
func (r *reader) identify(root *object) *document {
	d := &document{root: root, kind: root.peekString("kind"), apiVersion: root.peekString("apiVersion")}
	if !isNull(root.nodes["kind"]) || !isNull(root.nodes["apiVersion"]) {
		return d
	}
	spec := root.peek("spec")
	if spec == nil {
		spec = root
	}
	has := func(keys ...string) bool {
		for _, key := range keys {
			if _, ok := spec.nodes[key]; ok {
				return true
			}
		}
		return false
	}
	switch {
	case has("template"):
		d.kind, d.apiVersion = KindVirtualMachine, "kubevirt.io/v1"
	case has("domain"):
		d.kind, d.apiVersion = KindVirtualMachineInstance, "kubevirt.io/v1"
	case has("checks", "policy", StartupProbe):
		d.kind, d.apiVersion = KindGuestProbes, APIVersion
	case has(ReadinessProbe, LivenessProbe):
		d.kind, d.apiVersion = KindVirtualMachineInstance, "kubevirt.io/v1"
	default:
		return d
	}
	d.fragment, d.spec = true, spec
	what := "the spec of kind"
	if spec != root {
		what = "kind"
	}
	r.warn(root.line, "", "no apiVersion and kind: read, by its shape, as %s %s (%s)", what, d.kind, d.apiVersion)
	return d
}

// refuse says why a document cannot be read.
func (r *reader) refuse(d *document) {
	kinds := []string{KindVirtualMachine, KindVirtualMachineInstance, KindGuestProbes}
	line := func(key string) int {
		if n, ok := d.root.lines[key]; ok {
			return n
		}
		return d.root.line
	}
	versions := []string{"kubevirt.io/v1", "kubevirt.io/v1alpha3"}
	switch d.kind {
	case "":
		if n := d.root.nodes["kind"]; !isNull(n) {
			r.fail(line("kind"), "kind", ErrorTypeInvalid, show(n), "must be a string")
			return
		}
		r.fail(line("kind"), "kind", ErrorTypeRequired, "", "must be one of "+quoteAll(kinds))
		return
	case KindGuestProbes:
		versions = []string{APIVersion}
	case KindVirtualMachine, KindVirtualMachineInstance:
	default:
		r.fail(line("kind"), "kind", ErrorTypeNotSupported, quote(d.kind), "supported values: "+quoteAll(kinds))
		return
	}
	if isNull(d.root.nodes["apiVersion"]) {
		r.fail(line("apiVersion"), "apiVersion", ErrorTypeRequired, "", "must be "+strings.Join(versions, " or "))
		return
	}
	r.fail(line("apiVersion"), "apiVersion", ErrorTypeNotSupported, show(d.root.nodes["apiVersion"]), "supported values: "+quoteAll(versions))
}

// manifest reads the chosen document.
func (r *reader) manifest(d *document) *Manifest {
	if d == nil {
		return nil
	}
	m := &Manifest{Kind: d.kind, Policy: DefaultPolicy()}
	if metadata := d.root.peek("metadata"); metadata != nil {
		m.Name, m.Namespace = metadata.peekString("name"), metadata.peekString("namespace")
	}
	spec := d.spec
	if spec == nil {
		if isNull(d.root.nodes["spec"]) {
			r.fail(d.root.line, "spec", ErrorTypeRequired, "", "")
			return nil
		}
		if spec = d.root.child("spec"); spec == nil {
			return nil
		}
	}
	switch d.kind {
	case KindVirtualMachine:
		return r.virtualMachine(spec, m)
	case KindVirtualMachineInstance:
		return r.instance(d.root, spec, m)
	}
	if !d.fragment {
		for _, key := range []string{"apiVersion", "kind", "metadata", "status"} {
			d.root.get(key)
		}
		d.root.finish(nil)
	}
	r.guestProbes(spec, m)
	return m
}
