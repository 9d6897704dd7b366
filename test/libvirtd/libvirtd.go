package libvirtd

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/test/guest"
)

// patience is how long anything may take; a boot takes 6 to 8 seconds of an idle core.
const patience = 120 * time.Second

// A Host is a folder in which a private libvirt daemon may run, and the means to steer it. Its methods are for one
// goroutine, the test's, and fail the test.
type Host struct {
	Dir    string         // the daemon's folders lie in it, and "vm" for what belongs to the domain
	Daemon *guest.Process // nil: never started

	root   testing.TB // whose end is the daemon's end
	t      testing.TB // whom a failing step fails
	domain string
	lines  net.Listener // where QEMU connects the guest's second serial port
}

// New prepares the folder for a domain of that name. Nothing runs yet.
func New(t testing.TB, domain string) *Host {
	t.Helper()
	for _, program := range []string{"libvirtd", "virsh", "qemu-system-x86_64"} {
		if _, err := Find(program); err != nil {
			guest.Unavailable(t, "%v (Debian: libvirt-daemon, libvirt-daemon-driver-qemu, libvirt-clients, qemu-system-x86)", err)
		}
	}
	image := guest.Image(t)
	dir, err := os.MkdirTemp("/tmp", "gpl") // sockets' paths end at 107 bytes, and libvirt's are long
	if err != nil {
		t.Fatal(err)
	}
	h := &Host{Dir: dir, root: t, t: t, domain: domain}
	t.Cleanup(h.cleanup)
	for _, name := range []string{"run", "conf/libvirt", "cache", "data", "vm"} {
		h.must(os.MkdirAll(filepath.Join(dir, name), 0o755))
	}
	for _, name := range []string{"vmlinuz", "initrd.gz"} {
		h.must(copyFile(filepath.Join(dir, "vm", name), filepath.Join(image, name)))
	}
	// Without this the daemon hands QEMU's output to one more daemon.
	h.must(os.WriteFile(filepath.Join(dir, "conf/libvirt/qemu.conf"), []byte("stdio_handler = \"file\"\n"), 0o644))
	h.lines, err = net.Listen("unix", filepath.Join(dir, "vm/line.sock"))
	h.must(err)
	t.Cleanup(func() { h.lines.Close() })
	h.must(os.Chmod(dir, 0o755))
	h.GiveAway(dir)
	h.reap()
	return h
}

// credential is whom the daemon runs as: root would get the system's one.
func (h *Host) credential() *syscall.Credential {
	if os.Getuid() != 0 {
		return nil
	}
	const nobody = 65534
	return &syscall.Credential{Uid: nobody, Gid: nobody}
}

// GiveAway makes path, and all below it, the daemon's user's own.
func (h *Host) GiveAway(path string) {
	h.t.Helper()
	cred := h.credential()
	if cred == nil {
		return
	}
	h.must(filepath.WalkDir(path, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(cred.Uid), int(cred.Gid))
	}))
}

// reap ends QEMUs with the test, however that ends: libvirt detaches them from everything, so that they survive it.
func (h *Host) reap() {
	read, write, err := os.Pipe()
	h.must(err)
	cmd := exec.Command("sh", "-c", `cat; for f in "$1"/run/libvirt/qemu/run/*.pid; do [ -e "$f" ] && kill -KILL "$(cat "$f")"; done; rm -rf "$1"`, "reap", h.Dir)
	cmd.Stdin = read
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt from the terminal is not for it
	h.must(cmd.Start())
	read.Close()
	h.t.Cleanup(func() {
		write.Close()
		_ = cmd.Wait()
	})
}

func (h *Host) cleanup() {
	if h.root.Failed() {
		if h.Daemon != nil {
			h.root.Logf("libvirtd said:\n%s", h.Daemon.Output())
		}
		for _, name := range []string{"cache/libvirt/qemu/log/" + h.domain + ".log", "vm/serial.log"} {
			if text, err := os.ReadFile(filepath.Join(h.Dir, name)); err == nil {
				h.root.Logf("%s:\n%s", name, text)
			}
		}
	}
}

func (h *Host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// Socket is the path of the socket that the daemon serves.
func (h *Host) Socket() string { return filepath.Join(h.Dir, "run/libvirt/libvirt-sock") }

// Use makes what fails from here on, until the subtest t ends, fail t.
func (h *Host) Use(t testing.TB) {
	former := h.t
	h.t = t
	t.Cleanup(func() { h.t = former })
}

// Command makes a command that runs as the daemon does: its user, its folders.
func (h *Host) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	path, err := Find(program)
	h.must(err)
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C", "HOME=" + h.Dir,
		"XDG_RUNTIME_DIR=" + filepath.Join(h.Dir, "run"), "XDG_CONFIG_HOME=" + filepath.Join(h.Dir, "conf"),
		"XDG_CACHE_HOME=" + filepath.Join(h.Dir, "cache"), "XDG_DATA_HOME=" + filepath.Join(h.Dir, "data"),
	}
	cmd.Dir = h.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: h.credential()}
	return cmd
}

// StartDaemon starts libvirtd, and returns when it can be connected to; it takes a second more until it answers.
func (h *Host) StartDaemon() {
	h.t.Helper()
	h.Daemon = guest.Spawn(h.root, h.Command(context.Background(), "libvirtd", "-f", "/dev/null", "-p", filepath.Join(h.Dir, "run/libvirtd.pid")))
	limit := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := net.Dial("unix", h.Socket())
		if err == nil {
			conn.Close()
			return
		}
		select {
		case <-tick.C:
		case <-h.Daemon.Done:
			h.t.Fatalf("libvirtd has ended: %s", h.Daemon.Output())
		case <-limit:
			h.t.Fatal(err)
		}
	}
}

// StopDaemon ends libvirtd as a package's upgrade does. Domains run on.
func (h *Host) StopDaemon() {
	h.t.Helper()
	h.Daemon.Signal(h.t, syscall.SIGTERM)
	h.Daemon.Wait(h.t, patience)
}

// Virsh runs libvirt's own client.
func (h *Host) Virsh(args ...string) string {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	defer cancel()
	args = append([]string{"-q", "-c", "qemu:///session?socket=" + h.Socket()}, args...)
	out, err := h.Command(ctx, "virsh", args...).CombinedOutput()
	if err != nil {
		h.t.Fatalf("virsh %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Start starts the domain and returns the line to its guest.
func (h *Host) Start() *guest.Line {
	h.t.Helper()
	h.Virsh("start", h.domain)
	conn, err := h.lines.Accept()
	h.must(err)
	line := guest.NewLine(h.root, conn)
	line.Use(h.t)
	return line
}

// Define defines the domain by its XML.
func (h *Host) Define(xml string) {
	h.t.Helper()
	path := filepath.Join(h.Dir, "vm/domain.xml")
	h.must(os.WriteFile(path, []byte(xml), 0o644))
	h.Virsh("define", path)
}

// XML describes the domain, with more devices if wanted.
func (h *Host) XML(devices string) string {
	vm := filepath.Join(h.Dir, "vm")
	qemu, err := Find("qemu-system-x86_64")
	h.must(err)
	return fmt.Sprintf(`<domain type='qemu'>
  <name>%s</name>
  <uuid>6b1f9c2e-8a53-4f0e-9d15-3f6c2b7a4e01</uuid>
  <memory unit='MiB'>192</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    <kernel>%[2]s/vmlinuz</kernel>
    <initrd>%[2]s/initrd.gz</initrd>
    <cmdline>console=ttyS0 quiet panic=-1</cmdline>
  </os>
  <features><acpi/></features>
  <cpu mode='maximum'/>
  <on_crash>preserve</on_crash>
  <devices>
    <emulator>%[3]s</emulator>
    <serial type='file'><source path='%[2]s/serial.log' append='on'/><target port='0'/></serial>
    <serial type='unix'><source mode='connect' path='%[2]s/line.sock'/><target port='1'/></serial>
    <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
    <panic model='isa'/>
    <memballoon model='none'/>
    %[4]s
  </devices>
  <seclabel type='none'/>
</domain>`, h.domain, vm, qemu, devices)
}

// Find looks a program up also where an ordinary user's PATH does not.
func Find(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path, serr := exec.LookPath(filepath.Join(dir, program)); serr == nil {
			return path, nil
		}
	}
	return "", err
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Close()
}
