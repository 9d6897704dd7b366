package cli

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// TestStalledStderr: a command that fails ends its process, though nobody reads why.
func TestStalledStderr(t *testing.T) {
	stuck := &stalled{released: make(chan struct{})}
	defer close(stuck.released)
	p := Program{Name: "p", Commands: []Command{{"serve", "fail after having logged", func(_ context.Context, e Env) error {
		defer DetachLog(&e)()
		_, _ = io.WriteString(e.Stderr, "starting\n")
		return errors.New("no luck")
	}}}}
	code := make(chan int, 1)
	go func() { code <- p.Run(t.Context(), Env{Args: []string{"serve"}, Stderr: stuck}) }()
	select {
	case got := <-code:
		if got != ExitFailure {
			t.Errorf("exit code %d", got)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the process does not end")
	}
}

// TestProgram: what a command returns is the exit code and at most one line.
func TestProgram(t *testing.T) {
	returns := func(err error) func(context.Context, Env) error {
		return func(context.Context, Env) error { return err }
	}
	p := Program{Name: "p", Summary: "P is a program.", Commands: []Command{
		{"good", "do well", returns(nil)},
		{"bad", "fail", returns(errors.New("no luck"))},
		{"usage", "be misused", returns(Usagef("--x: %w", errors.New("not a number")))},
		{"said", "fail, having said so", returns(&Error{Code: 1})},
		{"args", "show what is left", func(_ context.Context, e Env) error { return errors.New(strings.Join(e.Args, "+")) }},
	}}
	for _, tt := range []struct {
		args           string
		code           int
		stdout, stderr string
	}{
		{"", 2, "", "P is a program.\n\nUsage: p COMMAND [FLAGS]\n\n  good      do well\n"},
		{"help", 0, "P is a program.", ""},
		{"none", 2, "", "p: unknown command \"none\"; see p help\n"},
		{"good", 0, "", ""},
		{"bad", 1, "", "p bad: no luck\n"},
		{"usage", 2, "", "p usage: --x: not a number\n"},
		{"said", 1, "", ""},
		{"args -a b", 1, "", "p args: -a+b\n"},
	} {
		var out, errs strings.Builder
		code := p.Run(t.Context(), Env{Args: strings.Fields(tt.args), Stdout: &out, Stderr: &errs})
		if code != tt.code || !strings.HasPrefix(out.String(), tt.stdout) || !strings.HasPrefix(errs.String(), tt.stderr) ||
			(tt.stdout == "") != (out.Len() == 0) || (tt.stderr == "") != (errs.Len() == 0) {
			t.Errorf("%q: %d, %q, %q", tt.args, code, &out, &errs)
		}
	}
}
