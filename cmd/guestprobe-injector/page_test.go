package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// pageCommands returns what docs/install.md has people run in the sidecar, in its order.
func pageCommands(t *testing.T) [][]string {
	t.Helper()
	var commands [][]string
	for line := range strings.Lines(page(t)) {
		if _, command, ok := strings.Cut(line, "exec $pod -c guestprobe -- /guestprobe "); ok {
			commands = append(commands, strings.Fields(command))
		}
	}
	return commands
}

// TestPage runs the page's commands beside a sidecar with the arguments that are injected: their paths are the sidecar's,
// and no shell is needed.
func TestPage(t *testing.T) {
	program, dir := build(t), t.TempDir()
	here := strings.NewReplacer("/etc/guestprobe", dir, "/var/run/guestprobe", dir, "/var/run/libvirt", dir, "--listen=:9958", "--listen="+freeAddr(t))
	pod := patched(t, "")
	write(t, filepath.Join(dir, "manifest.yaml"), []byte(pod.Annotations["guestprobe.dev/manifest"]))
	command := func(args []string) *exec.Cmd {
		var all []string
		for _, arg := range args {
			all = append(all, here.Replace(arg))
		}
		return exec.Command(program, all...)
	}
	done, _ := start(t, command(pod.Spec.InitContainers[0].Args))
	says := func(command *exec.Cmd, want string) error {
		out, err := command.CombinedOutput() // check exits 1 for what is not ready, so err says nothing by itself
		if !strings.Contains(string(out), want) {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	var ask []string
	found := map[string]bool{}
	for _, args := range pageCommands(t) {
		switch {
		case args[0] == "check":
			ask = args
			eventually(t, "asked", done, func() error { return says(command(ask), "readyz check failed: Starting") })
		case args[len(args)-1] == "--release":
			if err := says(command(args), "released"); err != nil {
				t.Fatal(err)
			}
			eventually(t, "released", done, func() error { return says(command(ask), "readyz check failed: Starting") })
		case args[0] == "hold":
			if err := says(command(args), "held until"); err != nil {
				t.Fatal(err)
			}
			eventually(t, "held", done, func() error { return says(command(ask), "Maintenance") })
		default:
			t.Fatalf("what is %q?", args)
		}
		found[args[0]+args[len(args)-1]] = true
	}
	if len(found) != 3 {
		t.Errorf("the page has check, hold and hold --release; found %v", found)
	}
}

// TestPageOverlays builds the overlays that the page has people write: each is a whole installation, of their images alone.
func TestPageOverlays(t *testing.T) {
	overlays := strings.Split(page(t), "apiVersion: kustomize.config.k8s.io/")[1:]
	if len(overlays) == 0 {
		t.Fatal("docs/install.md has no overlay")
	}
	for _, text := range overlays {
		_, text, _ = strings.Cut(text, "\n")
		text, _, _ = strings.Cut(text, "\n```")
		text, _, _ = strings.Cut(text, "\nEOF")
		built := string(kustomize(t, overlay(t, text)))
		proveInstallation(t, decodeAll(t, []byte(built)))
		for line := range strings.Lines(built) {
			if image, ok := strings.CutPrefix(strings.TrimSpace(line), "image: "); ok && !strings.HasPrefix(image, "registry.example/") {
				t.Errorf("image %s in\n%s", image, text)
			}
		}
		// What the page has them append is added, and takes nothing away.
		more := string(kustomize(t, overlay(t, text+"\n- ../manifests/components/direct\n")))
		for line := range strings.Lines(built) {
			if !strings.Contains(more, line) {
				t.Errorf("with direct access this is gone: %s", line)
			}
		}
		if !strings.Contains(more, "kind: Plugin") {
			t.Errorf("no Plugin in\n%s", more)
		}
	}
	if !strings.Contains(page(t), "echo '- ../manifests/components/direct' >>my-cluster/kustomization.yaml") {
		t.Error("the page no longer appends the component as it is appended here")
	}
}
