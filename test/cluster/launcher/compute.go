package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The folders of a virt-launcher pod (KubeVirt d923fdb815, pkg/virt-controller/services/rendervolumes.go:70-97) and what
// is in them. Debian has libvirt's one daemon instead of virtqemud; its socket gets virtqemud's name by a link.
const (
	privateDir  = "/var/run/kubevirt-private"
	libvirtDir  = "/var/run/libvirt"
	daemon      = libvirtDir + "/libvirt-sock"
	virtqemud   = libvirtDir + "/virtqemud-sock"
	tap         = "tap0"
	connection  = "qemu:///session?socket=" + virtqemud
	guestFolder = "/guest"   // kernel and initramfs, from the node
	plugins     = "/plugins" // plugin.yaml and vmi.yaml, where the cluster has a Plugin
)

// compute runs a VM until its guest powers off or moves away (ended), or ctx is done. It starts the VM itself, or receives
// one that runs elsewhere.
func compute(ctx context.Context, namespace, name string, receive bool) (ended bool, err error) {
	libvirt, err := startLibvirt(ctx)
	if err != nil {
		return false, err
	}
	defer func() {
		_ = libvirt.Process.Signal(syscall.SIGTERM)
		_ = libvirt.Wait()
	}()
	log.Printf("libvirt answers; waiting for the network")
	if err := await(ctx, func() bool { _, err := os.Stat("/sys/class/net/" + tap); return err == nil }); err != nil {
		return false, nil
	}
	domain := namespace + "_" + name // KubeVirt's name for it
	if receive {
		log.Printf("waiting for %s", domain)
		if err := await(ctx, func() bool { _, err := qemuPID(domain); return err == nil }); err != nil {
			return false, nil
		}
	} else if err := start(ctx, domain); err != nil {
		return false, err
	}
	qemu, err := qemuPID(domain)
	if err != nil {
		return false, err
	}
	log.Printf("domain %s runs, QEMU is process %d", domain, qemu)
	running := func() bool { return syscall.Kill(qemu, 0) == nil }
	booting, stop := context.WithCancel(ctx)
	defer stop()
	if !receive {
		go network(booting)
	}
	if await(ctx, func() bool { return !running() }) == nil {
		log.Printf("QEMU has ended")
		// Who has moved the VM away still talks to libvirt, until that is done with it.
		finishing, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_ = await(finishing, func() bool {
			state, err := exec.CommandContext(finishing, "virsh", "-q", "-c", connection, "domstate", domain).Output()
			return err == nil && strings.TrimSpace(string(state)) == "shut off"
		})
		return true, nil
	}
	// KubeVirt asks the guest by ACPI first; the test's guest has nothing that would listen.
	log.Printf("told to stop: destroying the domain")
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := virsh(stopping, "destroy", domain); err != nil {
		log.Print(err)
	}
	return false, nil
}

func start(ctx context.Context, domain string) error {
	definition, err := plugged(ctx, domainXML(domain))
	if err != nil {
		return err
	}
	file := filepath.Join(privateDir, "domain.xml")
	if err := os.WriteFile(file, definition, 0o600); err != nil {
		return err
	}
	if err := virsh(ctx, "define", file); err != nil {
		return err
	}
	return virsh(ctx, "start", domain)
}

// plugged is the domain as the cluster's Plugin, if there is one, leaves it. virt-launcher has the code that applies it in
// itself; here it is a program of test/direct's, made of KubeVirt's code.
func plugged(ctx context.Context, domain string) ([]byte, error) {
	plugin := filepath.Join(plugins, "plugin.yaml")
	if _, err := os.Stat(plugin); errors.Is(err, os.ErrNotExist) {
		return []byte(domain), nil
	}
	cmd := exec.CommandContext(ctx, "/hook", plugin, filepath.Join(plugins, "vmi.yaml"))
	cmd.Stdin = strings.NewReader(domain)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("applying the Plugin: %w: %s", err, &stderr)
	}
	return out, nil
}

// network is what DHCP does in a KubeVirt guest with the masquerade binding.
func network(ctx context.Context) {
	if err := booted(ctx); err != nil {
		return
	}
	const command = "ifconfig eth0 10.0.2.2 netmask 255.255.255.0; route del default; route add default gw 10.0.2.1"
	if out, status, err := ask(ctx, command); err != nil || status != 0 {
		log.Printf("configuring the guest's network: status %d, %v: %s", status, err, out)
		return
	}
	log.Print("the guest has booted")
}

// startLibvirt starts the daemon as an ordinary user's and waits until it answers.
func startLibvirt(ctx context.Context) (*exec.Cmd, error) {
	conf := filepath.Join(os.Getenv("XDG_CONFIG_HOME"), "libvirt")
	if err := os.MkdirAll(conf, 0o755); err != nil {
		return nil, err
	}
	for file, text := range map[string]string{
		"qemu.conf": "stdio_handler = \"file\"\n", // else the daemon hands QEMU's output to one more daemon
		// Else all pods of a machine are one host, to which libvirt does not migrate.
		"libvirtd.conf": fmt.Sprintf("host_uuid = %q\n", uuid()),
	} {
		if err := os.WriteFile(filepath.Join(conf, file), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command("libvirtd", "-f", filepath.Join(conf, "libvirtd.conf"))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	err := await(ctx, func() bool {
		conn, err := net.Dial("unix", daemon)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	if err == nil {
		err = os.Symlink(filepath.Base(daemon), virtqemud)
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, fmt.Errorf("starting libvirtd: %w", err)
	}
	return cmd, nil
}

func uuid() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func virsh(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "virsh", append([]string{"-q", "-c", connection}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("virsh %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// qemuPID finds QEMU. libvirt detaches it from itself, which makes it a child of the pod's first process.
func qemuPID(domain string) (int, error) {
	data, err := os.ReadFile(filepath.Join(libvirtDir, "qemu/run", domain+".pid"))
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("reading QEMU's pid file: %w", err)
	}
	return pid, nil
}

// await polls: what it waits for comes from processes that tell nobody.
func await(ctx context.Context, is func() bool) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-ctx.Done():
			return errors.New("told to stop")
		case <-tick.C:
		}
	}
	return nil
}

// domainXML is the least of what KubeVirt's domains have that matters to probes: the agent's channel, the panic device
// and a network card on a tap device that somebody else has made.
func domainXML(domain string) string {
	return `<domain type='qemu'>
  <name>` + domain + `</name>
  <memory unit='MiB'>192</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    <kernel>` + guestFolder + `/vmlinuz</kernel>
    <initrd>` + guestFolder + `/initrd.gz</initrd>
    <cmdline>console=ttyS0 quiet panic=-1</cmdline>
  </os>
  <features><acpi/></features>
  <cpu mode='maximum'/>
  <on_crash>preserve</on_crash>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <interface type='ethernet'>
      <target dev='` + tap + `' managed='no'/>
      <model type='virtio'/>
      <rom enabled='no'/>
    </interface>
    <serial type='file'><source path='` + privateDir + `/serial.log' append='on'/><target port='0'/></serial>
    <serial type='unix'><source mode='bind' path='` + lineSocket + `'/><target port='1'/></serial>
    <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
    <panic model='isa'/>
    <memballoon model='none'/>
  </devices>
  <seclabel type='none'/>
</domain>
`
}
