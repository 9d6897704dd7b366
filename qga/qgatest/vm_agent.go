package qgatest

// Agent returns the guest's agent, or nil while QEMU is gone. Another QEMU has
// another one.
func (vm *VM) Agent() *Agent {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.agent
}

// AgentStop makes the agent hang, as SIGSTOP does: its port stays open.
func (vm *VM) AgentStop() { vm.hangAgent(true) }

// AgentContinue ends AgentStop: the agent answers what has piled up, as soon as
// the VM runs.
func (vm *VM) AgentContinue() { vm.hangAgent(false) }

func (vm *VM) hangAgent(hangs bool) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	vm.agentHangs = hangs
	if vm.agent != nil {
		vm.guestRuns()
	}
}

// AgentKill ends the agent's program: its port closes, which the monitor says,
// and the host's socket does not notice.
func (vm *VM) AgentKill() {
	vm.ops.Lock()
	defer vm.ops.Unlock()
	vm.killAgent()
}

// AgentStart starts the agent's program: its port opens.
func (vm *VM) AgentStart() {
	vm.ops.Lock()
	defer vm.ops.Unlock()
	vm.startAgent()
}

// killAgent and startAgent must not hold mu: the agent tells its port's change
// to portChanged, which takes it.

func (vm *VM) killAgent() {
	if a := vm.Agent(); a != nil {
		a.Kill()
	}
	vm.hangAgent(false) // a new one does not
}

func (vm *VM) startAgent() {
	if a := vm.Agent(); a != nil {
		a.Start()
	}
}

// portChanged sends the event of the agent's port. QEMU holds it back where it
// changes more than once in a second; this does not.
func (vm *VM) portChanged(open bool) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	vm.emit("VSERPORT_CHANGE", struct {
		Open bool   `json:"open"`
		ID   string `json:"id"`
	}{open, vm.cfg.PortID})
}
