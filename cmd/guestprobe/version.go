package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/guestprobe/guestprobe/cmd/internal/cli"
)

func versionCommand(_ context.Context, e cli.Env) error {
	fs := cli.NewFlags("guestprobe version", "")
	if done, err := cli.Parse(fs, e); done || err != nil {
		return err
	}
	fmt.Fprintf(e.Stdout, "guestprobe %s %s %s/%s\n", cli.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return nil
}
