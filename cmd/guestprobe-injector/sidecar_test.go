package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// build makes the sidecar's program.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "guestprobe")
	if out, err := exec.Command("go", "build", "-o", program, "../guestprobe").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return program
}

// TestSidecarStarts runs what was injected: the real program with the arguments, the manifest and the probes of a
// patched pod, whose folders are a test's.
func TestSidecarStarts(t *testing.T) {
	program := build(t)
	for name, annotation := range map[string]string{
		"libvirt": "",
		"direct":  "guestprobe.dev/access: direct",
		"checks":  `guestprobe.dev/probes: "livenessProbe: {guestAgentPing: {}}"`,
	} {
		t.Run(name, func(t *testing.T) {
			pod := patched(t, annotation)
			dir := t.TempDir()
			here := strings.NewReplacer("/etc/guestprobe", dir, "/var/run/guestprobe", dir, "/var/run/libvirt", dir, "/var/run/kubevirt-plugin/guestprobe", dir,
				"--listen=:9958", "--listen="+freeAddr(t))
			translate := func(args []string) []string {
				var all []string
				for _, arg := range args {
					all = append(all, here.Replace(arg))
				}
				return all
			}
			write(t, filepath.Join(dir, "manifest.yaml"), []byte(pod.Annotations["guestprobe.dev/manifest"]))
			sidecar := pod.Spec.InitContainers[0]
			cmd := exec.Command(program, translate(sidecar.Args)...)
			for _, e := range sidecar.Env {
				cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
			}
			done, stderr := start(t, cmd)
			check := func(c []string) error {
				out, err := exec.Command(c[0], c[1:]...).CombinedOutput()
				if err != nil {
					return errors.New(string(out))
				}
				return nil
			}
			socket := filepath.Join(dir, "guestprobe.sock")
			eventually(t, "up", done, func() error { return check([]string{program, "check", "healthz", "--socket", socket}) })
			if err := check([]string{program, "check", "readyz", "--socket", socket}); err == nil {
				t.Error("ready without a VM")
			}
			// There is no VM, but that is no verdict, and neither is a sidecar that has gone.
			var live []string
			if probe := pod.Spec.Containers[0].LivenessProbe; probe != nil {
				live = translate(probe.Exec.Command)
				if err := check(live); err != nil {
					t.Errorf("compute would end: %v", err)
				}
			} else if name == "checks" {
				t.Error("compute asks nobody")
			}
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Errorf("%v\n%s", err, stderr)
			}
			if live != nil {
				if err := check(live); err != nil {
					t.Errorf("compute would end with the sidecar: %v", err)
				}
			}
		})
	}
}

// patched returns the test's pod as the injector leaves it.
func patched(t *testing.T, annotation string) *corev1.Pod {
	t.Helper()
	text := strings.NewReplacer(
		"annotations: {kubevirt.io/domain: web}", "annotations:\n    kubevirt.io/domain: web\n    "+annotation,
		"volumes: [", "volumes: [{name: kubevirt-plugin-sockets, emptyDir: {}}, ",
	)
	base, err := os.ReadFile("testdata/pod.yaml")
	if err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := runWith(text.Replace(string(base)), "patch", "-f", "-", "--vmi", "testdata/vmi.yaml", "--image", "guestprobe")
	if code != 0 || stderr != "" {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(stdout), pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// TestCollectorStarts runs the program with the arguments of the DaemonSet.
func TestCollectorStarts(t *testing.T) {
	daemonset := decodeAll(t, kustomize(t, manifestsDir+"/overlays/full"))["DaemonSet guestprobe-collector"].(*appsv1.DaemonSet)
	addr := freeAddr(t)
	here := strings.NewReplacer("/host/pods", t.TempDir(), "/host/pod-logs", t.TempDir(), "$(NODE_NAME)", "node-1", "--listen=:9959", "--listen="+addr)
	var args []string
	for _, arg := range daemonset.Spec.Template.Spec.Containers[0].Args {
		args = append(args, here.Replace(arg))
	}
	cmd := exec.Command(build(t), args...)
	done, stderr := start(t, cmd)
	eventually(t, "up", done, func() error { return status("http://"+addr+"/healthz", 200) })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("%v\n%s", err, stderr)
	}
}

// start runs a program that is killed at the test's end if it still runs.
func start(t *testing.T, cmd *exec.Cmd) (done chan error, stderr *bytes.Buffer) {
	t.Helper()
	stderr = &bytes.Buffer{}
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done = make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it may have ended by itself
	return done, stderr
}
