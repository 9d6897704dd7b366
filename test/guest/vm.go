package guest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// patience is how long anything may take that needs the guest. A boot takes 4 to 6 seconds of an idle core.
const patience = 120 * time.Second

// AgentPort is the name of the virtio port that libvirt and KubeVirt give to the guest agent, SecondAgentPort that of
// the further one of Options.SecondAgent.
const (
	AgentPort       = "org.qemu.guest_agent.0"
	SecondAgentPort = "org.guestprobe.agent.0"
)

// Options says what differs from the usual machine; the zero value is the usual one.
type Options struct {
	SecondAgent bool              // a second agent on a port of its own
	Files       map[string]string // path in the guest: file here that is put there, executable
	Args        []string          // more arguments for QEMU: -S, -incoming, a disk, …
}

// A VM is a QEMU process with the test guest in it. Its methods are for one goroutine, the test's, and fail the test.
type VM struct {
	// Process is QEMU. StartAgain replaces it.
	*Process

	Monitor     string // path of the QMP socket for the program under test
	Agent       string // path of the agent's socket (AgentPort)
	SecondAgent string // path of the second agent's socket, with Options.SecondAgent
	Web         string // host:port here that leads to port 1500 of the guest
	SSH         string // host:port here that leads to port 22 of the guest

	root    testing.TB // whose end is the machine's end
	t       testing.TB // whom a failing step fails
	dir     string
	opts    Options
	image   string
	initrd  string
	monitor *monitor
	console *console
	boots   int           // the boot that WaitReady waits for
	asleep  <-chan result // Suspend's command, which ends when the guest wakes
}

// Start starts a machine and returns when its monitor answers; the guest boots meanwhile (see WaitReady).
func Start(t testing.TB, opts Options) *VM {
	t.Helper()
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		Unavailable(t, "%v", err)
	}
	image := Image(t)
	dir, err := os.MkdirTemp(shortTempDir(), "gp")
	if err != nil {
		t.Fatal(err)
	}
	vm := &VM{
		Monitor: filepath.Join(dir, "qmp.sock"), Agent: filepath.Join(dir, "qga.sock"),
		SecondAgent: filepath.Join(dir, "qga2.sock"),
		root:        t, t: t, dir: dir, opts: opts, image: image, initrd: filepath.Join(image, "initrd.gz"),
	}
	t.Cleanup(vm.cleanup)
	if len(opts.Files) > 0 {
		vm.initrd = filepath.Join(dir, "initrd")
		if err := addFiles(vm.initrd, filepath.Join(image, "initrd.gz"), maps.Clone(opts.Files)); err != nil {
			t.Fatalf("adding files to the guest: %v", err)
		}
	}
	vm.start()
	return vm
}

// Use lets a subtest use the machine until the subtest ends: what fails then fails the subtest.
func (vm *VM) Use(t testing.TB) {
	former := vm.t
	vm.t = t
	t.Cleanup(func() { vm.t = former })
}

// shortTempDir is where sockets fit: their paths end at 107 bytes.
func shortTempDir() string {
	if dir := os.TempDir(); len(dir) < 60 {
		return dir
	}
	return "/tmp"
}

func (vm *VM) cleanup() {
	vm.disconnect()
	if vm.root.Failed() {
		if vm.Process != nil {
			vm.root.Logf("QEMU said:\n%s", vm.Output())
		}
		if text, err := os.ReadFile(filepath.Join(vm.dir, "serial.log")); err == nil {
			vm.root.Logf("the guest's kernel said:\n%s", text)
		}
	}
	_ = os.RemoveAll(vm.dir)
}

// start runs QEMU on the machine's paths. QEMU dials the two sockets that are this package's own, so that their
// connections tell when it is up: by then it listens on those for the program under test.
func (vm *VM) start() {
	vm.t.Helper()
	consoles, monitors := vm.listen("console.sock"), vm.listen("test.sock")
	defer consoles.Close()
	defer monitors.Close()
	vm.Process = Spawn(vm.root, exec.Command("qemu-system-x86_64", vm.args()...))

	ctx, cancel := context.WithTimeoutCause(vm.t.Context(), patience, errors.New("patience ran out"))
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func(p *Process) { // Accept knows no context
		select {
		case <-p.Done:
		case <-ctx.Done():
		case <-stop:
		}
		consoles.Close()
		monitors.Close()
	}(vm.Process)

	vm.console = newConsole(vm.accept(consoles))
	var err error
	if vm.monitor, err = newMonitor(ctx, vm.accept(monitors)); err != nil {
		vm.t.Fatalf("QEMU's monitor: %v\n%s", err, vm.Output())
	}
	vm.boots = 1
	vm.Web, vm.SSH = vm.forwarded(1500), vm.forwarded(22)
}

func (vm *VM) listen(name string) net.Listener {
	vm.t.Helper()
	l, err := net.Listen("unix", filepath.Join(vm.dir, name))
	if err != nil {
		vm.t.Fatal(err)
	}
	return l
}

func (vm *VM) accept(l net.Listener) net.Conn {
	vm.t.Helper()
	conn, err := l.Accept()
	if err != nil {
		vm.t.Fatalf("QEMU has not connected to %s: %v\n%s", l.Addr(), err, vm.Output())
	}
	return conn
}

func (vm *VM) args() []string {
	args := []string{
		"-accel", "tcg", "-cpu", "max", "-m", "192", "-nodefaults", "-no-user-config", "-display", "none",
		"-kernel", filepath.Join(vm.image, "vmlinuz"), "-initrd", vm.initrd,
		"-append", "console=ttyS0 quiet panic=-1",
		"-chardev", "file,id=log,append=on,path=" + filepath.Join(vm.dir, "serial.log"), "-serial", "chardev:log",
		"-chardev", "socket,id=console,path=" + filepath.Join(vm.dir, "console.sock"), "-serial", "chardev:console",
		"-device", "virtio-serial-pci",
		"-chardev", "socket,id=agent0,server=on,wait=off,path=" + vm.Agent,
		"-device", "virtserialport,chardev=agent0,id=channel0,name=" + AgentPort,
	}
	if vm.opts.SecondAgent {
		args = append(args,
			"-chardev", "socket,id=agent1,server=on,wait=off,path="+vm.SecondAgent,
			"-device", "virtserialport,chardev=agent1,id=channel1,name="+SecondAgentPort)
	}
	// Port 0 lets the kernel choose; a second start keeps what the first one got.
	forward := func(addr string, port int) string {
		if addr == "" {
			addr = "127.0.0.1:0"
		}
		return fmt.Sprintf(",hostfwd=tcp:%s-:%d", addr, port)
	}
	args = append(args,
		"-netdev", "user,id=net0,restrict=on"+forward(vm.Web, 1500)+forward(vm.SSH, 22),
		"-device", "virtio-net-pci,netdev=net0,romfile=",
		"-device", "pvpanic", "-action", "panic=pause",
		"-qmp", "unix:"+vm.Monitor+",server=on,wait=off",
		"-qmp", "unix:"+filepath.Join(vm.dir, "test.sock"))
	return append(args, vm.opts.Args...)
}

// forwarded asks QEMU which port here leads to a port of the guest.
func (vm *VM) forwarded(port int) string {
	vm.t.Helper()
	var text string
	vm.Command("human-monitor-command", map[string]any{"command-line": "info usernet"}, &text)
	pattern := regexp.MustCompile(`HOST_FORWARD\]\s+\d+\s+(\S+)\s+(\d+)\s+\S+\s+` + strconv.Itoa(port) + `\s`)
	match := pattern.FindStringSubmatch(text)
	if match == nil {
		vm.t.Fatalf("QEMU forwards nothing to port %d: %s", port, text)
	}
	return net.JoinHostPort(match[1], match[2])
}

func (vm *VM) disconnect() {
	if vm.Process != nil {
		vm.Process.Kill()
	}
	if vm.monitor != nil {
		vm.monitor.close()
	}
	if vm.console != nil {
		vm.console.close()
	}
}

// StartAgain ends QEMU, if it has not ended yet, and starts a new one on the same paths and ports: a new instance,
// whose guest boots anew. The sockets of the old one stay on the disk in between, as they do when QEMU is killed.
func (vm *VM) StartAgain() {
	vm.t.Helper()
	vm.disconnect()
	for _, name := range []string{"console.sock", "test.sock"} {
		if err := os.Remove(filepath.Join(vm.dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			vm.t.Fatal(err)
		}
	}
	vm.start()
}

// SerialLog returns what the guest's kernel has said.
func (vm *VM) SerialLog() string {
	text, err := os.ReadFile(filepath.Join(vm.dir, "serial.log"))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text))
}
