package inject

import (
	"errors"
	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Config is what an installation decides for all its pods.
type Config struct {
	// Image is the sidecar's, and PullPolicy how the kubelet gets it. An image that cannot be pulled keeps the VM from
	// starting, like any other image of its pod.
	Image      string
	PullPolicy corev1.PullPolicy
	// Port is the TCP port of the sidecar's endpoints, in pods whose address leads to the sidecar.
	Port int32
	// IPv6 says that the pods' first address is IPv6, so that the guest is looked for there.
	IPv6 bool
	// RefuseBroken makes a broken annotation or default an error of Inject, instead of a warning.
	RefuseBroken bool
	// Resources are the sidecar's.
	Resources Resources
	// LogLevel is the sidecar's: debug, info, warn or error.
	LogLevel string
}

// Resources are what the sidecar asks for and may use. In a pod that is Guaranteed, or has to be, the limits are also
// the requests; elsewhere CPU and ephemeral storage are limited only if compute's are.
type Resources struct {
	CPURequest, CPULimit       resource.Quantity
	MemoryRequest, MemoryLimit resource.Quantity
	EphemeralStorage           resource.Quantity
}

// DefaultConfig returns a configuration in which only the image is missing.
func DefaultConfig() Config {
	return Config{
		PullPolicy: corev1.PullIfNotPresent,
		Port:       9958,
		LogLevel:   "info",
		Resources: Resources{
			CPURequest:       resource.MustParse("10m"),
			CPULimit:         resource.MustParse("100m"),
			MemoryRequest:    resource.MustParse("32Mi"),
			MemoryLimit:      resource.MustParse("64Mi"),
			EphemeralStorage: resource.MustParse("64Mi"), // the copied binary, the log's five files are the kubelet's
		},
	}
}

// Validate reports everything that would make a pod's patch invalid. A mistake here must stop the injector, not a VM.
func (c *Config) Validate() error {
	var errs []error
	if !isImage(c.Image) {
		errs = append(errs, fmt.Errorf("image: %q is no image reference", c.Image))
	}
	switch c.PullPolicy {
	case corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		errs = append(errs, fmt.Errorf("image pull policy: %q is none of Always, IfNotPresent, Never", c.PullPolicy))
	}
	if c.Port < 1 || c.Port > 65535 {
		errs = append(errs, fmt.Errorf("port: %d is not between 1 and 65535", c.Port))
	}
	switch c.LogLevel {
	case "debug", "info", "warn", "error":
	default:
		errs = append(errs, fmt.Errorf("log level: %q is none of debug, info, warn, error", c.LogLevel))
	}
	r := c.Resources
	if r.CPURequest.Sign() <= 0 || r.CPURequest.Cmp(r.CPULimit) > 0 {
		errs = append(errs, fmt.Errorf("CPU: the request %s is not between 0 and the limit %s", r.CPURequest.String(), r.CPULimit.String()))
	}
	if r.MemoryRequest.Sign() <= 0 || r.MemoryRequest.Cmp(r.MemoryLimit) > 0 {
		errs = append(errs, fmt.Errorf("memory: the request %s is not between 0 and the limit %s", r.MemoryRequest.String(), r.MemoryLimit.String()))
	}
	if r.MemoryLimit.Cmp(resource.MustParse(minMemory)) < 0 {
		errs = append(errs, fmt.Errorf("memory: with a limit of %s, below %s, the sidecar would not start", r.MemoryLimit.String(), minMemory))
	}
	return errors.Join(errs...)
}

// minMemory is what the sidecar cannot do without, and above what runc needs to make a container. A limit without its
// unit is far below, and compute starts only after the sidecar.
const minMemory = "16Mi"

// isImage tells whether s is an image reference as the kubelet takes it (github.com/distribution/reference). The
// kubelet never starts a pod that has another.
func isImage(s string) bool {
	const (
		host   = `(?:[a-zA-Z0-9](?:[-a-zA-Z0-9.]*[a-zA-Z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]+)?`
		part   = `[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*`
		tag    = `(?::[0-9A-Za-z_][-.0-9A-Za-z_]{0,127})?`
		digest = `(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?`
	)
	return regexp.MustCompile(`^(?:` + host + `/)?` + part + `(?:/` + part + `)*` + tag + digest + `$`).MatchString(s)
}
