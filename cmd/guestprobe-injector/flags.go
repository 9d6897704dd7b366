package main

import (
	"flag"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/guestprobe/guestprobe/cmd/internal/cli"
	"github.com/guestprobe/guestprobe/sidecar/inject"
)

// sidecarFlags are those that say what is injected.
type sidecarFlags struct {
	cfg        inject.Config
	pullPolicy string
	port       int
	podIPs     string
	onBroken   string
}

func (f *sidecarFlags) register(fs *flag.FlagSet) {
	f.cfg = inject.DefaultConfig()
	fs.StringVar(&f.cfg.Image, "image", "", "`IMAGE` of the sidecar; required")
	fs.StringVar(&f.pullPolicy, "image-pull-policy", string(f.cfg.PullPolicy), "Always, IfNotPresent or Never")
	fs.IntVar(&f.port, "port", int(f.cfg.Port), "TCP `PORT` of the sidecar's endpoints, in pods whose address leads to the sidecar")
	fs.StringVar(&f.podIPs, "pod-ips", "", "any pod's `ADDRESSES`, comma-separated, as status.podIPs has them: the first one's family is the one in which guests are looked for; empty: IPv4")
	fs.StringVar(&f.onBroken, "on-broken", "warn", "what a broken annotation or default leads to: warn (it is ignored) or refuse (the pod is)")
	fs.StringVar(&f.cfg.LogLevel, "sidecar-log-level", f.cfg.LogLevel, "the sidecar's: debug, info, warn or error")
	r := &f.cfg.Resources
	for _, q := range []struct {
		name, usage string
		value       *resource.Quantity
	}{
		{"cpu-request", "CPU that the sidecar requests", &r.CPURequest},
		{"cpu-limit", "CPU limit, where the pod is Guaranteed or compute has one", &r.CPULimit},
		{"memory-request", "memory that the sidecar requests", &r.MemoryRequest},
		{"memory-limit", "memory limit", &r.MemoryLimit},
	} {
		fs.Var(quantityFlag{q.value}, q.name, q.usage)
	}
}

// config checks the flags and returns what they say.
func (f *sidecarFlags) config() (*inject.Config, error) {
	cfg := f.cfg
	cfg.PullPolicy = corev1.PullPolicy(f.pullPolicy)
	if f.port < 1 || f.port > 65535 {
		return nil, cli.Usagef("--port: %d is not between 1 and 65535", f.port)
	}
	cfg.Port = int32(f.port)
	switch f.onBroken {
	case "warn":
	case "refuse":
		cfg.RefuseBroken = true
	default:
		return nil, cli.Usagef("--on-broken: %q is neither warn nor refuse", f.onBroken)
	}
	if f.podIPs != "" {
		first, _, _ := strings.Cut(f.podIPs, ",")
		addr, err := netip.ParseAddr(strings.TrimSpace(first))
		if err != nil {
			return nil, cli.Usagef("--pod-ips: %w", err)
		}
		cfg.IPv6 = addr.Is6()
	}
	if err := cfg.Validate(); err != nil {
		return nil, cli.Usage(err)
	}
	return &cfg, nil
}

// quantityFlag reads a Kubernetes quantity.
type quantityFlag struct{ q *resource.Quantity }

func (f quantityFlag) String() string {
	if f.q == nil {
		return ""
	}
	return f.q.String()
}

func (f quantityFlag) Set(text string) error {
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return err
	}
	*f.q = q
	return nil
}
