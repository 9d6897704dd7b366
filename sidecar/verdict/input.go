package verdict

import (
	"time"

	"github.com/guestprobe/guestprobe/sidecar/probe"
)

// A Link is the condition of the monitor, that is of whatever tells the VM's state.
// It says nothing about the guest.
type Link uint8

// The conditions of a monitor.
const (
	LinkNone        Link = iota // none is configured: the probes alone decide
	LinkConnecting              // nothing is known yet, or the connection is made anew
	LinkUp                      // Input.Status is the truth
	LinkBusy                    // it accepts and stays silent: another client holds it
	LinkStuck                   // it was up and no longer answers
	LinkUnreachable             // it is there and cannot be used
	LinkGone                    // there is no VM
)

// String returns the condition in one lower-case word.
func (l Link) String() string {
	switch l {
	case LinkNone:
		return "none"
	case LinkConnecting:
		return "connecting"
	case LinkUp:
		return "up"
	case LinkBusy:
		return "busy"
	case LinkStuck:
		return "stuck"
	case LinkUnreachable:
		return "unreachable"
	case LinkGone:
		return "gone"
	default:
		return "invalid"
	}
}

// A Port is the guest's end of the agent channel.
type Port uint8

// The states of the agent's port.
const (
	PortUnknown Port = iota // nobody tells
	PortOpen                // a process in the guest has it open; it need not answer
	PortClosed              // none has: no agent runs
)

// A Freeze is the condition of the guest's file systems.
type Freeze uint8

// The conditions of the file systems.
const (
	Thawed  Freeze = iota // or not known
	Frozen                // frozen, for less than policy.freezeHoldSeconds
	Overdue               // frozen for longer: nothing is held any more
)

// An IOError says which block device stopped the VM.
type IOError struct {
	Device  string // as QEMU names it
	NoSpace bool   // ENOSPC: the image could not grow
	Text    string // QEMU's words
}

// A Panic is what the guest told about its panic.
type Panic struct {
	Type   string // "", "hyper-v", "s390", …
	Detail string // for people; for hyper-v the bug check
}

// A Shutdown says who ended the guest.
type Shutdown struct {
	Guest  bool   // the guest did it, not the host
	Reason string // QEMU's ShutdownCause; empty: not told
}

// A Hold is an operator's hold on the probing.
type Hold struct {
	Source string    // where it comes from: the hold file's path
	Until  time.Time // zero: until it is removed. An expired one is not passed in
}

// A Policy is what the manifest says about verdicts.
type Policy struct {
	// HoldOnPanic: a panicked guest is not ready, but does not fail liveness.
	HoldOnPanic bool
}

// A Check is one check as Decide sees it.
type Check struct {
	Name string
	Kind probe.Kind
	// Warn: its severity is "warn": it is shown and fails nothing.
	Warn bool
	// Agent: it asks the guest agent. Then the agent's port tells a mute agent from an
	// absent one.
	Agent bool
	State probe.State
	// Reason and Detail say what is wrong by the last result, and are empty if there
	// was none or it was a plain success. They may be given with StateSuccess: below its
	// threshold, or alive but with something to tell (AgentUnsupported).
	Reason Reason
	Detail string
}

// Input are the facts of one moment, as plain data.
type Input struct {
	Link Link
	// LinkDetail says what is wrong with the monitor, for people.
	LinkDetail string
	// Status is QEMU's RunState in QEMU's spelling; empty: not known. It counts while
	// the link is up, stuck (the state of a VM cannot change without QEMU's main
	// loop) or connecting (pass the last known one to bridge a reconnect, or ""). With
	// any other link it is ignored.
	Status string
	// PauseReason is libvirt's reason for "paused"; empty: none told.
	PauseReason string
	IOError     *IOError
	// Panic is the guest's panic in this boot; nil once it was reset.
	Panic        *Panic
	CrashDumping bool
	Shutdown     *Shutdown

	AgentPort     Port
	AgentEverOpen bool

	Freeze Freeze
	Checks []Check
	Policy Policy
	Hold   *Hold // nil: none
	// Terminating: this process was told to stop.
	Terminating bool
	// ListenerShadowed: our own TCP endpoints are answered by somebody else.
	ListenerShadowed bool
}
