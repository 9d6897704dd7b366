package main

import (
	"context"
	"flag"
)

// virtProbe is what KubeVirt makes of a guestAgentPing: the kubelet runs it in compute, where no sidecar was injected.
func virtProbe(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("virt-probe", flag.ContinueOnError)
	domain := flags.String("domainName", "", "")
	timeout := flags.String("timeoutSeconds", "", "")
	flags.Bool("guestAgentPing", false, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	return virsh(ctx, "qemu-agent-command", "--timeout", *timeout, *domain, `{"execute":"guest-ping"}`)
}
