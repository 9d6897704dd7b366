package inject

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// FuzzInject: whatever stands in the annotations, the defaults, a probe's command and the VMI, the answer is a patch
// that fits and is whole, or the owner's own error; the VM keeps its pod.
func FuzzInject(f *testing.F) {
	vmi, err := yaml.YAMLToJSON([]byte(`{spec: {domain: {devices: {interfaces: [{name: default, masquerade: {}, ports: [{port: 80}]}]}}, networks: [{name: default, pod: {}}]}}`))
	if err != nil {
		f.Fatal(err)
	}
	f.Add("readinessProbe: {httpGet: {port: 80}}", "livenessProbe: {guestAgentPing: {}}", "10.0.0.1", "virt-probe\x00--guestAgentPing", string(vmi))
	f.Add("checks: [{name: a, kind: startup, exec: {command: [x]}}]", "", "", "virt-probe\x00--timeoutSeconds\x00-1\x00--command\x00a\x00--", `{"spec":{"networks":[{"pod":{"vmNetworkCIDR":"::/128"},"name":1}]}}`)
	f.Add("readinessProbe: {tcpSocket: {port: web}}", "readinessProbe: {tcpSocket: {port: web}}", "::1", "x", `{"spec":{"networks":[1,null,{"multus":{"default":true}}],"domain":{"devices":{"interfaces":{"a":1}}}}}`)
	f.Fuzz(func(t *testing.T, annotation, defaults, host, command, vmiJSON string) {
		raw, err := yaml.YAMLToJSON(read(t, "testdata/base-pod.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		pod := decode(t, raw)
		pod.Annotations[AnnotationProbes] = annotation
		pod.Annotations[AnnotationGuestHost] = host
		pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: strings.Split(command, "\x00")}}, TimeoutSeconds: 2,
		}
		vmi := &unstructured.Unstructured{}
		if json.Unmarshal([]byte(vmiJSON), &vmi.Object) != nil {
			vmi = nil
		}
		if raw, err = json.Marshal(pod); err != nil {
			t.Fatal(err)
		}
		cfg := testConfig()
		res, err := Inject(Input{Pod: decode(t, raw), Namespace: "shop", VMI: vmi, Defaults: defaults}, &cfg)
		if err != nil {
			t.Fatalf("an owner's mistake is an error: %v", err)
		}
		if strings.HasPrefix(res.Skipped, errTooLarge.Error()) {
			return
		}
		proveInvariants(t, decode(t, raw), decode(t, apply(t, raw, res.Patch)))
		cfg.RefuseBroken = true
		if _, err := Inject(Input{Pod: decode(t, raw), Namespace: "shop", VMI: vmi, Defaults: defaults}, &cfg); err != nil && !errors.Is(err, ErrBroken) {
			t.Fatalf("not the owner's error: %v", err)
		}
	})
}
