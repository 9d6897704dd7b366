package sidecar

import (
	"context"
	"log/slog"
	"time"

	"github.com/guestprobe/guestprobe/sidecar/probe"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

// A warning is that a check which fails nothing (severity: warn) has begun or ceased to fail. It is no transition of
// the verdict, so nobody would read of it otherwise.
type warning struct {
	verdict.Check
	lasted time.Duration // 0: it begins
}

// warn finds new warnings in what the checks publish; inputs are theirs, in the same order. It needs the lock.
func (s *state) warn(now time.Time, inputs []verdict.Check) {
	for i, in := range inputs {
		c := s.checks[i]
		switch {
		case !in.Warn:
			c.warnedAt = time.Time{} // it may have been one before a reload
		case in.State == probe.StateFailure && in.Reason != verdict.Starting && c.warnedAt.IsZero():
			c.warnedAt = now
			s.warnings = append(s.warnings, warning{Check: in})
		case in.State == probe.StateSuccess && !c.warnedAt.IsZero():
			s.warnings = append(s.warnings, warning{in, max(now.Sub(c.warnedAt), 1)})
			c.warnedAt = time.Time{}
		}
	}
}

func (w *warning) log(ctx context.Context, log *slog.Logger) {
	check, kind := slog.String("check", w.Name), slog.String("kind", w.Kind.String())
	if w.lasted > 0 {
		log.LogAttrs(ctx, slog.LevelInfo, "check recovered", check, kind, slog.String("lasted", w.lasted.Round(time.Millisecond).String()))
		return
	}
	log.LogAttrs(ctx, slog.LevelWarn, "check fails, with severity warn", check, kind, slog.String("reason", string(w.Reason)), slog.String("detail", w.Detail))
}
