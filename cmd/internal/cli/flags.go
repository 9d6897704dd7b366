package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// NewFlags makes the flag set of a command, named with its program's name before it. It prints nothing by itself: a
// mistake is one line, not a page.
func NewFlags(command, synopsis string) *flag.FlagSet {
	fs := flag.NewFlagSet(command, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {
		fmt.Fprintf(fs.Output(), "Usage: %s %s\n\n", command, synopsis)
		fs.PrintDefaults()
	}
	return fs
}

// ParseArgs reads the command line of a command that takes arguments beside its flags. It reports done when help was
// asked for and given.
func ParseArgs(fs *flag.FlagSet, e Env) (done bool, err error) {
	switch err := fs.Parse(e.Args); {
	case errors.Is(err, flag.ErrHelp):
		fs.SetOutput(e.Stdout)
		fs.Usage()
		return true, nil
	case err != nil:
		return false, Usagef("%w; see %s --help", err, fs.Name())
	}
	return false, nil
}

// Parse is ParseArgs for a command that takes none.
func Parse(fs *flag.FlagSet, e Env) (done bool, err error) {
	if done, err = ParseArgs(fs, e); done || err != nil {
		return done, err
	}
	if fs.NArg() > 0 {
		return false, Usagef("unexpected argument %q; see %s --help", fs.Arg(0), fs.Name())
	}
	return false, nil
}

// SetFromEnv sets each flag that a variable names: --guest-host is PREFIX_GUEST_HOST. The command line, parsed after it,
// wins.
func SetFromEnv(fs *flag.FlagSet, e Env, prefix string) error {
	var failed error
	fs.VisitAll(func(f *flag.Flag) {
		name := prefix + "_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value, ok := e.LookupEnv(name)
		if !ok || failed != nil {
			return
		}
		if err := fs.Set(f.Name, value); err != nil {
			failed = Usagef("environment variable %s: invalid value %q: %w", name, value, err)
		}
	})
	return failed
}
