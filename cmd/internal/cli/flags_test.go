package cli

import (
	"io"
	"strings"
	"testing"
)

// TestSetFromEnv: the command line wins over the environment, and a value that is none is refused by its variable's name.
func TestSetFromEnv(t *testing.T) {
	parse := func(vars map[string]string, args ...string) (host string, port int, err error) {
		fs := NewFlags("p run", "[FLAGS]")
		fs.StringVar(&host, "guest-host", "none", "")
		fs.IntVar(&port, "port", 1, "")
		e := Env{Args: args, LookupEnv: func(name string) (string, bool) { v, ok := vars[name]; return v, ok }}
		if err = SetFromEnv(fs, e, "P"); err == nil {
			_, err = Parse(fs, e)
		}
		return host, port, err
	}
	for _, tt := range []struct {
		vars map[string]string
		args []string
		host string
		port int
		err  string
	}{
		{nil, nil, "none", 1, ""},
		{map[string]string{"P_GUEST_HOST": "a", "GUEST_HOST": "b"}, nil, "a", 1, ""},
		{map[string]string{"P_GUEST_HOST": "a"}, []string{"--guest-host", "c", "--port=2"}, "c", 2, ""},
		{map[string]string{"P_PORT": "x"}, nil, "", 0, `environment variable P_PORT: invalid value "x"`},
		{nil, []string{"--prot"}, "", 0, "flag provided but not defined: -prot; see p run --help"},
		{nil, []string{"rest"}, "", 0, `unexpected argument "rest"; see p run --help`},
	} {
		host, port, err := parse(tt.vars, tt.args...)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%v %v: %v, want %q", tt.vars, tt.args, err, tt.err)
			}
			continue
		}
		if err != nil || host != tt.host || port != tt.port {
			t.Errorf("%v %v: %q, %d, %v", tt.vars, tt.args, host, port, err)
		}
	}
}

// TestHelp: it goes to standard output, with each flag, and nothing else is done.
func TestHelp(t *testing.T) {
	var out strings.Builder
	fs := NewFlags("p run", "[FLAGS]")
	fs.Bool("loop", false, "again and again")
	done, err := Parse(fs, Env{Args: []string{"--help"}, Stdout: &out, Stderr: io.Discard})
	if !done || err != nil || !strings.HasPrefix(out.String(), "Usage: p run [FLAGS]") || !strings.Contains(out.String(), "-loop") {
		t.Errorf("%v, %v: %s", done, err, &out)
	}
}
