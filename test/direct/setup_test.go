package direct_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"

	"github.com/guestprobe/guestprobe/test/guest"
	"github.com/guestprobe/guestprobe/test/libvirtd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	pluginManifest = "../../manifests/components/direct/plugin.yaml"
	domainName     = "shop_direct" // as KubeVirt names it
)

// The folders that the pod's containers share, and the test's stand-ins below the host's folder.
func here(h *libvirtd.Host) *strings.Replacer {
	return strings.NewReplacer(
		"/var/run/kubevirt-plugin/guestprobe", filepath.Join(h.Dir, "plugin"),
		"/var/run/libvirt/virtqemud-sock", h.Socket(),
	)
}

// buildHook makes the program that applies the Plugin. KubeVirt's code has to be fetched for it.
func buildHook(t *testing.T) string {
	t.Helper()
	program := filepath.Join(guest.Root(t), ".cache", "direct", "hook")
	if out, err := command("hook", "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		if fetch, ferr := command("hook", "go", "mod", "download").CombinedOutput(); ferr != nil {
			guest.Unavailable(t, "KubeVirt's modules: %v\n%s", ferr, fetch)
		}
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return program
}

func command(dir, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	return cmd
}

// hooked returns the domain as KubeVirt defines it with our Plugin.
func hooked(t *testing.T, domain string) string {
	t.Helper()
	cmd := exec.Command(buildHook(t), pluginManifest, "testdata/vmi.yaml")
	cmd.Stdin = strings.NewReader(domain)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	return string(out)
}

// injected returns the sidecar's flags for the VM, monitor and agent, and its manifest, as the injector writes them.
func injected(t *testing.T) (flags []string, manifest string) {
	t.Helper()
	program := filepath.Join(guest.Root(t), ".cache", "direct", "guestprobe-injector")
	if out, err := command("../..", "go", "build", "-o", program, "./cmd/guestprobe-injector").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	var stderr bytes.Buffer
	cmd := exec.Command(program, "patch", "-f", "testdata/pod.yaml", "--vmi", "testdata/vmi.yaml", "--image", "guestprobe")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || stderr.Len() > 0 {
		t.Fatalf("guestprobe-injector: %v\n%s", err, &stderr)
	}
	var pod struct {
		Metadata struct{ Annotations map[string]string }
		Spec     struct {
			InitContainers []struct {
				Name string
				Args []string
			} `yaml:"initContainers"`
		}
	}
	if err := yaml.Unmarshal(out, &pod); err != nil {
		t.Fatal(err)
	}
	for _, c := range pod.Spec.InitContainers {
		if c.Name != "guestprobe" {
			continue
		}
		flags = slices.DeleteFunc(c.Args, func(arg string) bool {
			return !strings.HasPrefix(arg, "--monitor") && !strings.HasPrefix(arg, "--agent")
		})
	}
	if len(flags) != 4 {
		t.Fatalf("the injector's flags for monitor and agent are %q", flags)
	}
	return flags, pod.Metadata.Annotations["guestprobe.dev/manifest"]
}

// domainLog is what libvirt has written about the domain and its QEMU.
func domainLog(t *testing.T, h *libvirtd.Host) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(h.Dir, "cache/libvirt/qemu/log", domainName+".log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
