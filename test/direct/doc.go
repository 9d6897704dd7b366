// Package direct holds the tests of direct access: the sidecar's own monitor and agent channel beside libvirt's, in a
// domain of Debian's libvirt daemon as KubeVirt defines it with our Plugin, and the ways back to libvirt where they are
// missing. It has no code of its own; hook, below it, applies the Plugin with KubeVirt's code, and sidecar/inject says
// what the sidecar's arguments are.
package direct
