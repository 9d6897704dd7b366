package qga

import (
	"fmt"
	"time"
)

// A Link is the condition of the connection to whatever reports the VM's state.
// It is about the monitor, never about the guest.
type Link int

// The conditions of a link.
const (
	// LinkConnecting: nothing is known yet, or a lost connection is being
	// made again.
	LinkConnecting Link = iota
	// LinkUp: state was read anew on this connection and events are followed.
	LinkUp
	// LinkBusy: the socket accepts and stays silent, or its queue is full.
	// A QEMU character device serves one client, so another one holds it.
	LinkBusy
	// LinkStuck: the peer once spoke and no longer answers in time. LinkErr
	// says whether its main loop is stuck or the whole process is stopped.
	LinkStuck
	// LinkUnreachable: something is there that cannot be used: no permission,
	// not a monitor, bytes that are no QMP, a monitor that belongs to libvirt.
	LinkUnreachable
	// LinkGone: no QEMU is there: its socket is missing, nobody listens on it,
	// or the connection ended and cannot be made again.
	LinkGone
)

// String returns the condition in one lower-case word.
func (l Link) String() string {
	switch l {
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
		return fmt.Sprintf("link(%d)", int(l))
	}
}

// A Port is the guest's end of the agent channel.
type Port int

// The states of the agent's port.
const (
	// PortUnknown: no monitor tells, no channel could be matched, or the guest
	// has not arrived yet (inmigrate).
	PortUnknown Port = iota
	// PortOpen: some process in the guest has the port open. It need not be
	// the agent, and a hung agent has it open too.
	PortOpen
	// PortClosed: nobody in the guest has the port open: no agent runs.
	PortClosed
)

// String returns the state in one lower-case word.
func (p Port) String() string {
	switch p {
	case PortUnknown:
		return "unknown"
	case PortOpen:
		return "open"
	case PortClosed:
		return "closed"
	default:
		return fmt.Sprintf("port(%d)", int(p))
	}
}

// A VMState is all that is known about one VM without a word to its guest.
// It is a value: the pointers in it point to data that is never written again.
type VMState struct {
	// Link is the condition of the monitor, and LinkErr what is wrong with it
	// (nil while LinkUp). Where Link is LinkStuck, what follows is the last
	// that was heard. With any other trouble Status and AgentPort are cleared.
	Link    Link
	LinkErr error

	// Instance identifies this QEMU process or domain run. A new VM on the
	// same address has another one; a mere reconnect keeps it. It is kept
	// after the VM is gone. Opaque, but fit for a log.
	Instance string
	// Name, UUID and Version are the VM's and its hypervisor's own words, and
	// empty where it has none.
	Name, UUID, Version string

	// StartedAt is when the guest last began to boot, as far as can be told:
	// RESUME after prelaunch, RESET, or for a VM found running the start of
	// its process, else the age of the monitor's socket. Zero: unknown, or not
	// begun.
	StartedAt time.Time
	// Incoming: this instance came by live migration, so its guest had booted
	// elsewhere and StartedAt is only when it went on here. A RESET clears it.
	Incoming bool

	// Status is QEMU's RunState in QEMU's spelling ("running", "io-error", …;
	// qapi/run-state.json), including words newer than this program. Empty:
	// unknown.
	Status string
	// PauseReason is libvirt's reason for a paused domain ("user",
	// "migration", "ioerror", …); QMP does not tell one.
	PauseReason string

	// AgentPort is the guest's end of the agent channel; AgentEverOpen, whether
	// it has been seen open in this instance.
	AgentPort     Port
	AgentEverOpen bool

	// IOError is the block error that stopped the VM, kept while Status is
	// io-error. Its fields are empty where nobody told.
	IOError *IOError
	// Panic is the last panic the guest reported, kept until it is reset or
	// replaced. A VM found in guest-panicked has the status and no Panic.
	Panic *Panic
	// CrashDumping: the guest reported a crash and handles it itself (kdump),
	// GUEST_CRASHLOADED. A RESET clears it.
	CrashDumping bool
	// Shutdown is the end of the guest, kept after QEMU is gone.
	Shutdown *Shutdown

	// Counters since Watch began, over all instances. Two RESET events for one
	// reset count once; of IOErrors, those reported to the guest count too.
	// Events counts all events and does not cause a notification by itself.
	Resets, Panics, IOErrors, Events uint64
}

// An IOError says which block device stopped the VM.
type IOError struct {
	// Device is the drive, the device or the node, whichever QEMU names first.
	Device string
	// NoSpace: the image could not grow (ENOSPC); more storage helps.
	NoSpace bool
	// Reason is QEMU's text, for people.
	Reason string
}

// A Panic is what the guest told its panic device.
type Panic struct {
	// Action is what QEMU does about it: "pause", "poweroff" or "run".
	Action string
	// Type is "" (pvpanic tells nothing), "hyper-v", "s390", "tdx", or newer.
	Type string
	// Detail is for people: for hyper-v the Windows bug check.
	Detail string
}

// A Shutdown says who ended the guest.
type Shutdown struct {
	// Guest: the guest did it, not the host.
	Guest bool
	// Reason is QEMU's ShutdownCause ("guest-shutdown", "host-qmp-quit", …) or
	// libvirt's reason ("destroyed", "crashed", "migrated", "saved", …), empty
	// where it was not told.
	Reason string
}

// sameAs reports whether a caller can tell s and o apart, Events left aside.
func (s VMState) sameAs(o VMState) bool {
	if (s.LinkErr == nil) != (o.LinkErr == nil) || s.LinkErr != nil && s.LinkErr.Error() != o.LinkErr.Error() {
		return false
	}
	if !samePointee(s.IOError, o.IOError) || !samePointee(s.Panic, o.Panic) || !samePointee(s.Shutdown, o.Shutdown) {
		return false
	}
	s.LinkErr, o.LinkErr = nil, nil
	s.IOError, o.IOError = nil, nil
	s.Panic, o.Panic = nil, nil
	s.Shutdown, o.Shutdown = nil, nil
	s.Events, o.Events = 0, 0
	startedAlike := s.StartedAt.Equal(o.StartedAt)
	s.StartedAt, o.StartedAt = time.Time{}, time.Time{}
	return startedAlike && s == o
}

func samePointee[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
