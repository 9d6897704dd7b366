package verdict

// A Reason says in one word why a verdict is what it is. The list is closed:
// Reasons has them all, and they are safe as a metric's label.
type Reason string

// The reasons.
const (
	// Ready: the VM runs and all that is checked passes.
	Ready Reason = "Ready"
	// Starting: the VM or its guest has not finished booting, or no check has had
	// enough successes yet.
	Starting Reason = "Starting"
	// StartupTimeout: the startup probe has used up its failures.
	StartupTimeout Reason = "StartupTimeout"
	// ProbeFailed: a check of the guest's ports or commands fails.
	ProbeFailed Reason = "ProbeFailed"
	// AgentNotConnected: no guest agent has the channel open.
	AgentNotConnected Reason = "AgentNotConnected"
	// AgentTimeout: the guest agent has the channel open and does not answer.
	AgentTimeout Reason = "AgentTimeout"
	// AgentError: the guest agent answered with an error; it is alive.
	AgentError Reason = "AgentError"
	// AgentUnsupported: the guest agent does not know the command, or the guest's
	// administrator has disabled it.
	AgentUnsupported Reason = "AgentUnsupported"
	// Paused: QEMU has stopped the VM's CPUs, on somebody's behest or in a state that
	// has no reason of its own; the detail has QEMU's word for it.
	Paused Reason = "Paused"
	// Suspended: the guest has put itself to sleep (S3).
	Suspended Reason = "Suspended"
	// MigratingIn: the VM is being received from another host and does not run here
	// yet.
	MigratingIn Reason = "MigratingIn"
	// MigratingOut: the VM is handed over to another host, or has been.
	MigratingOut Reason = "MigratingOut"
	// StorageIOError: QEMU has stopped the VM because its storage failed or is full.
	StorageIOError Reason = "StorageIOError"
	// GuestPanicked: the guest's kernel has reported its panic.
	GuestPanicked Reason = "GuestPanicked"
	// GuestCrashDumping: the guest's kernel has crashed and writes a dump.
	GuestCrashDumping Reason = "GuestCrashDumping"
	// InternalError: QEMU or KVM cannot go on with the VM.
	InternalError Reason = "InternalError"
	// ShutDown: the guest is powered off.
	ShutDown Reason = "ShutDown"
	// FilesystemFrozen: the guest's file systems are frozen, so the last state is held
	// for a bounded time.
	FilesystemFrozen Reason = "FilesystemFrozen"
	// MonitorBusy: somebody else holds the monitor's socket, so the VM's state is not
	// known.
	MonitorBusy Reason = "MonitorBusy"
	// MonitorUnreachable: the monitor cannot be used or does not answer, so the VM's
	// state is not known.
	MonitorUnreachable Reason = "MonitorUnreachable"
	// NoDomain: there is no VM.
	NoDomain Reason = "NoDomain"
	// Maintenance: an operator holds the probing; the last state stays.
	Maintenance Reason = "Maintenance"
	// Terminating: this process is about to end.
	Terminating Reason = "Terminating"
	// ListenerShadowed: connections to our endpoints reach somebody else, most likely
	// the guest.
	ListenerShadowed Reason = "ListenerShadowed"
)

// Reasons returns all reasons, in the order of the design.
func Reasons() []Reason {
	return []Reason{
		Ready, Starting, StartupTimeout, ProbeFailed, AgentNotConnected,
		AgentTimeout, AgentError, AgentUnsupported, Paused, Suspended, MigratingIn, MigratingOut,
		StorageIOError, GuestPanicked, GuestCrashDumping, InternalError, ShutDown, FilesystemFrozen,
		MonitorBusy, MonitorUnreachable, NoDomain, Maintenance, Terminating, ListenerShadowed,
	}
}

// Help returns what an operator should do or look at, in one sentence, and "" for
// what is no Reason.
func (r Reason) Help() string {
	switch r {
	case Ready:
		return "Nothing to do."
	case Starting:
		return "Wait; if it lasts, look at the guest's console, the initial delay and the checks' last errors."
	case StartupTimeout:
		return "Look at the guest's console; give the startup probe a larger failureThreshold if the guest is only slow."
	case ProbeFailed:
		return "Look at the failing check's error and at the service it asks in the guest."
	case AgentNotConnected:
		return "Install or start qemu-guest-agent in the guest, and give the VM the channel org.qemu.guest_agent.0."
	case AgentTimeout:
		return "Look whether the guest is hung, starved of CPU or frozen for a snapshot; else restart qemu-guest-agent in it."
	case AgentError:
		return "The agent is alive: look at its error text and at its log in the guest."
	case AgentUnsupported:
		return "Allow the command in the guest agent's configuration (allow-rpcs, block-rpcs), or update the agent."
	case Paused:
		return "Resume the VM, or wait for the tool that paused it (a snapshot, a save, a debugger)."
	case Suspended:
		return "Wake the guest (system_wakeup), and turn off sleep in its power settings."
	case MigratingIn:
		return "Wait for the migration to finish."
	case MigratingOut:
		return "Nothing to do here: the VM goes on at the other host."
	case StorageIOError:
		return "Repair or enlarge the storage behind the named device, then resume the VM; a restart does not help."
	case GuestPanicked:
		return "Keep the crash dump and the console log if you need them, then reset or restart the VM."
	case GuestCrashDumping:
		return "Wait: the guest writes its crash dump and reboots by itself."
	case InternalError:
		return "Keep QEMU's log, then restart the VM; suspect the host's hardware or KVM if it comes again."
	case ShutDown:
		return "Start the VM if it should run."
	case FilesystemFrozen:
		return "Wait for the snapshot or backup; if none runs, thaw the guest's file systems (guest-fsfreeze-thaw)."
	case MonitorBusy:
		return "Give Guestprobe a monitor socket of its own: a QEMU character device serves one client at a time."
	case MonitorUnreachable:
		return "Look at the monitor's address and its permissions, and whether QEMU is hung or stopped."
	case NoDomain:
		return "Start the VM, or correct the address of its monitor."
	case Maintenance:
		return "Remove the hold file when the maintenance is over."
	case Terminating:
		return "Nothing to do: Guestprobe was told to stop."
	case ListenerShadowed:
		return "Use the exec probe over the unix socket, or list the VM's ports in its masquerade interface without ours."
	default:
		return ""
	}
}

// IsValid reports whether r is in the closed list.
func (r Reason) IsValid() bool { return r.Help() != "" }
