// Package libvirt holds the tests of the libvirt transport against Debian's libvirt daemon, with a real guest under
// it. It has no code of its own; what needs no daemon is tested in qga.
//
// The daemon is the private one of test/libvirtd.
package libvirt
