package cli

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// logBacklog is how many records may wait for whoever reads them.
	logBacklog = 512
	// logFlush is how long the records that wait may take when the process ends.
	logFlush = time.Second
)

// LogFlags are the flags of a log.
type LogFlags struct{ format, level string }

// Register adds --log-format, of the program's default, and --log-level.
func (f *LogFlags) Register(fs *flag.FlagSet, format, level string) {
	fs.StringVar(&f.format, "log-format", format, "text or json")
	fs.StringVar(&f.level, "log-level", level, "debug, info, warn or error")
}

// Logger is the log that the flags ask for.
func (f *LogFlags) Logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.level)); err != nil {
		return nil, Usagef("--log-level: %q is none of debug, info, warn, error", f.level)
	}
	options := &slog.HandlerOptions{Level: level}
	switch f.format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, Usagef("--log-format: %q is neither text nor json", f.format)
}

// DetachLog makes a daemon's stderr one that it can log to though its reader is slow or gone: in this process and its
// children, SIGPIPE is ignored from here on. The function it returns passes on what waits, for at most a second.
func DetachLog(e *Env) (stop func()) {
	signal.Ignore(syscall.SIGPIPE)
	w := newLogWriter(e.Stderr)
	e.Stderr = w
	return w.start()
}

// A logWriter stands between the log and stderr, so that nobody who logs waits for whoever reads it: a pipe that is
// not read from must hold up neither a probe nor an answer. What finds no room is dropped and counted.
type logWriter struct {
	out     io.Writer
	records chan []byte
	dropped atomic.Uint64
}

var _ io.Writer = (*logWriter)(nil)

func newLogWriter(out io.Writer) *logWriter {
	return &logWriter{out: out, records: make(chan []byte, logBacklog)}
}

// Write takes one record over. It never blocks and never fails.
func (w *logWriter) Write(record []byte) (int, error) {
	select {
	case w.records <- append([]byte(nil), record...):
	default:
		w.dropped.Add(1)
	}
	return len(record), nil
}

// start begins to pass records on; stop passes on what waits, and returns after a second at the latest: a write that
// blocks cannot be taken back, and ends with the process.
func (w *logWriter) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // joined by stop, unless its write blocks
		defer close(done)
		for ctx.Err() == nil {
			select {
			case record := <-w.records:
				w.pass(record)
			case <-ctx.Done():
			}
		}
		for {
			select {
			case record := <-w.records:
				w.pass(record)
			default:
				return
			}
		}
	}()
	return func() {
		cancel()
		select {
		case <-done:
		case <-time.After(logFlush):
		}
	}
}

func (w *logWriter) pass(record []byte) {
	if n := w.dropped.Swap(0); n > 0 {
		fmt.Fprintf(w.out, "%d log records were dropped here, as nobody read them in time\n", n)
	}
	_, _ = w.out.Write(record) // a log that cannot be written has nobody to be told
}
