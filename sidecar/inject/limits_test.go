package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// checksOf is the spec of a GuestProbes document with a hundred checks, of some size bytes in all.
func checksOf(size int) string {
	var b strings.Builder
	b.WriteString("checks:\n")
	for i := range 100 {
		fmt.Fprintf(&b, "- {name: c%d, kind: readiness, exec: {command: [x, %s]}}\n", i, strings.Repeat("a", size/100))
	}
	return b.String()
}

// TestTooLarge: probes that would push the pod's annotations beyond the API server's limit are ignored like other broken
// ones, or, where they are the VM's own, cost the sidecar; the pod is one that the API server takes.
func TestTooLarge(t *testing.T) {
	for name, tt := range map[string]struct {
		annotation, defaults string
		command              string // of compute's readiness probe
		skipped              bool
	}{
		"annotation":         {annotation: checksOf(130 << 10)},
		"namespace defaults": {defaults: checksOf(500 << 10)},
		"the VM's own":       {command: strings.Repeat("a", 220<<10), skipped: true},
		"both":               {defaults: checksOf(500 << 10), command: strings.Repeat("a", 220<<10), skipped: true},
	} {
		t.Run(name, func(t *testing.T) {
			raw := podWith(t, func(pod *corev1.Pod) {
				pod.Annotations[AnnotationProbes] = tt.annotation
				if tt.command != "" {
					pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{TimeoutSeconds: 2, ProbeHandler: corev1.ProbeHandler{
						Exec: &corev1.ExecAction{Command: []string{virtProbe, "--command", "sh", "--", "-c", tt.command}},
					}}
				}
			})
			cfg := testConfig()
			in := Input{Pod: decode(t, raw), Namespace: "shop", Defaults: tt.defaults}
			res, err := Inject(in, &cfg)
			if err != nil {
				t.Fatal(err)
			}
			if said := strings.Join(res.Warnings, "\n"); !strings.Contains(said, "too large") {
				t.Errorf("warnings: %.300s", said)
			}
			if (res.Skipped != "") != tt.skipped || (len(res.Patch) == 0) != tt.skipped {
				t.Fatalf("skipped: %q, %d operations", res.Skipped, len(res.Patch))
			}
			if !tt.skipped {
				proveInvariants(t, decode(t, raw), decode(t, apply(t, raw, res.Patch)))
			}
			cfg.RefuseBroken = true
			if _, err := Inject(in, &cfg); (tt.annotation+tt.defaults != "") != errors.Is(err, ErrBroken) {
				t.Errorf("with refusal: %v", err)
			}
		})
	}
}

// TestManyWarnings: what an owner writes can be quoted in a warning, and again in another; the pod has room for so much.
func TestManyWarnings(t *testing.T) {
	raw := podWith(t, func(pod *corev1.Pod) {
		pod.Annotations[AnnotationInject] = strings.Repeat("x", 20<<10)
		pod.Annotations[AnnotationAccess] = strings.Repeat("y", 20<<10)
	})
	cfg := testConfig()
	res, err := Inject(Input{Pod: decode(t, raw), Namespace: "shop", Warnings: []string{"first"}}, &cfg)
	if err != nil {
		t.Fatal(err)
	}
	if res.Skipped != "" {
		t.Fatalf("skipped: %s", res.Skipped)
	}
	after := decode(t, apply(t, raw, res.Patch))
	got := after.Annotations[AnnotationWarnings]
	if !strings.HasPrefix(got, "first\n") || !strings.HasSuffix(got, " more") || len(got) > maxWarnings+100 {
		t.Errorf("%d bytes of warnings: %.300s", len(got), got)
	}
}

// TestValidate: a mistake of the administrator's that would keep each VM from starting keeps the injector from it.
func TestValidate(t *testing.T) {
	images := map[string]bool{
		"guestprobe": true, "guestprobe:dev": true, "registry.example/guestprobe:v1": true, "localhost:5000/a/b-c__d": true,
		"[fd00::1]:5000/a:b": true, "Registry.example/a": true,
		"registry.example/a@sha256:" + strings.Repeat("0", 64): true, "a:1@sha256:" + strings.Repeat("0", 64): true,
		"": false, " a": false, "a b": false, "a\n": false, "https://registry.example/a": false, "registry.example/A": false,
		"a:": false, "a:b:c": false, "a@sha256:0": false, "/a": false, "a/": false, "a:-": false,
	}
	for image, want := range images {
		cfg := testConfig()
		cfg.Image = image
		if err := cfg.Validate(); (err == nil) != want {
			t.Errorf("image %q: %v", image, err)
		}
	}
	cfg := testConfig()
	cfg.Resources.MemoryRequest.Set(32)
	cfg.Resources.MemoryLimit.Set(64) // the unit is forgotten
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "would not start") {
		t.Errorf("64 bytes of memory: %v", err)
	}
}

// TestOddVMI: a VMI whose members are of types that they cannot have is one of which nothing is known.
func TestOddVMI(t *testing.T) {
	_, vmi := (&testCase{VMI: json.RawMessage(`{"spec": {
		"networks": [{"pod": {}}, {"name": {"a": 1}, "pod": {}}, 7, {"name": "default", "pod": 7}],
		"domain": {"devices": {"interfaces": [{"masquerade": {}}, {"name": {"a": 1}, "masquerade": {}}, null]}}}}`)}).build(t)
	cfg := testConfig()
	got := networkOf(vmi, &corev1.Pod{}, &cfg)
	if got.binding != bindingUnknown || got.ours || got.guestHost != "" || !got.isolated {
		t.Errorf("%+v", got)
	}
}

// TestToken: whatever the pod says of its service account's token, the sidecar gets none.
func TestToken(t *testing.T) {
	yes, no := true, false
	for _, automount := range []*bool{nil, &yes, &no} {
		raw := podWith(t, func(pod *corev1.Pod) { pod.Spec.AutomountServiceAccountToken = automount })
		cfg := testConfig()
		res, err := Inject(Input{Pod: decode(t, raw), Namespace: "shop"}, &cfg)
		if err != nil {
			t.Fatal(err)
		}
		sidecar := decode(t, apply(t, raw, res.Patch)).Spec.InitContainers[2]
		covered := slices.ContainsFunc(sidecar.VolumeMounts, func(m corev1.VolumeMount) bool {
			return m.MountPath == tokenDir && m.Name == VolumeRun && m.SubPath != "" && m.ReadOnly
		})
		if covered != (automount != &no) {
			t.Errorf("automount %v: mounts %v", automount, sidecar.VolumeMounts)
		}
	}
}

// podWith returns the base pod, changed.
func podWith(t *testing.T, change func(*corev1.Pod)) []byte {
	t.Helper()
	raw, err := yaml.YAMLToJSON(read(t, "testdata/base-pod.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	pod := decode(t, raw)
	change(pod)
	if raw, err = json.Marshal(pod); err != nil {
		t.Fatal(err)
	}
	return raw
}
