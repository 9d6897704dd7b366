package cli

import (
	"bytes"
	"strings"
	"sync"
	"testing"
)

// A stalled is a log's reader that takes nothing until it is released.
type stalled struct {
	released chan struct{}
	mu       sync.Mutex
	b        bytes.Buffer
}

func (s *stalled) Write(p []byte) (int, error) {
	<-s.released
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *stalled) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestLogWriterNeverWaits(t *testing.T) {
	out := &stalled{released: make(chan struct{})}
	w := newLogWriter(out)
	stop := w.start()
	const records = 2 * logBacklog
	for range records {
		if n, err := w.Write([]byte("record\n")); n != 7 || err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
	}
	close(out.released)
	stop()
	got := strings.Count(out.String(), "record\n")
	if got < logBacklog || got >= records {
		t.Errorf("%d records of %d passed, the backlog is %d", got, records, logBacklog)
	}
	if !strings.Contains(out.String(), "log records were dropped") {
		t.Errorf("nothing tells of the dropped records:\n%.300s", out)
	}
}

func TestLogWriterPassesAllOnStop(t *testing.T) {
	var out bytes.Buffer
	w := newLogWriter(&out)
	for _, record := range []string{"a\n", "b\n", "c\n"} {
		_, _ = w.Write([]byte(record))
	}
	w.start()()
	if out.String() != "a\nb\nc\n" {
		t.Errorf("passed %q", out.String())
	}
}
