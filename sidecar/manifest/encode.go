package manifest

import (
	"encoding/json"
	"time"
)

// Encode returns the manifest as a GuestProbes document in JSON, with every default written out, named ports as numbers
// and annotations merged: a self-contained form to hand to another process. [Parse] gives the same checks and policy
// back. Named ports that are unresolved, as after [ParseSpec], stay names.
func (m *Manifest) Encode() ([]byte, error) {
	d := encodedDocument{APIVersion: APIVersion, Kind: KindGuestProbes}
	d.Metadata.Name, d.Metadata.Namespace = m.Name, m.Namespace
	for _, c := range m.Checks {
		p := encodeCheck(c)
		switch c.Name {
		case StartupProbe:
			d.Spec.StartupProbe = p
		case ReadinessProbe:
			d.Spec.ReadinessProbe = p
		case LivenessProbe:
			d.Spec.LivenessProbe = p
		default:
			p.Name, p.Kind, p.Severity = c.Name, c.Kind.String(), "fail"
			if c.Warn {
				p.Severity = "warn"
			}
			d.Spec.Checks = append(d.Spec.Checks, p)
		}
	}
	d.Spec.Policy = encodedPolicy{
		FreezeHoldSeconds: int64(m.Policy.FreezeHold / time.Second), AgentPing: m.Policy.AgentPing, GuestPanicked: m.Policy.GuestPanicked,
		RunCounters: m.Policy.RunCounters, HTTPBodyErrors: m.Policy.HTTPBodyErrors,
	}
	return json.Marshal(d)
}

type encodedDocument struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string `json:"name,omitempty"`
		Namespace string `json:"namespace,omitempty"`
	} `json:"metadata"`
	Spec struct {
		StartupProbe   *encodedCheck   `json:"startupProbe,omitempty"`
		ReadinessProbe *encodedCheck   `json:"readinessProbe,omitempty"`
		LivenessProbe  *encodedCheck   `json:"livenessProbe,omitempty"`
		Checks         []*encodedCheck `json:"checks,omitempty"`
		Policy         encodedPolicy   `json:"policy"`
	} `json:"spec"`
}

type encodedCheck struct {
	Name     string `json:"name,omitempty"`
	Kind     string `json:"kind,omitempty"`
	Severity string `json:"severity,omitempty"`

	Exec           *encodedExec    `json:"exec,omitempty"`
	GuestAgentPing *GuestAgentPing `json:"guestAgentPing,omitempty"`
	HTTPGet        *encodedHTTPGet `json:"httpGet,omitempty"`
	TCPSocket      *encodedTCP     `json:"tcpSocket,omitempty"`
	GRPC           *encodedGRPC    `json:"grpc,omitempty"`

	Expect     *string     `json:"expect,omitempty"`
	Send       string      `json:"send,omitempty"`
	TLS        *encodedTLS `json:"tls,omitempty"`
	IPFamilies []string    `json:"ipFamilies,omitempty"`

	InitialDelaySeconds           int64  `json:"initialDelaySeconds"`
	PeriodSeconds                 int64  `json:"periodSeconds"`
	TimeoutSeconds                int64  `json:"timeoutSeconds"`
	FailureThreshold              int    `json:"failureThreshold"`
	SuccessThreshold              int    `json:"successThreshold"`
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"`
}

type encodedExec struct {
	Command []string `json:"command"`
}

type encodedHTTPGet struct {
	Scheme      string          `json:"scheme"`
	Host        string          `json:"host,omitempty"`
	Port        any             `json:"port"`
	Path        string          `json:"path"`
	Protocol    string          `json:"protocol,omitempty"`
	HTTPHeaders []encodedHeader `json:"httpHeaders,omitempty"`
}

type encodedHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type encodedTCP struct {
	Host string `json:"host,omitempty"`
	Port any    `json:"port"`
}

type encodedGRPC struct {
	Port    int    `json:"port"`
	Service string `json:"service,omitempty"`
}

type encodedTLS struct {
	Verify     bool   `json:"verify"`
	CAFile     string `json:"caFile,omitempty"`
	ServerName string `json:"serverName,omitempty"`
	CertFile   string `json:"certFile,omitempty"`
	KeyFile    string `json:"keyFile,omitempty"`
}

type encodedPolicy struct {
	FreezeHoldSeconds int64          `json:"freezeHoldSeconds"`
	AgentPing         AgentPing      `json:"agentPing"`
	GuestPanicked     GuestPanicked  `json:"guestPanicked"`
	RunCounters       RunCounters    `json:"runCounters"`
	HTTPBodyErrors    HTTPBodyErrors `json:"httpBodyErrors"`
}

func encodeCheck(c Check) *encodedCheck {
	seconds := func(d time.Duration) int64 { return int64(d / time.Second) }
	p := &encodedCheck{
		GuestAgentPing: c.Handler.GuestAgentPing, IPFamilies: c.IPFamilies,
		InitialDelaySeconds: seconds(c.InitialDelay), PeriodSeconds: seconds(c.Period), TimeoutSeconds: seconds(c.Timeout),
		FailureThreshold: c.FailureThreshold, SuccessThreshold: c.SuccessThreshold,
	}
	if c.TerminationGracePeriod != nil {
		grace := seconds(*c.TerminationGracePeriod)
		p.TerminationGracePeriodSeconds = &grace
	}
	port := func(number int, name string) any {
		if number == 0 {
			return name
		}
		return number
	}
	switch h := c.Handler; {
	case h.Exec != nil:
		p.Exec = &encodedExec{}
		for _, arg := range h.Exec.Command {
			p.Exec.Command = append(p.Exec.Command, escape(arg))
		}
	case h.HTTPGet != nil:
		g := h.HTTPGet
		p.HTTPGet = &encodedHTTPGet{Scheme: g.Scheme, Host: g.Host, Port: port(g.Port, g.PortName), Path: g.Path}
		if g.Protocol != "HTTP1" {
			p.HTTPGet.Protocol = g.Protocol
		}
		for _, header := range g.Headers {
			p.HTTPGet.HTTPHeaders = append(p.HTTPGet.HTTPHeaders, encodedHeader(header))
		}
		if g.TLS != nil {
			t := encodedTLS(*g.TLS)
			p.TLS = &t
		}
	case h.TCPSocket != nil:
		t := h.TCPSocket
		p.TCPSocket = &encodedTCP{Host: t.Host, Port: port(t.Port, t.PortName)}
		if t.Expect != nil {
			expect := t.Expect.String()
			p.Expect, p.Send = &expect, t.Send
		}
	case h.GRPC != nil:
		p.GRPC = &encodedGRPC{Port: h.GRPC.Port, Service: h.GRPC.Service}
		if h.GRPC.TLS != nil {
			t := encodedTLS(*h.GRPC.TLS)
			p.TLS = &t
		}
	}
	return p
}
