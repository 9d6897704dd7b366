package main

import (
	"context"
	"flag"

	"github.com/guestprobe/guestprobe/cmd/internal/cli"
	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/sidecar"
	"github.com/guestprobe/guestprobe/sidecar/manifest"
)

// parse reads the environment, then the command line, which wins.
func parse(fs *flag.FlagSet, e cli.Env) (done bool, err error) {
	if err := cli.SetFromEnv(fs, e, "GUESTPROBE"); err != nil {
		return false, err
	}
	return cli.Parse(fs, e)
}

// vmFlags are the flags that say which VM, and what to ask it: those of run and probe.
type vmFlags struct {
	manifest string
	monitor  string
	// The fallbacks are for a VM that may lack a monitor or an agent of our own.
	monitorFallback, agentFallback string
	agent                          string
	guestHost                      string
	log                            cli.LogFlags
}

func (v *vmFlags) register(fs *flag.FlagSet, logLevel string) {
	fs.StringVar(&v.manifest, "manifest", "", "`FILE` with the probes: a KubeVirt VirtualMachine or VirtualMachineInstance, or kind GuestProbes; - reads standard input")
	fs.StringVar(&v.monitor, "monitor", "", "`ADDR` of the QEMU monitor: unix:/path, or libvirt:DOMAIN[?socket=/path]; without it the VM's state is unknown and the probes alone decide")
	fs.StringVar(&v.agent, "agent", "", "`ADDR` of the guest agent: unix:/path, vsock:CID:PORT, or libvirt:DOMAIN[?socket=/path]")
	fs.StringVar(&v.monitorFallback, "monitor-fallback", "", "`ADDR` of another monitor, used while --monitor is out of reach")
	fs.StringVar(&v.agentFallback, "agent-fallback", "", "`ADDR` of another way to a guest agent, used while none answers at --agent")
	fs.StringVar(&v.guestHost, "guest-host", "", "`HOST` that httpGet, tcpSocket and grpc probes without a host go to; one address per family is written as HOST,HOST")
	v.log.Register(fs, "text", logLevel)
}

// config turns the raw flags into a configuration of which nothing has started yet.
func (v *vmFlags) config(ctx context.Context, e cli.Env) (sidecar.Config, error) {
	var cfg sidecar.Config
	log, err := v.log.Logger(e.Stderr)
	if err != nil {
		return cfg, err
	}
	cfg.Logger = log
	if cfg.Monitor, err = parseAddr("monitor", v.monitor); err != nil {
		return cfg, err
	}
	if cfg.Agent, err = parseAddr("agent", v.agent); err != nil {
		return cfg, err
	}
	if cfg.MonitorFallback, err = parseAddr("monitor-fallback", v.monitorFallback); err != nil {
		return cfg, err
	}
	if cfg.AgentFallback, err = parseAddr("agent-fallback", v.agentFallback); err != nil {
		return cfg, err
	}
	if cfg.MonitorFallback != nil && cfg.Monitor == nil || cfg.AgentFallback != nil && cfg.Agent == nil {
		return cfg, cli.Usagef("--monitor-fallback and --agent-fallback need --monitor and --agent")
	}
	cfg.GuestHost = v.guestHost
	if v.manifest == "" {
		return cfg, cli.Usagef("--manifest is missing: name a VirtualMachine, VirtualMachineInstance or GuestProbes file")
	}
	if cfg.Manifest, err = readManifest(ctx, e, v.manifest); err != nil {
		return cfg, err
	}
	for _, warning := range cfg.Manifest.Warnings {
		log.Warn("manifest", "warning", warning)
	}
	if err := cfg.Validate(); err != nil {
		return cfg, cli.Usage(err)
	}
	return cfg, nil
}

func parseAddr(flagName, value string) (*qga.Addr, error) {
	if value == "" {
		return nil, nil
	}
	addr, err := qga.ParseAddr(value)
	if err != nil {
		return nil, cli.Usagef("--%s: %w", flagName, err)
	}
	return &addr, nil
}

// maxManifest is far above any VM's manifest; a pipe that never ends must not fill the memory.
const maxManifest = 4 << 20

func readManifest(ctx context.Context, e cli.Env, name string) (*manifest.Manifest, error) {
	data, err := cli.ReadFile(ctx, e, name, maxManifest)
	if err != nil {
		return nil, cli.Usagef("--manifest: %w", err)
	}
	m, err := manifest.Parse(cli.FileLabel(name), data)
	if err != nil {
		return nil, cli.Usage(err)
	}
	return m, nil
}
