package netprobe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// healthPath is the method Check of grpc.health.v1.Health.
	healthPath = "/grpc.health.v1.Health/Check"
	// maxMessage bounds the health response, which is one number. gRPC's own limit is 4 MiB.
	maxMessage = 64 << 10
	// maxForeign is how much of an answer that is no gRPC goes into the text
	// (google.golang.org/grpc v1.82.1 internal/transport/client_stream.go).
	maxForeign = 1024
	// Refused connections are tried again within the deadline, by gRPC's back-off
	// (google.golang.org/grpc v1.82.1 backoff/backoff.go).
	firstBackoff  = time.Second
	backoffFactor = 1.6
	backoffJitter = 0.2
	maxBackoff    = 2 * time.Minute
	// connectTimeout bounds one try to connect (google.golang.org/grpc v1.82.1 dialoptions.go).
	connectTimeout = 20 * time.Second
)

// A GRPC probe calls Check of grpc.health.v1 and succeeds on SERVING, as the kubelet's grpc does
// (k8s v1.37.2 pkg/probe/grpc/grpc.go). A connection that fails is tried again until the
// deadline, so the probe of a closed port takes all the time it is given. A GRPC must not be
// copied or changed after its first Probe; Probe may be called by several goroutines.
type GRPC struct {
	// Host is a name or an IP address; an IPv6 address may carry a zone and needs no brackets.
	Host string
	// Port is the TCP port.
	Port int
	// Service is the name to ask for; "" asks for the server as a whole.
	Service string
	// UserAgent is sent with the call; "" means DefaultUserAgent.
	UserAgent string
	// Network restricts the address family: "tcp4", "tcp6", or "tcp" (the default) for both.
	Network string
	// TLS turns TLS on; the zero TLS accepts every certificate, as mode TLS of Kubernetes 1.37.
	TLS *TLS

	client transportCache
}

// Probe makes one attempt. Errors are of the package's types, never a *Warning.
func (g *GRPC) Probe(ctx context.Context) error {
	addr := hostPort(g.Host, g.Port)
	timeout := timeoutOf(ctx)
	transport, put, err := g.client.get(g.newTransport, g.TLS)
	if err != nil {
		return failure(CauseTLSFiles, err.Error(), err)
	}
	defer put()
	a := &attempt{}
	defer func() { a.end() }()
	conn, err := g.connect(ctx, transport, a, addr)
	cause := CauseOther
	for wait := firstBackoff; err != nil; wait = min(time.Duration(float64(wait)*backoffFactor), maxBackoff) {
		if c := httpCause(err, a); c != CauseTimeout || cause == CauseOther {
			cause = c // a try that the deadline cut short tells less than one before it that failed
		}
		if !sleep(ctx, jitter(wait)) || ctx.Err() != nil {
			if errors.Is(ctx.Err(), context.Canceled) {
				return &Indeterminate{Err: context.Cause(ctx)}
			}
			text := fmt.Sprintf("timeout: failed to connect service %q within %v: %v", addr, timeout, ctx.Err())
			return failure(cause, text, err)
		}
		a.end()
		a = &attempt{}
		conn, err = g.connect(ctx, transport, a, addr)
	}
	defer conn.Close()
	err = g.check(ctx, conn, a)
	if isRefusedStream(err) {
		err = g.check(ctx, conn, a) // the server did not look at it, and gRPC tries once more
	}
	if err == nil {
		return nil
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return &Indeterminate{Err: context.Cause(ctx)}
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && !answered(err) {
		err = ctx.Err() // how the stream ended then is of no interest
	}
	if reset := resetOf(err); reset != nil {
		err = reset
	}
	return g.failed(err, timeout, a)
}

// answered reports whether err is an answer of the server's rather than the transport's trouble.
func answered(err error) bool {
	var status *rpcError
	var unhealthy healthStatus
	return errors.As(err, &status) || errors.As(err, &unhealthy)
}

// failed words the failure of a call.
func (g *GRPC) failed(err error, timeout time.Duration, a *attempt) error {
	var status *rpcError
	var unhealthy healthStatus
	switch {
	case errors.As(err, &unhealthy):
		return failure(CauseNotServing, fmt.Sprintf("service unhealthy (responded with %q)", unhealthy), nil)
	case errors.Is(err, context.DeadlineExceeded):
		return failure(CauseTimeout, fmt.Sprintf("timeout: health rpc did not complete within %v", timeout), err)
	case !errors.As(err, &status):
		cause := httpCause(err, a)
		status = &rpcError{code: codeUnavailable, message: err.Error()}
		return failure(cause, "error: health rpc probe failed: "+status.Error(), err)
	}
	switch status.code {
	case codeUnimplemented:
		return failure(CauseUnimplemented, "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): "+status.message, err)
	case codeDeadlineExceeded:
		return failure(CauseTimeout, fmt.Sprintf("timeout: health rpc did not complete within %v", timeout), err)
	default:
		return failure(status.cause(), "error: health rpc probe failed: "+status.Error(), err)
	}
}

// connect opens an HTTP/2 connection and waits until the server has shown that it speaks HTTP/2.
// With TLS it is enough that the server agreed to speak it.
func (g *GRPC) connect(ctx context.Context, transport *http.Transport, a *attempt, addr string) (*http.ClientConn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if g.TLS == nil {
		a.preface = make(chan error, 1)
	}
	conn, err := transport.NewClientConn(context.WithValue(ctx, attemptKey{}, a), g.scheme(), addr)
	if err != nil {
		return nil, err
	}
	if g.TLS != nil {
		return conn, nil
	}
	select {
	case err = <-a.preface:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

func (g *GRPC) scheme() string {
	if g.TLS != nil {
		return "https"
	}
	return "http"
}

// newTransport makes a transport that speaks HTTP/2 and nothing else.
func (g *GRPC) newTransport() *http.Transport {
	t := &http.Transport{
		DialContext:            dialer(g.Network),
		DisableCompression:     true,
		TLSHandshakeTimeout:    handshakeTimeout,
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              new(http.Protocols),
	}
	if g.TLS != nil {
		t.Protocols.SetHTTP2(true)
		return t
	}
	t.Protocols.SetUnencryptedHTTP2(true)
	return t
}

// check makes the call. It returns a healthStatus for an answer other than SERVING, an *rpcError
// for a status other than OK, and else what the transport said.
func (g *GRPC) check(ctx context.Context, conn *http.ClientConn, a *attempt) error {
	req := &http.Request{
		Method: http.MethodPost,
		URL:    &url.URL{Scheme: g.scheme(), Host: hostPort(g.Host, g.Port), Path: healthPath},
		Header: http.Header{
			"Content-Type": {"application/grpc"},
			"Te":           {"trailers"},
			"User-Agent":   {g.UserAgent},
		},
		Host:          withoutZone(hostPort(g.Host, g.Port)),
		Body:          io.NopCloser(bytes.NewReader(healthRequest(g.Service))),
		ContentLength: -1,
	}
	if g.UserAgent == "" {
		req.Header.Set("User-Agent", DefaultUserAgent)
	}
	if deadline, ok := ctx.Deadline(); ok {
		req.Header.Set("Grpc-Timeout", grpcTimeout(time.Until(deadline)))
	}
	res, err := conn.RoundTrip(req.WithContext(context.WithValue(ctx, attemptKey{}, a)))
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := statusCode(res.Header); err != nil {
		return err // gRPC looks at this before anything else
	}
	if !isGRPC(res.Header.Get("Content-Type")) {
		return foreignAnswer(res)
	}
	health, err := readHealth(res.Body, res.Header.Get("Grpc-Encoding"))
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	// The status outranks the message. It is in the header of an answer that is nothing else.
	if failed := statusOf(res); failed != nil {
		return failed
	}
	if err != nil {
		return &rpcError{codeInternal, "cardinality violation: received no response message from non-server-streaming RPC"}
	}
	if health != statusServing {
		return health
	}
	return nil
}

// readHealth reads the one message of a unary call and the end of the stream after it. It returns
// io.EOF if there was no message, or only the beginning of its frame.
func readHealth(body io.Reader, encoding string) (healthStatus, error) {
	var head [5]byte
	if _, err := io.ReadFull(body, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF
		}
		return 0, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size > maxMessage {
		return 0, &rpcError{codeResourceExhausted, fmt.Sprintf("grpc: received message larger than max (%d vs. %d)", size, maxMessage)}
	}
	message := make([]byte, size)
	if _, err := io.ReadFull(body, message); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = &rpcError{codeInternal, io.ErrUnexpectedEOF.Error()}
		}
		return 0, err
	}
	switch {
	case head[0] == 1 && (encoding == "" || encoding == "identity"):
		return 0, &rpcError{codeInternal, "grpc: compressed flag set with identity or empty encoding"}
	case head[0] == 1:
		return 0, &rpcError{codeInternal, fmt.Sprintf("grpc: Decompressor is not installed for grpc-encoding %q", encoding)}
	case head[0] != 0:
		return 0, &rpcError{codeInternal, fmt.Sprintf("grpc: received unexpected payload format %d", head[0])}
	}
	health, err := parseHealth(message)
	if err != nil {
		return 0, err
	}
	switch _, err := io.ReadFull(body, head[:1]); {
	case err == nil:
		return 0, &rpcError{codeInternal, "cardinality violation: expected <EOF> for non server-streaming RPCs, but received another message"}
	case !errors.Is(err, io.EOF):
		return 0, err
	}
	return health, nil
}

// foreignAnswer makes the error that gRPC makes of an HTTP answer that is no gRPC.
func foreignAnswer(res *http.Response) error {
	contentType := "malformed header: missing HTTP content-type"
	if values := res.Header["Content-Type"]; len(values) > 0 {
		contentType = fmt.Sprintf("transport: received unexpected content-type %q", values[0])
	}
	message := fmt.Sprintf("unexpected HTTP status code received from server: %d (%s); %s",
		res.StatusCode, http.StatusText(res.StatusCode), contentType)
	data, err := io.ReadAll(io.LimitReader(res.Body, maxForeign))
	if err != nil {
		return err
	}
	if res.ContentLength != 0 {
		message += fmt.Sprintf("\ndata: %q", data)
	}
	return &rpcError{httpCode(res.StatusCode), message}
}

// isGRPC reports whether an answer's content type is gRPC's.
func isGRPC(contentType string) bool {
	rest, ok := strings.CutPrefix(contentType, "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// timeoutOf tells how long ctx has left, in the round figure that somebody must have chosen.
func timeoutOf(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	left := time.Until(deadline)
	switch {
	case left >= time.Second:
		return left.Round(100 * time.Millisecond)
	case left >= 100*time.Millisecond:
		return left.Round(10 * time.Millisecond)
	default:
		return left.Round(time.Millisecond)
	}
}

// grpcTimeout encodes a deadline for the server: at most eight digits and a unit.
func grpcTimeout(left time.Duration) string {
	const most = 99_999_999
	left = max(left, time.Microsecond)
	if n := left.Microseconds(); n <= most {
		return strconv.FormatInt(n, 10) + "u"
	}
	return strconv.FormatInt(min(left.Milliseconds(), most), 10) + "m"
}

// withoutZone removes an IPv6 zone from "[addr%zone]:port": it means nothing to the peer.
func withoutZone(addr string) string {
	start, end := strings.IndexByte(addr, '%'), strings.LastIndexByte(addr, ']')
	if start < 0 || end < start {
		return addr
	}
	return addr[:start] + addr[end:]
}

// jitter spreads a back-off after the first by a fifth.
func jitter(wait time.Duration) time.Duration {
	if wait == firstBackoff {
		return wait
	}
	return time.Duration(float64(wait) * (1 + backoffJitter*(2*rand.Float64()-1)))
}

// sleep waits for d and reports whether ctx lasted that long.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
