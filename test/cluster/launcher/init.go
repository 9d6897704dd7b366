package main

import (
	"context"
	"os"
	"syscall"
)

// first is the pod's first process: like KubeVirt's virt-launcher-monitor it starts this program again, hands SIGTERM on, and
// reaps what the others leave behind. libvirt waits half a minute for a QEMU that has ended and that nobody reaps.
func first(ctx context.Context, args []string) (code int, err error) {
	child, err := os.StartProcess("/proc/self/exe", append([]string{"launcher"}, args...), &os.ProcAttr{
		Files: []*os.File{nil, os.Stdout, os.Stderr},
	})
	if err != nil {
		return 0, err
	}
	defer context.AfterFunc(ctx, func() { _ = child.Signal(syscall.SIGTERM) })()
	for {
		var status syscall.WaitStatus
		switch pid, err := syscall.Wait4(-1, &status, 0, nil); {
		case err == syscall.EINTR:
		case err != nil:
			return 0, err
		case pid == child.Pid && status.Signaled():
			return 128 + int(status.Signal()), nil
		case pid == child.Pid:
			return status.ExitStatus(), nil
		}
	}
}
