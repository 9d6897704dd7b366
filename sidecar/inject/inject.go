package inject

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/guestprobe/guestprobe/sidecar/manifest"
)

// Input is everything that one decision is made from.
type Input struct {
	// Pod is the pod as the API server has it, before it is stored. It is not changed.
	Pod *corev1.Pod
	// Namespace is the pod's; the pod itself need not name it yet.
	Namespace string
	// VMI is the pod's VirtualMachineInstance; nil where it could not be had. Then nothing is known of its network.
	VMI *unstructured.Unstructured
	// Defaults is the spec of a GuestProbes document that holds for the whole namespace; "" for none.
	Defaults string
	// Warnings are about how the rest was come by, e.g. why there is no VMI. They are told with Inject's own.
	Warnings []string
}

// A Result says what is to be done with a pod.
type Result struct {
	// Patch leads from the pod to the patched pod; empty: leave it as it is.
	Patch []Operation
	// Skipped says why the pod is left as it is; "" if it is patched.
	Skipped string
	// Warnings are for the VM's owner, a line each.
	Warnings []string
}

// ErrBroken is what Inject's error matches for an annotation or default that cannot be used, where
// Config.RefuseBroken asks for an error. Its text has the field's path.
var ErrBroken = errors.New("refused")

// The label and annotations of KubeVirt that matter here.
const (
	kubevirtLabel        = "kubevirt.io"
	kubevirtLauncher     = "virt-launcher"
	kubevirtDomain       = "kubevirt.io/domain"
	kubevirtProvisioning = "kubevirt.io/ephemeral-provisioning" // a pod that only makes a volume bind; its compute runs no VM
	// kubevirtPause makes virt-launcher answer guestAgentPing probes with success (KubeVirt API core/v1 types.go:1473). It can
	// change on the VMI at any time, and reaches neither a pod that is there nor the domain's XML: a sidecar cannot see it.
	kubevirtPause = "kubevirt.io/pause-guest-agent-probes"
	kindVMI       = "VirtualMachineInstance"
	computeName   = "compute"
)

// Inject decides what becomes of a pod. Its own output, given in again, gives an empty patch. An error is the owner's
// (see ErrBroken) or means that nothing can be said; in both cases the pod may be admitted as it is.
func Inject(in Input, cfg *Config) (*Result, error) {
	pod := in.Pod
	compute := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == computeName })
	reason, odd := skip(pod, compute)
	if reason != "" {
		res := &Result{Skipped: reason}
		if odd {
			res.Warnings = []string{"not injected: " + reason}
		}
		return res, nil
	}
	p := &plan{cfg: cfg, pod: pod, compute: compute, ns: in.Namespace, vm: vmName(pod), warnings: slices.Clone(in.Warnings)}
	if p.ns == "" {
		p.ns = pod.Namespace
	}
	if p.vm == "" || p.ns == "" {
		reason := "neither an owner nor an annotation names its VirtualMachineInstance"
		return &Result{Skipped: reason, Warnings: []string{"not injected: " + reason}}, nil
	}
	wanted, err := p.wanted()
	if err != nil {
		return nil, err
	}
	if !wanted {
		return &Result{Skipped: "its annotation " + AnnotationInject + " says so", Warnings: p.warnings}, nil
	}
	p.net = networkOf(in.VMI, pod, cfg)
	if err := p.options(); err != nil {
		return nil, err
	}
	defaults, err := p.spec(fmt.Sprintf("ConfigMap %s/%s, key %s", p.ns, DefaultsName, DefaultsKey), in.Defaults)
	if err != nil {
		return nil, err
	}
	annotation, err := p.spec("annotation "+AnnotationProbes, pod.Annotations[AnnotationProbes])
	if err != nil {
		return nil, err
	}
	switch err := p.merge(defaults, annotation); {
	case errors.Is(err, errTooLarge) && !errors.Is(err, ErrBroken):
		reason := err.Error()
		return &Result{Skipped: reason, Warnings: append(p.warnings, "not injected: "+reason)}, nil
	case err != nil:
		return nil, err
	}
	patch, err := p.patch(mustBeGuaranteed(pod, in.VMI))
	if err != nil {
		return nil, err
	}
	return &Result{Patch: patch, Warnings: p.warnings}, nil
}

// skip says why a pod is not for us; odd, that its owner would want to know.
func skip(pod *corev1.Pod, compute int) (reason string, odd bool) {
	has := func(name string) bool {
		return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	}
	named := func(c corev1.Container) bool { return c.Name == ContainerName }
	_, provisioning := pod.Annotations[kubevirtProvisioning]
	switch {
	case pod.Labels[kubevirtLabel] != kubevirtLauncher:
		return "it is no virt-launcher pod", false
	case provisioning:
		return "it is a temporary pod that only provisions volumes", false
	case compute < 0:
		return "it has no container named " + computeName, false
	case slices.ContainsFunc(pod.Spec.InitContainers, named) && pod.Annotations[AnnotationStatus] != "":
		return "it carries the sidecar already", false
	case slices.ContainsFunc(slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers), named):
		return "it has another container named " + ContainerName, true
	case has(VolumeRun) || has(VolumeInfo):
		return fmt.Sprintf("it has a volume named %s or %s of its own", VolumeRun, VolumeInfo), true
	case mountAt(&pod.Spec.Containers[compute], libvirtDir) == nil:
		return "compute has no volume at " + libvirtDir + ": this virt-launcher is not one we know", true
	case mountAt(&pod.Spec.Containers[compute], sharedDir) != nil:
		return "compute has a volume at " + sharedDir + " already", true
	}
	return "", false
}

// mountAt returns the container's mount at dir. /run and /var/run are one.
func mountAt(c *corev1.Container, dir string) *corev1.VolumeMount {
	for i := range c.VolumeMounts {
		at := path.Clean(c.VolumeMounts[i].MountPath)
		if at == dir || "/var"+at == dir {
			return &c.VolumeMounts[i]
		}
	}
	return nil
}

// vmName returns the VMI's name. The label vm.kubevirt.io/name is the hostname and not it.
func vmName(pod *corev1.Pod) string {
	for _, ref := range pod.OwnerReferences {
		if ref.Kind == kindVMI && ref.Controller != nil && *ref.Controller {
			return ref.Name
		}
	}
	return pod.Annotations[kubevirtDomain]
}

// VMIName returns the name of the VirtualMachineInstance whose launcher a pod is: what to look up for Input.VMI. It is ""
// for a pod that Inject leaves as it is, whatever else is known.
func VMIName(pod *corev1.Pod) string {
	compute := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == computeName })
	if reason, _ := skip(pod, compute); reason != "" {
		return ""
	}
	return vmName(pod)
}

// broken handles what an owner or administrator got wrong, by the switch.
func (p *plan) broken(err error) error {
	if p.cfg.RefuseBroken {
		return fmt.Errorf("%w: %w", ErrBroken, err)
	}
	for line := range strings.SplitSeq(err.Error(), "\n") { // a list of errors has one to a line
		p.warnf("ignored: %s", line)
	}
	return nil
}

// wanted reads the annotation that opts a VM out.
func (p *plan) wanted() (bool, error) {
	value, ok := p.pod.Annotations[AnnotationInject]
	value = strings.TrimSpace(value) // a block in YAML ends in a newline
	switch {
	case !ok || value == "enabled":
		return true, nil
	case value == "disabled":
		return false, nil
	}
	wanted, err := strconv.ParseBool(value)
	if err != nil {
		return true, p.broken(fmt.Errorf("annotation %s: %q is neither true nor false", AnnotationInject, value))
	}
	return wanted, nil
}

// options reads the annotations that are one word.
func (p *plan) options() error {
	switch value := strings.TrimSpace(p.pod.Annotations[AnnotationAccess]); value {
	case "", "libvirt":
	case "direct":
		p.direct = slices.ContainsFunc(p.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == pluginVolume })
		if !p.direct {
			p.warnf("annotation %s: the pod has no volume %s (KubeVirt's Plugins gate is off): libvirt is used", AnnotationAccess, pluginVolume)
		}
	default:
		if err := p.broken(fmt.Errorf("annotation %s: %q is neither libvirt nor direct", AnnotationAccess, value)); err != nil {
			return err
		}
	}
	host, ok := p.pod.Annotations[AnnotationGuestHost]
	host = strings.TrimSpace(host)
	if !ok {
		return nil
	}
	for one := range strings.SplitSeq(host, ",") {
		if _, err := netip.ParseAddr(one); err != nil && !isHostname(one) {
			return p.broken(fmt.Errorf("annotation %s: %q is neither an IP address nor a host name", AnnotationGuestHost, one))
		}
	}
	p.net.guestHost, p.net.otherHost = host, ""
	p.net.isolated = p.net.binding == bindingBridge // the owner knows of a way, but with a bridge it is one to the guest alone
	return nil
}

func isHostname(s string) bool {
	return len(s) <= 253 && regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?$`).MatchString(s)
}

// spec reads the spec of a GuestProbes document; nil for none, and for one that is ignored.
func (p *plan) spec(name, text string) (*manifest.Manifest, error) {
	if text == "" {
		return nil, nil
	}
	m, err := manifest.ParseSpec(name, []byte(text))
	if err != nil {
		return nil, p.broken(err)
	}
	return m, nil
}

// merge assigns the checks with as many of the layers as fit together, and onto the pod: named ports, which are looked up
// in the pod, can still be missing.
func (p *plan) merge(defaults, annotation *manifest.Manifest) error {
	err := p.assign(defaults, annotation)
	if err == nil {
		err = p.fits()
	}
	if err == nil || defaults == nil && annotation == nil {
		return err
	}
	if err := p.broken(err); err != nil {
		return err
	}
	fresh := plan{cfg: p.cfg, pod: p.pod, compute: p.compute, vm: p.vm, ns: p.ns, net: p.net, direct: p.direct, warnings: p.warnings}
	*p = fresh
	if err := p.assign(nil, nil); err != nil {
		return err
	}
	return p.fits()
}
