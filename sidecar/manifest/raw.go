package manifest

import (
	"fmt"
	"math"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The raw types hold a probe stanza as written: right types, no defaults, no rules applied.

type rawProbe struct {
	path string
	line int
	// The handlers that are there, in the order in which the API looks at them (validation.go:3616): the first counts.
	handlers []rawHandler
	null     string // a handler that is there but null, the usual slip for guestAgentPing: {}

	initialDelay, timeout, period, success, failure, grace field[int64]

	expect, send field[string]
	tls          *rawTLS
	ipFamilies   []field[string]
	familiesLine int // 0: no ipFamilies, or no list of strings
}

// A rawHandler has one of its members set.
type rawHandler struct {
	name      string
	line      int
	exec      *rawExec
	httpGet   *rawHTTPGet
	tcpSocket *rawTCPSocket
	grpc      *rawGRPC
}

type rawExec struct {
	command []string
	bad     bool // no list of strings, as has been reported
}

type rawHTTPGet struct {
	port                         rawPort
	path, host, scheme, protocol field[string]
	headers                      []rawHeader
}

type rawHeader struct {
	name, value string
	line        int
}

type rawTCPSocket struct {
	port rawPort
	host field[string]
}

type rawGRPC struct {
	port    rawPort
	service field[string]
}

// A rawPort is a number or a name.
type rawPort struct {
	set, bad bool // bad: reported already
	isName   bool
	name     string
	number   int64
	shown    string
	line     int
}

type rawTLS struct {
	line                                  int
	verify                                field[bool]
	caFile, serverName, certFile, keyFile field[string]
}

// readProbe reads the fields of a probe stanza. extended allows what only a GuestProbes document may say.
// The caller reads further fields, if any, and finishes the object.
func (o *object) readProbe(extended bool) *rawProbe {
	p := &rawProbe{path: o.path, line: o.line}
	for _, name := range []string{"exec", "httpGet", "tcpSocket", "grpc", "guestAgentPing"} {
		if h, ok := o.readHandler(name); ok {
			p.handlers = append(p.handlers, h)
		} else if n, there := o.nodes[name]; there && isNull(n) {
			p.null = name
		}
	}
	p.initialDelay = o.int32("initialDelaySeconds")
	p.timeout = o.int32("timeoutSeconds")
	p.period = o.int32("periodSeconds")
	p.success = o.int32("successThreshold")
	p.failure = o.int32("failureThreshold")
	p.grace = o.integer("terminationGracePeriodSeconds", math.MaxInt64/1_000_000_000)
	if extended {
		p.expect, p.send = o.string("expect"), o.string("send")
		p.tls = o.readTLS()
		var ok bool
		if p.ipFamilies, ok = o.strings("ipFamilies"); ok && o.get("ipFamilies") != nil {
			p.familiesLine = o.lines["ipFamilies"]
		}
		return p
	}
	for _, key := range []string{"expect", "send", "tls", "ipFamilies"} {
		if o.tolerate(key) {
			o.r.fail(o.lines[key], join(o.path, key), ErrorTypeForbidden, "", "may only be set in a GuestProbes document or in the annotation "+Annotation)
		}
	}
	for _, key := range []string{"grpc", "terminationGracePeriodSeconds"} {
		if o.nodes[key] != nil && !isNull(o.nodes[key]) {
			o.r.warn(o.lines[key], join(o.path, key), "KubeVirt's API has no such field and drops it; it counts only where Guestprobe is given this file")
		}
	}
	return p
}

func (o *object) readHandler(name string) (rawHandler, bool) {
	h := rawHandler{name: name, line: o.lines[name]}
	n := o.get(name)
	if n == nil {
		return h, false
	}
	hint := ""
	if name == "guestAgentPing" {
		hint = ": write guestAgentPing: {}"
	}
	a := o.r.object(n, h.line, join(o.path, name), hint)
	if a == nil {
		return h, true // a handler of no use, but one: no second error about its absence
	}
	hints := map[string]string{}
	switch name {
	case "exec":
		words, ok := a.strings("command")
		h.exec = &rawExec{bad: !ok}
		for _, w := range words {
			h.exec.command = append(h.exec.command, w.value)
		}
	case "httpGet":
		h.httpGet = &rawHTTPGet{
			port: a.readPort(), path: a.string("path"), host: a.string("host"), scheme: a.word("scheme"), protocol: a.word("protocol"),
		}
		h.httpGet.headers = a.readHeaders()
		hints["tls"] = "tls goes beside httpGet, not into it"
		hints["headers"] = `did you mean "httpHeaders"?`
	case "tcpSocket":
		h.tcpSocket = &rawTCPSocket{port: a.readPort(), host: a.string("host")}
		hints["expect"] = "expect goes beside tcpSocket, not into it"
		hints["send"] = "send goes beside tcpSocket, not into it"
	case "grpc":
		h.grpc = &rawGRPC{port: a.readPort(), service: a.string("service")}
		hints["host"] = "a grpc probe always goes to the guest's address"
	}
	a.finish(hints)
	return h, true
}

func (o *object) readHeaders() []rawHeader {
	var headers []rawHeader
	path := join(o.path, "httpHeaders")
	for i, n := range o.items("httpHeaders") {
		h := o.r.object(n, o.r.src.line(n.Line), fmt.Sprintf("%s[%d]", path, i), " with name and value")
		if h == nil {
			continue
		}
		headers = append(headers, rawHeader{name: h.string("name").value, value: h.string("value").value, line: h.line})
		h.finish(nil)
	}
	return headers
}

func (o *object) readPort() rawPort {
	n := o.get("port")
	if n == nil {
		return rawPort{line: o.line}
	}
	p := rawPort{set: true, line: o.lines["port"], shown: show(n)}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		p.isName, p.name = true, n.Value
		return p
	}
	number, whole := wholeNumber(n)
	if !whole {
		p.bad = true
		o.r.fail(p.line, join(o.path, "port"), ErrorTypeInvalid, p.shown, "must be an integer or the name of a port")
	}
	p.number = number
	return p
}

func (o *object) readTLS() *rawTLS {
	t := o.child("tls")
	if t == nil {
		return nil
	}
	raw := &rawTLS{
		line: t.line, verify: t.bool("verify"), caFile: t.string("caFile"), serverName: t.string("serverName"),
		certFile: t.string("certFile"), keyFile: t.string("keyFile"),
	}
	t.finish(map[string]string{"insecureSkipVerify": "nothing is verified unless verify is true", "ca": `did you mean "caFile"?`,
		"cert": `did you mean "certFile"?`, "key": `did you mean "keyFile"?`})
	return raw
}

// isDigits tells whether a port's name is a number that someone put in quotes.
func isDigits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
