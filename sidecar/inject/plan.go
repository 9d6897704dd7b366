package inject

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/guestprobe/guestprobe/sidecar/manifest"
	"github.com/guestprobe/guestprobe/sidecar/probe"
)

// A plan says who runs which probe. It is made from the pod and turned into a patch by its methods.
type plan struct {
	cfg     *Config
	pod     *corev1.Pod
	compute int // index of the container
	vm      string
	ns      string
	net     network

	// checks are the sidecar's.
	checks *manifest.Manifest
	// readiness and liveness say what becomes of compute's probes.
	readiness, liveness computeProbe
	// mayKill: the sidecar has a liveness check, so its verdict may end compute.
	mayKill bool
	direct  bool // the sidecar has sockets of its own, libvirt is only what it falls back to

	status   []string
	warnings []string
}

// A computeProbe is what becomes of a probe of compute. The zero value removes it.
type computeProbe struct {
	keep bool          // it stays as KubeVirt made it
	set  *corev1.Probe // it becomes this one, of the kubelet's own kind
}

func (p *plan) warnf(format string, args ...any) {
	p.warnings = append(p.warnings, fmt.Sprintf(format, args...))
}

func (p *plan) container() *corev1.Container { return &p.pod.Spec.Containers[p.compute] }

// A layer is one source of probes. Later layers win.
type layer struct {
	manifest *manifest.Manifest
	rendered bool // it was read from compute's own probes
}

// assign merges the layers and gives every check its place: the sidecar, or compute and thereby the kubelet.
func (p *plan) assign(defaults, annotation *manifest.Manifest) error {
	merged, err := parseInstance(p.vm, p.ns, p.container().Ports, nil)
	if err != nil {
		return err
	}
	merged.Warnings = nil // it is about a VMI without probes, which this is not
	var layers []layer
	if defaults != nil {
		layers = append(layers, layer{manifest: defaults})
	}
	for _, r := range []struct {
		field  string
		probe  *corev1.Probe
		result *computeProbe
	}{
		{manifest.ReadinessProbe, p.container().ReadinessProbe, &p.readiness},
		{manifest.LivenessProbe, p.container().LivenessProbe, &p.liveness},
	} {
		if r.probe == nil {
			continue
		}
		m, err := restore(p.vm, p.ns, r.field, r.probe, p.container().Ports)
		if err != nil {
			r.result.keep = true
			p.warnf("compute keeps its %s: %v", r.field, err)
			continue
		}
		if _, pausable := p.pod.Annotations[kubevirtPause]; pausable && m.Checks[0].Handler.GuestAgentPing != nil {
			r.result.keep = true
			p.status = append(p.status, r.field+" by the kubelet")
			p.warnf("spec.%s: it stays with the kubelet, on compute: the annotation %s works there alone", r.field, kubevirtPause)
			continue
		}
		m.Warnings = nil
		layers = append(layers, layer{manifest: m, rendered: true})
	}
	if annotation != nil {
		layers = append(layers, layer{manifest: annotation})
	}
	rendered := map[string]bool{}
	for _, l := range layers {
		if merged, err = manifest.Merge(merged, l.manifest); err != nil {
			return err
		}
		for _, c := range l.manifest.Checks {
			rendered[c.Name] = l.rendered
		}
	}
	checks := merged.Checks
	merged.Checks = nil
	for _, c := range checks {
		if p.place(c, rendered[c.Name]) {
			merged.Checks = append(merged.Checks, c)
		}
	}
	p.checks = merged
	p.decideLiveness()
	return nil
}

// place tells whether the sidecar runs the check; if not, it sees to what becomes of it.
func (p *plan) place(c manifest.Check, rendered bool) bool {
	slot := p.slot(c.Name)
	if slot != nil && slot.keep && !rendered {
		*slot = computeProbe{} // an annotation has taken the place of the probe that could not be read
	}
	host, port, network := target(c.Handler)
	switch {
	case !network:
		return true
	case host != "" && rendered:
		// The kubelet connects from the node, where the owner meant it to; the pod may see another host there.
		slot.keep = true
		p.status = append(p.status, c.Name+" by the kubelet")
		p.warnf("%s: it names the host %s, so it stays with the kubelet", c.Path, host)
		return false
	case host != "" && !p.net.isolated, host == "" && p.net.guestHost != "":
		if host == "" && p.net.binding == bindingMasquerade && len(p.net.ports) > 0 && !slices.Contains(p.net.ports, int32(port)) {
			p.warnf("%s: port %d is not among the interface's ports: the sidecar reaches it, a client of the pod does not", c.Path, port)
		}
		return true
	}
	if slot != nil && rendered {
		slot.keep = true
		p.status = append(p.status, c.Name+" by the kubelet")
		p.warnf("%s: it stays with the kubelet, on compute: %s", c.Path, p.net.why)
		return false
	}
	if slot == nil {
		p.warnf("%s: left out: %s", c.Path, p.net.why)
		return false
	}
	set, err := kubeletProbe(c)
	if err != nil {
		p.warnf("%s: left out: %s, and %v", c.Path, p.net.why, err)
		return false
	}
	*slot = computeProbe{set: set}
	p.status = append(p.status, c.Name+" by the kubelet")
	p.warnf("%s: it goes to the kubelet, on compute: %s", c.Path, p.net.why)
	return false
}

// slot returns what becomes of compute's probe of that name; nil for checks that have no place there.
func (p *plan) slot(name string) *computeProbe {
	switch name {
	case manifest.ReadinessProbe:
		return &p.readiness
	case manifest.LivenessProbe:
		return &p.liveness
	}
	return nil
}

// decideLiveness gives compute the liveness probe that asks the sidecar, if the sidecar has something to say and the
// place is free. Without a liveness check of the owner's nothing may end the VM, whatever the sidecar sees.
func (p *plan) decideLiveness() {
	var names []string
	for _, c := range p.checks.Checks {
		if c.Kind == probe.Liveness && !c.Warn {
			names = append(names, c.Name)
		}
	}
	if len(names) == 0 {
		return
	}
	if p.liveness.keep || p.liveness.set != nil {
		p.warnf("compute's livenessProbe is the kubelet's, so these only report and end nothing: %s", strings.Join(names, ", "))
		return
	}
	p.mayKill = true
}
