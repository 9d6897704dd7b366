package manifest

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/sidecar/probe"
)

// maxExpect is the size of a regular expression. Compiled, it can take a thousand times the memory.
const maxExpect = 1024

// check applies defaults and rules to a stanza, in the order of k8s v1.37.2 pkg/apis/core/validation/validation.go:3361-3663,
// and returns what is left of it. What is wrong is reported; the check is then of no use.
func (r *reader) check(p *rawProbe, name string, kind probe.Kind) Check {
	c := Check{Name: name, Kind: kind, Path: p.path}
	if len(p.handlers) == 0 {
		detail := "must specify a handler type"
		if p.null != "" {
			detail += fmt.Sprintf(" (%s is null: write %s: {})", p.null, p.null)
		}
		r.fail(p.line, p.path, ErrorTypeRequired, "", detail)
	}
	for i, h := range p.handlers {
		if i > 0 {
			r.fail(h.line, join(p.path, h.name), ErrorTypeForbidden, "", "may not specify more than 1 handler type")
			continue
		}
		c.Handler = r.handler(h, join(p.path, h.name))
	}
	r.numbers(p, &c)
	r.extras(p, &c)
	return c
}

func (r *reader) handler(h rawHandler, path string) Handler {
	switch {
	case h.exec != nil:
		return r.exec(h, path)
	case h.httpGet != nil:
		return Handler{HTTPGet: r.httpGet(h.httpGet, path)}
	case h.tcpSocket != nil:
		t := &TCPSocket{Host: h.tcpSocket.host.value}
		t.Port, t.PortName = r.port(h.tcpSocket.port, join(path, "port"), true)
		return Handler{TCPSocket: t}
	case h.grpc != nil:
		g := &GRPC{Service: h.grpc.service.value}
		g.Port, _ = r.port(h.grpc.port, join(path, "port"), false)
		return Handler{GRPC: g}
	case h.name == "guestAgentPing":
		return Handler{GuestAgentPing: &GuestAgentPing{}}
	}
	return Handler{} // no mapping, as has been reported
}

func (r *reader) exec(h rawHandler, path string) Handler {
	path = join(path, "command")
	switch {
	case h.exec.bad:
		return Handler{Exec: &Exec{}}
	case len(h.exec.command) == 0:
		r.fail(h.line, path, ErrorTypeRequired, "", "")
		return Handler{Exec: &Exec{}}
	}
	command, ping, err := Unwrap(h.exec.command)
	switch {
	case err != nil:
		r.fail(h.line, path, ErrorTypeInvalid, quote(strings.Join(h.exec.command, " ")), err.Error())
	case ping:
		return Handler{GuestAgentPing: &GuestAgentPing{}}
	}
	// The kubelet knows the environment of compute, which is neither the guest's nor the owner's to choose. Here no name
	// is known, so that only the escape is left of what it does.
	guest := make([]string, len(command))
	for i, arg := range command {
		guest[i] = expand(arg, func(string) (string, bool) { return "", false })
	}
	if err == nil && guest[0] == "" {
		r.fail(h.line, path+"[0]", ErrorTypeRequired, "", "the program to run")
	}
	for i, arg := range guest {
		if strings.ContainsRune(arg, 0) { // no argument of a program can
			r.fail(h.line, fmt.Sprintf("%s[%d]", path, i), ErrorTypeInvalid, quote(arg), "must not contain a NUL character")
		}
	}
	return Handler{Exec: &Exec{Command: guest}}
}

func (r *reader) httpGet(raw *rawHTTPGet, path string) *HTTPGet {
	g := &HTTPGet{Host: raw.host.value, Path: raw.path.value, Scheme: raw.scheme.value, Protocol: "HTTP1"}
	if g.Path == "" { // defaults.go:358
		g.Path = "/"
	}
	if g.Scheme == "" {
		g.Scheme = "HTTP"
	}
	g.Port, g.PortName = r.port(raw.port, join(path, "port"), true)
	r.oneOf(field[string]{set: true, value: g.Scheme, line: raw.scheme.line}, join(path, "scheme"), "HTTP", "HTTPS")
	header := regexp.MustCompile(`^[-A-Za-z0-9]+$`)
	for _, h := range raw.headers {
		if !header.MatchString(h.name) {
			r.fail(h.line, join(path, "httpHeaders"), ErrorTypeInvalid, quote(h.name), "a valid HTTP header must consist of "+
				"alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')")
		}
		g.Headers = append(g.Headers, Header{Name: h.name, Value: h.value})
	}
	if raw.protocol.value != "" { // alpha in Kubernetes 1.37; the rules are those of validation.go:3576
		g.Protocol = r.oneOf(raw.protocol, join(path, "protocol"), "HTTP1", "HTTP2")
	}
	if g.Protocol == "HTTP2" && (g.Scheme != "HTTP" || g.Host != "") {
		r.fail(raw.protocol.line, join(path, "protocol"), ErrorTypeInvalid, quote(g.Protocol), "may only be set with scheme HTTP and without host")
	}
	return g
}

// oneOf checks a value against the closed list of what it may be.
func (r *reader) oneOf(f field[string], path string, supported ...string) string {
	if f.set && !slices.Contains(supported, f.value) {
		r.fail(f.line, path, ErrorTypeNotSupported, quote(f.value), "supported values: "+quoteAll(supported))
	}
	return f.value
}

// port checks a port by ValidatePortNumOrName (validation.go:3588) and resolves its name.
func (r *reader) port(p rawPort, path string, named bool) (number int, name string) {
	switch {
	case p.bad:
	case !p.set:
		r.fail(p.line, path, ErrorTypeRequired, "", "")
	case !p.isName && (p.number < 1 || p.number > 65535):
		r.fail(p.line, path, ErrorTypeInvalid, p.shown, "must be between 1 and 65535, inclusive")
	case !p.isName:
		return int(p.number), ""
	case !named:
		r.fail(p.line, path, ErrorTypeInvalid, p.shown, "must be an integer")
	default:
		faults := portNameFaults(p.name)
		for _, fault := range faults {
			r.fail(p.line, path, ErrorTypeInvalid, p.shown, fault)
		}
		if len(faults) == 0 {
			return r.resolve(p, path), p.name
		}
	}
	return 0, ""
}

// resolve looks a port's name up, or leaves that to Merge.
func (r *reader) resolve(p rawPort, path string) int {
	number, err := resolvePort(p, r.ports)
	if err == nil {
		return number
	}
	e := &Error{File: r.src.file, Line: p.line, Field: path, Type: ErrorTypeInvalid, Value: p.shown, Detail: err.Error()}
	if r.portsLater {
		r.unresolved = append(r.unresolved, e)
	} else {
		r.add(e)
	}
	return 0
}

// resolvePort is ResolveContainerPort of the kubelet (pkg/probe/util.go), with its wording. The names are those of the
// VM's interfaces, from which KubeVirt makes the ports of the compute container.
func resolvePort(p rawPort, ports map[string]int) (int, error) {
	number := p.number
	if p.isName {
		found, ok := ports[p.name]
		if !ok {
			return 0, fmt.Errorf("port %q not found", p.name)
		}
		number = int64(found)
	}
	if number < 1 || number > 65535 {
		return 0, fmt.Errorf("invalid port number: %d", number)
	}
	return int(number), nil
}

// portNameFaults is IsValidPortName of k8s.io/apimachinery pkg/util/validation.
func portNameFaults(name string) []string {
	var faults []string
	if len(name) > 15 {
		faults = append(faults, "must be no more than 15 characters")
	}
	if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		faults = append(faults, "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
	}
	if !strings.ContainsAny(name, "abcdefghijklmnopqrstuvwxyz") {
		fault := "must contain at least one letter (a-z)"
		if isDigits(name) {
			fault += "; a port number stands without quotes"
		}
		faults = append(faults, fault)
	}
	if strings.Contains(name, "--") {
		faults = append(faults, "must not contain consecutive hyphens")
	}
	if strings.HasPrefix(name, "-") || strings.HasSuffix(name, "-") {
		faults = append(faults, "must not begin or end with a hyphen")
	}
	return faults
}

// numbers applies the defaults (defaults.go:275: zero means unset) and the rules of what is counted.
func (r *reader) numbers(p *rawProbe, c *Check) {
	number := func(f field[int64], key string, preset int64) int64 {
		switch {
		case f.value == 0:
			return preset
		case f.value < 0:
			r.fail(f.line, join(p.path, key), ErrorTypeInvalid, fmt.Sprint(f.value), "must be greater than or equal to 0")
		}
		return f.value
	}
	seconds := func(n int64) time.Duration { return time.Duration(n) * time.Second }
	initialDelay := number(p.initialDelay, "initialDelaySeconds", 0)
	timeout := number(p.timeout, "timeoutSeconds", 1)
	period := number(p.period, "periodSeconds", 10)
	c.InitialDelay, c.Timeout, c.Period = seconds(initialDelay), seconds(timeout), seconds(period)
	c.SuccessThreshold = int(number(p.success, "successThreshold", 1))
	c.FailureThreshold = int(number(p.failure, "failureThreshold", 3))

	grace := join(p.path, "terminationGracePeriodSeconds")
	if p.grace.set {
		if p.grace.value <= 0 {
			r.fail(p.grace.line, grace, ErrorTypeInvalid, fmt.Sprint(p.grace.value), "must be greater than 0")
		}
		d := seconds(p.grace.value)
		c.TerminationGracePeriod = &d
	}
	switch c.Kind {
	case probe.Readiness:
		if p.grace.set {
			r.fail(p.grace.line, grace, ErrorTypeInvalid, fmt.Sprint(p.grace.value), "must not be set for readinessProbes")
		}
	default:
		if c.SuccessThreshold != 1 {
			r.fail(p.success.line, join(p.path, "successThreshold"), ErrorTypeInvalid, fmt.Sprint(c.SuccessThreshold), "must be 1")
		}
	}
	if timeout >= period && period > 0 {
		line := p.timeout.line
		if line == 0 {
			line = p.period.line
		}
		r.warn(line, join(p.path, "timeoutSeconds"), "%d is not less than periodSeconds (%d): legal in Kubernetes, but a probe that takes so long delays the next ones, and KubeVirt's manual asks for less", timeout, period)
	}
}

// extras applies the rules of what GuestProbes adds to a probe. They speak of fields that go with a certain handler.
func (r *reader) extras(p *rawProbe, c *Check) {
	only := func(line int, key, handler string) {
		r.fail(line, join(p.path, key), ErrorTypeForbidden, "", "may only be set with "+handler)
	}
	tcp, http := c.Handler.TCPSocket, c.Handler.HTTPGet
	if c.Handler == (Handler{}) { // reported; what goes with the missing one cannot be told
		return
	}
	switch {
	case p.expect.set && tcp == nil:
		only(p.expect.line, "expect", "tcpSocket")
	case len(p.expect.value) > maxExpect:
		r.fail(p.expect.line, join(p.path, "expect"), ErrorTypeTooLong, "", fmt.Sprintf("may not be more than %d bytes", maxExpect))
	case p.expect.set:
		re, err := regexp.Compile(p.expect.value)
		if err != nil {
			r.fail(p.expect.line, join(p.path, "expect"), ErrorTypeInvalid, quote(p.expect.value), oneLine(err))
		}
		tcp.Expect = re
	}
	switch {
	case !p.send.set:
	case tcp == nil:
		only(p.send.line, "send", "tcpSocket")
	case !p.expect.set:
		only(p.send.line, "send", "expect")
	default:
		tcp.Send = p.send.value
	}
	switch {
	case p.tls == nil:
	case c.Handler.GRPC != nil:
		c.Handler.GRPC.TLS = r.tls(p.tls, join(p.path, "tls"))
	case http == nil:
		only(p.tls.line, "tls", "httpGet or grpc")
	case http.Scheme != "HTTPS":
		only(p.tls.line, "tls", "httpGet.scheme HTTPS")
	default:
		http.TLS = r.tls(p.tls, join(p.path, "tls"))
	}
	r.families(p, c)
}

func (r *reader) tls(raw *rawTLS, path string) *TLS {
	t := &TLS{Verify: raw.verify.value, CAFile: raw.caFile.value, ServerName: raw.serverName.value,
		CertFile: raw.certFile.value, KeyFile: raw.keyFile.value}
	if t.CAFile != "" && !t.Verify {
		r.fail(raw.caFile.line, join(path, "caFile"), ErrorTypeForbidden, "", "may only be set with verify: true; without it no certificate is verified")
	}
	if t.CertFile != "" && t.KeyFile == "" {
		r.fail(raw.line, join(path, "keyFile"), ErrorTypeRequired, "", "certFile and keyFile go together")
	}
	if t.KeyFile != "" && t.CertFile == "" {
		r.fail(raw.line, join(path, "certFile"), ErrorTypeRequired, "", "certFile and keyFile go together")
	}
	return t
}

func (r *reader) families(p *rawProbe, c *Check) {
	if p.familiesLine == 0 {
		return
	}
	host := ""
	switch {
	case c.Handler.HTTPGet != nil:
		host = c.Handler.HTTPGet.Host
	case c.Handler.TCPSocket != nil:
		host = c.Handler.TCPSocket.Host
	case c.Handler.GRPC != nil:
	default:
		r.fail(p.familiesLine, join(p.path, "ipFamilies"), ErrorTypeForbidden, "", "may only be set with httpGet, tcpSocket or grpc")
		return
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	for i, f := range p.ipFamilies {
		path := fmt.Sprintf("%s[%d]", join(p.path, "ipFamilies"), i)
		r.oneOf(f, path, "IPv4", "IPv6")
		if slices.Contains(c.IPFamilies, f.value) {
			r.fail(f.line, path, ErrorTypeDuplicate, quote(f.value), "")
			continue
		}
		if err == nil && (f.value == "IPv4" && !addr.Unmap().Is4() || f.value == "IPv6" && addr.Unmap().Is4()) {
			r.fail(f.line, path, ErrorTypeInvalid, quote(f.value), fmt.Sprintf("the host %s is no %s address", quote(host), f.value))
		}
		c.IPFamilies = append(c.IPFamilies, f.value)
	}
}

// oneLine keeps an error's text to one line, whatever it quotes.
func oneLine(err error) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, err.Error())
}
