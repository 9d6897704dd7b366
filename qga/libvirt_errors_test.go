package qga

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/digitalocean/go-libvirt"
)

func TestAgentErrorOverLibvirt(t *testing.T) {
	for _, tt := range []struct {
		code libvirt.ErrorNumber
		text string
		is   []error
		not  []error
	}{
		// Texts as libvirt 9.0 and 11.3 print them.
		{86, "Guest agent is not responding: QEMU guest agent is not connected",
			[]error{ErrNotConnected}, []error{ErrDaemon, ErrNotRunning, context.DeadlineExceeded}},
		{86, "Guest agent is not responding: Guest agent not available for now",
			[]error{context.DeadlineExceeded}, []error{ErrDaemon, ErrNotConnected}},
		{86, "Guest agent is not responding: guest agent didn't respond to synchronization within '5' seconds",
			[]error{context.DeadlineExceeded}, []error{ErrDaemon, ErrNotConnected}},
		{86, "Guest agent is not responding: QEMU guest agent is not available due to an error",
			[]error{ErrProtocol}, []error{ErrDaemon, ErrNotConnected, context.DeadlineExceeded}},
		{86, "Guest agent is not responding: Guest agent disappeared while executing command",
			[]error{ErrConnectionLost}, []error{ErrDaemon, context.DeadlineExceeded}},
		{112, "guest agent command timed out: guest agent didn't respond to command within '5' seconds",
			[]error{context.DeadlineExceeded}, []error{ErrDaemon, ErrNotConnected}},
		{112, "guest agent command timed out: Guest agent disappeared while executing command",
			[]error{ErrConnectionLost}, []error{ErrDaemon, context.DeadlineExceeded}},
		{97, "guest agent replied with wrong id to guest-sync command", []error{ErrProtocol}, []error{ErrDaemon}},
		{113, "guest agent command failed: unable to execute QEMU agent command 'guest-x': The command guest-x has not been found",
			[]error{ErrUnsupported}, []error{ErrDaemon, ErrNotConnected}},
		{1, "internal error: unable to execute QEMU agent command 'guest-exec': Command guest-exec has been disabled: the command is not allowed",
			[]error{ErrUnsupported}, []error{ErrDaemon, ErrNotConnected}},
		{1, "internal error: Missing agent reply object", []error{ErrProtocol}, []error{ErrDaemon}},
		{1, "internal error: client socket is closed", []error{ErrDaemon}, []error{ErrProtocol}},
		{55, "Requested operation is not valid: domain is not running",
			[]error{ErrNotConnected, ErrNotRunning}, []error{ErrDaemon, context.DeadlineExceeded}},
		{42, "Domain not found: no domain with matching uuid", []error{ErrNotConnected, ErrNotRunning, fs.ErrNotExist}, []error{ErrDaemon}},
		{74, "argument unsupported: QEMU guest agent is not configured", []error{ErrNotConnected}, []error{ErrDaemon}},
		{68, "Timed out during operation: cannot acquire state change lock (held by agent=remoteDispatchDomainFSFreeze)",
			[]error{ErrDaemon}, []error{ErrNotConnected, context.DeadlineExceeded}},
		{29, "operation qemuDomainAgentCommand forbidden for read only access", []error{ErrDaemon, fs.ErrPermission}, nil},
		{88, "access denied", []error{ErrDaemon, fs.ErrPermission}, nil},
	} {
		err := agentError(libvirt.Error{Code: uint32(tt.code), Message: tt.text})
		for _, is := range tt.is {
			if !errors.Is(err, is) {
				t.Errorf("%d %q: error %q is not %q", tt.code, tt.text, err, is)
			}
		}
		for _, not := range tt.not {
			if errors.Is(err, not) {
				t.Errorf("%d %q: error %q is %q", tt.code, tt.text, err, not)
			}
		}
		if strings.ContainsAny(err.Error(), "\n\x1b") {
			t.Errorf("%q", err)
		}
	}
	err := agentError(libvirt.Error{Code: 1, Message: "internal error: unable to execute QEMU agent command 'guest-exec': Failed: no\x1b[2J: such file"})
	var said *Error
	if !errors.As(err, &said) || said.Desc != "Failed: no\x1b[2J: such file" || said.Class != "GenericError" || errors.Is(err, ErrUnsupported) {
		t.Errorf("the agent's own error became %#v", err)
	}
}
