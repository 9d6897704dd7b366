package libvirt_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/test/guest"
	"github.com/guestprobe/guestprobe/test/libvirtd"
)

// domainName is the virtual machine's name.
const domainName = "gp-vm"

// patience is how long anything may take; a boot takes 6 to 8 seconds of an idle core.
const patience = 120 * time.Second

// A host is the private daemon with what these tests need beside it.
type host struct {
	*libvirtd.Host
	t *testing.T
}

func newHost(t *testing.T) *host {
	t.Helper()
	if _, err := libvirtd.Find("qemu-nbd"); err != nil {
		guest.Unavailable(t, "%v (Debian: qemu-utils)", err)
	}
	return &host{Host: libvirtd.New(t, domainName), t: t}
}

func (h *host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) addr() qga.Addr {
	return qga.Addr{Scheme: "libvirt", Domain: domainName, Socket: h.Socket()}
}

// define defines the domain, with more devices if wanted.
func (h *host) define(devices string) {
	h.t.Helper()
	h.Define(h.XML(devices))
}

// disk describes a disk that serveDisk serves. A failed request stops the VM, as KubeVirt has it.
func (h *host) disk() string {
	return `<disk type='network' device='disk'>
      <driver name='qemu' type='raw' error_policy='stop' rerror_policy='stop'/>
      <source protocol='nbd' name='disk'><host transport='unix' socket='` + filepath.Join(h.Dir, "vm/disk.sock") + `'/></source>
      <target dev='vda' bus='virtio'/>
    </disk>`
}

// serveDisk serves the disk, which fails as told (options of QEMU's blkdebug).
func (h *host) serveDisk(faults ...string) {
	h.t.Helper()
	image, socket := filepath.Join(h.Dir, "vm/disk.img"), filepath.Join(h.Dir, "vm/disk.sock")
	h.must(os.WriteFile(image, make([]byte, 1<<20), 0o600))
	h.GiveAway(image)
	opts := append([]string{"driver=raw", "file.driver=blkdebug", "file.image.driver=file", "file.image.filename=" + image}, faults...)
	// The export has a name: libvirt 9.0 loses its event of a disk whose source has none.
	server := guest.Spawn(h.t, h.Command(context.Background(), "qemu-nbd", "--persistent", "--shared=4", "--export-name=disk",
		"--socket="+socket, "--image-opts", strings.Join(opts, ",")))
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for { // until it listens
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
			return
		}
		select {
		case <-tick.C:
		case <-server.Done:
			h.t.Fatalf("qemu-nbd has ended: %s", server.Output())
		case <-h.t.Context().Done():
			h.t.Fatal(err)
		}
	}
}
