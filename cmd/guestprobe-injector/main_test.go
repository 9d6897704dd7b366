package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/guestprobe/guestprobe/cmd/internal/cli"
)

func runWith(stdin string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = program().Run(context.Background(), cli.Env{Args: args, Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs})
	return code, out.String(), errs.String()
}

// TestCommandLine: every mistake is one line that says what to do, and exit code 2.
func TestCommandLine(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.yaml")
	if err := os.WriteFile(broken, []byte("readinessProbe: {httpGet: {}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	pod := "testdata/pod.yaml"
	for _, tt := range []struct {
		args   string
		stdin  string
		code   int
		stdout string
		stderr string
	}{
		{args: "", code: 2, stderr: "Usage: guestprobe-injector COMMAND"},
		{args: "help", stdout: "patch"},
		{args: "version", stdout: "guestprobe-injector "},
		{args: "inject", code: 2, stderr: `unknown command "inject"`},
		{args: "serve --help", stdout: "-certificate-renew-before"},
		{args: "serve", code: 2, stderr: `image: "" is no image reference`},
		{args: "serve --image a --certificates maybe", code: 2, stderr: "--certificates"},
		{args: "serve --image a --certificate-renew-before 9000h", code: 2, stderr: "--certificate-renew-before"},
		{args: "serve --image a --webhook-port 0", code: 2, stderr: "--webhook-port"},
		{args: "serve --image a --shutdown-delay -1s", code: 2, stderr: "--shutdown-delay"},
		{args: "serve --image a --log-level loud", code: 2, stderr: "--log-level"},
		{args: "serve --image a --kubeconfig /does/not/exist", code: 2, stderr: "finding the API server"},
		{args: "serve --image a --cpu-request 1", code: 2, stderr: "CPU: the request 1"},
		{args: "serve --image a --memory-limit much", code: 2, stderr: "-memory-limit"},
		{args: "serve --image a --pod-ips 1.2.3", code: 2, stderr: "--pod-ips"},
		{args: "serve --image a --on-broken panic", code: 2, stderr: "--on-broken"},
		{args: "serve --image a --image-pull-policy Sometimes", code: 2, stderr: "Sometimes"},
		{args: "patch", code: 2, stderr: "-f is missing"},
		{args: "patch x", code: 2, stderr: `unexpected argument "x"`},
		{args: "patch -f /does/not/exist", code: 2, stderr: "no such file"},
		{args: "patch -f -", stdin: "kind: Service", code: 2, stderr: `kind "Service"`},
		{args: "patch -f -", stdin: "{", code: 2, stderr: "standard input"},
		{args: "patch -f " + pod + " --vmi " + pod, code: 2, stderr: "not a VirtualMachineInstance"},
		{args: "patch -f " + pod + " -o xml", code: 2, stderr: "-o"},
		{args: "patch -f " + pod + " --port 99999", code: 2, stderr: "--port"},
		{args: "patch -f " + pod, stdout: "--monitor=libvirt:default_web"},
		{args: "patch -f " + pod + " --vmi testdata/vmi.yaml", stdout: "--listen=:9958"},
		{args: "patch -f " + pod + " --vmi testdata/vmi.yaml --pod-ips fd00::1,10.0.0.1", stdout: "--guest-host=fd10:0:2::2"},
		{args: "patch -f " + pod + " --vmi testdata/vmi.yaml --defaults testdata/defaults.yaml -o patch", stdout: "- livez"},
		{args: "patch -f " + pod + " --defaults " + broken, stderr: "warning: ignored: ConfigMap default/guestprobe, key probes:1: readinessProbe.httpGet.port"},
		{args: "patch -f " + pod + " --on-broken refuse --defaults " + broken, code: 1, stderr: "readinessProbe.httpGet.port"},
		{args: "patch -f - -o json", stdin: "{apiVersion: v1, kind: Pod, metadata: {name: a}, unknown: {kept: true}}", stdout: `"kept": true`, stderr: "left as it is: it is no virt-launcher pod"},
	} {
		code, stdout, stderr := runWith(tt.stdin, strings.Fields(tt.args)...)
		if code != tt.code || !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) {
			t.Errorf("%q: exit %d\nstdout: %.300s\nstderr: %s\nwant exit %d, %q and %q", tt.args, code, stdout, stderr, tt.code, tt.stdout, tt.stderr)
		}
		if tt.code == 2 && tt.args != "" && strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: a mistake is one line: %s", tt.args, stderr)
		}
	}
}

// TestPatchAgain: patch's output, patched again, stays as it is, also through YAML.
func TestPatchAgain(t *testing.T) {
	args := []string{"patch", "--vmi", "testdata/vmi.yaml", "--image", "a"}
	_, first, _ := runWith("", append(args, "-f", "testdata/pod.yaml")...)
	code, second, stderr := runWith(first, append(args, "-f", "-")...)
	if code != 0 || first != second || !strings.Contains(stderr, "it carries the sidecar already") {
		t.Errorf("exit %d, %s\nfirst:\n%s\nsecond:\n%s", code, stderr, first, second)
	}
	var pod map[string]any
	if err := yaml.UnmarshalStrict([]byte(second), &pod); err != nil {
		t.Error(err)
	}
}
