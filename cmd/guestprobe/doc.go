// Command guestprobe answers, for one virtual machine, whether it can take
// work, and if not, why. It has a file per command; each turns flags into a
// configuration and makes one call. What it means to watch a VM is package
// sidecar's.
package main
