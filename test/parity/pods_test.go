package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	k8sv1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"sigs.k8s.io/yaml"

	"github.com/guestprobe/guestprobe/sidecar/inject"
)

const injectDir = "../../sidecar/inject/testdata"

// TestInjectedPods has the API server's own code default and validate the pods that package inject makes: those of its
// own cases, and whole ones as virt-controller renders them where they are at hand.
func TestInjectedPods(t *testing.T) {
	cases, err := filepath.Glob(injectDir + "/cases/*.golden.yaml")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, golden := range cases {
		name := strings.TrimSuffix(filepath.Base(golden), ".golden.yaml")
		t.Run(name, func(t *testing.T) {
			var c caseFile
			readYAML(t, strings.TrimSuffix(golden, ".golden.yaml")+".yaml", &c)
			before := c.pod(t)
			var want struct{ Patch json.RawMessage }
			readYAML(t, golden, &want)
			if want.Patch != nil {
				proveAccepted(t, before, applyPatch(t, before, want.Patch))
			}
		})
	}
	pods, _ := filepath.Glob("../../../shared/cases/launcher-pods/*.yaml") // the pattern is well formed
	for _, file := range pods {
		t.Run("rendered/"+strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			before := toJSON(t, file)
			vmi := &unstructured.Unstructured{}
			readYAML(t, "../../../shared/cases/vmis/"+filepath.Base(file), &vmi.Object)
			proveAccepted(t, before, injected(t, before, vmi))
		})
	}
}

// TestInjectedNumbers: no number that a VM's owner may write, in an annotation or in the VM, leads to a pod that the API
// server refuses.
func TestInjectedNumbers(t *testing.T) {
	const most = "initialDelaySeconds: 2147483647, periodSeconds: 2147483647, timeoutSeconds: 2147483647, failureThreshold: 2147483647"
	for _, binding := range []string{"masquerade", "bridge"} {
		for _, probes := range []string{
			"livenessProbe: {httpGet: {port: 80}, terminationGracePeriodSeconds: 9223372036, " + most + "}",
			"readinessProbe: {tcpSocket: {port: 65535}, successThreshold: 2147483647, " + most + "}",
			"readinessProbe: {grpc: {port: 1, service: a}, " + most + "}",
			"livenessProbe: {guestAgentPing: {}, terminationGracePeriodSeconds: 9223372036, " + most + "}",
			"readinessProbe: {httpGet: {port: 80, path: /a?b#c, httpHeaders: [{name: A-b, value: c}]}}",
			"readinessProbe: {httpGet: {port: 80, scheme: HTTPS, host: '::1'}}",
			"checks: [{name: a, kind: liveness, terminationGracePeriodSeconds: 1, exec: {command: [a]}}]",
		} {
			c := caseFile{Annotations: map[string]string{inject.AnnotationProbes: probes}}
			before := c.pod(t)
			vmi := &unstructured.Unstructured{}
			text := "{spec: {networks: [{name: a, pod: {}}], domain: {devices: {interfaces: [{name: a, " + binding + ": {}}]}}}}"
			if err := yaml.Unmarshal([]byte(text), &vmi.Object); err != nil {
				t.Fatal(err)
			}
			proveAccepted(t, before, injected(t, before, vmi))
			if t.Failed() {
				t.Fatalf("%s, %s", binding, probes)
			}
		}
	}
}

// A caseFile is what package inject's own test makes of a file in its testdata/cases.
type caseFile struct {
	Pod, Compute json.RawMessage
	Annotations  map[string]string
}

func (c *caseFile) pod(t *testing.T) []byte {
	t.Helper()
	doc := toJSON(t, injectDir+"/base-pod.yaml")
	if c.Compute != nil {
		var pod map[string]any
		decode(t, doc, &pod)
		containers := pod["spec"].(map[string]any)["containers"].([]any)
		var compute any
		decode(t, merge(t, encode(t, containers[0]), c.Compute), &compute)
		containers[0] = compute
		doc = encode(t, pod)
	}
	if c.Pod != nil {
		doc = merge(t, doc, c.Pod)
	}
	if c.Annotations != nil {
		doc = merge(t, doc, encode(t, map[string]any{"metadata": map[string]any{"annotations": c.Annotations}}))
	}
	return doc
}

func injected(t *testing.T, pod []byte, vmi *unstructured.Unstructured) []byte {
	t.Helper()
	in := inject.Input{Pod: &corev1.Pod{}, Namespace: "default", VMI: vmi}
	decode(t, pod, in.Pod)
	cfg := inject.DefaultConfig()
	cfg.Image = "registry.example/guestprobe:v1"
	res, err := inject.Inject(in, &cfg)
	if err != nil || res.Skipped != "" {
		t.Fatalf("not injected: %v %s", err, res.Skipped)
	}
	return applyPatch(t, pod, encode(t, res.Patch))
}

// proveAccepted: what the API server has against the pod, it had before; and the pod's QoS class is what it was.
func proveAccepted(t *testing.T, before, after []byte) {
	t.Helper()
	refused := map[string]bool{}
	old, _ := validate(t, before, refused)
	_, news := validate(t, after, refused)
	for _, fault := range news {
		t.Errorf("the API server refuses the pod: %s", fault)
	}
	var pod corev1.Pod
	decode(t, after, &pod)
	if got := qos.ComputePodQOS(&pod); got != old {
		t.Errorf("QoS class %s, before %s", got, old)
	}
}

// validate returns the pod's QoS class and the faults that are not in known, and adds them to it.
func validate(t *testing.T, doc []byte, known map[string]bool) (class corev1.PodQOSClass, faults []string) {
	t.Helper()
	var pod corev1.Pod
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&pod); err != nil {
		t.Fatal(err)
	}
	pod.Namespace = "default"
	class = qos.ComputePodQOS(&pod)
	k8sv1.SetObjectDefaults_Pod(&pod)
	if pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName = "default" // an admission plugin's work
	}
	pod.Spec.DeprecatedServiceAccount = pod.Spec.ServiceAccountName
	var internal core.Pod
	if err := k8sv1.Convert_v1_Pod_To_core_Pod(&pod, &internal, nil); err != nil {
		t.Fatal(err)
	}
	internal.Name = internal.GenerateName + "abcde"
	opts := podutil.GetValidationOptionsFromPodSpecAndMeta(&internal.Spec, nil, &internal.ObjectMeta, nil)
	for _, err := range validation.ValidatePodCreate(&internal, opts) {
		if fault := err.Error(); !known[fault] {
			known[fault] = true
			faults = append(faults, fault)
		}
	}
	return class, faults
}

func readYAML(t *testing.T, file string, out any) {
	t.Helper()
	decode(t, toJSON(t, file), out)
}

func toJSON(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err == nil {
		data, err = yaml.YAMLToJSON(data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func decode(t *testing.T, data []byte, out any) {
	t.Helper()
	if err := json.Unmarshal(data, out); err != nil {
		t.Fatal(err)
	}
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func merge(t *testing.T, doc, patch []byte) []byte {
	t.Helper()
	doc, err := jsonpatch.MergePatch(doc, patch)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func applyPatch(t *testing.T, doc, patch []byte) []byte {
	t.Helper()
	decoded, err := jsonpatch.DecodePatch(patch)
	if err == nil {
		doc, err = decoded.Apply(doc)
	}
	if err != nil {
		t.Fatalf("the patch does not fit the pod: %v", err)
	}
	return doc
}
