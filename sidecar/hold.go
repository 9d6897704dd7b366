package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

// holdInterval is how often the hold file is looked at. It is one stat of a local file.
const holdInterval = 500 * time.Millisecond

// watchHold holds the probing while the operator's file exists, until ctx is done.
func watchHold(ctx context.Context, log *slog.Logger, path string, s *state) error {
	ticker := time.NewTicker(holdInterval)
	defer ticker.Stop()
	trouble := ""
	for {
		hold, err := readHold(path, time.Now())
		if err != nil && err.Error() != trouble {
			log.Warn("hold file", "path", path, "error", err)
		}
		trouble = ""
		if err != nil {
			trouble = err.Error()
		}
		if s.holdDiffers(hold) {
			s.update(func() { s.hold = hold })
			// The verdict has its own record, which tells of the hold only if nothing worse is to be told.
			if hold != nil {
				log.Info("maintenance: " + hold.String())
			} else {
				log.Info("maintenance: the hold is over", "path", path)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// readHold returns the hold that the file at path asks for, and nil if it does not exist or has expired. A file that
// cannot be read or understood holds all the same: an operator who has made it means to hold.
func readHold(path string, now time.Time) (*verdict.Hold, error) {
	hold := &verdict.Hold{Source: path}
	// Opened so that a named pipe cannot block, and read only if it is a file.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return hold, fmt.Errorf("held without an expiry: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return hold, fmt.Errorf("held without an expiry: %s is no regular file", path)
	}
	const enough = 256 // bytes, for a time and a newline
	data, err := io.ReadAll(io.LimitReader(f, enough))
	if err != nil {
		return hold, fmt.Errorf("held without an expiry: %w", err)
	}
	text := strings.TrimSpace(string(data))
	if text == "" {
		return hold, nil
	}
	until, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return hold, fmt.Errorf("held without an expiry: %q is no RFC 3339 time such as 2026-01-31T22:00:00Z", printable(text))
	}
	if !now.Before(until) {
		return nil, nil
	}
	hold.Until = until
	return hold, nil
}

// holdDiffers reports whether hold is another one than the state's.
func (s *state) holdDiffers(hold *verdict.Hold) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if hold == nil || s.hold == nil {
		return hold != s.hold
	}
	return hold.Source != s.hold.Source || !hold.Until.Equal(s.hold.Until)
}
