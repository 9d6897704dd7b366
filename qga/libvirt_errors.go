package qga

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/digitalocean/go-libvirt"
)

var (
	// ErrDaemon is returned over libvirt where its daemon and not the guest is
	// the trouble: it cannot be reached, does not answer, or lets another job
	// hold the domain. Nothing is known about the guest then. It may come
	// with ErrNotConnected or ErrConnectionLost; check for ErrDaemon first.
	ErrDaemon = errors.New("libvirt's daemon is in trouble")

	// ErrNotRunning is returned over libvirt for a call to the agent of a VM
	// that does not run: no such domain (matches fs.ErrNotExist too), shut
	// off, or paused. It matches ErrNotConnected. Such an agent could not have
	// answered, so nothing is known about its health.
	ErrNotRunning = fmt.Errorf("%w: the VM does not run", ErrNotConnected)

	// errNoQMP: libvirt passes monitor commands on, and marks the domain as
	// tainted for each.
	errNoQMP = errors.New("no monitor commands over libvirt, they would taint the domain; use Watch")
)

// A noDomainError says that libvirt knows no domain of the name. It matches
// fs.ErrNotExist.
type noDomainError struct{ text string }

func (e noDomainError) Error() string        { return e.text }
func (e noDomainError) Is(target error) bool { return target == fs.ErrNotExist }

// refused returns what the daemon answered, if err is an answer.
func refused(err error) (code libvirt.ErrorNumber, text string, ok bool) {
	var said libvirt.Error
	if !errors.As(err, &said) {
		return 0, "", false
	}
	return libvirt.ErrorNumber(said.Code), said.Message, true
}

// daemonError says what the error of a call means that concerns no agent.
func daemonError(err error) error {
	code, text, ok := refused(err)
	switch {
	case !ok:
		return fmt.Errorf("%w: %w", ErrDaemon, err)
	case code == libvirt.ErrNoDomain:
		return noDomainError{clean(text)}
	case code == libvirt.ErrAuthFailed, code == libvirt.ErrAuthCancelled, code == libvirt.ErrAuthUnavailable,
		code == libvirt.ErrAccessDenied, code == libvirt.ErrOperationDenied:
		return fmt.Errorf("%w: %w: %s", ErrDaemon, fs.ErrPermission, clean(text))
	}
	return fmt.Errorf("%w: %s (code %d)", ErrDaemon, clean(text), code)
}

// agentError says what the error of an agent command means. The codes are
// libvirt's (include/libvirt/virterror.h); two of them cover several things,
// which only the text tells apart (9.0 and 11.3 src/qemu/qemu_agent.c and
// qemu_domain.c).
func agentError(err error) error {
	code, text, ok := refused(err)
	if !ok {
		return daemonError(err)
	}
	switch code {
	case libvirt.ErrAgentUnresponsive: // 86
		switch {
		case strings.Contains(text, "is not connected"):
			return fmt.Errorf("%w: no agent has the channel open: %s", ErrNotConnected, clean(text))
		case strings.Contains(text, "not available due to an error"):
			return fmt.Errorf("%w: libvirt has given the agent up for something it sent, "+
				"until the agent restarts: %s", ErrProtocol, clean(text))
		}
		return silentAgent(text)
	case libvirt.ErrAgentCommandTimeout: // 112
		return silentAgent(text)
	case libvirt.ErrAgentUnsynced: // 97
		return fmt.Errorf("%w: %s", ErrProtocol, clean(text))
	case libvirt.ErrAgentCommandFailed, libvirt.ErrInternalError: // 113, and 1 before 11.0
		if said := agentSaid(text); said != nil {
			return said
		}
		if strings.Contains(text, "agent") {
			return fmt.Errorf("%w: %s", ErrProtocol, clean(text))
		}
	case libvirt.ErrOperationInvalid: // 55
		return fmt.Errorf("%w: %s", ErrNotRunning, clean(text))
	case libvirt.ErrArgumentUnsupported, libvirt.ErrConfigUnsupported: // 74, 67
		return fmt.Errorf("%w: the domain has no channel %s: %s", ErrNotConnected, agentPortName, clean(text))
	case libvirt.ErrNoDomain: // 42
		return fmt.Errorf("%w: %w", ErrNotRunning, daemonError(err))
	}
	return daemonError(err)
}

// silentAgent is an agent that had the channel open and did not answer.
func silentAgent(text string) error {
	if strings.Contains(text, "disappeared") {
		return fmt.Errorf("%w: %s", ErrConnectionLost, clean(text))
	}
	return fmt.Errorf("the agent did not answer libvirt: %s: %w", clean(text), context.DeadlineExceeded)
}

// agentSaid returns the agent's own error in libvirt's words, which read
// "unable to execute QEMU agent command 'NAME': TEXT" after a prefix, or nil.
// libvirt drops the class, so the command's refusal is read off the text.
func agentSaid(text string) *Error {
	_, rest, ok := strings.Cut(text, "unable to execute QEMU agent command ")
	if !ok {
		return nil
	}
	said := &Error{Class: "GenericError"}
	if i := strings.Index(rest, ": "); i >= 0 {
		said.Desc = rest[i+2:]
	}
	if strings.Contains(said.Desc, "has not been found") || strings.Contains(said.Desc, "has been disabled") {
		said.Class = "CommandNotFound"
	}
	return said
}
