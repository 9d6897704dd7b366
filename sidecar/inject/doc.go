// Package inject turns a virt-launcher pod into one that carries the Guestprobe sidecar. It is pure: a pod, what is
// known of its VirtualMachineInstance and a namespace's defaults go in, a JSON patch comes out. It asks no API server
// and runs no probe; cmd/guestprobe-injector does the asking.
//
// One rule stands above all others: no VM may fail to start, to migrate or to stay alive because of the sidecar.
// Whatever is not understood is left as KubeVirt made it, and said in a warning.
//
// The facts about launcher pods are those of KubeVirt d923fdb815 (v1.9): pkg/virt-controller/services/template.go,
// rendercontainer.go and rendervolumes.go, pkg/network/setup/netpod/masquerade/masquerade.go.
package inject
