package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"runtime/debug"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/guestprobe/guestprobe/sidecar/inject"
)

func newFlags(name, synopsis string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {
		fmt.Fprintf(fs.Output(), "Usage: guestprobe-injector %s %s\n\n", name, synopsis)
		fs.PrintDefaults()
	}
	return fs
}

// parseFlags reports done when help was asked for and given. No command takes arguments beside its flags.
func parseFlags(fs *flag.FlagSet, e env) (done bool, err error) {
	switch err := fs.Parse(e.args); {
	case errors.Is(err, flag.ErrHelp):
		fs.SetOutput(e.stdout)
		fs.Usage()
		return true, nil
	case err != nil:
		return false, usageError(fmt.Errorf("%w; see guestprobe-injector %s --help", err, fs.Name()))
	case fs.NArg() > 0:
		return false, usageError(fmt.Errorf("unexpected argument %q", fs.Arg(0)))
	}
	return false, nil
}

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
		return nil, usageError(fmt.Errorf("--port: %d is not between 1 and 65535", f.port))
	}
	cfg.Port = int32(f.port)
	switch f.onBroken {
	case "warn":
	case "refuse":
		cfg.RefuseBroken = true
	default:
		return nil, usageError(fmt.Errorf("--on-broken: %q is neither warn nor refuse", f.onBroken))
	}
	if f.podIPs != "" {
		first, _, _ := strings.Cut(f.podIPs, ",")
		addr, err := netip.ParseAddr(strings.TrimSpace(first))
		if err != nil {
			return nil, usageError(fmt.Errorf("--pod-ips: %w", err))
		}
		cfg.IPv6 = addr.Is6()
	}
	if err := cfg.Validate(); err != nil {
		return nil, usageError(err)
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

func newLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var lvl slog.Level
	if err := lvl.UnmarshalText([]byte(level)); err != nil {
		return nil, usageError(fmt.Errorf("--log-level: %q is none of debug, info, warn, error", level))
	}
	opts := &slog.HandlerOptions{Level: lvl}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, usageError(fmt.Errorf("--log-format: %q is neither text nor json", format))
}

// buildVersion is the module's version, or the commit that it was built from.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "devel-" + s.Value[:12]
		}
	}
	return "devel"
}
