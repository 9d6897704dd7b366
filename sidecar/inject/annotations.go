package inject

import (
	"errors"
	"fmt"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"sigs.k8s.io/yaml"
)

const (
	// maxAnnotations is what a pod's annotations may come to with the injector's. Beyond the API server's limit the pod is
	// refused, and the VM does not start; the rest is for what comes later, such as a network's status.
	maxAnnotations = apivalidation.TotalAnnotationSizeLimitB - 64<<10
	// maxWarnings bounds AnnotationWarnings, which quotes what owners write.
	maxWarnings = 8 << 10
)

// errTooLarge is about a pod whose annotations have no room for the injector's.
var errTooLarge = errors.New("too large")

// annotations returns those that the injector writes, in their order.
func (p *plan) annotations() ([][2]string, error) {
	data, err := p.checks.Encode()
	if err == nil {
		data, err = yaml.JSONToYAML(data)
	}
	if err != nil {
		return nil, fmt.Errorf("encoding the probes of VMI %s/%s: %w", p.ns, p.vm, err)
	}
	annotations := [][2]string{{AnnotationManifest, string(data)}, {AnnotationStatus, p.describe()}}
	if len(p.warnings) > 0 {
		annotations = append(annotations, [2]string{AnnotationWarnings, bounded(p.warnings)})
	}
	return annotations, nil
}

// bounded writes warnings one to a line, the first ones if they are too many.
func bounded(warnings []string) string {
	var b strings.Builder
	for i, warning := range warnings {
		if b.Len()+len(warning) > maxWarnings {
			fmt.Fprintf(&b, "and %d more", len(warnings)-i)
			break
		}
		b.WriteString(warning)
		if i < len(warnings)-1 {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// fits tells whether the pod is still one that the API server takes.
func (p *plan) fits() error {
	annotations, err := p.annotations()
	if err != nil {
		return err
	}
	size := 0
	for key, value := range p.pod.Annotations {
		size += len(key) + len(value)
	}
	for _, a := range annotations {
		size += len(a[0]) + len(a[1])
	}
	if size > maxAnnotations {
		return fmt.Errorf("%w: the pod's annotations come to %d bytes with these probes, and %d are the limit", errTooLarge, size, maxAnnotations)
	}
	return nil
}
