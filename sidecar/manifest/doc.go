// Package manifest turns a KubeVirt VirtualMachine, a VirtualMachineInstance or a GuestProbes document into
// validated probes. It runs none of them, reads no file and speaks to no API.
//
// It is the only package that knows the spelling of KubeVirt and of the Kubernetes probe API. Reading is strict
// inside the probe stanzas and in everything below the spec of a GuestProbes document (an unknown field is an error
// that names its path and line), and lenient elsewhere: any other field of a VirtualMachine may be there.
//
// Defaults, rules and the wording of the errors are those of the Kubernetes API (k8s v1.37.2
// pkg/apis/core/v1/defaults.go and pkg/apis/core/validation/validation.go). Seconds become a [time.Duration] here and
// nowhere else.
//
// The input may be hostile: its size, its depth, the work spent on aliases and the number of reported errors are bounded.
package manifest
