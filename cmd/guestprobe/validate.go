package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/guestprobe/guestprobe/cmd/internal/cli"
)

func validateCommand(ctx context.Context, e cli.Env) error {
	fs := cli.NewFlags("guestprobe validate", "FILE...")
	quiet := fs.Bool("quiet", false, "print errors and warnings only")
	if done, err := cli.ParseArgs(fs, e); done || err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return cli.Usagef("name at least one FILE; - is standard input")
	}
	failed := false
	for _, name := range fs.Args() {
		m, err := readManifest(ctx, e, name)
		if err != nil {
			failed = true
			if exit := (*cli.Error)(nil); errors.As(err, &exit) {
				err = exit.Err
			}
			fmt.Fprintln(e.Stderr, err)
			continue
		}
		for _, warning := range m.Warnings {
			fmt.Fprintf(e.Stderr, "warning: %s\n", warning)
		}
		if !*quiet {
			fmt.Fprintf(e.Stdout, "%s", m)
		}
	}
	if failed {
		return &cli.Error{Code: cli.ExitUsage}
	}
	return nil
}
