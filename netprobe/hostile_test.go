package netprobe

import (
	"bufio"
	"errors"
	"io"
	"log"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestHostileHTTP is about servers that mean harm, or were written as if they did.
func TestHostileHTTP(t *testing.T) {
	endless := func(part string) func(net.Conn, <-chan struct{}) {
		part = strings.Repeat(part, 1+16<<10/len(part))
		return func(c net.Conn, _ <-chan struct{}) {
			for {
				if _, err := io.WriteString(c, part); err != nil {
					return
				}
			}
		}
	}
	for name, tc := range map[string]struct {
		head  string
		then  func(net.Conn, <-chan struct{})
		cause Cause // CauseOther means success
	}{
		"endless headers":       {"HTTP/1.1 200 OK\r\n", endless("X-A: b\r\n"), CauseTooLarge},
		"endless header":        {"HTTP/1.1 200 OK\r\nX-A: ", endless("b"), CauseTooLarge},
		"endless status line":   {"HTTP/1.1 200 ", endless("O"), CauseTooLarge},
		"endless informational": {"", endless("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"), CauseTooLarge},
		"endless garbage":       {"", endless("\x00"), CauseTooLarge},
		"endless body":          {"HTTP/1.1 200 OK\r\n\r\n", endless("b"), CauseOther},
		"slow header": {"HTTP/1.1 200 OK\r\n", func(c net.Conn, done <-chan struct{}) {
			for _, b := range []byte("X-A: " + strings.Repeat("b", 1000)) {
				hold(20*time.Millisecond, done)
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
			}
		}, CauseTimeout},
		"reset after the header": {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", func(c net.Conn, _ <-chan struct{}) { reset(c) }, CauseOther},
		"reset before it":        {"", func(c net.Conn, _ <-chan struct{}) { reset(c) }, CauseReset},
		// Between two lines net/textproto swallows the reset and reports the EOF after it.
		"reset within it": {"HTTP/1.1 200 OK\r\n", func(c net.Conn, _ <-chan struct{}) { reset(c) }, CauseClosed},
		"bare newlines":   {"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", nil, CauseOther},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &peer{}
			p.serveRaw(t, func(c net.Conn, done <-chan struct{}) {
				if _, err := readHead(bufio.NewReader(c)); err != nil {
					return
				}
				io.WriteString(c, tc.head)
				if tc.then != nil {
					tc.then(c, done)
				}
			})
			timeout := patience
			if tc.cause == CauseTimeout {
				timeout = 500 * time.Millisecond
			}
			err := (&HTTPGet{Host: p.host, Port: p.port}).Probe(withTimeout(t, timeout))
			var f *Failure
			switch {
			case tc.cause == CauseOther && err == nil:
			case !errors.As(err, &f) || f.Cause != tc.cause:
				t.Errorf("%T %.200v, want a failure of cause %v", err, err, tc.cause)
			case len(f.Text) > maxText+len("…"):
				t.Errorf("a text of %d bytes", len(f.Text))
			}
		})
	}
}

// TestHostileMemory checks that a huge header costs little memory.
func TestHostileMemory(t *testing.T) {
	answer := []byte("HTTP/1.1 200 OK\r\n" + strings.Repeat("X-A: "+strings.Repeat("b", 1000)+"\r\n", 9000) + "\r\n")
	p := &peer{}
	p.serveRaw(t, func(c net.Conn, _ <-chan struct{}) {
		if _, err := readHead(bufio.NewReader(c)); err == nil {
			c.Write(answer)
		}
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := (&HTTPGet{Host: p.host, Port: p.port}).Probe(withTimeout(t, 10*time.Second))
	runtime.ReadMemStats(&after)
	checkCauseOnly(t, err, CauseTooLarge)
	if used := after.TotalAlloc - before.TotalAlloc; used > 4<<20 {
		t.Errorf("%d bytes allocated for a 9 MB header", used)
	}
}

func checkCauseOnly(t *testing.T, err error, want Cause) {
	t.Helper()
	var f *Failure
	if !errors.As(err, &f) || f.Cause != want {
		t.Errorf("%T %.200v, want a failure of cause %v", err, err, want)
	}
}

// TestSpeaksFirst checks that a server which does not wait for the request neither changes the
// outcome nor gets a line into the process's log.
func TestSpeaksFirst(t *testing.T) {
	var logged syncBuffer
	log.SetOutput(&logged)
	defer log.SetOutput(os.Stderr)
	p := &peer{}
	p.serveRaw(t, func(c net.Conn, _ <-chan struct{}) {
		io.WriteString(c, "SSH-2.0-OpenSSH_9.6\r\n")
		io.Copy(io.Discard, c)
	})
	for range 200 {
		err := (&HTTPGet{Host: p.host, Port: p.port}).Probe(withTimeout(t, 10*time.Second))
		checkCauseOnly(t, err, CauseProtocol)
	}
	if logged.String() != "" {
		t.Errorf("logged: %s", logged.String())
	}
}

// A syncBuffer is a strings.Builder for several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Builder.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Builder.String()
}

// TestHandshakeStall checks that a TLS server which never answers costs the probe its timeout,
// and no goroutine beyond it (TestMain looks for those).
func TestHandshakeStall(t *testing.T) {
	p := &peer{}
	p.serveRaw(t, func(c net.Conn, _ <-chan struct{}) { io.Copy(io.Discard, c) })
	err := (&HTTPGet{Scheme: "HTTPS", Host: p.host, Port: p.port}).Probe(withTimeout(t, 200*time.Millisecond))
	checkCauseOnly(t, err, CauseTimeout)
}

// TestDialStall does the same with a full accept queue, where the dial itself hangs.
func TestDialStall(t *testing.T) {
	port := fullQueue(t)
	for name, probe := range eachProbe("127.0.0.1", port, "") {
		start := time.Now()
		err := probe.Probe(withTimeout(t, 300*time.Millisecond))
		checkCauseOnly(t, err, CauseTimeout)
		if took := time.Since(start); took > patience {
			t.Errorf("%s took %v", name, took)
		}
	}
}

// TestTimeoutIsTheContexts checks that the deadline is kept both ways.
func TestTimeoutIsTheContexts(t *testing.T) {
	p := startPeer(t, serverSpec{Kind: "sleep", MS: 600})
	g := &HTTPGet{Host: p.host, Port: p.port}
	if err := g.Probe(withTimeout(t, patience)); err != nil {
		t.Errorf("with %v for an answer after 0.6 s: %v", patience, err)
	}
	p = startPeer(t, serverSpec{Kind: "sleep", MS: 60_000})
	g = &HTTPGet{Host: p.host, Port: p.port}
	start := time.Now()
	checkCauseOnly(t, g.Probe(withTimeout(t, 200*time.Millisecond)), CauseTimeout)
	if took := time.Since(start); took < 200*time.Millisecond || took > patience {
		t.Errorf("a timeout of 200 ms took %v", took)
	}
}
