package qga

import (
	"context"
	"math/rand/v2"
	"time"
)

// minBackoff is the first pause between two attempts to connect.
const minBackoff = 100 * time.Millisecond

// A backoff spaces attempts to connect: the first retry comes at once, because
// a peer that restarts is back in a moment and a channel that is not read
// makes the guest agent spin; then the pauses double up to max. Each is
// shortened by up to a half at random, so that many clients do not call in step.
type backoff struct {
	max    time.Duration
	failed int // since the last reset
}

func (b *backoff) reset() { b.failed = 0 }

// next returns how long to wait before the next attempt.
func (b *backoff) next() time.Duration {
	b.failed++
	if b.failed == 1 {
		return 0
	}
	d := b.max
	if doublings := b.failed - 2; doublings < 30 {
		d = min(minBackoff<<doublings, b.max)
	}
	return d - rand.N(d/2+1)
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
