package netprobe

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A prober is what all three probes are.
type prober interface {
	Probe(context.Context) error
}

// eachProbe makes the three probes for one address.
func eachProbe(host string, port int, network string) map[string]prober {
	return map[string]prober{
		"http": &HTTPGet{Host: host, Port: port, Network: network},
		"tcp":  &TCPSocket{Host: host, Port: port, Network: network},
		"grpc": &GRPC{Host: host, Port: port, Network: network},
	}
}

// listen6 starts a server on the IPv6 loopback that answers HTTP and gRPC health alike.
func listen6(t *testing.T) (port int) {
	t.Helper()
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 here: %v", err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == healthPath {
			answerHealth(statusServing)(w, r)
		}
	}))
	s.Listener.Close()
	s.Listener = l
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return l.Addr().(*net.TCPAddr).Port
}

func TestIPv6(t *testing.T) {
	port := listen6(t)
	for _, host := range []string{"::1", "[::1]", "::1%lo"} {
		for name, p := range eachProbe(host, port, "tcp6") {
			if err := p.Probe(withTimeout(t, patience)); err != nil {
				t.Errorf("%s to %s: %v", name, host, err)
			}
		}
	}
	for name, p := range eachProbe("::1", port, "tcp4") {
		var f *Failure
		if err := p.Probe(withTimeout(t, time.Second)); !errors.As(err, &f) || f.Cause != CauseNoRoute {
			t.Errorf("%s to ::1 by IPv4: %T %v, want a failure of cause NoRoute", name, err, err)
		}
	}
}

// TestFamilies checks that a name is probed by the family that was asked for alone.
func TestFamilies(t *testing.T) {
	port := listen6(t) // and nothing at 127.0.0.1
	addrs, err := net.DefaultResolver.LookupNetIP(t.Context(), "ip6", "localhost")
	if err != nil || len(addrs) == 0 {
		t.Skip("localhost has no IPv6 address here")
	}
	probe := &HTTPGet{Host: "localhost", Port: port, Network: "tcp6"}
	if err := probe.Probe(withTimeout(t, patience)); err != nil {
		t.Errorf("by IPv6: %v", err)
	}
	var f *Failure
	probe = &HTTPGet{Host: "localhost", Port: port, Network: "tcp4"}
	if err := probe.Probe(withTimeout(t, patience)); !errors.As(err, &f) || f.Cause != CauseRefused {
		t.Errorf("by IPv4: %T %v, want a failure of cause Refused", err, err)
	}
}

// TestCancel checks that a probe which its caller gives up tells nothing, and ends at once.
func TestCancel(t *testing.T) {
	p := &peer{}
	accepted := make(chan struct{}, 8)
	p.serveRaw(t, func(c net.Conn, _ <-chan struct{}) {
		accepted <- struct{}{}
		io.Copy(io.Discard, c)
	})
	probes := eachProbe(p.host, p.port, "")
	probes["tcp"].(*TCPSocket).Expect = regexpAny()
	probes["tls"] = &HTTPGet{Scheme: "HTTPS", Host: p.host, Port: p.port}
	for name, probe := range probes {
		reason := errors.New("the VM was paused")
		ctx, cancel := context.WithCancelCause(withTimeout(t, time.Minute))
		done := make(chan error, 1)
		go func() { done <- probe.Probe(ctx) }() // joined below
		<-accepted
		cancel(reason)
		var i *Indeterminate
		if err := <-done; !errors.As(err, &i) || !errors.Is(err, reason) {
			t.Errorf("%s: %T %v, want an indeterminate outcome with the reason", name, err, err)
		}
	}
}

// TestExpired checks that a deadline which has passed already is a timeout.
func TestExpired(t *testing.T) {
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	for name, probe := range eachProbe("127.0.0.1", closedPort(t), "") {
		var f *Failure
		if err := probe.Probe(ctx); !errors.As(err, &f) || f.Cause != CauseTimeout {
			t.Errorf("%s: %T %v, want a failure of cause Timeout", name, err, err)
		}
	}
}

// TestCausesOfErrors covers what cannot be had on loopback.
func TestCausesOfErrors(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want Cause
	}{
		{syscall.ENETUNREACH, CauseNoRoute},
		{syscall.EHOSTUNREACH, CauseNoRoute},
		{syscall.EPERM, CauseNoRoute},
		{syscall.ETIMEDOUT, CauseTimeout},
		{os.ErrDeadlineExceeded, CauseTimeout},
		{syscall.EPIPE, CauseReset},
		{&net.DNSError{Err: "no such host", Name: "x", IsNotFound: true}, CauseDNS},
		{&net.DNSError{Err: "timeout", Name: "x", IsTimeout: true}, CauseDNS},
		{io.ErrUnexpectedEOF, CauseClosed},
		{errors.New("?"), CauseOther},
		{nil, CauseOther},
	} {
		err := tc.err
		if err != nil {
			err = &net.OpError{Op: "dial", Err: err}
		}
		if got := causeOf(err); got != tc.want {
			t.Errorf("causeOf(%v) = %v, want %v", err, got, tc.want)
		}
	}
}

// TestCausesAreNamed checks that the names are a closed set of distinct words.
func TestCausesAreNamed(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Causes() {
		if seen[c.String()] || strings.ContainsAny(c.String(), " \"{}") {
			t.Errorf("cause %d has the name %q", c, c)
		}
		seen[c.String()] = true
	}
	if len(seen) != int(CauseRPC)+1 {
		t.Errorf("%d names for %d causes", len(seen), CauseRPC+1)
	}
}

// TestConcurrent runs one probe from several goroutines at once.
func TestConcurrent(t *testing.T) {
	plain := healthServer(t, false, answerHealth(statusServing))
	secure := startPeer(t, serverSpec{Kind: "tls", ALPN: []string{"h2", "http/1.1"}})
	for name, probe := range map[string]prober{
		"grpc":  &GRPC{Host: plain.host, Port: plain.port},
		"https": &HTTPGet{Scheme: "HTTPS", Host: secure.host, Port: secure.port},
		"tcp":   &TCPSocket{Host: plain.host, Port: plain.port},
	} {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 5 {
					if err := probe.Probe(withTimeout(t, 30*time.Second)); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
			})
		}
		wg.Wait()
	}
}
