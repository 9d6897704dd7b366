package main

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/component-base/version"
	"k8s.io/kubernetes/pkg/probe"
	grpcprobe "k8s.io/kubernetes/pkg/probe/grpc"
	httpprobe "k8s.io/kubernetes/pkg/probe/http"
	tcpprobe "k8s.io/kubernetes/pkg/probe/tcp"

	"github.com/guestprobe/guestprobe/netprobe"
)

// A scenario is one behaviour of a server and one probe of it.
type scenario struct {
	name    string
	family  string
	timeout time.Duration
	// start starts the server; nil where there is none, and then host and port are the target.
	start func() (*server, error)

	handler string // "http", "h2c", "tcp" or "grpc"
	host    string
	port    int // 0: the server's
	scheme  string
	path    string
	headers []netprobe.Header
	service string
	tls     bool

	// What deviations.go needs to know.
	early       bool // the server answers before it is asked
	headerBytes int  // size of the response's header where it matters
	frameBytes  int  // size of a gRPC frame where it matters
}

// An outcome is what a prober said and what the server saw of it.
type outcome struct {
	result string // "success", "warning", "failure", or "error" for what the kubelet never counts
	text   string // the output, or the error's text
	seen   string // the requests, one after another
}

// agent is the User-Agent of the linked kubelet, whose version is empty unless set when linking.
func agent() string {
	v := version.Get()
	return "kube-probe/" + v.Major + "." + v.Minor
}

// kubelet runs the kubelet's prober, in the manner of its own runProbe.
func (s *scenario) kubelet(host string, port int) outcome {
	var (
		result probe.Result
		output string
		err    error
	)
	switch s.handler {
	case "http", "h2c":
		result, output, err = s.kubeletHTTP(host, port)
	case "tcp":
		result, output, err = tcpprobe.New().Probe(host, port, s.timeout)
	case "grpc":
		result, output, err = grpcprobe.New().Probe(host, s.service, port, s.timeout, grpcprobe.ProbeOptions{UseTLS: s.tls})
	}
	if err != nil {
		return outcome{result: "error", text: err.Error()}
	}
	return outcome{result: string(result), text: output}
}

func (s *scenario) kubeletHTTP(host string, port int) (probe.Result, string, error) {
	get := &v1.HTTPGetAction{
		Scheme: v1.URIScheme(s.scheme), Host: host, Port: intstr.FromInt(port), Path: s.path,
	}
	for _, h := range s.headers {
		get.HTTPHeaders = append(get.HTTPHeaders, v1.HTTPHeader{Name: h.Name, Value: h.Value})
	}
	req, err := httpprobe.NewRequestForHTTPGetAction(get, &v1.Container{}, "", "probe")
	if err != nil {
		return probe.Unknown, "", err
	}
	prober := httpprobe.New(false)
	if s.handler == "h2c" {
		return prober.ProbeH2C(req, s.timeout)
	}
	return prober.Probe(req, s.timeout)
}

// ours runs package netprobe.
func (s *scenario) ours(ctx context.Context, host string, port int) outcome {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var (
		output string
		err    error
	)
	switch s.handler {
	case "http", "h2c":
		g := &netprobe.HTTPGet{
			Scheme: s.scheme, Host: host, Port: port, Path: s.path, Headers: s.headers,
			UserAgent: agent(), H2C: s.handler == "h2c",
		}
		output, err = g.Get(ctx)
	case "tcp":
		err = (&netprobe.TCPSocket{Host: host, Port: port}).Probe(ctx)
	case "grpc":
		g := &netprobe.GRPC{Host: host, Port: port, Service: s.service, UserAgent: agent()}
		if s.tls {
			g.TLS = &netprobe.TLS{}
		}
		if err = g.Probe(ctx); err == nil {
			output = "service healthy" // netprobe has no output for this
		}
	}
	return classify(output, err)
}

// classify puts an outcome of netprobe into the kubelet's terms.
func classify(output string, err error) outcome {
	var (
		warning       *netprobe.Warning
		indeterminate *netprobe.Indeterminate
		failed        *netprobe.Failure
	)
	switch {
	case err == nil:
		return outcome{result: "success", text: output}
	case errors.As(err, &warning):
		return outcome{result: "warning", text: warning.Text}
	case errors.As(err, &indeterminate):
		// netprobe says what it was doing; the kubelet gives the error alone.
		inner := errors.Unwrap(indeterminate.Err)
		if inner == nil {
			inner = indeterminate.Err
		}
		return outcome{result: "error", text: inner.Error()}
	case errors.As(err, &failed):
		return outcome{result: "failure", text: failed.Text}
	}
	return outcome{result: "an error of no known type", text: err.Error()}
}
