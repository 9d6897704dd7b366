package main

import (
	"context"
	"fmt"

	"github.com/guestprobe/guestprobe/cmd/internal/cli"
)

func main() { program().Main() }

func program() cli.Program {
	return cli.Program{
		Name:    "guestprobe-injector",
		Summary: "guestprobe-injector puts the Guestprobe sidecar into KubeVirt's virt-launcher pods.",
		Commands: []cli.Command{
			{Name: "serve", Summary: "be the mutating webhook", Run: serveCommand},
			{Name: "patch", Summary: "show what would become of a pod in a file", Run: patchCommand},
			{Name: "version", Summary: "print the version", Run: versionCommand},
		},
	}
}

func versionCommand(_ context.Context, e cli.Env) error {
	if done, err := cli.Parse(cli.NewFlags("guestprobe-injector version", ""), e); done || err != nil {
		return err
	}
	_, err := fmt.Fprintln(e.Stdout, "guestprobe-injector "+cli.Version())
	return err
}
