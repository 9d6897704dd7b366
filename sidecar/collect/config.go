package collect

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// The names of the volumes and files that sidecar/inject puts into a pod.
const (
	VolumeRun     = "guestprobe"
	VolumeInfo    = "guestprobe-info"
	SocketFile    = "guestprobe.sock"
	InfoNamespace = "namespace"
	InfoVM        = "vm"
)

// Config says where to look and where to answer.
type Config struct {
	// PodsDir is the kubelet's folder of pods, usually /var/lib/kubelet/pods.
	PodsDir string
	// PodLogsDir is the folder of pods' logs, usually /var/log/pods, of which only the names are read. If it is empty, a
	// pod's namespace is what the pod itself says.
	PodLogsDir string
	// Node is the label of that name.
	Node string
	// Listen is the TCP address of /metrics and /healthz.
	Listen string
	// Interval is the time between two rounds; the default is 10 s. Metrics are as old as the last round, at most.
	Interval time.Duration
	// Timeout is how long a sidecar may take; the default is 2 s.
	Timeout time.Duration
	// Version is shown by the build_info metric.
	Version string
	// Logger receives a record when a VM appears or vanishes, or its sidecar falls silent; nil discards.
	Logger *slog.Logger
}

// Validate reports every mistake.
func (c *Config) Validate() error {
	var errs []error
	if c.PodsDir == "" {
		errs = append(errs, errors.New("the folder of pods is missing"))
	}
	if c.Listen == "" {
		errs = append(errs, errors.New("the address to listen on is missing"))
	}
	if c.Interval < 0 || c.Timeout < 0 {
		errs = append(errs, fmt.Errorf("the interval %v or the timeout %v is negative", c.Interval, c.Timeout))
	}
	return errors.Join(errs...)
}
