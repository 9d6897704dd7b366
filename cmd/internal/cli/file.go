package cli

import (
	"context"
	"fmt"
	"io"
	"os"
)

// FileLabel is what to call a file in messages: its name, or "standard input" for "-".
func FileLabel(name string) string {
	if name == "-" {
		return "standard input"
	}
	return name
}

// ReadFile reads a file, or standard input where its name is "-". It refuses one of more than limit bytes, and gives up
// when ctx ends: a pipe that nobody writes to would hold the process for ever.
func ReadFile(ctx context.Context, e Env, name string, limit int) ([]byte, error) {
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1)
	go func() { // ends with its reading; if that never does, with the process, which has been told to end
		in := e.Stdin
		if name != "-" {
			f, err := os.Open(name)
			if err != nil {
				done <- result{err: err}
				return
			}
			defer f.Close()
			in = f
		}
		data, err := io.ReadAll(io.LimitReader(in, int64(limit)+1))
		if err != nil {
			err = fmt.Errorf("reading %s: %w", FileLabel(name), err)
		} else if len(data) > limit {
			err = fmt.Errorf("%s is larger than %d bytes", FileLabel(name), limit)
		}
		done <- result{data, err}
	}()
	select {
	case r := <-done:
		return r.data, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("interrupted while reading %s", FileLabel(name))
	}
}
