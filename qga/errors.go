package qga

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

var (
	// ErrNotConnected is returned for a call that found no connection to the
	// peer. It wraps the last failure to get one, so that errors.Is tells a
	// missing socket (os.ErrNotExist) from a refusal (syscall.ECONNREFUSED).
	ErrNotConnected = errors.New("not connected")

	// ErrConnectionLost is returned when the peer hung up or the connection
	// broke in the middle of an exchange.
	ErrConnectionLost = errors.New("connection lost")

	// ErrProtocol is returned for bytes that belong to no protocol of ours.
	ErrProtocol = errors.New("protocol error")

	// ErrWrongPeer is returned when a QEMU monitor answers where a guest agent
	// was expected, or the reverse. It matches ErrProtocol too.
	ErrWrongPeer = fmt.Errorf("%w: wrong kind of peer", ErrProtocol)

	// ErrTooLarge is returned when the peer sent more than the cap for one
	// frame or one exchange. It matches ErrProtocol too.
	ErrTooLarge = fmt.Errorf("%w: peer sent too much", ErrProtocol)

	// ErrUnread is in the chain of a timeout when a local peer has not even read
	// the question: another client holds the channel, or the guest's end of it
	// is closed.
	ErrUnread = errors.New("the question was not read")

	// ErrLibvirtsChannel is returned, with ErrNotConnected, for an agent's
	// address that is libvirt's own channel, by its path. Nothing is sent there:
	// QEMU would read it once libvirt's daemon restarts, and libvirt, which then
	// gets the answer, would give the agent up.
	ErrLibvirtsChannel = errors.New("this channel is libvirt's own; use libvirt:DOMAIN, or give the VM another channel")

	// ErrUnsupported matches an *Error that says that the peer does not know
	// the command or is not allowed to run it. Check with errors.Is.
	ErrUnsupported = errors.New("command not supported")
)

// An Error is an answer of the peer that says no. The peer is alive.
type Error struct {
	// Class is QEMU's error class, such as "CommandNotFound" or "GenericError".
	Class string
	// Desc is the peer's text, unchanged: whoever prints it without Error()
	// must escape it, for a guest chose the bytes. It may be empty.
	Desc string
}

// Error returns class and text on one line, escaped and cut.
func (e *Error) Error() string {
	if e.Desc == "" {
		return clean(e.Class)
	}
	return clean(e.Class) + ": " + clean(e.Desc)
}

// Is reports whether e is a refusal of the command itself, for
// errors.Is(err, ErrUnsupported). Three generations of agents say so in three
// ways: class CommandDisabled (1.x), GenericError with a text, and
// CommandNotFound for unknown and disabled alike (qemu-10.0 qapi/qmp-dispatch.c).
func (e *Error) Is(target error) bool {
	if target != ErrUnsupported {
		return false
	}
	switch e.Class {
	case "CommandNotFound", "CommandDisabled":
		return true
	}
	return strings.Contains(e.Desc, "has been disabled")
}

// maxShown is how many bytes of a peer's text errors and logs show.
const maxShown = 200

// clean makes text chosen by a peer fit for errors and logs: one line, no
// control or invisible characters, at most maxShown bytes and a count of the
// rest.
func clean[T ~string | ~[]byte](text T) string {
	cut := ""
	if n := len(text) - maxShown; n > 0 {
		text, cut = text[:maxShown], fmt.Sprintf("… (%d more bytes)", n)
	}
	quoted := strconv.Quote(string(text))
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`) + cut
}
