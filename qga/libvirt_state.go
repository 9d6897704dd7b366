package qga

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/digitalocean/go-libvirt"
)

// A libvirtReading is what the daemon answered about the domain.
type libvirtReading struct {
	found bool
	dom   libvirt.Domain // its ID counts the daemon's starts of domains
	state libvirtState

	hasXML bool // the fields below were read
	port   Port
	// boundAt is when QEMU made the agent channel's socket, a moment after it
	// started. Zero where the socket cannot be seen from here.
	boundAt time.Time
}

// A libvirtTracker turns what libvirt tells into a VMState. It is pure: it
// knows neither connection nor clock.
type libvirtTracker struct {
	s         VMState
	version   string // of QEMU, as the daemon knows it
	otherPort bool   // the agent's channel is not the one that libvirt's event tells of

	uuid    libvirt.UUID
	id      int32
	boundAt time.Time

	// following: the domain has been followed without a gap since the last
	// reading, so an instance that is new was seen from its start.
	following bool
	started   bool      // the guest has run in this instance, or may have
	lastBoot  time.Time // the last reset that counted, or when it began to run

	// What QEMU told of a panic or a failed disk before libvirt's own event.
	panic *Panic
	io    *IOError
}

// reading takes an answer in. It is the truth: events only come sooner.
func (t *libvirtTracker) reading(r libvirtReading, now time.Time) {
	defer func() { t.following = true }()
	if !r.found {
		t.gone(noDomainError{"libvirt knows no such domain"})
		return
	}
	if r.dom.ID < 0 { // no QEMU
		_, _, off := libvirtStatus(r.state.state, r.state.reason, t.started)
		t.stopped(off)
		return
	}
	t.attach(r, now)
	t.s.Link, t.s.LinkErr = LinkUp, nil
	t.setState(r.state, now)
	if r.hasXML {
		t.setPort(r.port)
	}
}

// attach notices a new instance.
func (t *libvirtTracker) attach(r libvirtReading, now time.Time) {
	rebound := !t.boundAt.IsZero() && r.hasXML && !r.boundAt.IsZero() && !r.boundAt.Equal(t.boundAt)
	isNew := t.s.Instance == "" || t.uuid != r.dom.UUID || t.id != r.dom.ID || rebound
	if isNew {
		t.begin(r.dom, r.boundAt)
		if !t.following {
			// It began unseen.
			t.s.StartedAt = r.boundAt
			t.started = mayHaveRun(r.state)
			t.s.Incoming = runningFromElsewhere(r.state)
		}
	}
	if t.boundAt.IsZero() {
		t.boundAt = r.boundAt
	}
	t.s.Name, t.s.UUID, t.s.Version = clean(r.dom.Name), uuidString(r.dom.UUID), t.version
}

// begin starts a new instance. The daemon counts anew when it restarts with no
// domain running, so the number alone could come back.
func (t *libvirtTracker) begin(dom libvirt.Domain, boundAt time.Time) {
	t.s = VMState{
		Link: t.s.Link, LinkErr: t.s.LinkErr,
		Resets: t.s.Resets, Panics: t.s.Panics, IOErrors: t.s.IOErrors, Events: t.s.Events,
	}
	t.uuid, t.id, t.boundAt = dom.UUID, dom.ID, boundAt
	t.started, t.lastBoot, t.panic, t.io = false, time.Time{}, nil, nil
	t.s.Instance = fmt.Sprintf("%s %s id %d", clean(dom.Name), uuidString(dom.UUID), dom.ID)
	if !boundAt.IsZero() {
		t.s.Instance += fmt.Sprintf("@%d", boundAt.UnixMicro())
	}
}

// mayHaveRun is false for a domain that is seen to wait for its first run.
func mayHaveRun(s libvirtState) bool {
	if libvirt.DomainState(s.state) != libvirt.DomainPaused {
		return true
	}
	switch libvirt.DomainPausedReason(s.reason) {
	case libvirt.DomainPausedMigration, libvirt.DomainPausedStartingUp:
		return false
	}
	return true
}

// runningFromElsewhere reports whether the guest had booted before this
// instance: it was migrated to here or restored.
func runningFromElsewhere(s libvirtState) bool {
	if libvirt.DomainState(s.state) != libvirt.DomainRunning {
		return false
	}
	switch libvirt.DomainRunningReason(s.reason) {
	case libvirt.DomainRunningMigrated, libvirt.DomainRunningPostcopy, libvirt.DomainRunningPostcopyFailed,
		libvirt.DomainRunningRestored, libvirt.DomainRunningFromSnapshot:
		return true
	}
	return false
}

// setState takes a state of a domain that has a QEMU over.
func (t *libvirtTracker) setState(s libvirtState, now time.Time) {
	status, pause, _ := libvirtStatus(s.state, s.reason, t.started)
	t.s.PauseReason = pause
	t.s.Status = status
	switch status {
	case "prelaunch":
		t.s.StartedAt = time.Time{}
	case "inmigrate":
		t.s.StartedAt = time.Time{}
		t.s.Incoming = true
	case "running":
		if t.s.StartedAt.IsZero() {
			t.s.StartedAt, t.lastBoot = now, now
		}
		if !t.started && runningFromElsewhere(s) {
			t.s.Incoming = true
		}
		t.started = true
		t.s.Shutdown = nil
	}
	if status == "running" {
		t.io = nil
	}
	switch {
	case status != "io-error":
		t.s.IOError = nil
	case t.s.IOError == nil && t.io != nil:
		t.s.IOError = t.io
	case t.s.IOError == nil:
		t.s.IOError = &IOError{}
	}
}

// panicDetail takes QEMU's own event of a panic in. libvirt's, which counts,
// comes before or after it.
func (t *libvirtTracker) panicDetail(p Panic) {
	if t.s.Status == "guest-panicked" && t.s.Panic != nil {
		t.s.Panic = &p
		return
	}
	t.panic = &p
}

// ioDetail takes QEMU's own event of a failed disk in. libvirt has one as well,
// and loses it where the disk's source has no path.
func (t *libvirtTracker) ioDetail(e IOError) {
	if t.io == nil {
		t.io = &e
	}
	if t.s.Status == "io-error" && *t.s.IOError == (IOError{}) {
		t.s.IOError = t.io
	}
}

// stopped says that no QEMU runs, and why.
func (t *libvirtTracker) stopped(off string) {
	// A domain that was never seen to run has not ended. And how an orderly end
	// came about, the event before this one has told.
	if t.s.Instance != "" && (t.s.Shutdown == nil || off != shutoffReason(libvirt.DomainShutoffShutdown)) {
		t.s.Shutdown = &Shutdown{Reason: off}
	}
	t.gone(fmt.Errorf("domain is shut off (%s)", off))
}

// gone says that there is no VM.
func (t *libvirtTracker) gone(err error) {
	t.detach()
	t.following = true
	t.s.Link, t.s.LinkErr = LinkGone, err
}

// detach ends a connection: what can change unseen is forgotten.
func (t *libvirtTracker) detach() {
	t.s.Status, t.s.PauseReason, t.s.AgentPort, t.s.IOError = "", "", PortUnknown, nil
	t.following = false
}

// hears reports whether an event can be put to what is known. A daemon whose workers all wait, for a job's lock say,
// answers no question and goes on to tell events.
func (t *libvirtTracker) hears() bool {
	return t.s.Link == LinkUp || t.s.Link == LinkStuck && t.following
}

// lifecycle takes a lifecycle event in: what it tells at once. A reading must
// follow, for the rest.
func (t *libvirtTracker) lifecycle(dom libvirt.Domain, event, detail int32, now time.Time) {
	t.s.Events++
	if libvirt.DomainEventType(event) == libvirt.DomainEventStarted {
		t.begun(dom, libvirt.DomainEventStartedDetailType(detail))
		return
	}
	if !t.hears() {
		return
	}
	switch libvirt.DomainEventType(event) {
	case libvirt.DomainEventCrashed:
		if libvirt.DomainEventCrashedDetailType(detail) == libvirt.DomainEventCrashedCrashloaded {
			t.s.CrashDumping = true
			return
		}
		t.s.Panics++
		t.s.Panic = &Panic{}
		if t.panic != nil {
			t.s.Panic, t.panic = t.panic, nil
		}
		t.setState(libvirtState{int32(libvirt.DomainCrashed), int32(libvirt.DomainCrashedPanicked)}, now)
		return
	case libvirt.DomainEventShutdown:
		t.s.Shutdown = shutdownOf(libvirt.DomainEventShutdownDetailType(detail))
	case libvirt.DomainEventStopped:
		t.stopped(shutoffReason(libvirt.DomainShutoffReason(stoppedReason(detail))))
		return
	}
	if s, ok := lifecycleState(event, detail); ok {
		t.setState(s, now)
	}
}

// begun takes the start of a domain in. Whether it runs, the reading tells.
func (t *libvirtTracker) begun(dom libvirt.Domain, detail libvirt.DomainEventStartedDetailType) {
	if t.s.Instance == "" || t.uuid != dom.UUID || t.id != dom.ID {
		t.begin(dom, time.Time{})
	}
	switch detail {
	case libvirt.DomainEventStartedMigrated, libvirt.DomainEventStartedRestored, libvirt.DomainEventStartedFromSnapshot:
		t.s.Incoming = true
	}
}

// shutdownOf uses QEMU's words.
func shutdownOf(detail libvirt.DomainEventShutdownDetailType) *Shutdown {
	switch detail {
	case libvirt.DomainEventShutdownGuest:
		return &Shutdown{Guest: true, Reason: "guest-shutdown"}
	case libvirt.DomainEventShutdownHost:
		return &Shutdown{Reason: "host-signal"}
	}
	return &Shutdown{}
}

// reboot takes a reset of the machine in, whoever caused it.
func (t *libvirtTracker) reboot(now time.Time) {
	t.s.Events++
	t.s.Panic, t.s.CrashDumping, t.s.Shutdown, t.s.Incoming = nil, false, nil, false
	t.panic = nil
	if !t.lastBoot.IsZero() && now.Sub(t.lastBoot) < resetWindow {
		return
	}
	t.s.Resets++
	t.lastBoot = now
	t.s.StartedAt = now
	if t.s.Status != "running" && t.hears() {
		t.s.StartedAt = time.Time{} // it boots when it is resumed
	}
}

// ioError takes a failed request of a disk in. Of several that fail together,
// the first has stopped the VM.
func (t *libvirtTracker) ioError(msg libvirt.DomainEventIOErrorReasonMsg, now time.Time) {
	t.s.Events++
	t.s.IOErrors++
	const pause = 1 // VIR_DOMAIN_EVENT_IO_ERROR_PAUSE
	if msg.Action != pause || !t.hears() {
		return
	}
	e := IOError{Device: clean(cmp.Or(msg.DevAlias, msg.SrcPath)), NoSpace: msg.Reason == "enospc", Reason: clean(msg.Reason)}
	switch t.s.Status {
	case "running":
		t.setState(libvirtState{int32(libvirt.DomainPaused), int32(libvirt.DomainPausedIoerror)}, now)
		t.s.IOError = &e
	case "io-error":
		if *t.s.IOError == (IOError{}) {
			t.s.IOError = &e
		}
	}
}

// agent takes a change of the standard agent channel in.
func (t *libvirtTracker) agent(state int32) {
	t.s.Events++
	if !t.hears() || t.otherPort {
		return
	}
	const connected, disconnected = 1, 2 // virConnectDomainEventAgentLifecycleState
	switch state {
	case connected:
		t.setPort(PortOpen)
	case disconnected:
		t.setPort(PortClosed)
	}
}

func (t *libvirtTracker) setPort(p Port) {
	t.s.AgentPort = p
	t.s.AgentEverOpen = t.s.AgentEverOpen || p == PortOpen
}

// uuidString returns the usual form.
func uuidString(u libvirt.UUID) string {
	s := hex.EncodeToString(u[:])
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}
