package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"syscall"
)

// outb writes a byte to an I/O port; the thread must be allowed to.
func outb(port uint16, value byte)

func main() {
	os.Exit(run(os.Args[1:], os.Stderr))
}

func run(args []string, stderr io.Writer) int {
	if len(args) != 2 {
		fmt.Fprintln(stderr, "usage: outb PORT VALUE")
		return 2
	}
	port, err := strconv.ParseUint(args[0], 0, 16)
	if err != nil {
		fmt.Fprintf(stderr, "outb: port: %v\n", err)
		return 2
	}
	value, err := strconv.ParseUint(args[1], 0, 8)
	if err != nil {
		fmt.Fprintf(stderr, "outb: value: %v\n", err)
		return 2
	}
	runtime.LockOSThread() // the permission is the thread's
	if _, _, errno := syscall.Syscall(syscall.SYS_IOPERM, uintptr(port), 1, 1); errno != 0 {
		fmt.Fprintf(stderr, "outb: asking for port %#x: %v\n", port, errno)
		return 1
	}
	outb(uint16(port), byte(value))
	return 0
}
