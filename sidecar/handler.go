package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/guestprobe/guestprobe/netprobe"
	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/sidecar/manifest"
	"github.com/guestprobe/guestprobe/sidecar/probe"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

// A reasonError is a failure that has a reason of its own; all others are verdict.ProbeFailed.
type reasonError struct {
	reason verdict.Reason
	err    error
}

func (e *reasonError) Error() string { return e.err.Error() }
func (e *reasonError) Unwrap() error { return e.err }

// reasonOf returns the reason that an attempt's error stands for, and none for success.
func reasonOf(err error) verdict.Reason {
	if err == nil {
		return ""
	}
	if r, ok := errors.AsType[*reasonError](err); ok {
		return r.reason
	}
	return verdict.ProbeFailed
}

// agentReason tells apart what can be wrong between us and the guest agent.
func agentReason(err error) verdict.Reason {
	_, answered := errors.AsType[*qga.Error](err)
	switch {
	case errors.Is(err, qga.ErrDaemon):
		return verdict.MonitorUnreachable
	case errors.Is(err, qga.ErrUnsupported):
		return verdict.AgentUnsupported
	case answered, errors.Is(err, qga.ErrProtocol):
		return verdict.AgentError
	case errors.Is(err, qga.ErrNotConnected), errors.Is(err, qga.ErrConnectionLost):
		return verdict.AgentNotConnected
	case errors.Is(err, context.DeadlineExceeded):
		return verdict.AgentTimeout
	default:
		return verdict.AgentError
	}
}

// agentFailure gives err, which came of the agent client's cause, its reason. Where libvirt's daemon is the trouble,
// nothing was found out about the guest. Where libvirt says that the VM does not run, it is not ready, but its agent
// could not have answered: that is no reason to end it, as KubeVirt has it too (pkg/virt-launcher/virtwrap/manager.go).
func agentFailure(kind probe.Kind, cause, err error) error {
	failed := &reasonError{agentReason(cause), err}
	if errors.Is(cause, qga.ErrDaemon) || errors.Is(cause, qga.ErrNotRunning) && kind != probe.Readiness {
		return &probe.Indeterminate{Err: failed}
	}
	return failed
}

// A guest is what the handlers reach the VM through.
type guest struct {
	host  string
	agent *qga.Agent
	// agentPort is what the monitor knows of the guest's end of the agent channel.
	agentPort func() qga.Port
	// vm is what the monitor last said of the VM.
	vm func() qga.VMState
	// commands are what exec checks have in the guest.
	commands *commands
	// policy is the one in force: a reload may change it under a check that goes on.
	policy func() *manifest.Policy
}

// handler returns the attempt that a check's handler stands for. Where this process has no file or memory left to
// ask with, nothing was found out about the guest: that is no failure of the guest's.
func (g *guest) handler(c manifest.Check) probe.Func {
	attempt := g.attempt(c)
	return func(ctx context.Context) error {
		err := attempt(ctx)
		if ownTrouble(err) {
			return &probe.Indeterminate{Err: err}
		}
		return err
	}
}

// ownTrouble reports whether err tells of the resources of this process or host, and not of whom it asked.
func ownTrouble(err error) bool {
	for _, own := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, own) {
			return true
		}
	}
	return false
}

func (g *guest) attempt(c manifest.Check) probe.Func {
	switch h := c.Handler; {
	case h.GuestAgentPing != nil:
		return g.agentPing(c.Kind)
	case h.Exec != nil:
		return g.exec(c.Name, c.Kind, h.Exec.Command)
	case h.HTTPGet != nil:
		return g.perFamily(c.IPFamilies, func(network string) probe.Func {
			return g.httpGet(h.HTTPGet, network)
		})
	case h.TCPSocket != nil:
		return g.perFamily(c.IPFamilies, func(network string) probe.Func {
			return netFunc(newTCPSocket(h.TCPSocket, g.host, network).Probe)
		})
	case h.GRPC != nil:
		return g.perFamily(c.IPFamilies, func(network string) probe.Func {
			return netFunc(newGRPC(h.GRPC, g.host, network).Probe)
		})
	}
	return func(context.Context) error {
		return &probe.Indeterminate{Err: fmt.Errorf("%s: no handler", c.Path)}
	}
}

// agentPing asks the agent to prove that it is alive. The manual's command is guest-ping; a guest whose
// administrator has disabled it still proves itself by the exchange that every connection begins with.
func (g *guest) agentPing(kind probe.Kind) probe.Func {
	return func(ctx context.Context) error {
		if err := g.portOpen(); err != nil {
			return err
		}
		ask := g.agent.Ping
		if g.policy().AgentPing == manifest.AgentPingSync {
			ask = g.agent.Sync
		}
		err := ask(ctx)
		if err == nil {
			return nil
		}
		failed := agentFailure(kind, err, err)
		if _, answered := errors.AsType[*qga.Error](err); answered {
			// It answered, so it is alive, whatever it said.
			return &probe.Warning{Err: failed}
		}
		return failed
	}
}

// portOpen fails where the monitor knows that no agent is there: what would be written now
// would wait in the host's buffer and be answered by whichever agent starts next.
func (g *guest) portOpen() error {
	if g.agentPort() == qga.PortClosed {
		return &reasonError{verdict.AgentNotConnected, errors.New("no process in the guest has the agent's port open")}
	}
	return nil
}

// httpGet asks the guest's web server. There are two of it, as what a body that breaks off means is policy.
func (g *guest) httpGet(h *manifest.HTTPGet, network string) probe.Func {
	lenient, strict := newHTTPGet(h, g.host, network), newHTTPGet(h, g.host, network)
	strict.BodyErrorsFail = true
	return netFunc(func(ctx context.Context) error {
		if g.policy().HTTPBodyErrors == manifest.HTTPBodyErrorsFail {
			return strict.Probe(ctx)
		}
		return lenient.Probe(ctx)
	})
}

// netFunc gives a netprobe probe the outcome types of package probe.
func netFunc(attempt func(context.Context) error) probe.Func {
	return func(ctx context.Context) error {
		err := attempt(ctx)
		if w, ok := errors.AsType[*netprobe.Warning](err); ok {
			return &probe.Warning{Err: w}
		}
		if i, ok := errors.AsType[*netprobe.Indeterminate](err); ok {
			return &probe.Indeterminate{Err: i}
		}
		if f, ok := errors.AsType[*netprobe.Failure](err); ok && strings.HasPrefix(f.Cause.String(), "TLS") {
			// The text alone does not always tell: a server that wants a certificate may just hang up.
			return fmt.Errorf("%s: %w", f.Cause, err)
		}
		return err
	}
}

// perFamily runs a check once in each address family, at the same time, and names those that fail.
func (g *guest) perFamily(families []string, attempt func(network string) probe.Func) probe.Func {
	if len(families) == 0 {
		return attempt("tcp")
	}
	attempts := make([]probe.Func, len(families))
	for i, family := range families {
		attempts[i] = attempt("tcp" + strings.TrimPrefix(family, "IPv"))
	}
	return func(ctx context.Context) error {
		errs := make([]error, len(attempts))
		var group errgroup.Group
		for i, f := range attempts {
			group.Go(func() error {
				errs[i] = f(ctx)
				return nil
			})
		}
		_ = group.Wait() // each attempt's error is in errs
		return worst(families, errs)
	}
}

// worst returns the outcome that counts of several: a failure before an error before a warning.
func worst(families []string, errs []error) error {
	var (
		found error
		named []string
	)
	severity := func(o probe.Outcome) int {
		switch o {
		case probe.OutcomeFailure:
			return 3
		case probe.OutcomeError:
			return 2
		case probe.OutcomeWarning:
			return 1
		}
		return 0
	}
	for i, err := range errs {
		if err == nil {
			continue
		}
		switch was, is := severity(probe.Classify(found)), severity(probe.Classify(err)); {
		case is > was:
			found, named = err, nil
			fallthrough
		case is == was:
			named = append(named, fmt.Sprintf("%s: %v", families[i], err))
		}
	}
	if found == nil {
		return nil
	}
	return &familyError{strings.Join(named, "; "), found}
}

// A familyError is an outcome with the families named that had it. The cause is that of the first.
type familyError struct {
	text string
	err  error
}

func (e *familyError) Error() string { return e.text }
func (e *familyError) Unwrap() error { return e.err }

func newHTTPGet(h *manifest.HTTPGet, guestHost, network string) *netprobe.HTTPGet {
	get := &netprobe.HTTPGet{
		Scheme: h.Scheme, Host: orElse(h.Host, hostFor(guestHost, network)), Port: h.Port, Path: h.Path, Network: network,
		H2C: h.Protocol == "HTTP2",
	}
	for _, header := range h.Headers {
		get.Headers = append(get.Headers, netprobe.Header(header))
	}
	get.TLS = newTLS(h.TLS)
	return get
}

func newTLS(t *manifest.TLS) *netprobe.TLS {
	if t == nil {
		return nil
	}
	return &netprobe.TLS{Verify: t.Verify, CAFile: t.CAFile, ServerName: t.ServerName, CertFile: t.CertFile, KeyFile: t.KeyFile}
}

func newTCPSocket(h *manifest.TCPSocket, guestHost, network string) *netprobe.TCPSocket {
	return &netprobe.TCPSocket{Host: orElse(h.Host, hostFor(guestHost, network)), Port: h.Port, Network: network, Expect: h.Expect, Send: []byte(h.Send)}
}

func newGRPC(h *manifest.GRPC, guestHost, network string) *netprobe.GRPC {
	return &netprobe.GRPC{Host: hostFor(guestHost, network), Port: h.Port, Service: h.Service, Network: network, TLS: newTLS(h.TLS)}
}

// guestHosts are the guest's addresses, without brackets.
func guestHosts(guestHost string) []string {
	hosts := strings.Split(guestHost, ",")
	for i, host := range hosts {
		hosts[i] = unbracketed(strings.TrimSpace(host))
	}
	return hosts
}

// hostFor picks the guest's address for a network: the first, or the first that the family of tcp4 or tcp6 can have.
// Where there is none the probe fails on the first, and says so.
func hostFor(guestHost, network string) string {
	hosts := guestHosts(guestHost)
	for _, host := range hosts {
		addr, err := netip.ParseAddr(host)
		if network == "tcp" || err != nil || addr.Unmap().Is4() == (network == "tcp4") {
			return host
		}
	}
	return hosts[0]
}

func unbracketed(host string) string {
	if inner, ok := strings.CutPrefix(host, "["); ok && strings.HasSuffix(inner, "]") {
		return strings.TrimSuffix(inner, "]")
	}
	return host
}

func orElse(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}
