package qga

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestErrorKinds(t *testing.T) {
	for _, tt := range []struct {
		err         error
		unsupported bool
	}{
		{&Error{"CommandNotFound", "The command x has not been found"}, true},
		{&Error{"CommandDisabled", ""}, true},
		{&Error{"GenericError", "The command x has been disabled for this instance"}, true},
		{&Error{"GenericError", "something else"}, false},
		{fmt.Errorf("wrapped: %w", &Error{"CommandNotFound", ""}), true},
	} {
		if got := errors.Is(tt.err, ErrUnsupported); got != tt.unsupported {
			t.Errorf("errors.Is(%v, ErrUnsupported) = %v, want %v", tt.err, got, tt.unsupported)
		}
	}
	for _, err := range []error{ErrWrongPeer, ErrTooLarge} {
		if !errors.Is(err, ErrProtocol) {
			t.Errorf("%v does not match ErrProtocol", err)
		}
	}
}

// What a guest says must not break out of a log line, or fill it.
func TestErrorTextIsClean(t *testing.T) {
	err := &Error{"GenericError", "a \"b\"\n\x1b[31m\u202e\xff" + strings.Repeat("é", 500)}
	got := err.Error()
	if want := `GenericError: a "b"\n\x1b[31m\u202e\xff`; !strings.HasPrefix(got, want) {
		t.Errorf("Error() = %q, want prefix %q", got, want)
	}
	if len(got) > 2*maxShown {
		t.Errorf("Error() has %d bytes", len(got))
	}
	if !strings.HasSuffix(got, " more bytes)") {
		t.Errorf("Error() = %q does not say that it is cut", got)
	}
	if got := (&Error{Class: "GenericError"}).Error(); got != "GenericError" {
		t.Errorf("without text: %q", got)
	}
}
