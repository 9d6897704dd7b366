package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// net/http complains there about servers that speak first, when the kubelet probes them.
	log.SetOutput(io.Discard)
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit code: 0 for no unexplained difference, 1 for some, 2 for wrong usage.
func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("parity", flag.ContinueOnError)
	flags.SetOutput(stderr)
	count := flags.Int("n", defaultCount, "number of server behaviours")
	seed := flags.Uint64("seed", defaultSeed, "seed of their choice")
	verbose := flags.Bool("v", false, "name the behaviours that had to be repeated")
	workers := flags.Int("workers", defaultWorkers, "behaviours under way at once")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 || *count < 1 || *workers < 1 {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := compareAll(ctx, generate(*seed, *count), *workers)
	r.print(stdout)
	if *verbose {
		for _, line := range r.repeated {
			fmt.Fprintf(stdout, "repeated: %s\n", line)
		}
	}
	if len(r.unexplained) > 0 || ctx.Err() != nil {
		return 1
	}
	return 0
}
