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
	ctx, stop := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() { // ends with the process
		<-signals
		signal.Stop(signals) // before the end begins: the second signal kills
		stop()
	}()
	code := run(ctx, env{args: os.Args[1:], stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr})
	stop()
	os.Exit(code)
}

// env is all that a command takes from the process it runs in.
type env struct {
	args           []string
	stdin          io.Reader
	stdout, stderr io.Writer
}

// Exit codes: 0 is a clean stop.
const (
	exitFailure = 1 // something failed at run time
	exitUsage   = 2 // usage, configuration or input: nothing was started
)

// A usageErr is the caller's mistake.
type usageErr struct{ error }

func (e usageErr) Unwrap() error { return e.error }

// usageError marks an error as the caller's.
func usageError(err error) error { return usageErr{err} }

// run picks the command, runs it and turns its error into a line on stderr and an exit code.
func run(ctx context.Context, e env) int {
	if len(e.args) == 0 {
		usage(e.stderr)
		return exitUsage
	}
	name := e.args[0]
	e.args = e.args[1:]
	var err error
	switch name {
	case "serve":
		err = serveCommand(ctx, e)
	case "patch":
		err = patchCommand(e)
	case "version":
		_, err = fmt.Fprintln(e.stdout, "guestprobe-injector "+buildVersion())
	case "help", "-h", "--help":
		usage(e.stdout)
	default:
		fmt.Fprintf(e.stderr, "guestprobe-injector: unknown command %q; see guestprobe-injector help\n", name)
		return exitUsage
	}
	if err == nil {
		return 0
	}
	fmt.Fprintf(e.stderr, "guestprobe-injector %s: %v\n", name, err)
	if errors.As(err, new(usageErr)) {
		return exitUsage
	}
	return exitFailure
}

func usage(w io.Writer) {
	fmt.Fprint(w, `guestprobe-injector puts the Guestprobe sidecar into KubeVirt's virt-launcher pods.

Usage: guestprobe-injector COMMAND [FLAGS]

  serve     be the mutating webhook
  patch     show what would become of a pod in a file
  version   print the version

guestprobe-injector COMMAND --help lists the command's flags.
`)
}
