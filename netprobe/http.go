package netprobe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	// DefaultUserAgent is sent by probes that set no other. Servers and log filters know
	// "kube-probe/"; the version is that of the kubelet whose rules are followed.
	DefaultUserAgent = "kube-probe/1.37"

	// maxBody is how much of a response's body is read (k8s v1.37.2 pkg/probe/http/http.go).
	maxBody = 10 << 10
	// maxHops is the number of requests after which a redirect fails the probe.
	maxHops = 10
	// maxHeader bounds a response's header. Go's limit, and so the kubelet's, is 10 MiB, which
	// is more memory than a guest should be able to claim from us.
	maxHeader = 256 << 10
	// handshakeTimeout ends a TLS handshake in a probe that has more time than this
	// (k8s.io/apimachinery v0.37.2 pkg/util/net/http.go).
	handshakeTimeout = 10 * time.Second
	// An HTTP/2 server that falls silent is pinged after pingAfter, and given up after
	// pingTimeout more (same source).
	pingAfter   = 30 * time.Second
	pingTimeout = 15 * time.Second
)

// A Header is one header of a request. Names are canonicalised, repeated ones are all sent.
type Header struct {
	Name, Value string
}

// An HTTPGet probe sends one GET and judges the status, as the kubelet's httpGet does
// (k8s v1.37.2 pkg/probe/http): 200 to 299 is a success, 300 to 399 a Warning, all else a
// Failure. An HTTPGet must not be copied or changed after its first Probe; Probe may be called
// by several goroutines.
type HTTPGet struct {
	// Scheme is "HTTP" (the default) or "HTTPS", in either case.
	Scheme string
	// Host is a name or an IP address; an IPv6 address may carry a zone and needs no brackets.
	Host string
	// Port is the TCP port, 1 to 65535.
	Port int
	// Path is the path with its query. Whatever does not parse is sent as a path.
	Path string
	// Headers are sent in order. "Host" sets the request's host; an empty first "User-Agent" or
	// "Accept" removes that header.
	Headers []Header
	// UserAgent is sent where Headers has no User-Agent; "" means DefaultUserAgent.
	UserAgent string
	// Network restricts the address family: "tcp4", "tcp6", or "tcp" (the default) for both.
	Network string
	// TLS says how an HTTPS server is verified; nil accepts every certificate, as the kubelet.
	TLS *TLS
	// H2C speaks unencrypted HTTP/2 to a plain HTTP port: protocol HTTP2 of Kubernetes 1.37.
	H2C bool
	// FollowNonLocalRedirects follows redirects to other host names too. The kubelet stops
	// there and takes the redirect for the answer.
	FollowNonLocalRedirects bool
	// BodyErrorsFail makes a body that stalls or breaks off a Failure. The kubelet never counts
	// such an attempt, so a server that hangs after its header stays ready for ever
	// (kubernetes/kubernetes#122591).
	BodyErrorsFail bool

	client transportCache
}

// Probe makes one attempt. Errors are of the package's three types.
func (g *HTTPGet) Probe(ctx context.Context) error {
	_, err := g.Get(ctx)
	return err
}

// Get is Probe, and returns the body of a success, cut at 10 KiB, which is the kubelet's output.
func (g *HTTPGet) Get(ctx context.Context) (body string, err error) {
	req, err := g.request()
	if err != nil {
		return "", &Indeterminate{Err: fmt.Errorf("building the request: %w", err)}
	}
	transport, put, err := g.client.get(g.newTransport, g.TLS)
	if err != nil {
		return "", failure(CauseTLSFiles, err.Error(), err)
	}
	defer put()
	client := &http.Client{Transport: transport, CheckRedirect: g.checkRedirect}
	a := new(attempt)
	defer a.end()
	reqCtx, cancel, timeout := detach(ctx, a)
	defer cancel()
	client.Timeout = timeout

	res, err := client.Do(req.WithContext(reqCtx))
	if err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			return "", &Indeterminate{Err: context.Cause(ctx)}
		}
		return "", failure(httpCause(err, a), err.Error(), err)
	}
	defer res.Body.Close()
	read, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	if err != nil {
		return "", g.bodyError(ctx, res.StatusCode, err)
	}
	return g.judge(res.StatusCode, read)
}

// judge turns a whole response into an outcome.
func (g *HTTPGet) judge(status int, body []byte) (string, error) {
	switch {
	case status >= 200 && status < 300:
		return string(body), nil
	case status >= 300 && status < 400:
		return "", &Warning{Text: "Probe terminated redirects, Response body: " + string(body)}
	default:
		// The kubelet keeps the body out of its text, and so do we: it may hold secrets.
		return "", failure(CauseStatus, fmt.Sprintf("HTTP probe failed with statuscode: %d", status), nil)
	}
}

// bodyError decides on a response whose head came and whose body did not.
func (g *HTTPGet) bodyError(ctx context.Context, status int, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return &Indeterminate{Err: context.Cause(ctx)}
	case !g.BodyErrorsFail:
		return &Indeterminate{Err: fmt.Errorf("reading the body: %w", err)}
	case status < 200 || status >= 400:
		_, err := g.judge(status, nil)
		return err
	default:
		return failure(CauseBody, fmt.Sprintf("HTTP probe failed reading the body after statuscode %d: %v", status, err), err)
	}
}

// request builds the request anew, since a client may change what it sends.
func (g *HTTPGet) request() (*http.Request, error) {
	if g.Port < 1 || g.Port > 65535 {
		return nil, fmt.Errorf("invalid port number: %d", g.Port)
	}
	u := probeURL(g.Scheme, g.Host, g.Port, g.Path)
	// The URL goes through its text once more because the kubelet's does, which shows in odd
	// paths: "mailto:x" loses its host on the way.
	req, err := http.NewRequest(http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header = httpHeader(g.Headers)
	if _, ok := req.Header["User-Agent"]; !ok {
		agent := g.UserAgent
		if agent == "" {
			agent = DefaultUserAgent
		}
		req.Header.Set("User-Agent", agent)
	}
	if _, ok := req.Header["Accept"]; !ok {
		req.Header.Set("Accept", "*/*")
	} else if req.Header.Get("Accept") == "" {
		req.Header.Del("Accept")
	}
	req.Host = req.Header.Get("Host")
	return req, nil
}

// probeURL makes the URL that the kubelet would (k8s v1.37.2 pkg/probe/http/request.go): the
// path may bring a query, a fragment and user information, but never a scheme or a host.
func probeURL(scheme, host string, port int, path string) *url.URL {
	u, err := url.Parse(path)
	if err != nil {
		u = &url.URL{Path: path}
	}
	u.Scheme = strings.ToLower(scheme)
	if u.Scheme == "" {
		u.Scheme = "http"
	}
	u.Host = hostPort(host, port)
	return u
}

// httpHeader converts headers, keeping the order of repeated names.
func httpHeader(headers []Header) http.Header {
	h := make(http.Header, len(headers)+2)
	for _, f := range headers {
		h.Add(f.Name, f.Value)
	}
	return h
}

// A redirectsError ends a chain of redirects, in net/http's and the kubelet's words.
type redirectsError struct{}

func (redirectsError) Error() string { return fmt.Sprintf("stopped after %d redirects", maxHops) }

// checkRedirect stops at another host name, whatever the port and scheme, and at the tenth hop.
func (g *HTTPGet) checkRedirect(req *http.Request, via []*http.Request) error {
	if !g.FollowNonLocalRedirects && req.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxHops {
		return redirectsError{}
	}
	return nil
}

// detach makes the request's context and the client's timeout. The deadline becomes a timeout
// because net/http words the two differently and the kubelet uses the latter; a cancelled
// context still cancels.
func detach(ctx context.Context, a *attempt) (context.Context, context.CancelFunc, time.Duration) {
	var timeout time.Duration
	deadline, ok := ctx.Deadline()
	if ok {
		timeout = max(time.Until(deadline), time.Nanosecond)
	}
	inner, cancel := context.WithCancel(context.WithValue(context.WithoutCancel(ctx), attemptKey{}, a))
	stop := context.AfterFunc(ctx, func() {
		if !ok || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			cancel()
		}
	})
	return inner, func() { stop(); cancel() }, timeout
}

// newTransport makes a transport with nothing kept alive, no proxy and no compression.
func (g *HTTPGet) newTransport() *http.Transport {
	t := &http.Transport{
		DialContext:            dialer(g.Network),
		DisableKeepAlives:      true,
		DisableCompression:     true,
		TLSHandshakeTimeout:    handshakeTimeout,
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              new(http.Protocols),
	}
	if g.H2C {
		t.Protocols.SetUnencryptedHTTP2(true)
		return t
	}
	t.Protocols.SetHTTP1(true)
	t.Protocols.SetHTTP2(true) // by ALPN, so with HTTPS alone
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout}
	return t
}

// httpCause finds the cause of a request that got no response.
func httpCause(err error, a *attempt) Cause {
	var redirects redirectsError
	if errors.As(err, &redirects) || strings.Contains(err.Error(), "failed to parse Location header") {
		return CauseRedirects
	}
	c := causeOf(err)
	if a.asked.Load() && refusesClient(err, c, a.offered.Load()) {
		return CauseTLSClientCert
	}
	if c != CauseOther || !a.connected.Load() {
		return c
	}
	if strings.Contains(err.Error(), "headers exceeded") || strings.Contains(err.Error(), "header list larger") {
		return CauseTooLarge
	}
	return CauseProtocol
}

// refusesClient tells whether a server that asked for a client certificate failed the connection
// for want of a good one. In TLS 1.3 its alert comes after the handshake, and gets lost when the
// connection goes with it: net/http then says no more than that the connection failed.
func refusesClient(err error, c Cause, offered bool) bool {
	return isAlert(err) || c == CauseReset || c == CauseClosed && !offered ||
		strings.Contains(err.Error(), "client conn could not be established")
}

// maxIdleTransports is how many transports wait for the next probe; a prober that is called by more goroutines at once makes
// further ones.
const maxIdleTransports = 4

// A transportCache keeps transports for as long as the TLS files behind them stay the same. Each serves one attempt at a
// time: an HTTP/2 transport may hand one attempt's connection to another, and whoever ends first cuts it off.
type transportCache struct {
	mu     sync.Mutex
	idle   []*http.Transport
	loaded *tlsState
}

// get returns a transport, made by build and given a TLS configuration from settings. It goes back with put.
func (c *transportCache) get(build func() *http.Transport, settings *TLS) (t *http.Transport, put func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	state, err := settings.load(c.loaded)
	if err != nil {
		return nil, nil, err
	}
	if state != c.loaded {
		c.idle, c.loaded = nil, state
	}
	if last := len(c.idle) - 1; last >= 0 {
		t, c.idle = c.idle[last], c.idle[:last]
	} else {
		t = build()
		t.TLSClientConfig = state.config.Clone() // the transport adds to it
	}
	return t, func() { c.put(t, state) }, nil
}

func (c *transportCache) put(t *http.Transport, state *tlsState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state == c.loaded && len(c.idle) < maxIdleTransports {
		c.idle = append(c.idle, t)
	}
}
