package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/guestprobe/guestprobe/netprobe"
	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/sidecar/manifest"
	"github.com/guestprobe/guestprobe/sidecar/probe"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

// monitorPatience is how long a diagnosis waits for the monitor: longer than its greeting deadline.
const monitorPatience = 7 * time.Second

// busyPatience is how long a diagnosis waits for more to be found out about a monitor that is silent: it may be none.
const busyPatience = 500 * time.Millisecond

// agentPatience is how long a diagnosis waits for the guest agent.
const agentPatience = 3 * time.Second

// maxAttempts is how often an attempt that cannot tell is made (k8s v1.37.2 pkg/kubelet/prober/prober.go, maxProbeRetries).
const maxAttempts = 3

// A Finding is what a diagnosis says about one layer between us and the application in the guest.
type Finding struct {
	Layer           string         `json:"layer"` // monitor, vm, agent, or the kind of a check
	Name            string         `json:"name"`  // what was asked
	OK              bool           `json:"ok"`
	Warning         bool           `json:"warning,omitempty"` // something to tell that fails nothing
	Reason          verdict.Reason `json:"reason,omitempty"`
	Detail          string         `json:"detail,omitempty"`
	Help            string         `json:"help,omitempty"`
	DurationSeconds float64        `json:"durationSeconds"`
}

// Diagnose asks each layer once, from the outside in, and says what it found: the monitor, the VM, the agent, and
// each check of the manifest, without delays and thresholds. It returns an error only if cfg cannot be used, or ctx ends.
func Diagnose(ctx context.Context, cfg Config) ([]Finding, error) {
	cfg.ExitWithVM = false
	s, err := New(cfg)
	if err != nil {
		return nil, err
	}
	d := &diagnosis{s: s}
	work, stop := context.WithCancel(ctx)
	d.run(work)
	stop()
	if err := d.tasks.Wait(); err != nil {
		return nil, err
	}
	return d.findings, ctx.Err()
}

type diagnosis struct {
	s        *Sidecar
	tasks    errgroup.Group
	findings []Finding
}

func (d *diagnosis) add(f Finding) {
	if f.Help == "" && (!f.OK || f.Warning) {
		f.Help = f.Reason.Help()
	}
	d.findings = append(d.findings, f)
}

func (d *diagnosis) run(ctx context.Context) {
	if d.s.agent != nil {
		d.tasks.Go(func() error { return d.s.agent.Run(ctx) })
	}
	if d.s.monitor != nil {
		d.monitors(ctx)
	}
	if d.s.agent != nil {
		d.agent(ctx)
	}
	g := d.s.guest()
	for _, c := range d.s.cfg.Manifest.Checks {
		d.check(ctx, g, c)
	}
}

// monitors asks the monitor and, where that is out of reach, its fallback. What one of them says of the VM stays current
// until ctx ends.
func (d *diagnosis) monitors(ctx context.Context) {
	f, stop := d.monitor(ctx, d.s.cfg.Monitor, d.s.monitor.Watch, d.s.follow)
	took := f.DurationSeconds // the monitor's answer has the VM's state with it
	if f.OK || d.s.fallback == nil {
		d.add(f)
	} else {
		stop()
		other, _ := d.monitor(ctx, d.s.cfg.MonitorFallback, d.s.fallback.other, d.s.followOther)
		if f.OK, f.Warning = other.OK, other.OK; other.OK {
			f.Help = fmt.Sprintf("Start the VM anew if it was started without a monitor for Guestprobe; until then %s is asked.", d.s.cfg.MonitorFallback)
		}
		took = other.DurationSeconds
		d.add(f)
		d.add(other)
		if other.OK { // after the first one's word that there is no VM, the second one's has to last
			select {
			case <-time.After(verdict.Settle + busyPatience):
			case <-ctx.Done():
			}
			d.s.state.update(func() {}) // decide anew; no Run does
		}
	}
	if !f.OK {
		return
	}
	now := d.s.state.get()
	f = Finding{Layer: "vm", Name: orElse(printable(now.vm.Name), "guest"), OK: !now.FromVM, Detail: printable(now.vm.Status), DurationSeconds: took}
	if now.FromVM {
		f.Reason, f.Detail = now.Reason, now.Detail
	}
	d.add(f)
}

// watch follows the VM through one monitor until ctx ends or the function that it returns is called. It returns when that
// monitor is no longer connecting, or the patience with it is over.
func (d *diagnosis) watch(ctx context.Context, watch func(context.Context, func(qga.VMState)) error, follow func(qga.VMState)) (stop func()) {
	watching, cancel := context.WithCancel(ctx)
	known, ended := make(chan struct{}), make(chan struct{})
	var once sync.Once
	settle := func() { once.Do(func() { close(known) }) }
	d.tasks.Go(func() error {
		defer close(ended)
		return watch(watching, func(vm qga.VMState) {
			follow(vm)
			switch vm.Link {
			case qga.LinkConnecting:
			case qga.LinkBusy:
				time.AfterFunc(busyPatience, settle)
			default:
				settle()
			}
		})
	})
	select {
	case <-known:
	case <-ended:
	case <-time.After(monitorPatience):
	}
	return func() {
		cancel()
		<-ended
	}
}

// monitor follows the VM through the monitor at addr, as watch does, and tells what became of it.
func (d *diagnosis) monitor(ctx context.Context, addr *qga.Addr, watch func(context.Context, func(qga.VMState)) error, follow func(qga.VMState)) (f Finding, stop func()) {
	began := time.Now()
	stop = d.watch(ctx, watch, follow)
	vm := d.s.state.get().vm
	f = Finding{Layer: "monitor", Name: addr.String(), OK: vm.Link == qga.LinkUp, DurationSeconds: time.Since(began).Seconds()}
	if f.OK {
		f.Detail = strings.TrimSpace("connected; hypervisor " + printable(orElse(vm.Version, "of unknown version")))
		return f, stop
	}
	f.Reason, f.Detail = linkReason(vm.Link), vm.Link.String()
	if vm.LinkErr != nil {
		f.Detail = printable(vm.LinkErr.Error())
	}
	f.Help = d.help(vm.LinkErr, f.Reason)
	return f, stop
}

// help says what to do about an error, where more is known than its reason says.
func (d *diagnosis) help(err error, reason verdict.Reason) string {
	if reason == verdict.AgentTimeout && d.s.state.get().FromVM {
		return "The VM does not run, so its agent cannot answer: see the VM's own line."
	}
	if h := errorHelp(err); h != "" {
		return h
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" && reason == verdict.AgentNotConnected && errors.Is(err, fs.ErrNotExist) {
		return "There is no such socket: correct the path, or start the VM, whose QEMU makes it."
	}
	return reason.Help()
}

// errorHelp names the layer at fault that an error tells of, and is empty where it tells of none.
func errorHelp(err error) string {
	switch {
	case errors.Is(err, qga.ErrWrongPeer):
		return "The address is of another kind of socket: --monitor wants QEMU's monitor (QMP), --agent the guest agent's channel."
	case errors.Is(err, fs.ErrPermission):
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Net == "vsock" { // no file has an owner here
			return "The container runtime's seccomp profile forbids vsock sockets: give this container a profile that allows socket(AF_VSOCK), as docs/vsock.md shows."
		}
		return "Run as the user who owns the socket (KubeVirt: 107), or as root."
	case errors.Is(err, qga.ErrUnread), errors.Is(err, qga.ErrLibvirtsChannel):
		return "Another client holds the agent's socket, as libvirt does while the agent runs: ask libvirt (--agent libvirt:DOMAIN), or give the VM a channel for Guestprobe alone."
	}
	if f, ok := errors.AsType[*netprobe.Failure](err); ok {
		return causeHelp(f.Cause)
	}
	return ""
}

// causeHelp says what to look at in the guest's network or service.
func causeHelp(c netprobe.Cause) string {
	switch c {
	case netprobe.CauseRefused:
		return "Nothing listens on that port of that address: start the service, or let it listen on all of the guest's addresses and not on 127.0.0.1 alone."
	case netprobe.CauseTimeout, netprobe.CauseSilent:
		return "No answer in time: look at the guest's firewall, at --guest-host, and at the service; or raise timeoutSeconds."
	case netprobe.CauseNoRoute:
		return "The address cannot be reached from here: look at --guest-host and at the network between here and the guest."
	case netprobe.CauseDNS:
		return "The host's name does not resolve here: use an address, or correct the name."
	case netprobe.CauseReset, netprobe.CauseClosed:
		return "Something accepts and hangs up: a service that is starting, a proxy or port forward without its service, or one that listens on 127.0.0.1 alone."
	case netprobe.CauseProtocol:
		return "The service speaks another protocol on that port: look at the port and at scheme."
	case netprobe.CauseStatus:
		return "The service answers, and says that it is not well: look at it in the guest, and at the probe's path and headers."
	case netprobe.CauseTLSUnknownCA, netprobe.CauseTLSName, netprobe.CauseTLSExpired, netprobe.CauseTLS:
		return "The service's certificate is not accepted: look at tls.caFile and tls.serverName, and at the certificate."
	case netprobe.CauseTLSClientCert:
		return "The service demands a client certificate that it accepts: set tls.certFile and tls.keyFile."
	case netprobe.CauseTLSFiles:
		return "Our own certificate files cannot be used: look at tls.caFile, tls.certFile and tls.keyFile."
	case netprobe.CauseUnimplemented:
		return "The server has no grpc.health.v1 service: register it, or use tcpSocket."
	}
	return ""
}

func linkReason(l qga.Link) verdict.Reason {
	switch l {
	case qga.LinkBusy:
		return verdict.MonitorBusy
	case qga.LinkGone:
		return verdict.NoDomain
	default:
		return verdict.MonitorUnreachable
	}
}

func (d *diagnosis) agent(ctx context.Context) {
	began := time.Now()
	f := Finding{Layer: "agent", Name: d.s.cfg.Agent.String()}
	defer func() {
		f.DurationSeconds = time.Since(began).Seconds()
		d.add(f)
	}()
	ctx, cancel := context.WithTimeout(ctx, agentPatience)
	defer cancel()
	if d.s.state.agentPort() == qga.PortClosed {
		f.Reason, f.Detail = verdict.AgentNotConnected, "no process in the guest has the agent's port open"
		return
	}
	if err := d.s.agent.Sync(ctx); err != nil {
		f.Reason, f.Detail = agentReason(err), printable(err.Error())
		f.Help = d.help(err, f.Reason)
		return
	}
	info, err := d.s.agent.Info(ctx)
	if err != nil {
		f.OK, f.Warning, f.Reason, f.Detail = true, true, agentReason(err), "it answers, but not guest-info: "+printable(err.Error())
		return
	}
	f.OK, f.Detail = true, fmt.Sprintf("qemu-ga %s", printable(info.Version))
	if d.s.agent.Stats().Fallback {
		f.Warning, f.Reason = true, verdict.AgentNotConnected
		f.Detail += fmt.Sprintf(", through %s: nobody answers at the channel itself", d.s.cfg.AgentFallback)
		f.Help = "Start the second guest agent, on the VM's second channel; until then the other one is asked."
	}
}

func (d *diagnosis) check(ctx context.Context, g *guest, c manifest.Check) {
	began := time.Now()
	f := Finding{Layer: c.Kind.String(), Name: c.Name}
	describe := (&check{Check: c}).describe(d.s.cfg.GuestHost)
	err := d.attempt(ctx, g.handler(c), c.Timeout)
	switch probe.Classify(err) {
	case probe.OutcomeSuccess:
		f.OK, f.Detail = true, describe
	case probe.OutcomeWarning:
		f.OK, f.Warning, f.Reason, f.Detail = true, true, reasonOf(err), describe+": "+printable(err.Error())
	default:
		f.OK, f.Warning, f.Reason, f.Detail = c.Warn, c.Warn, reasonOf(err), describe+": "+printable(err.Error())
		f.Help = d.help(err, f.Reason)
	}
	f.DurationSeconds = time.Since(began).Seconds()
	d.add(f)
}

// attempt makes one round: up to three attempts where one cannot tell, each with the check's own deadline.
func (d *diagnosis) attempt(ctx context.Context, f probe.Func, timeout time.Duration) error {
	var err error
	for range maxAttempts {
		attempt, cancel := context.WithTimeout(ctx, timeout)
		err = f(attempt)
		cancel()
		if _, ok := errors.AsType[*probe.Indeterminate](err); !ok || ctx.Err() != nil {
			break
		}
	}
	return err
}
