package qgatest

import (
	"encoding/json"
	"fmt"
)

// answer answers a command that has been negotiated for. respond is called
// before answer returns, under the lock that orders it among the events.
func (vm *VM) answer(command string, respond func(result any, err *qmpError)) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if result, ok := vm.replies[command]; ok {
		respond(result, nil)
		return
	}
	switch command {
	case "query-status":
		respond(map[string]any{"status": vm.status, "singlestep": false, "running": vm.status == "running"}, nil)
	case "query-version":
		respond(json.RawMessage(`{"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "qgatest"}`), nil)
	case "query-name":
		name := map[string]string{}
		if vm.cfg.Name != "" {
			name["name"] = vm.cfg.Name
		}
		respond(name, nil)
	case "query-uuid":
		uuid := vm.cfg.UUID
		if uuid == "" {
			uuid = "00000000-0000-0000-0000-000000000000"
		}
		respond(map[string]string{"UUID": uuid}, nil)
	case "query-kvm":
		respond(map[string]bool{"enabled": false, "present": true}, nil)
	case "query-cpus-fast":
		respond([]any{map[string]any{
			"thread-id": vm.thread, "cpu-index": 0, "target": "x86_64",
			"qom-path": "/machine/unattached/device[0]",
		}}, nil)
	case "query-chardev":
		respond(vm.chardevs(), nil)
	case "query-block":
		respond(vm.blocks(), nil)
	case "query-migrate":
		respond(struct{}{}, nil)
	case "query-yank":
		respond([]any{}, nil)
	default:
		respond(nil, &qmpError{"CommandNotFound", fmt.Sprintf("The command %s has not been found", command)})
	}
}

// chardevs is the reply to query-chardev. The caller holds mu.
func (vm *VM) chardevs() any {
	type chardev struct {
		Open     bool   `json:"frontend-open"`
		Filename string `json:"filename"`
		Label    string `json:"label"`
	}
	agentFile, open := "unix:"+vm.agentPath()+",server=on", false
	if vm.agent != nil {
		open = vm.agent.PortOpen()
		if !vm.agent.HostConnected() {
			agentFile = "disconnected:" + agentFile
		}
	}
	return []chardev{
		{true, "unix:" + vm.monitorPath() + ",server=on", "compat_monitor0"},
		{open, agentFile, vm.cfg.PortLabel},
	}
}

// blocks is the reply to query-block. The caller holds mu.
func (vm *VM) blocks() any {
	disk := map[string]any{"device": "disk0", "qdev": "disk0", "io-status": "ok"}
	if f := vm.failed; f != nil {
		disk["device"], disk["io-status"] = f.device, "failed"
		if f.noSpace {
			disk["io-status"] = "nospace"
		}
	}
	return []any{disk}
}

// SetReply makes the monitor answer a command with result, until it restarts.
func (vm *VM) SetReply(command string, result any) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.replies != nil {
		vm.replies[command] = result
	}
}

// Event sends any event on the monitor; data is encoded as JSON, nil: none.
func (vm *VM) Event(name string, data any) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	vm.emit(name, data)
}

// monitor returns what serves the monitor, or nil while QEMU is gone.
func (vm *VM) monitor() *monitor {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.mon
}

// Stop stops the whole QEMU, as SIGSTOP does: connections stay, and are
// accepted, and nothing is read or said.
func (vm *VM) Stop() { vm.setProcess(false) }

// Continue undoes Stop: what has piled up is answered.
func (vm *VM) Continue() { vm.setProcess(true) }

func (vm *VM) setProcess(runs bool) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.mon == nil {
		return
	}
	vm.mon.process.set(runs)
	if runs {
		vm.guestRuns()
		return
	}
	vm.web.runs.set(false)
	vm.agent.Stop()
}

// SetMainLoopStuck makes QEMU's main loop hang, or go on: commands wait, and
// only query-yank out of band is answered.
func (vm *VM) SetMainLoopStuck(stuck bool) {
	if m := vm.monitor(); m != nil {
		m.loop.set(!stuck)
	}
}

// SetMonitorSilent makes the monitor greet none of its next clients, or greet
// them again.
func (vm *VM) SetMonitorSilent(silent bool) {
	if m := vm.monitor(); m != nil {
		m.setSilent(silent)
	}
}

// DropMonitor ends the connection of the monitor's client; QEMU goes on.
func (vm *VM) DropMonitor() {
	if m := vm.monitor(); m != nil {
		m.drop()
	}
}

// SendMonitor sends bytes as they are to the monitor's client.
func (vm *VM) SendMonitor(p []byte) {
	if m := vm.monitor(); m != nil {
		m.sendRaw(p)
	}
}

// MonitorRequests returns the last commands that the monitor of this QEMU was
// sent, as the client wrote them.
func (vm *VM) MonitorRequests() []string {
	if m := vm.monitor(); m != nil {
		return m.requests()
	}
	return nil
}
