package inject

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/guestprobe/guestprobe/sidecar/manifest"
)

// patch writes down what the plan decided.
func (p *plan) patch(guaranteed bool) ([]Operation, error) {
	annotations, err := p.annotations()
	if err != nil {
		return nil, err
	}
	var ops []Operation
	ops = addStrings(ops, p.pod.Labels, [][2]string{{LabelInjected, "true"}}, "metadata", "labels")
	ops = addStrings(ops, p.pod.Annotations, annotations, "metadata", "annotations")
	ops = addItems(ops, len(p.pod.Spec.Volumes), p.volumes(), "spec", "volumes")
	// Last of the init containers: it starts right before compute and is the first to be stopped after it.
	ops = addItems(ops, len(p.pod.Spec.InitContainers), []corev1.Container{p.sidecar(guaranteed)}, "spec", "initContainers")
	return p.patchCompute(ops), nil
}

// patchCompute takes the probes off compute that moved, and puts on the one that asks the sidecar.
func (p *plan) patchCompute(ops []Operation) []Operation {
	compute := []string{"spec", "containers", strconv.Itoa(p.compute)}
	at := func(field string) []string { return append(compute[:len(compute):len(compute)], field) }
	c := p.container()
	switch {
	case p.readiness.keep:
	case p.readiness.set != nil:
		ops = add(ops, p.readiness.set, at("readinessProbe")...)
	case c.ReadinessProbe != nil:
		ops = remove(ops, at("readinessProbe")...)
	}
	switch {
	case p.mayKill:
		ops = add(ops, p.livenessByExec(), at("livenessProbe")...)
		mount := corev1.VolumeMount{Name: VolumeRun, MountPath: sharedDir, ReadOnly: true}
		ops = addItems(ops, len(c.VolumeMounts), []corev1.VolumeMount{mount}, at("volumeMounts")...)
	case p.liveness.keep:
	case p.liveness.set != nil:
		ops = add(ops, p.liveness.set, at("livenessProbe")...)
	case c.LivenessProbe != nil:
		ops = remove(ops, at("livenessProbe")...)
	}
	return ops
}

// livenessByExec asks the sidecar for its published verdict. The thresholds have been counted there; those here only
// outlast a node on which nothing can be executed for a while: an exec that runs into its timeout counts as a failure,
// so the timeout is long, which costs nothing: the
// command ends by itself where it can run at all. A missing binary or sidecar never fails it.
func (p *plan) livenessByExec() *corev1.Probe {
	probe := &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{
			Command: []string{binaryPath, "check", "livez", "--socket", socketPath, "--fail-open"},
		}},
		InitialDelaySeconds: libvirtStartupDelay,
		PeriodSeconds:       10,
		TimeoutSeconds:      300,
		SuccessThreshold:    1,
		FailureThreshold:    3,
	}
	for _, c := range p.checks.Checks {
		if grace := c.TerminationGracePeriod; c.Name == "livenessProbe" && grace != nil {
			seconds := int64(grace.Seconds())
			probe.TerminationGracePeriodSeconds = &seconds
		}
	}
	return probe
}

func (p *plan) volumes() []corev1.Volume {
	field := func(name, fieldPath string) corev1.DownwardAPIVolumeFile {
		return corev1.DownwardAPIVolumeFile{Path: name, FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: fieldPath}}
	}
	return []corev1.Volume{
		// No sizeLimit: breaking one evicts the pod, and with it the VM.
		{Name: VolumeRun, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: VolumeInfo, VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			field(manifestFile, "metadata.annotations['"+AnnotationManifest+"']"),
			field(InfoNamespace, "metadata.namespace"),
			field(InfoVM, "metadata.annotations['"+kubevirtDomain+"']"),
		}}}},
	}
}

// sidecar is the container. It has no startupProbe: compute starts after it, and must not wait for anything.
func (p *plan) sidecar(guaranteed bool) corev1.Container {
	always := corev1.ContainerRestartPolicyAlways
	c := corev1.Container{
		Name:                     ContainerName,
		Image:                    p.cfg.Image,
		ImagePullPolicy:          p.cfg.PullPolicy,
		Command:                  []string{"/guestprobe"},
		Args:                     p.args(),
		Env:                      []corev1.EnvVar{{Name: "GOMEMLIMIT", Value: p.memoryLimit()}},
		Resources:                p.resources(guaranteed),
		VolumeMounts:             p.mounts(),
		RestartPolicy:            &always,
		SecurityContext:          p.security(),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		ReadinessProbe:           p.ask("readyz", 2, 5),
		LivenessProbe:            p.ask("healthz", 30, 30),
	}
	// One miss is a verdict: the sidecar has counted already.
	c.ReadinessProbe.FailureThreshold = 1
	// This one is about the sidecar's process alone; restarting it does nothing to the VM.
	c.LivenessProbe.InitialDelaySeconds, c.LivenessProbe.FailureThreshold = 10, 3
	if p.net.ours {
		c.Ports = []corev1.ContainerPort{{Name: ContainerName, ContainerPort: p.cfg.Port, Protocol: corev1.ProtocolTCP}}
	}
	return c
}

// ask is a probe of the sidecar itself: by its port where the pod's address leads to it, else by exec. An exec costs a
// process, so it is asked less often.
func (p *plan) ask(endpoint string, period, execPeriod int32) *corev1.Probe {
	probe := &corev1.Probe{PeriodSeconds: period, TimeoutSeconds: 5, SuccessThreshold: 1}
	if p.net.ours {
		probe.HTTPGet = &corev1.HTTPGetAction{Path: "/" + endpoint, Port: intstr.FromInt32(p.cfg.Port), Scheme: corev1.URISchemeHTTP}
		return probe
	}
	probe.PeriodSeconds, probe.TimeoutSeconds = execPeriod, 10
	probe.Exec = &corev1.ExecAction{Command: []string{"/guestprobe", "check", endpoint, "--socket", socketPath, "--timeout", "5s"}}
	return probe
}

func (p *plan) args() []string {
	domain := "libvirt:" + p.ns + "_" + p.vm + "?socket=" + libvirtSocket
	args := []string{"run", "--manifest=" + configDir + "/" + manifestFile}
	if p.direct {
		args = append(args,
			"--monitor=unix:"+pluginDir+"/monitor.sock", "--monitor-fallback="+domain,
			"--agent=unix:"+pluginDir+"/agent.sock", "--agent-fallback="+domain)
	} else {
		args = append(args, "--monitor="+domain, "--agent="+domain)
	}
	if p.net.guestHost != "" {
		args = append(args, "--guest-host="+p.guestHosts())
	}
	// Where the guest gets the pod's ports, a listener would only serve whoever is in the pod already.
	listen := ""
	if p.net.ours {
		listen = ":" + strconv.Itoa(int(p.cfg.Port))
	}
	args = append(args, "--listen="+listen, "--listen-unix="+socketPath, "--hold-file="+holdPath)
	if p.mayKill {
		args = append(args, "--copy-to="+binaryPath)
	}
	return append(args, "--log-format=json", "--log-level="+p.cfg.LogLevel)
}

// guestHosts are the guest's addresses: that of the other family too, if a check asks for families.
func (p *plan) guestHosts() string {
	asked := slices.ContainsFunc(p.checks.Checks, func(c manifest.Check) bool { return len(c.IPFamilies) > 0 })
	if !asked || p.net.otherHost == "" {
		return p.net.guestHost
	}
	return p.net.guestHost + "," + p.net.otherHost
}

func (p *plan) mounts() []corev1.VolumeMount {
	libvirt := *mountAt(p.container(), libvirtDir) // its volume's name differs from VM to VM
	mounts := []corev1.VolumeMount{
		{Name: VolumeRun, MountPath: sharedDir},
		{Name: VolumeInfo, MountPath: configDir, ReadOnly: true},
		{Name: libvirt.Name, MountPath: libvirtDir, SubPath: libvirt.SubPath, ReadOnly: true},
	}
	if p.direct {
		// Not read-only: the mount also makes the folder that QEMU puts its sockets into, here and in a migration's target.
		mounts = append(mounts, corev1.VolumeMount{Name: pluginVolume, MountPath: pluginDir, SubPath: pluginSubPath})
	}
	if auto := p.pod.Spec.AutomountServiceAccountToken; auto == nil || *auto {
		// The API server mounts a token into every container that has nothing at this path.
		mounts = append(mounts, corev1.VolumeMount{Name: VolumeRun, MountPath: tokenDir, SubPath: "no-token", ReadOnly: true})
	}
	return mounts
}

// security takes user and group from compute, whose sockets only they may open, and nothing else. No SELinux options:
// the pod's containers share a level, and a migration sets it.
func (p *plan) security() *corev1.SecurityContext {
	no, yes := false, true
	s := &corev1.SecurityContext{
		AllowPrivilegeEscalation: &no,
		ReadOnlyRootFilesystem:   &yes,
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if c := p.container().SecurityContext; c != nil {
		s.RunAsUser, s.RunAsGroup = c.RunAsUser, c.RunAsGroup
	}
	if c := p.pod.Spec.SecurityContext; c != nil {
		if s.RunAsUser == nil {
			s.RunAsUser = c.RunAsUser
		}
		if s.RunAsGroup == nil {
			s.RunAsGroup = c.RunAsGroup
		}
	}
	if s.RunAsUser == nil {
		root := int64(0) // KubeVirt's Root gate: compute runs as its image's user, which is root
		s.RunAsUser = &root
	}
	nonRoot := *s.RunAsUser != 0
	s.RunAsNonRoot = &nonRoot
	return s
}

func (p *plan) resources(guaranteed bool) corev1.ResourceRequirements {
	r := p.cfg.Resources
	compute := p.container().Resources
	res := corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: r.CPURequest, corev1.ResourceMemory: r.MemoryRequest},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: r.MemoryLimit},
	}
	if guaranteed {
		res.Limits[corev1.ResourceCPU] = r.CPULimit
		res.Requests = corev1.ResourceList{corev1.ResourceCPU: r.CPULimit, corev1.ResourceMemory: r.MemoryLimit}
	}
	// A quota of the namespace asks every container for what it asks compute for.
	if _, ok := compute.Limits[corev1.ResourceCPU]; ok {
		res.Limits[corev1.ResourceCPU] = r.CPULimit
	}
	if _, ok := compute.Requests[corev1.ResourceEphemeralStorage]; ok {
		res.Requests[corev1.ResourceEphemeralStorage] = r.EphemeralStorage
	}
	if _, ok := compute.Limits[corev1.ResourceEphemeralStorage]; ok {
		limit := r.EphemeralStorage.DeepCopy()
		limit.Add(r.EphemeralStorage) // breaking the limit evicts the pod
		res.Limits[corev1.ResourceEphemeralStorage] = limit
	}
	return res
}

// memoryLimit keeps Go's heap below the container's limit.
func (p *plan) memoryLimit() string {
	return strconv.FormatInt(p.cfg.Resources.MemoryLimit.Value()/4*3>>20, 10) + "MiB"
}

// describe says for people who asks what.
func (p *plan) describe() string {
	readiness := "exec"
	if p.net.ours {
		readiness = "httpGet :" + strconv.Itoa(int(p.cfg.Port)) + "/readyz"
	}
	liveness := "none"
	if p.mayKill {
		liveness = "compute asks the sidecar"
	}
	guest := p.net.guestHost
	if guest == "" {
		guest = "not reachable from the pod"
	}
	access := "libvirt"
	if p.direct {
		access = "direct"
	}
	parts := []string{"readiness: " + readiness, "liveness: " + liveness, "binding: " + p.net.binding, "guest: " + guest, "access: " + access}
	return strings.Join(append(parts, p.status...), "; ")
}

// mustBeGuaranteed tells that the pod has QoS class Guaranteed, or will be refused by KubeVirt without it.
func mustBeGuaranteed(pod *corev1.Pod, vmi *unstructured.Unstructured) bool {
	if vmi != nil {
		if dedicated, _, _ := unstructured.NestedBool(vmi.Object, "spec", "domain", "cpu", "dedicatedCpuPlacement"); dedicated {
			return true
		}
	}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for _, c := range list {
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				limit, limited := c.Resources.Limits[name]
				request, requested := c.Resources.Requests[name]
				if !limited || requested && request.Cmp(limit) != 0 {
					return false
				}
			}
		}
	}
	return true
}
