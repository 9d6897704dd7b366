package qgatest

import (
	"errors"
	"net/http"
)

// Boot starts a VM that has not begun: its CPUs run, and after BootTime its
// agent and its web server are up.
func (vm *VM) Boot() {
	vm.ops.Lock()
	defer vm.ops.Unlock()
	vm.change("running", event{"RESUME", nil})
	vm.bootGuest()
}

// Pause stops the CPUs, as the command stop does: the guest's programs neither
// answer nor fail, what they are sent waits.
func (vm *VM) Pause() { vm.change("paused", event{"STOP", nil}) }

// Resume lets the CPUs run on, as the command cont does. A guest that has not
// begun, or was reset meanwhile, boots.
func (vm *VM) Resume() {
	if vm.Status() == "prelaunch" {
		vm.Boot()
		return
	}
	vm.change("running", event{"RESUME", nil})
}

// Suspend is the guest going to sleep (S3), and Wakeup its end.
func (vm *VM) Suspend() { vm.change("suspended", event{"SUSPEND", nil}) }

// Wakeup undoes Suspend.
func (vm *VM) Wakeup() { vm.change("running", event{"WAKEUP", nil}) }

// SetStatus takes QEMU to any RunState, with STOP or RESUME where the CPUs stop
// or start, as in a migration: "inmigrate", "finish-migrate", "postmigrate", ….
func (vm *VM) SetStatus(status string) {
	var events []event
	switch was := vm.Status(); {
	case was == "running" && status != "running":
		events = append(events, event{"STOP", nil})
	case was != "running" && status == "running":
		events = append(events, event{"RESUME", nil})
	}
	vm.change(status, events...)
}

// Reset resets the machine as system_reset does: the guest boots again if it
// was running, and else when it is resumed. Firmware resets once more on its
// own, so that there are two events.
func (vm *VM) Reset() {
	vm.ops.Lock()
	defer vm.ops.Unlock()
	status := vm.Status()
	if status != "running" {
		status = "prelaunch"
	}
	vm.servicesDown()
	vm.change(status, event{"RESET", endData{Guest: false, Reason: "host-qmp-system-reset"}})
	if status == "running" {
		vm.change(status, event{"RESET", endData{Guest: true, Reason: "guest-reset"}})
		vm.bootGuest()
	}
}

// Reboot is a reset by the guest itself.
func (vm *VM) Reboot() {
	vm.ops.Lock()
	defer vm.ops.Unlock()
	vm.servicesDown()
	vm.change("running", event{"RESET", endData{Guest: true, Reason: "guest-reset"}})
	vm.bootGuest()
}

type endData struct {
	Guest  bool   `json:"guest"`
	Reason string `json:"reason"`
}

// Panic is the guest reporting a panic that pauses it. kind is "" for a plain
// pvpanic device, "hyper-v" (a Windows bug check 0xd1) or "s390".
func (vm *VM) Panic(kind ...string) {
	data := panicData{Action: "pause"}
	if len(kind) > 0 {
		data.Info = panicInfo(kind[0])
	}
	vm.change("guest-panicked", event{"GUEST_PANICKED", data}, event{"STOP", nil})
}

type panicData struct {
	Action string         `json:"action"`
	Info   map[string]any `json:"info,omitempty"`
}

func panicInfo(kind string) map[string]any {
	switch kind {
	case "hyper-v":
		return map[string]any{"type": kind, "arg1": 0xd1, "arg2": 0x10, "arg3": 2, "arg4": 0, "arg5": uint64(0xfffff80312345678)}
	case "s390":
		return map[string]any{"type": kind, "core": 1, "psw-mask": 0, "psw-addr": 0, "reason": "disabled-wait"}
	}
	return nil
}

// CrashLoaded is the guest reporting a crash that it handles itself: it dumps
// its memory (kdump) and will reboot.
func (vm *VM) CrashLoaded() {
	vm.Event("GUEST_CRASHLOADED", panicData{Action: "run"})
}

// IOError is a block error that stops the VM (werror=stop). noSpace: the image
// could not grow.
func (vm *VM) IOError(device string, noSpace bool) {
	vm.change("io-error",
		event{"BLOCK_IO_ERROR", ioErrorData(device, noSpace, "stop")},
		event{"STOP", nil})
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.status == "io-error" {
		vm.failed = &blockFailure{device, noSpace}
	}
}

// IOErrorReported is a block error that the guest is told and lives on with
// (werror=report).
func (vm *VM) IOErrorReported(device string) {
	vm.Event("BLOCK_IO_ERROR", ioErrorData(device, false, "report"))
}

func ioErrorData(device string, noSpace bool, action string) any {
	reason := "Input/output error"
	if noSpace {
		reason = "No space left on device"
	}
	return struct {
		Device    string `json:"device"`
		NoSpace   bool   `json:"nospace"`
		NodeName  string `json:"node-name"`
		Reason    string `json:"reason"`
		Operation string `json:"operation"`
		Action    string `json:"action"`
	}{device, noSpace, "#block042", reason, "write", action}
}

// Shutdown is the guest powering itself off. QEMU ends with it, unless
// Config.NoShutdown.
func (vm *VM) Shutdown() {
	vm.ops.Lock()
	defer vm.ops.Unlock()
	vm.servicesDown()
	ended := event{"SHUTDOWN", endData{Guest: true, Reason: "guest-shutdown"}}
	if vm.cfg.NoShutdown {
		vm.change("shutdown", ended, event{"STOP", nil})
		return
	}
	vm.change("shutdown", ended)
	vm.vanish(true)
}

// Quit ends QEMU by the command quit: an event, and the sockets are gone.
func (vm *VM) Quit() {
	vm.ops.Lock()
	defer vm.ops.Unlock()
	vm.change("shutdown", event{"SHUTDOWN", endData{Guest: false, Reason: "host-qmp-quit"}})
	vm.vanish(true)
}

// Kill ends QEMU as SIGKILL does: without a word, and its sockets' files stay
// and refuse.
func (vm *VM) Kill() {
	vm.ops.Lock()
	defer vm.ops.Unlock()
	vm.vanish(false)
}

// Restart starts another QEMU on the paths of one that is gone. It begins in
// prelaunch: call Boot. A stale socket's file is replaced, as QEMU does it.
func (vm *VM) Restart() error {
	vm.ops.Lock()
	defer vm.ops.Unlock()
	if vm.Status() != "" {
		return errors.New("qgatest: restart: QEMU is still there")
	}
	return vm.launch("prelaunch")
}

// SetHTTPStatus makes the guest's /healthz answer with status, at once. A
// stalled server answers again.
func (vm *VM) SetHTTPStatus(status int) { vm.web.set(status, false) }

// SetHTTPStalled makes the guest's web server accept and never answer, or
// answer 200 again.
func (vm *VM) SetHTTPStalled(stalled bool) { vm.web.set(http.StatusOK, stalled) }

// StopWeb stops the guest's web server: the guest refuses connections.
func (vm *VM) StopWeb() { vm.web.down() }

// StartWeb undoes StopWeb. The error is a port taken by another process.
func (vm *VM) StartWeb() error { return vm.web.up() }
