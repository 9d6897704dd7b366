package main

import (
	"context"
	"errors"
	"fmt"
)

func validateCommand(ctx context.Context, e env) error {
	fs := newFlags("validate", "FILE...")
	quiet := fs.Bool("quiet", false, "print errors and warnings only")
	if done, err := parseFlags(fs, e, false); done || err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return usageErrorf("name at least one FILE; - is standard input")
	}
	failed := false
	for _, name := range fs.Args() {
		m, err := readManifest(ctx, name, e.stdin)
		if err != nil {
			failed = true
			if exit := (*exitError)(nil); errors.As(err, &exit) {
				err = exit.err
			}
			fmt.Fprintln(e.stderr, err)
			continue
		}
		for _, warning := range m.Warnings {
			fmt.Fprintf(e.stderr, "warning: %s\n", warning)
		}
		if !*quiet {
			fmt.Fprintf(e.stdout, "%s", m)
		}
	}
	if failed {
		return &exitError{code: exitUsage}
	}
	return nil
}
