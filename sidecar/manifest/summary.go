package manifest

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// String returns the effective configuration, defaults included, in a form that is meant for people and stays the same
// for the same configuration. Values of headers that commonly hold secrets are left out. Warnings are not part of it.
func (m *Manifest) String() string {
	var b strings.Builder
	b.WriteString(m.Kind)
	switch {
	case m.Namespace != "" && m.Name != "":
		fmt.Fprintf(&b, " %s/%s", printable(m.Namespace), printable(m.Name))
	case m.Name != "":
		fmt.Fprintf(&b, " %s", printable(m.Name))
	}
	b.WriteByte('\n')
	for _, c := range m.Checks {
		b.WriteString(c.String())
	}
	if len(m.Checks) == 0 {
		b.WriteString("  no checks\n")
	}
	p := m.Policy
	fmt.Fprintf(&b, "  policy: freezeHoldSeconds %d, agentPing %s, guestPanicked %s, runCounters %s, httpBodyErrors %s\n",
		p.FreezeHold/time.Second, p.AgentPing, p.GuestPanicked, p.RunCounters, p.HTTPBodyErrors)
	return b.String()
}

// String returns the check as a few lines of its manifest's summary.
func (c Check) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %s (%s", printable(c.Name), c.Kind)
	if c.Warn {
		b.WriteString(", warns only")
	}
	fmt.Fprintf(&b, "): %s\n", c.Handler)
	if g := c.Handler.HTTPGet; g != nil {
		for _, h := range g.Headers {
			fmt.Fprintf(&b, "    header %s: %s\n", printable(h.Name), headerValue(h))
		}
		if g.TLS != nil {
			fmt.Fprintf(&b, "    tls: %s\n", g.TLS)
		}
	}
	if g := c.Handler.GRPC; g != nil && g.TLS != nil {
		fmt.Fprintf(&b, "    tls: %s\n", g.TLS)
	}
	if t := c.Handler.TCPSocket; t != nil && t.Expect != nil {
		if t.Send != "" {
			fmt.Fprintf(&b, "    send %q\n", t.Send)
		}
		fmt.Fprintf(&b, "    expect %q\n", t.Expect)
	}
	if len(c.IPFamilies) > 0 {
		fmt.Fprintf(&b, "    ipFamilies %s\n", strings.Join(c.IPFamilies, ", "))
	}
	fmt.Fprintf(&b, "    initialDelaySeconds %d, periodSeconds %d, timeoutSeconds %d, failureThreshold %d, successThreshold %d\n",
		c.InitialDelay/time.Second, c.Period/time.Second, c.Timeout/time.Second, c.FailureThreshold, c.SuccessThreshold)
	if c.TerminationGracePeriod != nil {
		fmt.Fprintf(&b, "    terminationGracePeriodSeconds %d\n", *c.TerminationGracePeriod/time.Second)
	}
	return b.String()
}

// String returns the handler and its target in one line, e.g. "httpGet http://<guest>:1500/healthz".
func (h Handler) String() string {
	switch {
	case h.Exec != nil:
		words := make([]string, len(h.Exec.Command))
		for i, w := range h.Exec.Command {
			words[i] = printable(w)
		}
		return "exec " + strings.Join(words, " ")
	case h.HTTPGet != nil:
		g := h.HTTPGet
		path := g.Path
		if !strings.HasPrefix(path, "/") {
			path = "/" + path
		}
		protocol := ""
		if g.Protocol == "HTTP2" {
			protocol = " by HTTP/2"
		}
		return "httpGet " + printable(strings.ToLower(g.Scheme)+"://"+target(g.Host, g.Port, g.PortName)+path) + portName(g.PortName) + protocol
	case h.TCPSocket != nil:
		t := h.TCPSocket
		return "tcpSocket " + printable(target(t.Host, t.Port, t.PortName)) + portName(t.PortName)
	case h.GRPC != nil:
		s := "grpc " + target("", h.GRPC.Port, "")
		if h.GRPC.Service != "" {
			s += " service " + printable(h.GRPC.Service)
		}
		return s
	}
	return h.name()
}

// target returns host and port; the guest's address, which no manifest knows, is written <guest>.
func target(host string, port int, name string) string {
	number := strconv.Itoa(port)
	if port == 0 {
		number = name // not resolved yet
	}
	if host == "" {
		return "<guest>:" + number
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), number)
}

func portName(name string) string {
	if name == "" {
		return ""
	}
	return " (port " + strconv.Quote(name) + ")"
}

// headerValue returns the value as it may be shown.
func headerValue(h Header) string {
	name := strings.ToLower(h.Name)
	for _, word := range []string{"auth", "cookie", "token", "secret", "key", "password", "credential", "signature"} {
		if strings.Contains(name, word) {
			return "(not shown)"
		}
	}
	return strconv.Quote(h.Value)
}

// String returns what is verified and the files' names.
func (t *TLS) String() string {
	s := fmt.Sprintf("verify %t", t.Verify)
	for _, f := range []struct{ name, value string }{
		{"caFile", t.CAFile}, {"serverName", t.ServerName}, {"certFile", t.CertFile}, {"keyFile", t.KeyFile},
	} {
		if f.value != "" {
			s += ", " + f.name + " " + printable(f.value)
		}
	}
	return s
}
