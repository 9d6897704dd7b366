package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/guestprobe/guestprobe/cmd/internal/cli"
)

const manifestsDir = "../../manifests"

// kustomize builds a folder as kubectl apply -k does, with the kustomize that the tools' module names.
func kustomize(t *testing.T, dir string) []byte {
	t.Helper()
	cmd := exec.Command("go", "tool", "-modfile="+toolsMod(t), "kustomize", "build", "--load-restrictor", "LoadRestrictionsNone", dir)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kustomize build %s: %v\n%s", dir, err, &errs)
	}
	for line := range strings.Lines(errs.String()) {
		if !strings.HasPrefix(line, "go: ") { // go tells of what it downloads
			t.Errorf("kustomize build %s warns: %s", dir, line)
		}
	}
	return out
}

func toolsMod(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../tools/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// decodeAll decodes each document strictly, as far as its kind is Kubernetes's own.
func decodeAll(t *testing.T, data []byte) map[string]runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme, policyv1.AddToScheme, admissionregistrationv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	objects := map[string]runtime.Object{}
	reader := yamlutil.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		var meta struct {
			APIVersion, Kind string
			Metadata         struct{ Name, Namespace string }
		}
		if err := yaml.Unmarshal(doc, &meta); err != nil {
			t.Fatal(err)
		}
		if meta.Kind == "" {
			continue
		}
		name := meta.Kind + " " + meta.Metadata.Name
		obj, _, err := decoder.Decode(doc, nil, nil)
		switch {
		case runtime.IsNotRegisteredError(err):
		case err != nil:
			t.Errorf("%s: %v", name, err)
		}
		if _, twice := objects[name]; twice {
			t.Errorf("%s is there twice", name)
		}
		objects[name] = obj
	}
}

// TestOverlays builds every overlay, and every component on the default one.
func TestOverlays(t *testing.T) {
	overlays, err := filepath.Glob(manifestsDir + "/overlays/*")
	if err != nil || len(overlays) == 0 {
		t.Fatalf("no overlays: %v", err)
	}
	components, err := filepath.Glob(manifestsDir + "/components/*")
	if err != nil || len(components) == 0 {
		t.Fatalf("no components: %v", err)
	}
	for _, dir := range overlays {
		t.Run("overlay "+filepath.Base(dir), func(t *testing.T) { proveInstallation(t, decodeAll(t, kustomize(t, dir))) })
	}
	for _, dir := range components {
		t.Run("component "+filepath.Base(dir), func(t *testing.T) {
			text := "resources: [../manifests/overlays/default]\ncomponents: [../manifests/components/" + filepath.Base(dir) + "]\n"
			proveInstallation(t, decodeAll(t, kustomize(t, overlay(t, text))))
		})
	}
}

// overlay returns a folder with text as its kustomization, in which ../manifests is what it is to a folder beside it.
func overlay(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs(manifestsDir)
	if err != nil {
		t.Fatal(err)
	}
	if root, err = filepath.Rel(dir, root); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "kustomization.yaml"), []byte(strings.ReplaceAll(text, "../manifests", root)))
	return dir
}

// TestRendered: guestprobe.yaml is what its source says.
func TestRendered(t *testing.T) {
	want := append([]byte("# Rendered from overlays/default by render.sh; do not edit.\n"), kustomize(t, manifestsDir+"/overlays/default")...)
	got, err := os.ReadFile(manifestsDir + "/guestprobe.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("manifests/render.sh has not been run (-source +file):\n%s", diff)
	}
}

// proveInstallation checks what must hold for whatever was chosen: the parts fit each other and this program, and no VM
// is stopped by the webhook that is there by default.
func proveInstallation(t *testing.T, objects map[string]runtime.Object) {
	t.Helper()
	deployment, ok := objects["Deployment guestprobe-injector"].(*appsv1.Deployment)
	if !ok {
		t.Fatal("there is no injector")
	}
	f := proveDeployment(t, objects, deployment)
	config := objects["MutatingWebhookConfiguration "+f.rotation.webhook].(*admissionregistrationv1.MutatingWebhookConfiguration)
	for i, hook := range config.Webhooks {
		service := hook.ClientConfig.Service
		if service == nil || service.Name != f.rotation.service || service.Namespace != deployment.Namespace || *service.Path != webhookPath {
			t.Errorf("%s asks %+v", hook.Name, service)
		}
		if hook.ObjectSelector == nil || hook.ObjectSelector.MatchLabels["kubevirt.io"] != "virt-launcher" || *hook.TimeoutSeconds > 5 {
			t.Errorf("%s is asked about too much, or too long", hook.Name)
		}
		// Another webhook may run in between; what is asked must not matter for a dry run.
		if *hook.ReinvocationPolicy != admissionregistrationv1.IfNeededReinvocationPolicy || *hook.SideEffects != admissionregistrationv1.SideEffectClassNone {
			t.Errorf("%s: reinvocation %s, side effects %s", hook.Name, *hook.ReinvocationPolicy, *hook.SideEffects)
		}
		if i == 0 && (hook.NamespaceSelector == nil || hook.NamespaceSelector.MatchLabels["guestprobe.dev/inject"] != "enabled") {
			t.Errorf("%s is asked about namespaces that did not opt in: %v", hook.Name, hook.NamespaceSelector)
		}
		if i == 0 && *hook.FailurePolicy != admissionregistrationv1.Ignore {
			t.Errorf("%s can stop a VM", hook.Name)
		}
		if i > 0 && (*hook.FailurePolicy != admissionregistrationv1.Fail || len(hook.MatchConditions) == 0) {
			t.Errorf("%s: a webhook that can stop a VM must be for those that ask for it", hook.Name)
		}
	}
	if objects["Service "+f.rotation.service] == nil {
		t.Errorf("there is no Service %s", f.rotation.service)
	}
	_, secret := objects["Secret "+f.rotation.secret]
	if managed := f.certificates == "managed"; managed != secret {
		t.Errorf("certificates are %s, and the Secret for managed ones: %v", f.certificates, secret)
	}
	if daemonset, ok := objects["DaemonSet guestprobe-collector"].(*appsv1.DaemonSet); ok {
		if args := daemonset.Spec.Template.Spec.Containers[0].Args; args[0] != "collect" {
			t.Errorf("the collector runs %v", args)
		}
	}
}

// proveDeployment reads the injector's arguments with its own flags, and checks its pod.
func proveDeployment(t *testing.T, objects map[string]runtime.Object, deployment *appsv1.Deployment) *serveFlags {
	t.Helper()
	pod := deployment.Spec.Template.Spec
	c := pod.Containers[0]
	if c.Args[0] != "serve" {
		t.Fatalf("the injector runs %v", c.Args)
	}
	values := strings.NewReplacer("$(SIDECAR_IMAGE)", "guestprobe", "$(POD_NAMESPACE)", deployment.Namespace, "$(POD_IPS)", "fd00::1,10.0.0.1")
	var args []string
	for _, arg := range c.Args[1:] {
		args = append(args, values.Replace(arg))
	}
	fs := cli.NewFlags("guestprobe-injector serve", "")
	var sidecar sidecarFlags
	var f serveFlags
	sidecar.register(fs)
	f.register(fs)
	if _, err := cli.Parse(fs, cli.Env{Args: args}); err != nil {
		t.Fatal(err)
	}
	if _, err := sidecar.config(); err != nil {
		t.Error(err)
	}
	if err := f.validate(); err != nil {
		t.Error(err)
	}
	for _, e := range c.Env {
		if ref := e.ValueFrom.ConfigMapKeyRef; ref != nil && objects["ConfigMap "+ref.Name] == nil {
			t.Errorf("there is no ConfigMap %s", ref.Name)
		}
	}
	if !*pod.SecurityContext.RunAsNonRoot || !*c.SecurityContext.ReadOnlyRootFilesystem || *c.SecurityContext.AllowPrivilegeEscalation {
		t.Errorf("the injector is not restricted")
	}
	if *deployment.Spec.Replicas < 2 {
		t.Errorf("one replica is none during a rollout")
	}
	return &f
}

// TestRights: the injector can do what it needs, and nothing else.
func TestRights(t *testing.T) {
	objects := decodeAll(t, kustomize(t, manifestsDir+"/overlays/default"))
	var got []string
	for _, name := range []string{"ClusterRole guestprobe-injector", "Role guestprobe-injector"} {
		var rules []rbacv1.PolicyRule
		switch role := objects[name].(type) {
		case *rbacv1.ClusterRole:
			rules = role.Rules
		case *rbacv1.Role:
			rules = role.Rules
		}
		for _, r := range rules {
			got = append(got, strings.Join(slices.Concat(r.Resources, r.ResourceNames, r.Verbs), " "))
		}
	}
	want := []string{
		"virtualmachineinstances get",
		"configmaps guestprobe get",
		"mutatingwebhookconfigurations get list watch",
		"mutatingwebhookconfigurations guestprobe-injector update",
		"secrets get list watch",
		"secrets guestprobe-injector-tls update",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestExamples injects every example VM, by way of the pod that KubeVirt would make of it.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob(manifestsDir + "/examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			args := []string{"patch", "--image", "guestprobe", "--on-broken", "refuse", "-f", filepath.Join(dir, "pod.json"), "--vmi", filepath.Join(dir, "vmi.json")}
			pod, vmi := launcher(t, data)
			if defaults := configMapDefaults(t, data); defaults != "" {
				write(t, filepath.Join(dir, "defaults"), []byte(defaults))
				args = append(args, "--defaults", filepath.Join(dir, "defaults"))
			}
			write(t, filepath.Join(dir, "pod.json"), pod)
			write(t, filepath.Join(dir, "vmi.json"), vmi)
			code, stdout, stderr := runWith("", args...)
			if code != 0 || !strings.Contains(stdout, "name: guestprobe\n") {
				t.Errorf("exit %d: %s", code, stderr)
			}
			// What stays with the kubelet, and direct access without KubeVirt's gate, are meant to be said.
			expected := map[string]string{
				"bridge.yaml": "stays with the kubelet", "direct-access.yaml": "Plugins gate", "fedora.yaml": "stays with the kubelet",
			}[filepath.Base(file)]
			if (stderr != "") != (expected != "") || !strings.Contains(stderr, expected) {
				t.Errorf("warnings: %s, want %q", stderr, expected)
			}
		})
	}
}

// launcher makes a VM's launcher pod, as far as the injector looks at it, by KubeVirt's rules: ten seconds on every
// delay, and virt-probe around what the agent has to answer. A file without a VM gets one without probes.
func launcher(t *testing.T, data []byte) (pod, vmi []byte) {
	t.Helper()
	var vm struct {
		Kind string
		Spec struct {
			Template struct {
				Metadata struct{ Annotations map[string]string }
				Spec     struct {
					Domain, Networks              json.RawMessage
					ReadinessProbe, LivenessProbe *probeWithPing
				}
			}
		}
	}
	if err := yaml.Unmarshal(data, &vm); err != nil {
		t.Fatal(err)
	}
	template := vm.Spec.Template
	var p corev1.Pod
	base, err := os.ReadFile("testdata/pod.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(base, &p); err != nil {
		t.Fatal(err)
	}
	for k, v := range template.Metadata.Annotations {
		p.Annotations[k] = v
	}
	p.Spec.Containers[0].ReadinessProbe, p.Spec.Containers[0].LivenessProbe = template.Spec.ReadinessProbe.render(), template.Spec.LivenessProbe.render()
	if pod, err = json.Marshal(p); err != nil {
		t.Fatal(err)
	}
	vmi, err = json.Marshal(map[string]any{
		"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": map[string]any{"name": "web", "namespace": "shop"},
		"spec": map[string]any{"domain": template.Spec.Domain, "networks": template.Spec.Networks},
	})
	if err != nil {
		t.Fatal(err)
	}
	return pod, vmi
}

type probeWithPing struct {
	corev1.Probe
	GuestAgentPing *struct{} `json:"guestAgentPing"`
}

func (p *probeWithPing) render() *corev1.Probe {
	if p == nil {
		return nil
	}
	r := p.Probe
	r.InitialDelaySeconds += 10
	if p.GuestAgentPing != nil {
		r.Exec = &corev1.ExecAction{Command: []string{"virt-probe", "--domainName", "shop_web", "--timeoutSeconds", "1", "--guestAgentPing"}}
		r.TimeoutSeconds++
	}
	return &r
}

func configMapDefaults(t *testing.T, data []byte) string {
	t.Helper()
	for _, obj := range decodeAll(t, data) {
		if c, ok := obj.(*corev1.ConfigMap); ok {
			return c.Data["probes"]
		}
	}
	return ""
}

func write(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestAlerts has promtool check the alerts and run their unit tests.
func TestAlerts(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed")
	}
	const monitoring = manifestsDir + "/components/monitoring/"
	data, err := os.ReadFile(monitoring + "prometheusrule.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rule struct{ Spec json.RawMessage }
	if err := yaml.Unmarshal(data, &rule); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "rules.yaml"), rule.Spec)
	tests, err := os.ReadFile(monitoring + "alerts_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "tests.yaml"), tests)
	for _, args := range [][]string{{"check", "rules", filepath.Join(dir, "rules.yaml")}, {"test", "rules", filepath.Join(dir, "tests.yaml")}} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
