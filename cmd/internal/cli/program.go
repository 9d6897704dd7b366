package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Exit codes: 0 is a clean stop.
const (
	ExitFailure = 1 // something failed at run time, or a check said no
	ExitUsage   = 2 // usage, configuration or input: nothing was started
)

// An Error ends the process with a code. A nil Err prints nothing: the command has said what there is to say.
type Error struct {
	Code int
	Err  error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Usage makes err a mistake of the caller's: exit code 2 and one line.
func Usage(err error) error { return &Error{Code: ExitUsage, Err: err} }

// Usagef is Usage of fmt.Errorf.
func Usagef(format string, args ...any) error { return Usage(fmt.Errorf(format, args...)) }

// Env is all that a command takes from the process it runs in.
type Env struct {
	Args           []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	LookupEnv      func(string) (string, bool)
}

// A Command is one of a program's.
type Command struct {
	Name, Summary string
	Run           func(context.Context, Env) error
}

// A Program is a name with commands.
type Program struct {
	Name     string
	Summary  string // the first line of its help
	Commands []Command
	Footer   string // the last lines of its help
}

// Main runs the command that the process was started for, and ends the process.
func (p Program) Main() {
	ctx, stop := signalContext(context.Background())
	code := p.Run(ctx, Env{Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, LookupEnv: os.LookupEnv})
	stop()
	os.Exit(code)
}

// Run picks the command, runs it and turns its error into a line on stderr and an exit code.
func (p Program) Run(ctx context.Context, e Env) int {
	if len(e.Args) == 0 {
		p.help(e.Stderr)
		return ExitUsage
	}
	name := e.Args[0]
	if name == "help" || name == "-h" || name == "--help" {
		p.help(e.Stdout)
		return 0
	}
	for _, c := range p.Commands {
		if c.Name != name {
			continue
		}
		e.Args = e.Args[1:]
		err := c.Run(ctx, e)
		if err == nil {
			return 0
		}
		code := ExitFailure
		if exit, ok := errors.AsType[*Error](err); ok {
			if code = exit.Code; exit.Err == nil {
				return code
			}
		}
		lastWord(e.Stderr, fmt.Sprintf("%s %s: %v\n", p.Name, name, err))
		return code
	}
	fmt.Fprintf(e.Stderr, "%s: unknown command %q; see %s help\n", p.Name, name, p.Name)
	return ExitUsage
}

// lastWord writes the line with which a process ends. Where nobody reads it, and a daemon's stderr may be such a pipe, the
// end does not wait for it longer than for the log.
func lastWord(w io.Writer, line string) {
	written := make(chan struct{})
	go func() { // ends with its write, or with the process
		defer close(written)
		_, _ = io.WriteString(w, line) // there is nobody else to tell
	}()
	select {
	case <-written:
	case <-time.After(logFlush):
	}
}

func (p Program) help(w io.Writer) {
	fmt.Fprintf(w, "%s\n\nUsage: %s COMMAND [FLAGS]\n\n", p.Summary, p.Name)
	for _, c := range p.Commands {
		fmt.Fprintf(w, "  %-9s %s\n", c.Name, c.Summary)
	}
	fmt.Fprintf(w, "\n%s COMMAND --help lists the command's flags.%s\n", p.Name, p.Footer)
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
