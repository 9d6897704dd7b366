package inject

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/sidecar/manifest"
)

// proveInvariants checks what must hold for every pod that was patched: the API server's rules, KubeVirt's, and ours.
func proveInvariants(t *testing.T, before, after *corev1.Pod) {
	t.Helper()
	proveUntouched(t, before, after)
	proveValid(t, after)
	proveSidecar(t, before, after)
}

// proveUntouched: but for what the injector is there to change, the pod is KubeVirt's.
func proveUntouched(t *testing.T, before, after *corev1.Pod) {
	t.Helper()
	stripped := after.DeepCopy()
	delete(stripped.Labels, LabelInjected)
	for _, key := range []string{AnnotationManifest, AnnotationStatus, AnnotationWarnings} {
		delete(stripped.Annotations, key)
	}
	ours := func(name string) bool { return name == VolumeRun || name == VolumeInfo }
	stripped.Spec.Volumes = slices.DeleteFunc(stripped.Spec.Volumes, func(v corev1.Volume) bool { return ours(v.Name) })
	stripped.Spec.InitContainers = slices.DeleteFunc(stripped.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == ContainerName })
	want := before.DeepCopy()
	for _, pod := range []*corev1.Pod{stripped, want} {
		c := &pod.Spec.Containers[0]
		c.ReadinessProbe, c.LivenessProbe = nil, nil
		c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return ours(m.Name) })
	}
	if diff := cmp.Diff(want, stripped, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("more was changed than the injector's own (-before +after):\n%s", diff)
	}
	if after.Spec.Containers[0].Name != "compute" {
		t.Errorf("containers[0] is %s: KubeVirt needs compute there", after.Spec.Containers[0].Name)
	}
}

// proveValid checks the rules of the API server's pod validation that a patch could break.
func proveValid(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	volumes := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		if volumes[v.Name] {
			t.Errorf("two volumes named %s", v.Name)
		}
		volumes[v.Name] = true
	}
	names := map[string]bool{}
	ports := map[int32]bool{}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if names[c.Name] || len(validation.IsDNS1123Label(c.Name)) > 0 || strings.HasPrefix(c.Name, "volume") && c.Name == ContainerName {
			t.Errorf("bad or second container name %s", c.Name)
		}
		names[c.Name] = true
		paths := map[string]bool{}
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] {
				t.Errorf("%s mounts volume %s, which is not there", c.Name, m.Name)
			}
			if paths[m.MountPath] {
				t.Errorf("%s has two mounts at %s", c.Name, m.MountPath)
			}
			paths[m.MountPath] = true
			if m.Name == pluginVolume && m.SubPath == "" && c.Name != "compute" {
				t.Errorf("%s mounts %s without subPath, which KubeVirt refuses", c.Name, m.Name)
			}
		}
		for _, p := range c.Ports {
			if ports[p.ContainerPort] {
				t.Errorf("port %d is declared twice", p.ContainerPort)
			}
			ports[p.ContainerPort] = true
		}
		for name, request := range c.Resources.Requests {
			if limit, ok := c.Resources.Limits[name]; ok && request.Cmp(limit) > 0 {
				t.Errorf("%s requests more %s than its limit", c.Name, name)
			}
		}
	}
	size := 0
	for key, value := range pod.Annotations {
		if msgs := validation.IsQualifiedName(key); len(msgs) > 0 {
			t.Errorf("annotation %s: %v", key, msgs)
		}
		size += len(key) + len(value)
	}
	if size > 256<<10 {
		t.Errorf("%d bytes of annotations", size)
	}
}

// proveSidecar checks what the sidecar must be.
func proveSidecar(t *testing.T, before, pod *corev1.Pod) {
	t.Helper()
	last := len(pod.Spec.InitContainers) - 1
	c := pod.Spec.InitContainers[last]
	compute := pod.Spec.Containers[0]
	switch {
	case c.Name != ContainerName || c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways:
		t.Fatalf("the last init container is no native sidecar of ours: %+v", c)
	case c.StartupProbe != nil || c.Lifecycle != nil:
		t.Errorf("compute would wait for the sidecar")
	case c.SecurityContext.SELinuxOptions != nil:
		t.Errorf("the sidecar sets SELinux options, which a migration sets for the pod")
	case *c.SecurityContext.AllowPrivilegeEscalation || !*c.SecurityContext.ReadOnlyRootFilesystem,
		len(c.SecurityContext.Capabilities.Add) > 0 || !slices.Equal(c.SecurityContext.Capabilities.Drop, []corev1.Capability{"ALL"}),
		c.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault:
		t.Errorf("not what the restricted Pod Security Standard demands: %+v", c.SecurityContext)
	case *c.SecurityContext.RunAsUser != *compute.SecurityContext.RunAsUser:
		t.Errorf("runs as %d, compute as %d: the sockets will not open", *c.SecurityContext.RunAsUser, *compute.SecurityContext.RunAsUser)
	case c.LivenessProbe.Exec != nil && slices.Contains(c.LivenessProbe.Exec.Command, "livez"):
		t.Errorf("the sidecar's own liveness probe is about the guest")
	}
	if mustBeGuaranteed(before, nil) && !mustBeGuaranteed(pod, nil) {
		t.Errorf("the pod was Guaranteed and is no more: %v", c.Resources)
	}
	for _, v := range pod.Spec.Volumes {
		if v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil && v.Name == VolumeRun {
			t.Errorf("a size limit can evict the pod")
		}
	}
	proveManifest(t, pod, &c)
	proveLiveness(t, before, pod)
}

// proveManifest: the annotation is a manifest that the sidecar takes, and it can run all of it with what it is given.
func proveManifest(t *testing.T, pod *corev1.Pod, c *corev1.Container) {
	t.Helper()
	m, err := manifest.Parse("annotation", []byte(pod.Annotations[AnnotationManifest]))
	if err != nil {
		t.Fatalf("the sidecar would refuse its manifest: %v", err)
	}
	flags := map[string]string{}
	for _, arg := range c.Args[1:] {
		name, value, _ := strings.Cut(arg, "=")
		flags[name] = value
	}
	for _, name := range []string{"--monitor", "--agent"} {
		if _, err := qga.ParseAddr(flags[name]); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, check := range m.Checks {
		if host, port, network := target(check.Handler); network && (port == 0 || host == "" && flags["--guest-host"] == "") {
			t.Errorf("%s: the sidecar has no way to run it", check.Path)
		}
	}
	if port, ours := flags["--listen"] != "", c.ReadinessProbe.HTTPGet != nil; port != ours || ours != (len(c.Ports) == 1) {
		t.Errorf("listener %q, readiness %+v and ports %v do not go together", flags["--listen"], c.ReadinessProbe, c.Ports)
	}
}

// proveLiveness: compute ends only where its owner asked for a liveness probe, and then only by a positive verdict.
func proveLiveness(t *testing.T, before, pod *corev1.Pod) {
	t.Helper()
	was, is := before.Spec.Containers[0].LivenessProbe, pod.Spec.Containers[0].LivenessProbe
	if is == nil || cmp.Equal(was, is) {
		return
	}
	if is.Exec == nil {
		return // an annotation's, run by the kubelet: the golden file shows it
	}
	m, err := manifest.Parse("annotation", []byte(pod.Annotations[AnnotationManifest]))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(m.Checks, func(c manifest.Check) bool { return c.Kind.String() == "liveness" && !c.Warn }) {
		t.Errorf("compute has a liveness probe that nobody asked for")
	}
	if !slices.Contains(is.Exec.Command, "--fail-open") || is.FailureThreshold < 3 || is.SuccessThreshold != 1 {
		t.Errorf("compute's liveness probe can fail without a verdict: %+v", is)
	}
	mounted := slices.ContainsFunc(pod.Spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool {
		return m.MountPath == sharedDir && m.ReadOnly
	})
	if !mounted || !slices.Contains(pod.Spec.InitContainers[len(pod.Spec.InitContainers)-1].Args, "--copy-to="+binaryPath) {
		t.Errorf("the binary that compute's liveness probe runs is not there")
	}
}
