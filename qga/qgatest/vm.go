package qgatest

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"time"
)

// A Config describes the VM that Start makes. Only Dir must be set.
type Config struct {
	// Dir is where the sockets go: qmp.sock and qga.sock. It must be short:
	// a socket's path has at most 107 bytes.
	Dir string
	// Name and UUID are the VM's, for query-name and query-uuid. Empty: as
	// with a QEMU that was given none.
	Name, UUID string
	// Status is the state it begins in. Default "prelaunch"; "inmigrate" is
	// the target of a migration, "running" a VM that was booted before.
	Status string
	// BootTime is how long the guest takes from its start, or a reset, until
	// its agent and its web server are up. Default: they are up at once.
	BootTime time.Duration
	// HTTPAddr is where the guest's web server listens. Default: a free port
	// of 127.0.0.1.
	HTTPAddr string
	// PortID and PortLabel are the names of the agent's virtio-serial device
	// and of its chardev. Default "channel0" and "qga0"; libvirt's are
	// "channel0" and "charchannel0".
	PortID, PortLabel string
	// NoShutdown keeps QEMU there after the guest has shut down (-no-shutdown,
	// as libvirt has it), in status shutdown.
	NoShutdown bool
	// Agent says how the guest's agent behaves. Where it listens, whether it
	// runs and who is told of its port is the VM's to say.
	Agent AgentConfig
}

// A VM is a fake virtual machine: a QEMU monitor, a guest agent and a guest's
// web server, on real sockets. Its methods do to it what people, guests and
// hosts do to VMs, and are safe for concurrent use. What it says on its
// monitor follows QEMU 7.2, event by event.
type VM struct {
	cfg Config
	web *web

	ops     sync.Mutex  // one operation at a time, guards what follows
	boot    *time.Timer // brings the guest's services up
	booting sync.WaitGroup

	mu         sync.Mutex // guards what follows, and orders events and replies
	mon        *monitor   // nil: QEMU is gone
	agent      *Agent     // nil: QEMU is gone
	agentEnd   *net.UnixListener
	agentHangs bool // stopped on purpose, not with the VM
	status     string
	thread     int // id of the vCPU's thread: another QEMU, another thread
	failed     *blockFailure
	replies    map[string]any
}

type blockFailure struct {
	device  string
	noSpace bool
}

// Start makes a VM and begins to serve its sockets. In status running its
// guest's services are up at once. Close ends it.
func Start(cfg Config) (*VM, error) {
	if cfg.Status == "" {
		cfg.Status = "prelaunch"
	}
	if cfg.PortID == "" {
		cfg.PortID = "channel0"
	}
	if cfg.PortLabel == "" {
		cfg.PortLabel = "qga0"
	}
	web, err := newWeb(cfg.HTTPAddr)
	if err != nil {
		return nil, fmt.Errorf("qgatest: %w", err)
	}
	vm := &VM{cfg: cfg, web: web, thread: firstThread()}
	if err := vm.launch(cfg.Status); err != nil {
		vm.Close()
		return nil, fmt.Errorf("qgatest: %w", err)
	}
	if cfg.Status == "running" {
		if err := vm.servicesUp(); err != nil {
			vm.Close()
			return nil, fmt.Errorf("qgatest: %w", err)
		}
	}
	return vm, nil
}

// firstThread returns a thread id that another VM on the same paths is
// unlikely to have.
func firstThread() int {
	return 1000 + int(time.Now().UnixMicro()%1_000_000_000)
}

// launch starts a QEMU on the VM's paths. The caller holds ops or is alone.
func (vm *VM) launch(status string) error {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.mon != nil {
		return errors.New("the VM is there already")
	}
	end, err := listenChardev(vm.agentPath())
	if err != nil {
		return err
	}
	agentCfg := vm.cfg.Agent
	agentCfg.Path, agentCfg.Listener, agentCfg.Down, agentCfg.OnPort = "", end, true, vm.portChanged
	agent, err := StartAgent(agentCfg)
	if err != nil {
		return errors.Join(err, end.Close())
	}
	mon, err := listenMonitor(vm.monitorPath(), vm)
	if err != nil {
		return errors.Join(err, agent.Close())
	}
	vm.mon, vm.agent, vm.agentEnd, vm.agentHangs = mon, agent, end, false
	vm.status, vm.failed, vm.replies = status, nil, map[string]any{}
	vm.thread++
	vm.guestRuns()
	return nil
}

func (vm *VM) monitorPath() string { return filepath.Join(vm.cfg.Dir, "qmp.sock") }
func (vm *VM) agentPath() string   { return filepath.Join(vm.cfg.Dir, "qga.sock") }

// MonitorAddr returns the address of the QEMU monitor, "unix:" and a path.
func (vm *VM) MonitorAddr() string { return "unix:" + vm.monitorPath() }

// AgentAddr returns the address of the guest agent's channel, "unix:" and a path.
func (vm *VM) AgentAddr() string { return "unix:" + vm.agentPath() }

// HTTPAddr returns HOST:PORT of the guest's web server, which answers
// /healthz. It stays the same over the life of the VM.
func (vm *VM) HTTPAddr() string { return vm.web.addr }

// Close ends the VM as a crash would, and joins everything.
func (vm *VM) Close() {
	vm.ops.Lock()
	defer vm.ops.Unlock()
	vm.vanish(true)
}

// guestRuns lets the guest's programs run or not, by the VM's status. The
// caller holds mu.
func (vm *VM) guestRuns() {
	runs := vm.status == "running"
	vm.web.runs.set(runs)
	if runs && !vm.agentHangs {
		vm.agent.Continue()
	} else {
		vm.agent.Stop()
	}
}

// bootGuest brings the guest's services up after BootTime. The caller holds ops.
func (vm *VM) bootGuest() {
	vm.stopBoot()
	if vm.Status() == "" {
		return // there is no VM to boot
	}
	if vm.cfg.BootTime <= 0 {
		_ = vm.servicesUp() // a port that is taken shows as a refused connection
		return
	}
	vm.booting.Add(1)
	vm.boot = time.AfterFunc(vm.cfg.BootTime, func() {
		defer vm.booting.Done()
		_ = vm.servicesUp()
	})
}

// stopBoot ends a boot under way. The caller holds ops.
func (vm *VM) stopBoot() {
	if vm.boot != nil && vm.boot.Stop() {
		vm.booting.Done()
	}
	vm.booting.Wait()
	vm.boot = nil
}

func (vm *VM) servicesUp() error {
	err := vm.web.up()
	vm.startAgent()
	return err
}

// servicesDown is what a reset does to the guest. The caller holds ops.
func (vm *VM) servicesDown() {
	vm.stopBoot()
	vm.killAgent()
	vm.web.down()
}

// vanish ends QEMU. unlink says whether its sockets' files go too. The caller
// holds ops.
func (vm *VM) vanish(unlink bool) {
	vm.stopBoot()
	vm.mu.Lock()
	mon, agent, end := vm.mon, vm.agent, vm.agentEnd
	vm.mon, vm.agent, vm.agentEnd = nil, nil, nil
	vm.mu.Unlock()
	vm.web.down()
	if mon != nil {
		mon.close(unlink)
	}
	if agent != nil {
		end.SetUnlinkOnClose(unlink)
		_ = agent.Close() // all there could be an error about is gone
	}
}

// change changes the VM's status under its lock, with the events that QEMU
// sends on the way. It does nothing when QEMU is gone.
func (vm *VM) change(status string, events ...event) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.mon == nil {
		return
	}
	vm.status = status
	if status != "io-error" {
		vm.failed = nil
	}
	vm.guestRuns()
	for _, e := range events {
		vm.emit(e.name, e.data)
	}
}

// An event is one event to send; data may be nil.
type event struct {
	name string
	data any
}

// emit sends an event. The caller holds mu.
func (vm *VM) emit(name string, data any) {
	if vm.mon != nil {
		vm.mon.event(name, data, time.Now())
	}
}

// Status returns QEMU's RunState, or "" while QEMU is gone.
func (vm *VM) Status() string {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.mon == nil {
		return ""
	}
	return vm.status
}
