package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signalContext(context.Background())
	defer stop()
	os.Exit(run(ctx, env{args: os.Args[1:], stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, lookup: os.LookupEnv}))
}

// env is all that a command takes from the process it runs in.
type env struct {
	args           []string
	stdin          io.Reader
	stdout, stderr io.Writer
	lookup         func(string) (string, bool)
}

// Exit codes: 0 is a clean stop.
const (
	exitFailure = 1 // something failed at run time, or a check said no
	exitUsage   = 2 // usage or configuration: nothing was started
)

// exitError ends the process with a code. A nil Err prints nothing: the command has said what there is to say.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usageErrorf is a mistake of the caller's: exit code 2 and one line.
func usageErrorf(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

type command struct {
	name, summary string
	run           func(context.Context, env) error
}

func commands() []command {
	return []command{
		{"run", "watch one VM and serve its verdict (the sidecar)", runCommand},
		{"check", "ask a running sidecar; exit 0 or 1 (for exec probes)", checkCommand},
		{"probe", "run every probe of a manifest once and show each layer", probeCommand},
		{"validate", "check manifests", validateCommand},
		{"demo", "watch a simulated VM boot, fail and recover", demoCommand},
		{"hold", "hold a sidecar's probing for maintenance, or release it", holdCommand},
		{"collect", "serve the metrics of a node's sidecars on one port", collectCommand},
		{"version", "print the version", versionCommand},
	}
}

// run picks the command, runs it and turns its error into a line on stderr and an exit code.
func run(ctx context.Context, e env) int {
	if len(e.args) == 0 {
		usage(e.stderr)
		return exitUsage
	}
	name := e.args[0]
	if name == "help" || name == "-h" || name == "--help" {
		usage(e.stdout)
		return 0
	}
	for _, c := range commands() {
		if c.name != name {
			continue
		}
		e.args = e.args[1:]
		err := c.run(ctx, e)
		if err == nil {
			return 0
		}
		code := exitFailure
		if exit := (*exitError)(nil); errors.As(err, &exit) {
			if code = exit.code; exit.err == nil {
				return code
			}
		}
		fmt.Fprintf(e.stderr, "guestprobe %s: %v\n", name, err)
		return code
	}
	fmt.Fprintf(e.stderr, "guestprobe: unknown command %q; see guestprobe help\n", name)
	return exitUsage
}

func usage(w io.Writer) {
	fmt.Fprintf(w, "Guestprobe answers, for one virtual machine: can it take work, and if not, why?\n\nUsage: guestprobe COMMAND [FLAGS]\n\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-9s %s\n", c.name, c.summary)
	}
	fmt.Fprintf(w, "\nguestprobe COMMAND --help lists the command's flags. Each flag of run, probe and\ncollect is also an environment variable: --guest-host is GUESTPROBE_GUEST_HOST.\n")
}

// signalContext ends on the first SIGINT or SIGTERM; the second one has its default effect and kills. The default is
// back in force before the context ends, so that whoever sees the end begin can kill.
func signalContext(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() { // ends with the context
		defer signal.Stop(signals)
		select {
		case <-signals:
			signal.Stop(signals)
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}
