package main

import (
	"fmt"
	"regexp"
	"runtime/debug"
	"strings"
)

// The limits of netprobe that the kubelet does not have.
const (
	maxHeader  = 256 << 10
	maxMessage = 64 << 10
	maxText    = 4096
)

// A deviation is a difference we chose. Apply turns the kubelet's outcome into the one we want
// instead, and reports whether the scenario is concerned at all.
type deviation struct {
	id    string // as in docs/parity.md
	apply func(c played) (outcome, bool)
}

// A played scenario is what a deviation may look at.
type played struct {
	*scenario
	host          string // with whatever start added
	port          int
	kubelet, ours outcome
	again         func(host string) outcome // plays the kubelet's side against another host
}

// deviations are applied in this order.
func deviations() []deviation {
	return []deviation{
		{"bracketed-host", bracketedHost},
		{"timeout-words", timeoutWords},
		{"speaks-first", speaksFirst},
		{"header-limit", headerLimit},
		{"text-limit", textLimit},
		{"grpc-user-agent", grpcUserAgent},
		{"grpc-message-limit", messageLimit},
		{"grpc-transport-words", transportWords},
	}
}

// deviate applies all deviations and names those that mattered.
func deviate(c played) (outcome, []string) {
	var ids []string
	for _, d := range deviations() {
		if changed, ok := d.apply(c); ok {
			c.kubelet = changed
			ids = append(ids, d.id)
		}
	}
	return c.kubelet, ids
}

// bracketedHost: a host that brings its brackets is probed as the address inside them.
func bracketedHost(c played) (outcome, bool) {
	inner, ok := strings.CutPrefix(c.host, "[")
	if !ok || !strings.HasSuffix(inner, "]") {
		return c.kubelet, false
	}
	return c.again(strings.TrimSuffix(inner, "]")), true
}

// timeoutWords: the kubelet words a timeout over HTTPS in one of two ways, whichever timer of its
// older HTTP/2 client comes first. We always use the one.
func timeoutWords(c played) (outcome, bool) {
	text := regexp.MustCompile(`net/http: request canceled( while waiting for connection)? \(Client\.Timeout`).
		ReplaceAllString(c.kubelet.text, "context deadline exceeded (Client.Timeout")
	changed := text != c.kubelet.text
	c.kubelet.text = text
	return c.kubelet, changed
}

// speaksFirst: what the kubelet makes of a server that does not wait for the request depends on
// whether it reads before it has written. We never do.
func speaksFirst(c played) (outcome, bool) {
	if !c.early || c.handler != "http" || c.kubelet.result != c.ours.result || c.kubelet.text == c.ours.text {
		return c.kubelet, false
	}
	c.kubelet.text = c.ours.text
	return c.kubelet, true
}

// headerLimit: a header of more than 256 KiB is too much.
func headerLimit(c played) (outcome, bool) {
	if c.headerBytes <= maxHeader {
		return c.kubelet, false
	}
	c.kubelet.result = "failure"
	c.kubelet.text = fmt.Sprintf("Get \"http://%s:%d/\": net/http: HTTP/1.x transport connection broken: "+
		"net/http: server response headers exceeded %d bytes; aborted", c.host, c.port, maxHeader)
	return c.kubelet, true
}

// textLimit: the text of a failure is cut at 4 KiB.
func textLimit(c played) (outcome, bool) {
	if c.kubelet.result != "failure" || len(c.kubelet.text) <= maxText {
		return c.kubelet, false
	}
	c.kubelet.text = c.kubelet.text[:maxText] + "…"
	return c.kubelet, true
}

// grpcUserAgent: grpc-go adds its own name to the User-Agent.
func grpcUserAgent(c played) (outcome, bool) {
	if c.handler != "grpc" {
		return c.kubelet, false
	}
	seen := regexp.MustCompile(`(?m)^(User-Agent: .*) grpc-go/.*$`).ReplaceAllString(c.kubelet.seen, "$1")
	changed := seen != c.kubelet.seen
	c.kubelet.seen = seen
	return c.kubelet, changed
}

// messageLimit: a health answer of more than 64 KiB is too much; the kubelet's limit is 4 MiB. An
// answer that is no gRPC at all is not measured.
func messageLimit(c played) (outcome, bool) {
	if c.frameBytes <= maxMessage || strings.Contains(c.kubelet.text, "unexpected HTTP status code") {
		return c.kubelet, false
	}
	c.kubelet.result = "failure"
	c.kubelet.text = fmt.Sprintf("error: health rpc probe failed: rpc error: code = ResourceExhausted desc = "+
		"grpc: received message larger than max (%d vs. %d)", c.frameBytes, maxMessage)
	return c.kubelet, true
}

// transportWords: where a connection breaks before or during a call, the description is net/http's,
// and grpc-go has opened as many further connections as it found time for.
func transportWords(c played) (outcome, bool) {
	const words = "error: health rpc probe failed: rpc error: code = Unavailable desc = "
	same := c.kubelet.text == c.ours.text && c.kubelet.seen == c.ours.seen
	if same || !strings.HasPrefix(c.kubelet.text, words) || !strings.HasPrefix(c.ours.text, words) {
		return c.kubelet, false
	}
	c.kubelet.text, c.kubelet.seen = c.ours.text, c.ours.seen
	return c.kubelet, true
}

// kubernetesVersion is the version of k8s.io/kubernetes that is linked in.
func kubernetesVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "k8s.io/kubernetes" {
				return m.Version
			}
		}
	}
	return "of an unknown version"
}
