package verdict

import (
	"fmt"
	"strings"
)

// A vmState is what the VM's own state means for the checks. Without a reason the
// checks decide.
type vmState struct {
	reason Reason
	detail string
	runs   bool // it runs all the same, so it is probed
	dead   bool // there is no way back: liveness fails at once
	young  bool // it has not run yet
}

// status returns the RunState that counts, or "" if none is known.
func (in *Input) status() string {
	switch in.Link {
	case LinkUp, LinkStuck, LinkConnecting:
		return in.Status
	default:
		return ""
	}
}

// vm is the table of VM states. The words are QEMU's (qapi/run-state.json, RunState).
//
// In every state but "running" QEMU has stopped the VM's CPUs. So a state that has no
// reason of its own (colo, debug, watchdog, or a word newer than this program) is
// Paused, and the detail has the word: the list of reasons stays closed, and nobody
// is misled.
func (in *Input) vm() vmState {
	if in.Link == LinkGone {
		return vmState{reason: NoDomain, detail: in.gone(), young: true}
	}
	switch s := in.status(); s {
	case "":
		return vmState{}
	case "running":
		return in.running()
	case "prelaunch", "preconfig":
		return vmState{reason: Starting, detail: reports(s, "the VM has not been started"), young: true}
	case "inmigrate":
		return vmState{reason: MigratingIn, detail: reports(s, "the VM is received from another host"), young: true}
	case "paused":
		return in.paused()
	case "suspended":
		return vmState{reason: Suspended, detail: reports(s, "the guest sleeps")}
	case "save-vm":
		return vmState{reason: Paused, detail: reports(s, "the VM's state is being saved")}
	case "restore-vm":
		return vmState{reason: Paused, detail: reports(s, "the VM's state is being restored")}
	case "finish-migrate":
		return vmState{reason: MigratingOut, detail: reports(s, "the last of the VM goes to another host")}
	case "postmigrate":
		return vmState{reason: MigratingOut, detail: reports(s, "the VM has gone to another host")}
	case "io-error":
		return vmState{reason: StorageIOError, detail: in.ioError()}
	case "guest-panicked":
		return vmState{reason: GuestPanicked, detail: in.panicked(), dead: !in.Policy.HoldOnPanic}
	case "internal-error":
		return vmState{reason: InternalError, detail: reports(s, "QEMU or KVM cannot go on with the VM"), dead: true}
	case "shutdown":
		return vmState{reason: ShutDown, detail: in.ended("the guest is powered off")}
	case "watchdog":
		return vmState{reason: Paused, detail: reports(s, "a watchdog of the guest has run out")}
	case "debug":
		return vmState{reason: Paused, detail: reports(s, "a debugger has stopped the VM")}
	default:
		return vmState{reason: Paused, detail: reports(s, "the VM's CPUs are stopped")}
	}
}

// running tells a VM that runs from one whose CPUs run while its guest is lost.
func (in *Input) running() vmState {
	switch {
	case in.CrashDumping:
		return vmState{reason: GuestCrashDumping, detail: "the guest's kernel has crashed and writes its dump"}
	case in.Panic != nil:
		// The panic action was "run", so QEMU goes on, and the guest may reboot by
		// itself: not fit for work, but no death sentence either.
		return vmState{reason: GuestPanicked, detail: in.panicked() + "; QEMU was told to let it run", runs: true}
	default:
		return vmState{}
	}
}

// paused goes by libvirt's reason, where there is one (virDomainPausedReason).
func (in *Input) paused() vmState {
	because := func(r Reason, what string) vmState {
		return vmState{reason: r, detail: fmt.Sprintf("libvirt reports \"paused\" (%s): %s", in.PauseReason, what)}
	}
	plain := strings.NewReplacer("-", "", "_", "", " ", "")
	switch strings.ToLower(plain.Replace(in.PauseReason)) {
	case "", "unknown":
		return vmState{reason: Paused, detail: reports("paused", "a person or a tool has stopped the VM")}
	case "user":
		return because(Paused, "a person or a tool has stopped the VM")
	case "migration", "postcopy":
		return because(MigratingOut, "the VM goes to another host")
	case "postcopyfailed":
		return because(Paused, "post-copy migration has failed; it can be recovered, a restart loses the guest's memory")
	case "ioerror":
		return vmState{reason: StorageIOError, detail: in.ioError()}
	case "crashed":
		return vmState{reason: GuestPanicked, detail: in.panicked(), dead: !in.Policy.HoldOnPanic}
	case "startingup":
		s := because(Starting, "the VM is being started")
		s.young = true
		return s
	case "shuttingdown":
		return because(ShutDown, "the VM is being shut down")
	default: // save, dump, snapshot, from-snapshot, watchdog, api-error, newer ones
		return because(Paused, "the VM's CPUs are stopped")
	}
}

func reports(word, meaning string) string {
	return fmt.Sprintf("QEMU reports %q: %s", word, meaning)
}

func (in *Input) gone() string {
	what := in.ended("there is no VM")
	if in.LinkDetail != "" {
		what += ": " + in.LinkDetail
	}
	return what
}

// ended adds who ended the guest, if that was told.
func (in *Input) ended(what string) string {
	if in.Panic != nil {
		what += "; " + in.panicked()
	}
	if in.Shutdown == nil {
		return what
	}
	who := "the host"
	if in.Shutdown.Guest {
		who = "the guest"
	}
	what += "; ended by " + who
	if in.Shutdown.Reason != "" {
		what += " (" + in.Shutdown.Reason + ")"
	}
	return what
}

func (in *Input) ioError() string {
	e := in.IOError
	if e == nil {
		e = &IOError{}
	}
	what := "QEMU has stopped the VM after an I/O error"
	if e.Device != "" {
		what += " on " + e.Device
	}
	if e.Text != "" {
		what += ": " + e.Text
	}
	if e.NoSpace {
		what += " (ENOSPC: the storage behind it is full)"
	}
	return what
}

func (in *Input) panicked() string {
	what := "the guest's kernel has panicked"
	if in.Panic == nil {
		return what
	}
	if in.Panic.Type != "" {
		what += " (" + in.Panic.Type + ")"
	}
	if in.Panic.Detail != "" {
		what += ": " + in.Panic.Detail
	}
	return what
}
