package inject

import "github.com/guestprobe/guestprobe/sidecar/manifest"

// What a VM's owner may write on the VirtualMachine's template or the VirtualMachineInstance; KubeVirt copies all
// of it to the pod.
const (
	// AnnotationInject is a boolean; "false" leaves this VM's pods alone.
	AnnotationInject = "guestprobe.dev/inject"
	// AnnotationProbes holds the spec of a GuestProbes document, which is merged over the VMI's own probes.
	AnnotationProbes = manifest.Annotation
	// AnnotationAccess is "libvirt" (the default) or "direct".
	AnnotationAccess = "guestprobe.dev/access"
	// AnnotationGuestHost is the address at which the sidecar reaches the guest, where it is not the one that
	// follows from the network binding.
	AnnotationGuestHost = "guestprobe.dev/guest-host"
)

// What the injector writes on the pod.
const (
	// LabelInjected marks the pods that carry the sidecar: what a PodMonitor or kubectl get -l selects.
	LabelInjected = "guestprobe.dev/injected"
	// AnnotationManifest holds the probes that the sidecar runs, as the GuestProbes document it reads.
	AnnotationManifest = "guestprobe.dev/manifest"
	// AnnotationStatus says for people who asks what.
	AnnotationStatus = "guestprobe.dev/status"
	// AnnotationWarnings lists what was not as the VM's owner may expect it, one line each. Pods are made by
	// virt-controller, so nobody sees the webhook's own warnings.
	AnnotationWarnings = "guestprobe.dev/warnings"
)

// DefaultsName is the name of the ConfigMap that holds a namespace's defaults, and DefaultsKey its one key: the spec
// of a GuestProbes document, over which each VM's own probes are merged.
const (
	DefaultsName = "guestprobe"
	DefaultsKey  = "probes"
)

// ContainerName is the sidecar's. A pod that has it is never patched again.
const ContainerName = "guestprobe"

// The paths that the sidecar and compute share. The binary is copied beside the socket, so that compute's liveness
// probe can run it: virt-launcher's own image has none of it.
const (
	sharedDir  = "/var/run/guestprobe"
	socketPath = sharedDir + "/guestprobe.sock"
	binaryPath = sharedDir + "/guestprobe"
	holdPath   = sharedDir + "/hold"

	configDir    = "/etc/guestprobe"
	manifestFile = "manifest.yaml"

	libvirtDir    = "/var/run/libvirt"
	libvirtSocket = libvirtDir + "/virtqemud-sock"

	// pluginVolume is KubeVirt's shared folder for plugins; a policy of KubeVirt's demands subPath of everyone but compute.
	pluginVolume  = "kubevirt-plugin-sockets"
	pluginDir     = "/var/run/kubevirt-plugin/guestprobe"
	pluginSubPath = "guestprobe"

	tokenDir = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// The volumes that the injector adds. Their names are part of the contract with guestprobe collect, which looks for
// them among the kubelet's files.
const (
	// VolumeRun holds the sidecar's socket and the binary for compute.
	VolumeRun = "guestprobe"
	// VolumeInfo holds the manifest and, for the collector, the names of the VM and its namespace.
	VolumeInfo = "guestprobe-info"
)

// The files of VolumeInfo beside the manifest.
const (
	InfoNamespace = "namespace"
	InfoVM        = "vm"
)
