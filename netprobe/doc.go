// Package netprobe answers whether a port of a guest serves, the way the kubelet would ask.
//
// HTTPGet, TCPSocket and GRPC carry out one attempt of a Kubernetes httpGet, tcpSocket or grpc
// probe each. They follow the kubelet of Kubernetes v1.37.2 (pkg/probe/http, pkg/probe/tcp and
// pkg/probe/grpc) in what they send, what they accept, what they read and how they word a
// failure. A comparison with the kubelet's own code lives in test/parity; the few deviations are
// listed in docs/parity.md.
//
// An attempt ends in one of four ways, told apart by the error's type: nil is a success,
// *Warning is a success the kubelet remarks upon, *Failure is a failed probe with a Cause, and
// *Indeterminate says that nothing was learned (the kubelet repeats such an attempt and then
// drops it).
//
// The deadline is the context's, which stands for the kubelet's timeoutSeconds. A context without
// a deadline lets a silent peer hold the attempt until the context is cancelled.
//
// Texts may contain bytes that the guest chose. They are bounded, but whoever prints them must
// escape them.
//
// The package knows no virtual machine, keeps no thresholds, never repeats a counted attempt and
// has no metrics. It does not validate what it is given either: package manifest does that.
package netprobe
