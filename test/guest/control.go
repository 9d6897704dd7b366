package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// context bounds one step by the machine's patience and the test's life.
func (vm *VM) context() (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(vm.t.Context(), patience, errors.New("patience ran out"))
}

// WaitReady waits until the guest has booted: agents started, web server running.
func (vm *VM) WaitReady() {
	vm.t.Helper()
	ctx, cancel := vm.context()
	defer cancel()
	if err := vm.console.await(ctx, vm.boots); err != nil {
		vm.t.Fatal(err)
	}
}

// Run runs one line of shell inside the guest and returns what it printed; a status other than 0 fails the test.
func (vm *VM) Run(command string) string {
	vm.t.Helper()
	ctx, cancel := vm.context()
	defer cancel()
	out, err := vm.console.run(ctx, command)
	if err != nil {
		vm.t.Fatalf("in the guest: %v", err)
	}
	return out
}

// Send gives the guest one line of shell and does not wait for its end: for what the guest does not survive.
func (vm *VM) Send(command string) {
	vm.t.Helper()
	if _, err := vm.console.send(command); err != nil {
		vm.t.Fatalf("in the guest: %v", err)
	}
}

// Command runs a command on the test's own monitor and decodes what it returns into out, unless that is nil.
func (vm *VM) Command(name string, args, out any) {
	vm.t.Helper()
	ctx, cancel := vm.context()
	defer cancel()
	if err := vm.monitor.execute(ctx, name, args, out); err != nil {
		vm.t.Fatalf("on QEMU's monitor: %v", err)
	}
}

// CommandEvent runs a command as Command does and waits for an event that comes of it.
func (vm *VM) CommandEvent(name string, args any, event string) {
	vm.t.Helper()
	mark := vm.Mark()
	vm.Command(name, args, nil)
	vm.WaitEvent(mark, event)
}

// Mark is the moment up to which QEMU's events have come: Events and WaitEvent look at what comes after it. It is one
// of this QEMU process.
func (vm *VM) Mark() int { return vm.monitor.mark() }

// WaitEvent waits for the first event of that name after the mark.
func (vm *VM) WaitEvent(mark int, name string) Event {
	vm.t.Helper()
	ctx, cancel := vm.context()
	defer cancel()
	e, err := vm.monitor.await(ctx, mark, name)
	if err != nil {
		vm.t.Fatalf("on QEMU's monitor: %v", err)
	}
	return e
}

// Events returns the events that have come after the mark.
func (vm *VM) Events(mark int) []Event {
	vm.monitor.mu.Lock()
	defer vm.monitor.mu.Unlock()
	return slices.Clone(vm.monitor.events[mark:])
}

// Status returns QEMU's word for the machine's state: running, paused, guest-panicked, ….
func (vm *VM) Status() string {
	vm.t.Helper()
	var state struct {
		Status string `json:"status"`
	}
	vm.Command("query-status", nil, &state)
	return state.Status
}

// Stop pauses the machine as an administrator would.
func (vm *VM) Stop() {
	vm.t.Helper()
	vm.CommandEvent("stop", nil, "STOP")
}

// Cont lets a paused machine go on.
func (vm *VM) Cont() {
	vm.t.Helper()
	vm.CommandEvent("cont", nil, "RESUME")
}

// Reset pulls the reset line; the guest boots anew in the same QEMU.
func (vm *VM) Reset() {
	vm.t.Helper()
	vm.boots = vm.console.booted() + 1
	vm.CommandEvent("system_reset", nil, "RESET")
}

// Reboot lets the guest reset itself.
func (vm *VM) Reboot() {
	vm.t.Helper()
	vm.boots = vm.console.booted() + 1
	vm.Send("reboot -f")
}

// Panic makes the guest's kernel panic; QEMU pauses it (-action panic=pause).
func (vm *VM) Panic() {
	vm.t.Helper()
	vm.sendEvent("echo c >/proc/sysrq-trigger", "GUEST_PANICKED")
}

// Suspend makes the guest suspend itself to memory. The machine sleeps until Wake.
func (vm *VM) Suspend() {
	vm.t.Helper()
	vm.asleep = vm.sendEvent("echo mem >/sys/power/state", "SUSPEND")
}

// Wake ends a Suspend and waits until the guest runs again. What is sent on the serial line before that is lost.
func (vm *VM) Wake() {
	vm.t.Helper()
	vm.CommandEvent("system_wakeup", nil, "WAKEUP")
	ctx, cancel := vm.context()
	defer cancel()
	select {
	case <-vm.asleep:
	case <-ctx.Done():
		vm.t.Fatalf("the guest sleeps on: %v", context.Cause(ctx))
	}
}

// sendEvent sends a command, waits for an event that comes of it and returns the channel of the command's result.
func (vm *VM) sendEvent(command, event string) <-chan result {
	vm.t.Helper()
	mark := vm.Mark()
	reply, err := vm.console.send(command)
	if err != nil {
		vm.t.Fatalf("in the guest: %v", err)
	}
	vm.WaitEvent(mark, event)
	return reply
}

// AgentStop makes the agent silent (SIGSTOP); its port stays open.
func (vm *VM) AgentStop() { vm.t.Helper(); vm.Run("agent stop") }

// AgentContinue lets a stopped agent go on (SIGCONT); it answers what has piled up.
func (vm *VM) AgentContinue() { vm.t.Helper(); vm.Run("agent cont") }

// AgentKill kills the agent and waits until QEMU has seen its port close.
func (vm *VM) AgentKill() {
	vm.t.Helper()
	vm.Run("agent kill")
	vm.waitAgentPort(false)
}

// AgentStart starts an agent and waits until QEMU has seen its port open.
func (vm *VM) AgentStart() {
	vm.t.Helper()
	vm.Run("agent start")
	vm.waitAgentPort(true)
}

// waitAgentPort polls: QEMU limits the event of it to one a second, and a client that asks sees the change at once.
func (vm *VM) waitAgentPort(open bool) {
	vm.t.Helper()
	ctx, cancel := vm.context()
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var devices []struct {
			Label string `json:"label"`
			Open  bool   `json:"frontend-open"`
		}
		vm.Command("query-chardev", nil, &devices)
		for _, d := range devices {
			if d.Label == "agent0" && d.Open == open {
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			vm.t.Fatalf("the agent's port is not open=%v: %v", open, context.Cause(ctx))
		}
	}
}

// SetCode makes the guest's web server answer /healthz with a status from now on.
func (vm *VM) SetCode(code int) {
	vm.t.Helper()
	vm.Run(fmt.Sprintf("echo %d >/run/guestd.code.new && mv /run/guestd.code.new /run/guestd.code", code))
}

// Requests returns how often /healthz was asked since the guest booted, and the headers of the last request.
func (vm *VM) Requests() (int, http.Header) {
	vm.t.Helper()
	ctx, cancel := vm.context()
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+vm.Web+"/requests", nil)
	if err != nil {
		vm.t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := transport.RoundTrip(request)
	if err != nil {
		vm.t.Fatalf("asking the guest's web server: %v", err)
	}
	defer response.Body.Close()
	var reply struct {
		Healthz int         `json:"healthz"`
		Header  http.Header `json:"header"`
	}
	if err := json.NewDecoder(response.Body).Decode(&reply); err != nil {
		vm.t.Fatalf("asking the guest's web server: %v", err)
	}
	return reply.Healthz, reply.Header
}
