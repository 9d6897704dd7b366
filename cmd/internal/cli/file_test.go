package cli

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, stdin string
		limit       int
		want, err   string
	}{
		{path, "", 5, "12345", ""},
		{path, "", 4, "", "f is larger than 4 bytes"},
		{"-", "abc", 3, "abc", ""},
		{"-", "abc", 2, "", "standard input is larger than 2 bytes"},
		{path + ".none", "", 5, "", "no such file"},
		{filepath.Dir(path), "", 5, "", "is a directory"},
	} {
		got, err := ReadFile(t.Context(), Env{Stdin: strings.NewReader(tt.stdin)}, tt.name, tt.limit)
		if tt.err == "" && (err != nil || string(got) != tt.want) || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%s, at most %d: %q, %v", tt.name, tt.limit, got, err)
		}
	}
}

// Reading a pipe that nobody writes to ends with the context.
func TestReadFileEndsWithItsContext(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	in, silent := net.Pipe()
	defer in.Close()
	defer silent.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, name := range []string{pipe, "-"} {
		if _, err := ReadFile(ctx, Env{Stdin: in}, name, 1); err == nil || err.Error() != "interrupted while reading "+FileLabel(name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Let the reader that is left behind go.
	if f, err := os.OpenFile(pipe, os.O_WRONLY, 0); err == nil {
		f.Close()
	}
}
