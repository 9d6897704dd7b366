package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// A testCase is a file in testdata/cases: what differs from the base pod and VMI, as JSON merge patches.
type testCase struct {
	About       string            `json:"about"`
	Pod         json.RawMessage   `json:"pod"`
	Compute     json.RawMessage   `json:"compute"`     // of the base's first container
	Annotations map[string]string `json:"annotations"` // more of the pod's
	VMI         json.RawMessage   `json:"vmi"`         // null: it could not be read
	Defaults    string            `json:"defaults"`
	Config      struct {
		IPv6, Refuse bool
	} `json:"config"`
}

// A golden is what a case leads to, for people to read.
type golden struct {
	About    string      `json:"about,omitempty"`
	Error    string      `json:"error,omitempty"`
	Skipped  string      `json:"skipped,omitempty"`
	Warnings []string    `json:"warnings,omitempty"`
	Patch    []Operation `json:"patch,omitempty"`
}

func testConfig() Config {
	cfg := DefaultConfig()
	cfg.Image = "registry.example/guestprobe:v1"
	return cfg
}

func TestCases(t *testing.T) {
	files, err := filepath.Glob("testdata/cases/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, ".golden.yaml") {
			continue
		}
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			var tc testCase
			if err := yaml.UnmarshalStrict(read(t, file), &tc); err != nil {
				t.Fatal(err)
			}
			cfg := testConfig()
			cfg.IPv6, cfg.RefuseBroken = tc.Config.IPv6, tc.Config.Refuse
			pod, vmi := tc.build(t)
			check(t, pod, vmi, "shop", tc.Defaults, &cfg, tc.About, strings.TrimSuffix(file, ".yaml")+".golden.yaml")
		})
	}
}

// TestLauncherPods runs over whole pods as virt-controller renders them, where they are at hand.
func TestLauncherPods(t *testing.T) {
	dir := "../../../shared/cases"
	files, err := filepath.Glob(filepath.Join(dir, "launcher-pods", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Skipf("no launcher pods in %s", dir)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			pod, err := yaml.YAMLToJSON(read(t, file))
			if err != nil {
				t.Fatal(err)
			}
			vmi := &unstructured.Unstructured{}
			if err := yaml.Unmarshal(read(t, filepath.Join(dir, "vmis", filepath.Base(file))), &vmi.Object); err != nil {
				t.Fatal(err)
			}
			cfg := testConfig()
			check(t, pod, vmi, "default", "", &cfg, "", filepath.Join("testdata/launcher-pods", filepath.Base(file)))
		})
	}
}

// check injects, compares with the golden file, and proves what must hold for every pod.
func check(t *testing.T, raw []byte, vmi *unstructured.Unstructured, namespace, defaults string, cfg *Config, about, goldenFile string) {
	t.Helper()
	pod := decode(t, raw)
	before := pod.DeepCopy()
	got := golden{About: about}
	res, err := Inject(Input{Pod: pod, Namespace: namespace, VMI: vmi, Defaults: defaults}, cfg)
	if err != nil {
		if !errors.Is(err, ErrBroken) {
			t.Fatalf("Inject: %v", err)
		}
		got.Error = err.Error()
	} else {
		got.Skipped, got.Warnings, got.Patch = res.Skipped, res.Warnings, res.Patch
	}
	if diff := cmp.Diff(before, pod); diff != "" {
		t.Errorf("Inject changed its input (-before +after):\n%s", diff)
	}
	compareGolden(t, got, goldenFile)
	if err != nil || res.Skipped != "" {
		if err == nil && len(res.Patch) > 0 {
			t.Errorf("skipped, and patched all the same")
		}
		return
	}
	patched := apply(t, raw, res.Patch)
	after := decode(t, patched)
	proveInvariants(t, before, after)
	again, err := Inject(Input{Pod: after, Namespace: namespace, VMI: vmi, Defaults: defaults}, cfg)
	if err != nil || len(again.Patch) > 0 {
		t.Errorf("its own output is patched again: %v, %v", again, err)
	}
}

func compareGolden(t *testing.T, got golden, file string) {
	t.Helper()
	data, err := yaml.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(read(t, file)), string(data)); diff != "" {
		t.Errorf("%s (-want +got; UPDATE_GOLDEN=1 writes it anew):\n%s", file, diff)
	}
}

// build puts a case together.
func (tc *testCase) build(t *testing.T) (pod []byte, vmi *unstructured.Unstructured) {
	t.Helper()
	pod, err := yaml.YAMLToJSON(read(t, "testdata/base-pod.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(pod, &m); err != nil {
		t.Fatal(err)
	}
	if tc.Compute != nil {
		containers, _, _ := unstructured.NestedSlice(m, "spec", "containers")
		containers[0] = merge(t, containers[0], tc.Compute)
		_ = unstructured.SetNestedSlice(m, containers, "spec", "containers")
	}
	if tc.Pod != nil {
		m = merge(t, m, tc.Pod).(map[string]any)
	}
	for k, v := range tc.Annotations {
		if err := unstructured.SetNestedField(m, v, "metadata", "annotations", k); err != nil {
			t.Fatal(err)
		}
	}
	if pod, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	if string(tc.VMI) == "null" {
		return pod, nil
	}
	vmi = &unstructured.Unstructured{}
	if err := yaml.Unmarshal(read(t, "testdata/base-vmi.yaml"), &vmi.Object); err != nil {
		t.Fatal(err)
	}
	if tc.VMI != nil {
		vmi.Object = merge(t, vmi.Object, tc.VMI).(map[string]any)
	}
	return pod, vmi
}

func merge(t *testing.T, base any, patch []byte) (merged any) {
	t.Helper()
	doc, err := json.Marshal(base)
	if err != nil {
		t.Fatal(err)
	}
	if doc, err = jsonpatch.MergePatch(doc, patch); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(doc, &merged); err != nil {
		t.Fatal(err)
	}
	return merged
}

func apply(t *testing.T, doc []byte, ops []Operation) []byte {
	t.Helper()
	data, err := json.Marshal(ops)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := jsonpatch.DecodePatch(data)
	if err != nil {
		t.Fatal(err)
	}
	if doc, err = patch.Apply(doc); err != nil {
		t.Fatalf("the patch does not fit the pod: %v", err)
	}
	return doc
}

// decode reads a pod as strictly as the API server does.
func decode(t *testing.T, data []byte) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
