// Command guestprobe-injector puts the Guestprobe sidecar into KubeVirt's virt-launcher pods: as a mutating webhook,
// or offline on files. The decisions are sidecar/inject's; this program asks the API server and answers it.
package main
