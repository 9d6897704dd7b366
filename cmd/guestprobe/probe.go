package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/guestprobe/guestprobe/cmd/internal/cli"
	"github.com/guestprobe/guestprobe/sidecar"
)

// probeCommand is the doctor: each layer once, what is wrong with it, and what to do.
func probeCommand(ctx context.Context, e cli.Env) error {
	fs := cli.NewFlags("guestprobe probe", "--manifest FILE [--monitor ADDR] [--agent ADDR] [-o table|json] [FLAGS]")
	var vm vmFlags
	vm.register(fs, "error")
	output := fs.String("o", "table", "table or json")
	if done, err := parse(fs, e); done || err != nil {
		return err
	}
	if *output != "table" && *output != "json" {
		return cli.Usagef("-o: %q is neither table nor json", *output)
	}
	cfg, err := vm.config(ctx, e)
	if err != nil {
		return err
	}
	findings, err := sidecar.Diagnose(ctx, cfg)
	switch {
	case ctx.Err() != nil:
		return cli.Usagef("interrupted before every layer was asked") // 1 would be a finding
	case err != nil:
		return cli.Usage(err)
	}
	if *output == "json" {
		enc := json.NewEncoder(e.Stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(findings)
	} else {
		err = printFindings(e.Stdout, findings)
	}
	if err != nil {
		return err
	}
	for _, f := range findings {
		if !f.OK {
			return &cli.Error{Code: cli.ExitFailure}
		}
	}
	return nil
}

func printFindings(w io.Writer, findings []sidecar.Finding) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "\tLAYER\tNAME\tREASON\tTIME\tDETAIL")
	for _, f := range findings {
		mark := "FAIL"
		switch {
		case f.OK && f.Warning:
			mark = "warn"
		case f.OK:
			mark = "ok"
		}
		took := time.Duration(f.DurationSeconds * float64(time.Second)).Round(time.Millisecond / 10)
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%v\t%s\n", mark, f.Layer, f.Name, f.Reason, took, f.Detail)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, f := range findings {
		if f.Help != "" && (!f.OK || f.Warning) {
			fmt.Fprintf(w, "\n%s %s: %s", f.Layer, f.Name, f.Help)
		}
	}
	_, err := fmt.Fprintln(w)
	return err
}
