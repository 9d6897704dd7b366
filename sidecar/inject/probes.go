package inject

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/guestprobe/guestprobe/sidecar/manifest"
)

// What KubeVirt adds to a probe when it renders it (pkg/virt-controller/services/template.go:108-110, 1468).
const (
	libvirtStartupDelay = 10 // seconds on every initialDelaySeconds
	virtProbe           = "virt-probe"
)

// restore reads a probe of compute back into what the VM's owner had written: the delay for libvirt is taken off, and a
// virt-probe command becomes the guestAgentPing or exec that it was made of. field is "readinessProbe" or
// "livenessProbe". The pod is read, not the VMI: it is what KubeVirt makes of the VMI, every default filled in.
func restore(vm, namespace, field string, p *corev1.Probe, ports []corev1.ContainerPort) (*manifest.Manifest, error) {
	p = p.DeepCopy()
	p.InitialDelaySeconds = max(0, p.InitialDelaySeconds-libvirtStartupDelay)
	if p.Exec != nil {
		if len(p.Exec.Command) == 0 || p.Exec.Command[0] != virtProbe {
			return nil, fmt.Errorf("spec.%s.exec: the command runs in compute, not in the guest", field)
		}
		// The pod's timeout has a second added, but not where KubeVirt met a command that was wrapped already. The
		// wrapped command's own timeout is always the owner's.
		if t, ok := virtProbeTimeout(p.Exec.Command); ok {
			p.TimeoutSeconds = t
		}
	}
	return parseInstance(vm, namespace, ports, map[string]any{field: p})
}

// virtProbeTimeout reads the value of --timeoutSeconds.
func virtProbeTimeout(command []string) (int32, bool) {
	for i, arg := range command {
		if arg == "--" {
			break
		}
		flag, value, inline := strings.Cut(arg, "=")
		if flag != "--timeoutSeconds" {
			continue
		}
		if !inline && i+1 < len(command) {
			value = command[i+1]
		}
		t, err := strconv.ParseInt(value, 10, 32)
		return int32(t), err == nil && t > 0
	}
	return 0, false
}

// parseInstance has manifest read a VirtualMachineInstance that holds the given probes, and compute's ports so that
// named ports are found.
func parseInstance(vm, namespace string, ports []corev1.ContainerPort, probes map[string]any) (*manifest.Manifest, error) {
	listed := make([]map[string]any, 0, len(ports))
	for _, p := range ports {
		listed = append(listed, map[string]any{"name": p.Name, "port": p.ContainerPort, "protocol": p.Protocol})
	}
	spec := map[string]any{"domain": map[string]any{"devices": map[string]any{"interfaces": []any{
		map[string]any{"name": "default", "ports": listed},
	}}}}
	for field, p := range probes {
		spec[field] = p
	}
	data, err := json.Marshal(map[string]any{
		"apiVersion": "kubevirt.io/v1", "kind": manifest.KindVirtualMachineInstance,
		"metadata": map[string]any{"name": vm, "namespace": namespace},
		"spec":     spec,
	})
	if err != nil {
		return nil, fmt.Errorf("encoding the probes of VMI %s/%s: %w", namespace, vm, err)
	}
	return manifest.Parse("VMI "+namespace+"/"+vm, data)
}

// kubeletProbe turns a check into a probe that the kubelet runs on compute. It fails on what the kubelet cannot do.
func kubeletProbe(c manifest.Check) (*corev1.Probe, error) {
	p := &corev1.Probe{
		InitialDelaySeconds: seconds(c.InitialDelay + libvirtStartupDelay*time.Second),
		PeriodSeconds:       seconds(c.Period),
		TimeoutSeconds:      seconds(c.Timeout),
		SuccessThreshold:    int32(c.SuccessThreshold),
		FailureThreshold:    int32(c.FailureThreshold),
	}
	if c.TerminationGracePeriod != nil {
		grace := int64(c.TerminationGracePeriod.Seconds())
		p.TerminationGracePeriodSeconds = &grace
	}
	if len(c.IPFamilies) > 0 {
		return nil, fmt.Errorf("%s.ipFamilies: the kubelet does not choose the address family", c.Path)
	}
	switch h := c.Handler; {
	case h.HTTPGet != nil && h.HTTPGet.TLS == nil:
		p.HTTPGet = &corev1.HTTPGetAction{
			Path: h.HTTPGet.Path, Port: intstr.FromInt(h.HTTPGet.Port), Host: h.HTTPGet.Host, Scheme: corev1.URIScheme(h.HTTPGet.Scheme),
		}
		for _, header := range h.HTTPGet.Headers {
			p.HTTPGet.HTTPHeaders = append(p.HTTPGet.HTTPHeaders, corev1.HTTPHeader(header))
		}
	case h.TCPSocket != nil && h.TCPSocket.Expect == nil:
		p.TCPSocket = &corev1.TCPSocketAction{Port: intstr.FromInt(h.TCPSocket.Port), Host: h.TCPSocket.Host}
	case h.GRPC != nil:
		p.GRPC = &corev1.GRPCAction{Port: int32(h.GRPC.Port), Service: &h.GRPC.Service}
	default:
		return nil, fmt.Errorf("%s: the kubelet cannot do this", c.Path)
	}
	return p, nil
}

// seconds stays within what the API takes: a number beyond comes out negative, and the API server refuses the pod.
func seconds(d time.Duration) int32 {
	return int32(min(d/time.Second, math.MaxInt32))
}

// target returns where a check connects to; ok is false for those that ask the agent.
func target(h manifest.Handler) (host string, port int, ok bool) {
	switch {
	case h.HTTPGet != nil:
		return h.HTTPGet.Host, h.HTTPGet.Port, true
	case h.TCPSocket != nil:
		return h.TCPSocket.Host, h.TCPSocket.Port, true
	case h.GRPC != nil:
		return "", h.GRPC.Port, true
	}
	return "", 0, false
}
