package qga

import (
	"fmt"

	"github.com/digitalocean/go-libvirt"
)

// libvirtStatus puts libvirt's state of a domain and its reason (libvirt 9.0
// include/libvirt/libvirt-domain.h) into QEMU's words, and the reason of a
// pause into one of libvirt's. running "" means that no QEMU runs, and off
// says why. A state or reason that is newer than this table keeps its number.
//
// started: the guest has run in this instance. It tells the two ends of a
// migration, for which libvirt has one word.
func libvirtStatus(state, reason int32, started bool) (status, pause, off string) {
	switch libvirt.DomainState(state) {
	case libvirt.DomainRunning, libvirt.DomainBlocked:
		return "running", "", ""
	case libvirt.DomainPaused:
		pause = pauseReason(libvirt.DomainPausedReason(reason))
		return pausedStatus(libvirt.DomainPausedReason(reason), started), pause, ""
	case libvirt.DomainShutdown: // it is shutting down, QEMU is still there
		return "shutdown", "", ""
	case libvirt.DomainShutoff:
		return "", "", shutoffReason(libvirt.DomainShutoffReason(reason))
	case libvirt.DomainCrashed: // and kept: <on_crash>preserve</on_crash>
		return "guest-panicked", "", ""
	case libvirt.DomainPmsuspended:
		return "suspended", "", ""
	case libvirt.DomainNostate:
		return "", "", "no state"
	}
	return fmt.Sprintf("libvirt-state-%d", state), "", ""
}

// pausedStatus returns QEMU's word for why a domain does not run.
func pausedStatus(reason libvirt.DomainPausedReason, started bool) string {
	switch reason {
	case libvirt.DomainPausedMigration, libvirt.DomainPausedPostcopy:
		if started {
			return "finish-migrate"
		}
		return "inmigrate"
	case libvirt.DomainPausedSave:
		return "save-vm"
	case libvirt.DomainPausedIoerror:
		return "io-error"
	case libvirt.DomainPausedWatchdog:
		return "watchdog"
	case libvirt.DomainPausedShuttingDown:
		return "shutdown"
	case libvirt.DomainPausedCrashed:
		return "guest-panicked"
	case libvirt.DomainPausedStartingUp:
		return "prelaunch"
	}
	return "paused"
}

// pauseReason returns libvirt's name of the reason, empty for "unknown".
func pauseReason(reason libvirt.DomainPausedReason) string {
	switch reason {
	case libvirt.DomainPausedUnknown:
		return ""
	case libvirt.DomainPausedUser:
		return "user"
	case libvirt.DomainPausedMigration:
		return "migration"
	case libvirt.DomainPausedSave:
		return "save"
	case libvirt.DomainPausedDump:
		return "dump"
	case libvirt.DomainPausedIoerror:
		return "ioerror"
	case libvirt.DomainPausedWatchdog:
		return "watchdog"
	case libvirt.DomainPausedFromSnapshot:
		return "from-snapshot"
	case libvirt.DomainPausedShuttingDown:
		return "shutting-down"
	case libvirt.DomainPausedSnapshot:
		return "snapshot"
	case libvirt.DomainPausedCrashed:
		return "crashed"
	case libvirt.DomainPausedStartingUp:
		return "starting-up"
	case libvirt.DomainPausedPostcopy:
		return "postcopy"
	case libvirt.DomainPausedPostcopyFailed:
		return "postcopy-failed"
	case libvirt.DomainPausedAPIError:
		return "api-error"
	}
	return fmt.Sprintf("reason-%d", int32(reason))
}

// shutoffReason returns libvirt's name of why no QEMU runs.
func shutoffReason(reason libvirt.DomainShutoffReason) string {
	switch reason {
	case libvirt.DomainShutoffUnknown:
		return "never started"
	case libvirt.DomainShutoffShutdown:
		return "shutdown"
	case libvirt.DomainShutoffDestroyed:
		return "destroyed"
	case libvirt.DomainShutoffCrashed:
		return "crashed"
	case libvirt.DomainShutoffMigrated:
		return "migrated"
	case libvirt.DomainShutoffSaved:
		return "saved"
	case libvirt.DomainShutoffFailed:
		return "failed"
	case libvirt.DomainShutoffFromSnapshot:
		return "from snapshot"
	case libvirt.DomainShutoffDaemon:
		return "lost by the daemon"
	}
	return fmt.Sprintf("reason %d", int32(reason))
}

// A libvirtState is a state of a domain and its reason, as libvirt numbers
// them.
type libvirtState struct{ state, reason int32 }

// lifecycleState returns the state that a lifecycle event tells at once.
// DomainGetState then refines it: some events cover several reasons. ok is
// false for events that tell none.
func lifecycleState(event, detail int32) (s libvirtState, ok bool) {
	paused := func(r libvirt.DomainPausedReason) (libvirtState, bool) {
		return libvirtState{int32(libvirt.DomainPaused), int32(r)}, true
	}
	running := func(r libvirt.DomainRunningReason) (libvirtState, bool) {
		return libvirtState{int32(libvirt.DomainRunning), int32(r)}, true
	}
	switch libvirt.DomainEventType(event) {
	case libvirt.DomainEventSuspended:
		switch libvirt.DomainEventSuspendedDetailType(detail) {
		case libvirt.DomainEventSuspendedMigrated:
			return paused(libvirt.DomainPausedMigration)
		case libvirt.DomainEventSuspendedIoerror:
			return paused(libvirt.DomainPausedIoerror)
		case libvirt.DomainEventSuspendedWatchdog:
			return paused(libvirt.DomainPausedWatchdog)
		case libvirt.DomainEventSuspendedFromSnapshot:
			return paused(libvirt.DomainPausedFromSnapshot)
		case libvirt.DomainEventSuspendedAPIError:
			return paused(libvirt.DomainPausedAPIError)
		case libvirt.DomainEventSuspendedPostcopy:
			return paused(libvirt.DomainPausedPostcopy)
		case libvirt.DomainEventSuspendedPostcopyFailed:
			return paused(libvirt.DomainPausedPostcopyFailed)
		}
		return paused(libvirt.DomainPausedUnknown)
	case libvirt.DomainEventResumed:
		if libvirt.DomainEventResumedDetailType(detail) == libvirt.DomainEventResumedMigrated {
			return running(libvirt.DomainRunningMigrated)
		}
		return running(libvirt.DomainRunningUnpaused)
	case libvirt.DomainEventStopped:
		return libvirtState{int32(libvirt.DomainShutoff), stoppedReason(detail)}, true
	case libvirt.DomainEventShutdown:
		return libvirtState{int32(libvirt.DomainShutdown), 0}, true
	case libvirt.DomainEventPmsuspended:
		return libvirtState{int32(libvirt.DomainPmsuspended), 0}, true
	}
	return libvirtState{}, false
}

// stoppedReason returns the shutoff reason of a STOPPED event's detail. The
// two enumerations run alike, one apart, but for the last.
func stoppedReason(detail int32) int32 {
	switch d := libvirt.DomainEventStoppedDetailType(detail); d {
	case libvirt.DomainEventStoppedRecreated:
		return int32(libvirt.DomainShutoffUnknown)
	default:
		return int32(d) + 1
	}
}
