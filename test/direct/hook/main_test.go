package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/api"
)

const (
	plugin = "../../../manifests/components/direct/plugin.yaml"
	domain = `<domain type='kvm'><name>shop_web</name><devices>
<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel></devices></domain>`
)

func vmi(t *testing.T, annotations string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "vmi.yaml")
	text := "{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: web, namespace: shop" + annotations + "}}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestCondition: the Plugin is for the VMs that ask for it, and evaluates for all others too. A condition that fails
// would stop every VM of the cluster.
func TestCondition(t *testing.T) {
	const direct = ", annotations: {guestprobe.dev/access: direct}"
	for annotations, applies := range map[string]bool{
		"":                      false,
		", annotations: {}":     false,
		", annotations: {a: b}": false,
		", annotations: {guestprobe.dev/access: libvirt}":                                            false,
		", annotations: {guestprobe.dev/access: direct}":                                             true,
		", annotations: {guestprobe.dev/access: direct, guestprobe.dev/inject: 'true'}":              true,
		", annotations: {guestprobe.dev/access: direct, guestprobe.dev/inject: 'false'}":             false,
		direct + "}, spec: {volumes: [{name: disk, emptyDisk: {capacity: 1Gi}}]":                     true,
		direct + "}, spec: {volumes: []":                                                             true,
		direct + "}, spec: {volumes: [{name: disk}, {name: guestprobe, emptyDisk: {capacity: 1Gi}}]": false,
		direct + "}, spec: {volumes: [{name: guestprobe-info, emptyDisk: {capacity: 1Gi}}]":          false,
		", annotations: {a: b}}, spec: {volumes: [{name: guestprobe, emptyDisk: {capacity: 1Gi}}]":   false,
	} {
		result, err := apply(plugin, vmi(t, annotations), strings.NewReader(domain))
		if err != nil {
			t.Errorf("%q: %v", annotations, err)
			continue
		}
		if got := strings.Contains(result, "guestprobe"); got != applies {
			t.Errorf("%q: applied: %v, want %v", annotations, got, applies)
		}
	}
}

// TestKeeps: what the domain has already stays.
func TestKeeps(t *testing.T) {
	direct := vmi(t, ", annotations: {guestprobe.dev/access: direct}")
	channels := []api.Channel{{Type: "unix", Target: &api.ChannelTarget{Name: "org.qemu.guest_agent.0", Type: "virtio"}}}
	// KubeVirt writes this element, and does not read it.
	arguments := &api.Commandline{QEMUArg: []api.Arg{{Value: "-fw_cfg"}}}
	for name, spec := range map[string]*api.DomainSpec{
		"arguments":    {QEMUCmd: arguments, Devices: api.Devices{Channels: channels}},
		"no arguments": {Devices: api.Devices{Channels: channels}},
		"no channels":  {QEMUCmd: arguments},
	} {
		spec.XmlNS = "http://libvirt.org/schemas/domain/qemu/1.0"
		result, err := applyTo(plugin, direct, spec)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for part, want := range map[string]bool{
			"-fw_cfg": spec.QEMUCmd != nil, "org.qemu.guest_agent.0": spec.Devices.Channels != nil,
			"org.guestprobe.agent.0": true, `value="-qmp"`: true,
		} {
			if strings.Contains(result, part) != want {
				t.Errorf("%s: %s is there: %v, want %v:\n%s", name, part, !want, want, result)
			}
		}
	}
}

func TestRun(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(nil, nil, &stdout, &stderr); code != 2 {
		t.Errorf("without arguments: exit code %d", code)
	}
	broken := filepath.Join(t.TempDir(), "plugin.yaml")
	text, err := os.ReadFile(plugin)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(broken, bytes.ReplaceAll(text, []byte("Devices: DomainDeviceList"), []byte("Nonsense: DomainDeviceList")), 0o600); err != nil {
		t.Fatal(err)
	}
	direct := vmi(t, ", annotations: {guestprobe.dev/access: direct}")
	if code := run([]string{broken, direct}, strings.NewReader(domain), &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), "Nonsense") {
		t.Errorf("a broken hook: exit code %d, %s", code, &stderr)
	}
	stdout.Reset()
	if code := run([]string{plugin, "../../../manifests/examples/direct-access.yaml"}, strings.NewReader(domain), &stdout, &stderr); code != 0 || !strings.Contains(stdout.String(), "org.guestprobe.agent.0") {
		t.Errorf("the example: exit code %d, %s%s", code, &stdout, &stderr)
	}
}
