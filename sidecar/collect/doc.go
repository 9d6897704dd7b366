// Package collect serves the metrics of all Guestprobe sidecars of one Kubernetes node on one port. It is how Prometheus
// sees a VM whose pod's address belongs to the guest. It decides nothing about a VM and asks no API server.
//
// The sidecars are found among the kubelet's files: each has its socket in an emptyDir, and the name of its VM in a
// downwardAPI volume beside it. Both are written into the pod by sidecar/inject. The namespace is taken from the names of
// the pods' log folders, which are the kubelet's own: a pod's author has no say in them.
//
// What a sidecar answers is not trusted: its size is bounded, its series must be Guestprobe's, and its labels cannot pose
// as another VM's.
package collect
