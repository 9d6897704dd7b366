package inject

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// The bindings that matter here, as a person calls them.
const (
	bindingMasquerade = "masquerade"
	bindingBridge     = "bridge"
	bindingPasst      = "passt"
	bindingNone       = "no interface on the pod network"
	bindingUnknown    = "unknown"
)

// A network says how the pod's address and its guest lie to each other.
type network struct {
	binding string
	// guestHost is where the sidecar reaches the guest; "": no way.
	guestHost string
	// otherHost is the guest's address in the other family, where the binding gives it one.
	otherHost string
	// ours: a connection from outside to the pod's address and our port ends at the sidecar, not in the guest.
	ours bool
	// isolated: connections from the pod to any other host cannot be relied on.
	isolated bool
	// why explains a missing guestHost.
	why string
	// ports are the TCP ports of the interface; nil: none are listed.
	ports []int32
}

// networkOf reads the network of the VMI's interface on the pod network. Everything that is not known for sure becomes
// the careful answer: the port is the guest's, and only the kubelet knows a way.
func networkOf(vmi *unstructured.Unstructured, pod *corev1.Pod, cfg *Config) network {
	if vmi == nil {
		return network{binding: bindingUnknown, isolated: true, why: "the VMI could not be read, so its network binding is unknown"}
	}
	iface, podNetwork, found := podInterface(vmi)
	if !found {
		if declaresNetworks(vmi) {
			return network{binding: bindingNone, ours: true, why: "the VM is not on the pod network"}
		}
		return network{binding: bindingUnknown, isolated: true, why: "the VMI names no interface, so its network binding is unknown"}
	}
	n := bindingOf(iface, podNetwork, cfg)
	if n.guestHost != "" && hasIstio(pod, vmi) {
		// Envoy takes what leaves the pod and accepts every connection, so a TCP probe could never fail (istio 35578).
		n.guestHost, n.otherHost, n.ours, n.isolated = "", "", false, true
		n.why = "an Istio proxy stands between the sidecar and the guest"
	}
	return n
}

func bindingOf(iface, podNetwork map[string]any, cfg *Config) network {
	has := func(key string) bool { _, ok := iface[key]; return ok }
	switch {
	case has("masquerade"):
		n := network{binding: bindingMasquerade}
		n.ports, n.ours = freePorts(iface, cfg.Port)
		n.guestHost, n.why = masqueradeHost(podNetwork, cfg.IPv6)
		// Whether the pod has an address of the other family is not known yet; only a check that asks for it finds out.
		n.otherHost, _ = masqueradeHost(podNetwork, !cfg.IPv6)
		return n
	case has("passtBinding"):
		n := network{binding: bindingPasst, guestHost: "127.0.0.1", otherHost: "::1"}
		if cfg.IPv6 {
			n.guestHost, n.otherHost = n.otherHost, n.guestHost
		}
		n.ports, n.ours = freePorts(iface, cfg.Port)
		return n
	case has("bridge"):
		return network{binding: bindingBridge, isolated: true, why: "with the bridge binding the guest has the pod's address and the pod has no way to it"}
	case has("sriov"):
		return network{binding: "SR-IOV", why: "the guest's network card is not in the pod's network namespace"}
	}
	if plugin, _, _ := unstructured.NestedString(iface, "binding", "name"); plugin != "" {
		return network{binding: bindingUnknown, isolated: true, why: fmt.Sprintf("nothing is known of the network binding %q", plugin)}
	}
	names := []string{}
	for key, value := range iface {
		if _, ok := value.(map[string]any); ok {
			names = append(names, key)
		}
	}
	slices.Sort(names)
	return network{binding: bindingUnknown, isolated: true, why: fmt.Sprintf("nothing is known of the network binding %q", strings.Join(names, ", "))}
}

// podInterface returns the interface on the pod network, and that network.
func podInterface(vmi *unstructured.Unstructured) (iface, podNetwork map[string]any, found bool) {
	networks, _, _ := unstructured.NestedSlice(vmi.Object, "spec", "networks")
	interfaces, _, _ := unstructured.NestedSlice(vmi.Object, "spec", "domain", "devices", "interfaces")
	for _, item := range networks {
		net, _ := item.(map[string]any)
		pod, isPod := net["pod"].(map[string]any)
		// A Multus network can stand in for the pod network; it then brings eth0 and the pod's address.
		isDefault, _, _ := unstructured.NestedBool(net, "multus", "default")
		if !isPod && !isDefault {
			continue
		}
		for _, item := range interfaces {
			candidate, _ := item.(map[string]any)
			name, named := net["name"].(string)
			if candidateName, _ := candidate["name"].(string); named && candidateName == name && candidate["state"] != "absent" {
				return candidate, pod, true
			}
		}
	}
	return nil, nil, false
}

// declaresNetworks tells a VMI that is on other networks, or on none, from one whose spec has not been filled in.
func declaresNetworks(vmi *unstructured.Unstructured) bool {
	networks, _, _ := unstructured.NestedSlice(vmi.Object, "spec", "networks")
	auto, set, _ := unstructured.NestedBool(vmi.Object, "spec", "domain", "devices", "autoattachPodInterface")
	for _, item := range networks {
		net, _ := item.(map[string]any)
		if _, isPod := net["pod"]; isPod {
			return false // on the pod network, by an interface that cannot be found
		}
	}
	return len(networks) > 0 || set && !auto
}

// freePorts returns the TCP ports that the interface lists, and whether they leave ours free. With none listed the
// guest gets them all; port ranges are not looked into.
func freePorts(iface map[string]any, ours int32) (ports []int32, free bool) {
	listed, _ := iface["ports"].([]any)
	if _, ranges := iface["portRanges"]; ranges || len(listed) == 0 {
		return nil, false
	}
	free = true
	for _, item := range listed {
		entry, _ := item.(map[string]any)
		port, ok := number(entry["port"])
		if !ok {
			return nil, false
		}
		if protocol, _ := entry["protocol"].(string); protocol != "" && !strings.EqualFold(protocol, "TCP") {
			continue
		}
		ports = append(ports, port)
		free = free && port != ours
	}
	return ports, free
}

// number reads a port, which is an int64 or a float64 depending on who decoded the object.
func number(v any) (int32, bool) {
	switch v := v.(type) {
	case int64:
		return int32(v), v > 0 && v < 1<<16
	case float64:
		return int32(v), v > 0 && v < 1<<16 && v == float64(int32(v))
	}
	return 0, false
}

// masqueradeHost returns the guest's address behind the bridge: the second of the network (KubeVirt
// pkg/virt-launcher/virtwrap/api/defaults.go:7-8 has the default networks).
func masqueradeHost(podNetwork map[string]any, ipv6 bool) (host, why string) {
	field := "vmNetworkCIDR"
	if ipv6 {
		field = "vmIPv6NetworkCIDR"
	}
	cidr, _ := podNetwork[field].(string)
	if cidr == "" {
		if ipv6 {
			return "fd10:0:2::2", ""
		}
		return "10.0.2.2", ""
	}
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return "", fmt.Sprintf("the pod network's CIDR cannot be read: %v", err)
	}
	addr := prefix.Masked().Addr().Next().Next()
	if !addr.IsValid() || !prefix.Contains(addr) {
		return "", fmt.Sprintf("the pod network's CIDR %s is too small to hold a guest", cidr)
	}
	return addr.String(), ""
}

// hasIstio tells that Istio's proxy is in the pod, or will be once Istio's own webhook has run.
func hasIstio(pod *corev1.Pod, vmi *unstructured.Unstructured) bool {
	const key = "sidecar.istio.io/inject"
	if pod.Annotations[key] == "true" || pod.Labels[key] == "true" || vmi.GetAnnotations()[key] == "true" || pod.Annotations["sidecar.istio.io/status"] != "" {
		return true
	}
	return slices.ContainsFunc(slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers), func(c corev1.Container) bool {
		return c.Name == "istio-proxy"
	})
}
