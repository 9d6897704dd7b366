//go:build amd64

// Command outb writes one byte to an I/O port of the test guest, whose kernel has no /dev/port: so a test can speak to
// a device without a driver for it. It is put into the guest's initramfs by test/states and knows no device.
//
// Usage: outb PORT VALUE
package main
