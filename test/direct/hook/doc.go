// Command hook makes of a libvirt domain what a KubeVirt Plugin's domain hooks make of it, with KubeVirt's own code. It
// needs no cluster, and leaves it to others to run the domain.
//
//	hook PLUGIN.yaml VM.yaml <DOMAIN.xml
//
// VM.yaml holds a VirtualMachine or a VirtualMachineInstance. A hook that fails ends the command with 1, whatever the
// Plugin's failureStrategy is: for a test, a VM without the hook's additions is no success.
//
// It is a module of its own: what KubeVirt requires is nothing that the sidecar or the injector should be built with.
package main
