package manifest

import (
	"regexp"
	"time"

	"github.com/guestprobe/guestprobe/sidecar/probe"
)

// The kinds of document that Parse reads, as Manifest.Kind names them.
const (
	KindVirtualMachine         = "VirtualMachine"
	KindVirtualMachineInstance = "VirtualMachineInstance"
	KindGuestProbes            = "GuestProbes"
)

// APIVersion is the apiVersion of a GuestProbes document.
const APIVersion = "guestprobe.dev/v1alpha1"

// Annotation is the annotation of a VirtualMachineInstance (or of a VirtualMachine's template) whose value is the spec
// of a GuestProbes document. [Parse] merges it over the object's own probes, as [Merge] does.
const Annotation = "guestprobe.dev/probes"

// The names that the checks of the three probe stanzas go by. They are no valid names in checks:, so they never collide.
const (
	StartupProbe   = "startupProbe"
	ReadinessProbe = "readinessProbe"
	LivenessProbe  = "livenessProbe"
)

// A Manifest is what one VM is to be probed for: validated, defaults filled in, named ports resolved.
type Manifest struct {
	// Kind is KindVirtualMachine, KindVirtualMachineInstance or KindGuestProbes.
	Kind string
	// Name and Namespace are the metadata's, "" where it has none.
	Name, Namespace string
	// Checks holds startupProbe, readinessProbe and livenessProbe, those that are set, then checks: in the file's order.
	Checks []Check
	// Policy is complete: what the file does not set has its default.
	Policy Policy
	// Warnings are about what is legal but hardly meant; one line each, with file, line and path, like the errors.
	Warnings []string

	ports     map[string]int // name -> number, of the interfaces' ports; the first of a name counts
	policySet []string       // the policy's fields that the file sets; Merge overrides only with these

	// unresolved are the errors of the named ports that only the manifest merged into can know; see ParseSpec.
	unresolved []*Error
}

// A Check is one probe with its thresholds.
type Check struct {
	// Name is unique in its manifest: StartupProbe, ReadinessProbe, LivenessProbe, or the name given in checks:.
	Name string
	// Kind says which verdict the check takes part in.
	Kind probe.Kind
	// Warn is severity: warn. Such a check shows up everywhere and fails nothing.
	Warn bool
	// Handler holds what to do.
	Handler Handler
	// InitialDelay, Period and Timeout are whole seconds. Period and Timeout are at least one.
	InitialDelay, Period, Timeout time.Duration
	// SuccessThreshold and FailureThreshold are at least 1; SuccessThreshold is 1 for liveness and startup.
	SuccessThreshold, FailureThreshold int
	// TerminationGracePeriod is nil unless set; never set for readiness.
	TerminationGracePeriod *time.Duration
	// IPFamilies is a list of "IPv4" and "IPv6", each at most once: the check runs once in each. Empty: no constraint.
	IPFamilies []string
	// Path is the path of the field the check comes from, e.g. "spec.template.spec.readinessProbe" or "spec.checks[0]".
	Path string
}

// A Handler holds exactly one non-nil member.
type Handler struct {
	Exec           *Exec
	GuestAgentPing *GuestAgentPing
	HTTPGet        *HTTPGet
	TCPSocket      *TCPSocket
	GRPC           *GRPC
}

// Exec runs a command in the guest, by its agent.
type Exec struct {
	// Command is the program and its arguments as the guest is to get them, never empty: unwrapped where KubeVirt had
	// wrapped it in virt-probe, and with $$ made $ as the kubelet does.
	Command []string
}

// GuestAgentPing asks the guest's agent whether it is there. Policy.AgentPing says by which command.
type GuestAgentPing struct{}

// HTTPGet is an HTTP GET of the guest.
type HTTPGet struct {
	// Scheme is "HTTP" or "HTTPS".
	Scheme string
	// Host is as given; "" means the guest's address.
	Host string
	// Port is 1 to 65535. PortName is the name it was resolved from, or "".
	Port     int
	PortName string
	// Path is never empty; it may lack the leading slash and may hold a query, as in the Kubernetes API.
	Path string
	// Protocol is "HTTP1" or "HTTP2", which is HTTP/2 without TLS.
	Protocol string
	// Headers are in the manifest's order; a name may repeat.
	Headers []Header
	// TLS is nil unless set, and only with Scheme "HTTPS". Nil means as the kubelet does: nothing is verified.
	TLS *TLS
}

// A Header is one header of the request.
type Header struct{ Name, Value string }

// TLS says how an HTTPS check proves the server and itself. Files are named, not read.
type TLS struct {
	// Verify demands a certificate that chains to CAFile (or the system's authorities) and is valid for the server name.
	Verify bool
	// CAFile is a PEM file of authorities; "" means the system's. Only with Verify.
	CAFile string
	// ServerName is the name to ask for and to verify; "" means the host's.
	ServerName string
	// CertFile and KeyFile are the client's certificate and key, PEM; both or none.
	CertFile, KeyFile string
}

// TCPSocket is a connection to a port of the guest.
type TCPSocket struct {
	// Host is as given; "" means the guest's address.
	Host string
	// Port is 1 to 65535. PortName is the name it was resolved from, or "".
	Port     int
	PortName string
	// Expect is what the first bytes that the guest sends have to match; nil: connecting is enough.
	Expect *regexp.Regexp
	// Send is written once connected, before anything is read. Only with Expect.
	Send string
}

// GRPC is a call of grpc.health.v1.Health/Check at the guest's address.
type GRPC struct {
	// Port is 1 to 65535.
	Port int
	// Service is the service asked about; "" is the server as a whole.
	Service string
	// TLS is nil unless set. Nil means as the kubelet does: without TLS.
	TLS *TLS
}

// A Policy holds what concerns the VM as a whole.
type Policy struct {
	// FreezeHold is how long frozen filesystems hold the last state at most; 0: not at all. Default 60 s.
	FreezeHold time.Duration
	// AgentPing is the command that guestAgentPing sends. Default AgentPingPing.
	AgentPing AgentPing
	// GuestPanicked is what liveness does about a panicked guest. Default GuestPanickedFail.
	GuestPanicked GuestPanicked
	// RunCounters is what happens to the run of equal results when a new VM appears. Default RunCountersReset.
	RunCounters RunCounters
	// HTTPBodyErrors is what a response whose body breaks off counts as. Default HTTPBodyErrorsIgnore.
	HTTPBodyErrors HTTPBodyErrors
}

// AgentPing names an agent command that proves the agent alive.
type AgentPing string

// The values of AgentPing: guest-ping, as KubeVirt does, and guest-sync-delimited, which leaves no line in the guest's journal.
const (
	AgentPingPing AgentPing = "ping"
	AgentPingSync AgentPing = "sync"
)

// GuestPanicked says what liveness does about a panicked guest.
type GuestPanicked string

// The values of GuestPanicked: fail liveness at once, or hold it while the guest is in that state.
const (
	GuestPanickedFail GuestPanicked = "fail"
	GuestPanickedHold GuestPanicked = "hold"
)

// RunCounters says what happens to the run of equal results when a new VM appears.
type RunCounters string

// The values of RunCounters: count afresh, or carry the run over, as the kubelet does for a new container.
const (
	RunCountersReset RunCounters = "reset"
	RunCountersKeep  RunCounters = "keep"
)

// HTTPBodyErrors says what a response with a good header and a body that stalls or breaks off counts as.
type HTTPBodyErrors string

// The values of HTTPBodyErrors: nothing at all, as for the kubelet, or a failure.
const (
	HTTPBodyErrorsIgnore HTTPBodyErrors = "ignore"
	HTTPBodyErrorsFail   HTTPBodyErrors = "fail"
)

// DefaultPolicy returns the policy of a manifest that sets none.
func DefaultPolicy() Policy {
	return Policy{
		FreezeHold:     60 * time.Second,
		AgentPing:      AgentPingPing,
		GuestPanicked:  GuestPanickedFail,
		RunCounters:    RunCountersReset,
		HTTPBodyErrors: HTTPBodyErrorsIgnore,
	}
}
