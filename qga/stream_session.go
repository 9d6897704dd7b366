package qga

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// minString is the least that JSON strings are cut to: member names are strings
// as well.
const minString = 64

// errNoIDs says that the agent is older than QEMU 4.0 and refused the id: the
// command was not run, and is to be sent again without one.
var errNoIDs = errors.New("agent knows no ids")

// A session is one connection to an agent. The goroutine of run reads, always;
// the call whose turn it is writes, and waits on replies.
type session struct {
	s    *stream
	conn net.Conn

	writeBy time.Time // the connection's write deadline; used by the call

	replies chan result   // one slot: at most one exchange waits
	ended   chan struct{} // closed when the connection is gone, after err is set
	err     error

	// mu guards what the reader and the call share.
	mu     sync.Mutex
	waits  waitFor // what the exchange in progress waits for
	id     []byte  // of the command
	limit  frameLimit
	budget int    // bytes that the agent may still send in this exchange
	junk   string // the last line of this exchange that was no JSON object

	everSync  bool
	inSync    bool
	noIDs     bool // the agent refuses ids, or does not return them
	echoesID  bool // the agent returned an id at least once
	noIDReply bool // an answer without id came while one with id was waited for
	plainSync bool // the agent knows guest-sync only

	// The outstanding synchronisation: one token until it comes back.
	outstanding bool
	token       int64
	sentAt      time.Time
	resendAfter time.Duration // since sentAt

	// A command that was given up, whose reply may still come before the token.
	lateID []byte
	late   func([]byte, error)
}

type waitFor uint8

const (
	waitNothing waitFor = iota
	waitSync
	waitReply
)

type result struct {
	ret []byte
	err error
}

func newSession(s *stream, conn net.Conn) *session {
	return &session{
		s:       s,
		conn:    conn,
		replies: make(chan result, 1),
		ended:   make(chan struct{}),
		limit:   frameLimit{frame: defaultReply, skip: true},
		budget:  syncAllowance,
	}
}

// run reads until the connection or ctx ends. It returns why.
func (c *session) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { c.conn.Close() })
	defer stop()
	err := c.read()
	c.conn.Close()
	if !errors.Is(err, ErrProtocol) {
		err = fmt.Errorf("%w: %w", ErrConnectionLost, err)
	}
	c.err = err
	close(c.ended)
	return err
}

func (c *session) read() error {
	frames := newFrameReader(c.conn, c.account)
	for {
		f, err := frames.next()
		if err != nil {
			return err
		}
		then, err := c.receive(f)
		if err != nil {
			return err
		}
		if then != nil {
			then()
		}
	}
}

// account takes n bytes off the budget of the exchange in progress, or of the
// last one: what a guest sends without being asked is limited too.
func (c *session) account(n int) (frameLimit, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.budget -= n; c.budget < 0 {
		return frameLimit{}, fmt.Errorf("%w in one exchange", ErrTooLarge)
	}
	return c.limit, nil
}

// receive deals with one line. The function it returns, if any, is to be
// called next, without the lock.
func (c *session) receive(f frame) (then func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(bytes.TrimSpace(f.data)) == 0 {
		return nil, nil
	}
	r, ok := parseReply(f.data)
	switch {
	case !ok:
		c.s.garbage.Add(1)
		if c.waits != waitNothing && c.junk == "" {
			c.junk = clean(f.data)
		}
	case r.greeting:
		return nil, fmt.Errorf("%w: a QEMU monitor answers here, not a guest agent", ErrWrongPeer)
	case !r.isAnswer():
	case c.outstanding && c.isToken(&r):
		first := !c.everSync
		c.outstanding, c.inSync, c.everSync = false, true, true
		c.late = nil
		c.budget = defaultReply
		c.finish(waitSync, result{})
		if first {
			return func() { c.s.log.Info("the guest agent answers") }, nil
		}
	case c.outstanding && c.refusesSync(&r):
		c.outstanding = false
		if !c.plainSync {
			c.plainSync = true
			c.finish(waitSync, result{err: errPlainSync})
		} else {
			c.finish(waitSync, result{err: decodeError(r.err)})
		}
	case c.waits == waitReply && c.refusesIDs(&r):
		c.noIDs = true
		c.finish(waitReply, result{err: errNoIDs})
	case c.waits == waitReply && c.isReply(f, &r):
		c.echoesID = c.echoesID || r.id != nil
		ret, err := r.result()
		if errors.Is(err, ErrProtocol) {
			c.inSync = false
		}
		c.finish(waitReply, result{ret: ret, err: err})
	case c.late != nil && r.id != nil && bytes.Equal(r.id, c.lateID):
		c.s.stale.Add(1)
		fn := c.late
		c.late = nil
		ret, err := r.result()
		return func() { fn(ret, err) }, nil
	case c.outstanding && r.id == nil && r.err != nil:
		// How an agent answers the byte that reset its parser. It comes before
		// the token.
	default:
		c.s.stale.Add(1)
		if c.waits == waitReply && r.id == nil && r.ret != nil {
			c.noIDReply = true
		}
	}
	return nil, nil
}

// isReply tells the reply to the pending command from one to somebody else.
// Without ids a second return of the last token, which was perhaps sent twice,
// must not pass for ours; a sentinel marks it, except for guest-sync.
func (c *session) isReply(f frame, r *reply) bool {
	if len(c.id) == 0 {
		return r.id == nil && !f.delimited && !c.isToken(r)
	}
	return bytes.Equal(r.id, c.id)
}

// refusesIDs recognises how agents before 4.0 answer a member "id": without
// running the command, and without the id (CentOS 7 ships 2.12).
func (c *session) refusesIDs(r *reply) bool {
	return !c.echoesID && len(c.id) > 0 && r.id == nil && r.ret == nil &&
		bytes.Contains(r.err, []byte("'id' is unexpected"))
}

// finish hands res to the call, if it waits for that. The caller holds mu.
func (c *session) finish(what waitFor, res result) {
	if c.waits == what {
		c.waits = waitNothing
		c.replies <- res
	}
}

// command sends line, which holds the command under id, and waits for the
// reply. Unanswered, it leaves the session out of step.
func (c *session) command(ctx context.Context, req *Request, id, line []byte) ([]byte, error) {
	maxReply := req.MaxReply
	if maxReply <= 0 {
		maxReply = defaultReply
	}
	limit := frameLimit{frame: maxReply}
	if req.MaxString > 0 && maxReply > defaultReply {
		limit = frameLimit{frame: defaultReply, stringN: max(req.MaxString, minString)}
	}
	c.mu.Lock()
	c.id = append(c.id[:0], id...)
	c.waits, c.limit = waitReply, limit
	c.budget = maxReply + defaultReply // and as much again for replies to others
	c.noIDReply = false
	c.junk = ""
	c.mu.Unlock()

	res, err := c.await(ctx, c.write(ctx, line))
	if err == nil {
		return res.ret, res.err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inSync = false
	c.limit.skip = true // what comes now is waited for by nobody
	c.lateID, c.late = append(c.lateID[:0], c.id...), req.Late
	if c.noIDReply && !c.echoesID && len(c.id) > 0 {
		// Somebody answers, and returns no ids: after the next token go
		// without them.
		c.noIDs = true
	}
	return nil, c.explain(err, req.Command)
}

// explain says of an exchange that failed what the agent did meanwhile. The
// caller holds mu.
func (c *session) explain(err error, command string) error {
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return err
	}
	if c.junk != "" {
		return fmt.Errorf("no answer to %s: %w, and no JSON object: %s: %w", command, err, c.junk, ErrProtocol)
	}
	if unread(c.conn) {
		return fmt.Errorf("no answer to %s: %w: %w", command, err, ErrUnread)
	}
	return fmt.Errorf("no answer to %s: %w", command, err)
}

// await waits for what the caller has set waits to, unless err says that
// already the writing failed. The error is the context's, or says that the
// connection is gone.
func (c *session) await(ctx context.Context, err error) (result, error) {
	if err == nil {
		select {
		case res := <-c.replies:
			return res, nil
		case <-c.ended:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	c.mu.Lock()
	c.waits = waitNothing
	c.mu.Unlock()
	select {
	case res := <-c.replies: // it came at the last moment
		return res, nil
	default:
	}
	if err != nil {
		return result{}, err
	}
	return result{}, c.err
}

// A write that takes longer than shortWrite, or at most longWrite, is made to
// watch the context as well as its deadline. Sockets have room for many
// requests, so in practice only an agent that has not read for hours gets there.
// Between the two a deadline is used again, for each new one wakes the runtime.
const (
	shortWrite = 20 * time.Millisecond
	longWrite  = 200 * time.Millisecond
)

// write sends p. It returns the context's error, or nil if the connection
// broke: then ended is closed soon.
func (c *session) write(ctx context.Context, p []byte) error {
	if len(p) == 0 {
		return nil
	}
	deadline, _ := ctx.Deadline()
	now := time.Now()
	if c.writeBy.Before(now.Add(shortWrite)) || c.writeBy.After(deadline) {
		c.writeBy = now.Add(longWrite)
		if c.writeBy.After(deadline) {
			c.writeBy = deadline
		}
		c.conn.SetWriteDeadline(c.writeBy)
	}
	n, err := c.conn.Write(p)
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
		c.writeBy = time.Time{}
		c.conn.SetWriteDeadline(deadline)
		fired := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			c.conn.SetWriteDeadline(time.Unix(1, 0))
			close(fired)
		})
		_, err = c.conn.Write(p[n:])
		if !stop() {
			<-fired
		}
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return context.DeadlineExceeded
	case err != nil:
		c.conn.Close() // the reader notices and says why
	}
	return nil
}

func (c *session) usesIDs() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.noIDs
}

// answered reports whether an agent has shown itself on this connection.
func (c *session) answered() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.everSync
}

func (c *session) synced() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inSync
}
