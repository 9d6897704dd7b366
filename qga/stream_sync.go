package qga

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// errPlainSync says that the agent has no guest-sync-delimited, as those
// before QEMU 1.1, and guest-sync is to be tried.
var errPlainSync = errors.New("agent knows no guest-sync-delimited")

// A synchronisation may be lost for good: bytes that the guest had taken when
// it was reset are gone. So it is sent again, under the same token, but
// seldom: an agent that hangs will answer all of them when it wakes, and the
// channel holds only so many.
const (
	firstResend = 10 * time.Second
	maxResend   = 5 * time.Minute
)

// sync returns when the agent is in step with us. If it is not, sync waits for
// the token that is outstanding, or sends one; with renew it does so even if
// the agent was in step a moment ago.
func (c *session) sync(ctx context.Context, renew bool) error {
	err := c.syncOnce(ctx, renew)
	if errors.Is(err, errPlainSync) {
		err = c.syncOnce(ctx, renew)
	}
	return err
}

func (c *session) syncOnce(ctx context.Context, renew bool) error {
	c.mu.Lock()
	if c.inSync && !renew {
		c.mu.Unlock()
		return nil
	}
	line := c.startSync()
	token, sentAt := c.token, c.sentAt
	c.waits = waitSync
	if line != nil {
		c.junk = "" // else what the agent has said since belongs to the question that is still open
	}
	c.mu.Unlock()

	werr := c.write(ctx, line)
	res, err := c.await(ctx, werr)
	if err == nil {
		if res.err == nil && line != nil {
			c.s.roundTrip.Store(int64(time.Since(sentAt)))
		}
		return res.err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if werr != nil && c.token == token {
		c.outstanding = false // it did not get out whole
	}
	return c.explain(err, c.syncCommand())
}

// startSync returns what to send: a new token, the outstanding one again, or
// nothing. The caller holds mu.
func (c *session) startSync() []byte {
	now := time.Now()
	switch {
	case c.inSync:
		// A proof of life. No reset: the agent's parser is where it should be.
		c.inSync, c.outstanding = false, true
		c.token = rand.Int64()
		c.resendAfter = firstResend
		c.limit = frameLimit{frame: defaultReply, skip: true}
		c.budget = syncAllowance
		c.sentAt = now
		return c.syncLine(false)
	case !c.outstanding:
		c.outstanding = true
		c.token = rand.Int64()
		c.resendAfter = firstResend
		// Only with a new token: a flood must not be granted more by each call
		// that waits. What is left is for the reply that was given up.
		c.budget = max(c.budget, 0) + syncAllowance
	case now.Sub(c.sentAt) >= c.resendAfter:
		c.resendAfter = min(max(2*c.resendAfter, firstResend), maxResend)
	default:
		return nil
	}
	if !c.sentAt.IsZero() {
		c.s.resyncs.Add(1)
	}
	c.sentAt = now
	return c.syncLine(true)
}

// resend makes the next call send the outstanding token again.
func (c *session) resend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resendAfter = 0
}

// syncLine encodes the outstanding token into the buffer of the call whose turn
// it is.
func (c *session) syncLine(reset bool) []byte {
	c.s.out = appendSync(c.s.out[:0], c.syncCommand(), c.token, reset)
	return c.s.out
}

func (c *session) syncCommand() string {
	if c.plainSync {
		return "guest-sync"
	}
	return "guest-sync-delimited"
}

// isToken reports whether r returns the outstanding token. A token that comes
// without its sentinel counts: 63 random bits are identification enough, and
// agents of third parties are known to lack the byte.
func (c *session) isToken(r *reply) bool {
	if r.err != nil {
		return false
	}
	n, err := strconv.ParseInt(string(r.ret), 10, 64)
	return err == nil && n == c.token
}

// refusesSync reports whether r says that the agent does not know the
// synchronisation, or may not run it.
func (c *session) refusesSync(r *reply) bool {
	if r.ret != nil || r.err == nil || r.id != nil {
		return false
	}
	var said *Error
	return errors.As(decodeError(r.err), &said) && errors.Is(said, ErrUnsupported) &&
		strings.Contains(said.Desc, c.syncCommand())
}
