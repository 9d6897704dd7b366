package main

import "github.com/guestprobe/guestprobe/cmd/internal/cli"

func main() { program().Main() }

func program() cli.Program {
	return cli.Program{
		Name:    "guestprobe",
		Summary: "Guestprobe answers, for one virtual machine: can it take work, and if not, why?",
		Commands: []cli.Command{
			{Name: "run", Summary: "watch one VM and serve its verdict (the sidecar)", Run: runCommand},
			{Name: "check", Summary: "ask a running sidecar; exit 0 or 1 (for exec probes)", Run: checkCommand},
			{Name: "probe", Summary: "run every probe of a manifest once and show each layer", Run: probeCommand},
			{Name: "validate", Summary: "check manifests", Run: validateCommand},
			{Name: "demo", Summary: "watch a simulated VM boot, fail and recover", Run: demoCommand},
			{Name: "hold", Summary: "hold a sidecar's probing for maintenance, or release it", Run: holdCommand},
			{Name: "collect", Summary: "serve the metrics of a node's sidecars on one port", Run: collectCommand},
			{Name: "version", Summary: "print the version", Run: versionCommand},
		},
		Footer: " Each flag of run, probe, hold and\ncollect is also an environment variable: --guest-host is GUESTPROBE_GUEST_HOST.",
	}
}
