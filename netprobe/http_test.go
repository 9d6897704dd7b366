package netprobe

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func discardLog() *log.Logger { return log.New(io.Discard, "", 0) }

// withTimeout is context.WithTimeout for a test.
func withTimeout(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// patience is the deadline of what must not meet it, on a busy machine either.
const patience = 20 * time.Second

// probePatiently probes with a deadline that grows as long as that is all the probe meets.
func probePatiently(t testing.TB, p prober, timeout time.Duration) error {
	for {
		err := p.Probe(withTimeout(t, timeout))
		var f *Failure
		if !errors.As(err, &f) || f.Cause != CauseTimeout || timeout >= patience {
			return err
		}
		timeout *= 3
	}
}

// deadlineOf is the case's own timeout where it is bound to be met, and otherwise one for a busy machine.
func deadlineOf(tc httpCase) time.Duration {
	own := time.Duration(tc.Timeout) * time.Millisecond
	switch {
	case wantCause(tc.Name) == CauseTimeout:
		return own
	case tc.Expect.ProbeError: // after the header has come
		return 3 * own
	}
	return max(own, patience)
}

// wantCause is the cause of each failing case; a case that is not listed fails by its status.
func wantCause(name string) Cause {
	return map[string]Cause{
		"no answer before timeout":                 CauseTimeout,
		"302 bogus other host followNonLocal=True": CauseRefused,
		"302 redirect loop followNonLocal=False":   CauseRedirects,
		"302 redirect loop followNonLocal=True":    CauseRedirects,
		"302 with unparsable Location":             CauseRedirects,
		"chain of 11 redirects":                    CauseRedirects,
		"empty reply":                              CauseClosed,
		"SSH banner on the port":                   CauseProtocol,
		"accepts, never answers":                   CauseTimeout,
		"connection refused":                       CauseRefused,
		"https server limited to TLS 1.1":          CauseTLS,
		"https server wants a client certificate":  CauseTLSClientCert,
		"environment http_proxy is ignored":        CauseDNS,
		"aborted connection":                       CauseClosed,
	}[name]
}

func TestHTTPCases(t *testing.T) {
	for set, c := range loadCases(t) {
		for _, tc := range c.HTTP {
			t.Run(set+"/"+tc.Name, func(t *testing.T) {
				if tc.Server.Kind == "env-proxy" {
					testEnvProxy(t, tc)
					return
				}
				t.Parallel()
				runHTTPCase(t, tc, startPeer(t, tc.Server))
			})
		}
	}
}

func runHTTPCase(t *testing.T, tc httpCase, p *peer) {
	g := &HTTPGet{
		Scheme: tc.Request.Scheme, Host: p.host, Port: p.port,
		Path:    strings.ReplaceAll(tc.Request.Path, "{other}", p.other),
		Headers: tc.Request.Headers, H2C: tc.Protocol == "HTTP2", FollowNonLocalRedirects: tc.Follow,
	}
	body, err := g.Get(withTimeout(t, deadlineOf(tc)))
	result, probeError, text := outcome(t, err)
	if err == nil {
		text = body
	}
	if result != tc.Expect.Result || probeError != tc.Expect.ProbeError {
		t.Fatalf("got %s, error %v (%v); want %s, error %v", result, probeError, err, tc.Expect.Result, tc.Expect.ProbeError)
	}
	if !strings.Contains(text, tc.Expect.Contains) {
		t.Errorf("output %q does not contain %q", text, tc.Expect.Contains)
	}
	if s := tc.Expect.NotContains; s != "" && strings.Contains(text, s) {
		t.Errorf("output %q contains %q", text, s)
	}
	if s := tc.Expect.Equals; s != nil && text != *s {
		t.Errorf("output %q, want %q", text, *s)
	}
	if n := tc.Expect.Len; n != nil && len(text) != *n {
		t.Errorf("output of %d bytes, want %d", len(text), *n)
	}
	requests, protos := p.seen()
	if n := tc.Expect.RequestsSeen; n != 0 && len(requests) != n {
		t.Errorf("server saw %d requests, want %d", len(requests), n)
	}
	if s := tc.Expect.ProtoSeen; s != "" && !slices.Contains(protos, s) {
		t.Errorf("server saw %q, want %q", protos, s)
	}
	if tc.Expect.RequestLine != "" {
		checkRequest(t, requests[0], p, tc)
	}
	checkCause(t, tc, g, err)
}

// checkCause looks at what we add to the kubelet's outcome.
func checkCause(t *testing.T, tc httpCase, g *HTTPGet, err error) {
	want := wantCause(tc.Name)
	if want == CauseOther {
		want = CauseStatus
	}
	var f *Failure
	if errors.As(err, &f) && f.Cause != want {
		t.Errorf("cause %v, want %v (%v)", f.Cause, want, err)
	}
	if !tc.Expect.ProbeError {
		return
	}
	strict := &HTTPGet{Scheme: g.Scheme, Host: g.Host, Port: g.Port, Path: g.Path, BodyErrorsFail: true}
	err = strict.Probe(withTimeout(t, deadlineOf(tc)))
	want = CauseBody
	if tc.Server.Status >= 400 {
		want = CauseStatus
	}
	if !errors.As(err, &f) || f.Cause != want {
		t.Errorf("with BodyErrorsFail: %T %v, want a failure of cause %v", err, err, want)
	}
}

// checkRequest compares a raw request with the expected one, whose Host is left out.
func checkRequest(t *testing.T, raw string, p *peer, tc httpCase) {
	line, _, _ := strings.Cut(raw, "\r\n")
	if line != tc.Expect.RequestLine {
		t.Errorf("request line %q, want %q", line, tc.Expect.RequestLine)
	}
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
	if err != nil {
		t.Fatal(err)
	}
	if want := hostPort(p.host, p.port); r.Host != want {
		t.Errorf("host %q, want %q", r.Host, want)
	}
	var want []string
	for _, h := range tc.Expect.RequestHeaders {
		want = append(want, strings.ReplaceAll(h, "kube-probe/<major>.<minor>", DefaultUserAgent))
	}
	slices.Sort(want)
	if r.Close { // ReadRequest takes the header away
		r.Header.Set("Connection", "close")
	}
	if diff := cmp.Diff(want, sortedHeaders(r.Header)); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

// testEnvProxy is apart because it sets the process's environment. The name resolves nowhere, so
// a success could only have come from the proxy.
func testEnvProxy(t *testing.T, tc httpCase) {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, *tc.Expect.NotEqual)
	}))
	defer proxy.Close()
	for _, name := range []string{"http_proxy", "HTTP_PROXY", "all_proxy"} {
		t.Setenv(name, proxy.URL)
	}
	g := &HTTPGet{Host: "probe.invalid", Port: 80, FollowNonLocalRedirects: tc.Follow}
	body, err := g.Get(withTimeout(t, time.Duration(tc.Timeout)*time.Millisecond))
	if err == nil || body == *tc.Expect.NotEqual {
		t.Errorf("body %q, error %v: the proxy was asked", body, err)
	}
}

// TestServerKinds makes sure that no kind of server is described without being built.
func TestServerKinds(t *testing.T) {
	for kind := range loadCases(t)["golden"].Kinds {
		if kind != "env-proxy" { // see testEnvProxy
			startPeer(t, serverSpec{Kind: kind, Status: 200, Then: answer{Status: 200}})
		}
	}
}

func TestURLCases(t *testing.T) {
	for set, c := range loadCases(t) {
		for _, tc := range c.URL {
			t.Run(set+"/"+tc.Name, func(t *testing.T) {
				u := probeURL(tc.Scheme, tc.Host, tc.Port, tc.Path)
				if got := u.String(); got != tc.URL {
					t.Errorf("URL %s, want %s", got, tc.URL)
				}
				if tc.RequestURI == "" {
					return
				}
				g := &HTTPGet{Scheme: tc.Scheme, Host: tc.Host, Port: tc.Port, Path: tc.Path}
				req, err := g.request()
				if err != nil {
					t.Fatal(err)
				}
				if got := req.URL.RequestURI(); got != tc.RequestURI {
					t.Errorf("request URI %s, want %s", got, tc.RequestURI)
				}
			})
		}
	}
}

func TestHeaderCases(t *testing.T) {
	for set, c := range loadCases(t) {
		for _, tc := range c.Headers {
			t.Run(set+"/"+tc.Name, func(t *testing.T) {
				if got := map[string][]string(httpHeader(tc.Headers)); !reflect.DeepEqual(got, tc.Want) {
					t.Errorf("got %v, want %v", got, tc.Want)
				}
			})
		}
	}
}
