// Command launcher stands in for KubeVirt's virt-launcher in the cluster that `make test-cluster` makes. As a pod's
// container compute it runs libvirt's daemon and a real guest where KubeVirt's virt-launcher does: as user 107, with
// its folders, its socket and its domain name; or it receives one that migrates. It knows no probes: everything that is shown about them is the
// injector's, the sidecar's and the kubelet's.
//
// What it is not: virt-handler, which makes the pod's network (test/cluster/network.sh does), and virt-controller, which
// makes the pod and its readiness gate (test/cluster/lib.sh does).
package main
