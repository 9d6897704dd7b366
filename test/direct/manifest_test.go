package direct_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/guestprobe/guestprobe/test/guest"
)

// channel returns the name of the channel that the Plugin adds.
func channel(t *testing.T) string {
	t.Helper()
	match := regexp.MustCompile(`DomainChannelTargetVirtIO\{Name: "([^"]+)"\}`).FindStringSubmatch(read(t, pluginManifest))
	if match == nil {
		t.Fatalf("%s adds no channel", pluginManifest)
	}
	return match[1]
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestHook runs the hook's own tests, which are those of another module: KubeVirt evaluates the Plugin for every VM.
func TestHook(t *testing.T) {
	buildHook(t)
	if out, err := command("hook", "go", "test", "-count=1", ".").CombinedOutput(); err != nil {
		t.Errorf("go test: %v\n%s", err, out)
	}
}

// TestPaths: what the Plugin makes QEMU listen on is what the injector points the sidecar at.
func TestPaths(t *testing.T) {
	plugin := read(t, pluginManifest)
	flags, _ := injected(t)
	for flag, in := range map[string]string{"--monitor=unix:": `"unix:%s,server=on,wait=off"`, "--agent=unix:": `Path: "%s"`} {
		found := false
		for _, arg := range flags {
			if path, ok := strings.CutPrefix(arg, flag); ok {
				found = strings.Contains(plugin, strings.Replace(in, "%s", path, 1))
			}
		}
		if !found {
			t.Errorf("no %s of the injector is in the Plugin: %q", flag, flags)
		}
	}
}

// TestGuestService: the guest's second agent serves the Plugin's channel, by the same unit wherever it is shown.
func TestGuestService(t *testing.T) {
	name := channel(t)
	if name != guest.SecondAgentPort {
		t.Errorf("the test guest's second agent is on %s, the Plugin's channel is %s", guest.SecondAgentPort, name)
	}
	_, section, ok := strings.Cut(read(t, "../../docs/install.md"), "\n## Direct access\n")
	if !ok {
		t.Fatal("docs/install.md has no section on direct access")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	units := map[string]string{"docs/install.md": fenced(t, section, "ini")}
	units["docs/install.md, cloud-init"] = cloudInit(t, fenced(t, section, "yaml"))
	var example struct {
		Spec struct {
			Template struct {
				Spec struct {
					Volumes []struct {
						CloudInitNoCloud struct {
							UserData string `yaml:"userData"`
						} `yaml:"cloudInitNoCloud"`
					}
				}
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "../../manifests/examples/direct-access.yaml")), &example); err != nil {
		t.Fatal(err)
	}
	for _, v := range example.Spec.Template.Spec.Volumes {
		if data := v.CloudInitNoCloud.UserData; data != "" {
			units["manifests/examples/direct-access.yaml"] = cloudInit(t, data)
		}
	}
	if len(units) != 3 {
		t.Fatalf("the unit is shown in %d places, not 3", len(units))
	}
	device := `dev-virtio\x2dports-` + strings.ReplaceAll(name, "-", `\x2d`) + ".device"
	for where, unit := range units {
		if unit != units["docs/install.md"] {
			t.Errorf("%s shows another unit:\n%s", where, unit)
		}
		for _, part := range []string{" -m virtio-serial -p /dev/virtio-ports/" + name + " -t ", "BindsTo=" + device, "After=" + device, "WantedBy=" + device} {
			if !strings.Contains(unit, part) {
				t.Errorf("%s: %q is not in the unit:\n%s", where, part, unit)
			}
		}
	}
}

// fenced returns the one block of a language.
func fenced(t *testing.T, text, language string) string {
	t.Helper()
	blocks := regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(text, -1)
	if len(blocks) != 1 {
		t.Fatalf("%d blocks of %s, not one", len(blocks), language)
	}
	return blocks[0][1]
}

// cloudInit returns the unit that a cloud-config writes, and asks that it is started as well.
func cloudInit(t *testing.T, text string) string {
	t.Helper()
	if !strings.HasPrefix(text, "#cloud-config\n") {
		t.Errorf("no cloud-config: %.40q", text)
	}
	var config struct {
		WriteFiles []struct{ Path, Content string } `yaml:"write_files"`
		RunCmd     []string                         `yaml:"runcmd"`
	}
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	for _, f := range config.WriteFiles {
		unit, ok := strings.CutPrefix(f.Path, "/etc/systemd/system/")
		if !ok {
			continue
		}
		if last := config.RunCmd[len(config.RunCmd)-1]; !strings.Contains(last, "enable --now") || !strings.Contains(last, strings.TrimSuffix(unit, ".service")) {
			t.Errorf("%s is written and not started: %q", unit, config.RunCmd)
		}
		return f.Content
	}
	t.Fatalf("no unit is written:\n%s", text)
	return ""
}
