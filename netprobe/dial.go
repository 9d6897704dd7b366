package netprobe

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// lingerSeconds is the kubelet's SO_LINGER for probes: a connection goes with a FIN and leaves
// TIME-WAIT early (k8s v1.37.2 pkg/probe/dialer_others.go, kubernetes/kubernetes#89898). Its price
// is that closing a connection whose peer acknowledges nothing takes up to that long.
const lingerSeconds = 1

// hostPort joins host and port, with brackets around an IPv6 address. A host in brackets is taken
// as the address inside them.
func hostPort(host string, port int) string {
	if inner, ok := strings.CutPrefix(host, "["); ok && strings.HasSuffix(inner, "]") {
		host = strings.TrimSuffix(inner, "]")
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// dial opens a connection as the kubelet's prober does. Network is "tcp", "tcp4", "tcp6" or "",
// which means "tcp".
func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if network == "" {
		network = "tcp"
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		// A peer that is gone already makes this fail, and then nothing lingers anyway.
		_ = tcp.SetLinger(lingerSeconds)
	}
	return conn, nil
}

// An attempt is what one probe shares with the callbacks of its HTTP transport, by way of the
// request's context. The transport detaches dials and handshakes from the request; end cuts
// them off, so that a black hole cannot collect goroutines.
type attempt struct {
	connected atomic.Bool // a TCP connection stood
	asked     atomic.Bool // the server asked for a client certificate
	offered   atomic.Bool // and got one
	preface   chan error  // for GRPC: told once about the server's first bytes

	mu    sync.Mutex
	ended bool
	stops []func()
}

// attemptKey is the context key of an *attempt.
type attemptKey struct{}

// attemptOf returns the attempt that ctx belongs to. There always is one: contexts come from
// requests made here.
func attemptOf(ctx context.Context) *attempt {
	a, ok := ctx.Value(attemptKey{}).(*attempt)
	if !ok {
		return new(attempt)
	}
	return a
}

// onEnd has stop called when the attempt ends, or at once if it has. Stop must not block.
func (a *attempt) onEnd(stop func()) {
	a.mu.Lock()
	if !a.ended {
		a.stops = append(a.stops, stop)
		a.mu.Unlock()
		return
	}
	a.mu.Unlock()
	stop()
}

// end stops whatever the attempt still has under way.
func (a *attempt) end() {
	a.mu.Lock()
	a.ended = true
	stops := a.stops
	a.stops = nil
	a.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
}

// dialer returns an http.Transport's DialContext for network.
func dialer(network string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, addr string) (net.Conn, error) {
		a := attemptOf(ctx)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		a.onEnd(cancel)
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		a.connected.Store(true)
		polite := &politeConn{Conn: conn, spoke: make(chan struct{})}
		// A deadline in the past wakes the transport's goroutines, which then close the
		// connection themselves: Close here could block for as long as it lingers.
		a.onEnd(func() {
			_ = conn.SetDeadline(time.Unix(1, 0))
			polite.speak()
		})
		if a.preface != nil {
			return &prefaceConn{Conn: polite, preface: a.preface}, nil
		}
		return polite, nil
	}
}

// A politeConn reads nothing before it has written something. A server that speaks first would
// otherwise make net/http write a line to the process's standard logger, at every probe and with
// text of the guest's choice.
type politeConn struct {
	net.Conn
	spoke chan struct{}
	once  sync.Once
}

func (c *politeConn) speak() { c.once.Do(func() { close(c.spoke) }) }

func (c *politeConn) Read(p []byte) (int, error) {
	<-c.spoke
	return c.Conn.Read(p)
}

func (c *politeConn) Write(p []byte) (int, error) {
	c.speak()
	return c.Conn.Write(p)
}

func (c *politeConn) Close() error {
	c.speak()
	return c.Conn.Close()
}
