package qga

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A stream is the Transport over a byte stream. It keeps one connection up,
// and lets one call at a time use it.
type stream struct {
	addr        Addr
	log         *slog.Logger
	dial        func(context.Context) (net.Conn, error)
	dialTimeout time.Duration
	callTimeout time.Duration
	maxBackoff  time.Duration

	// turn holds one value: who has taken it may use the session and the
	// three fields below.
	turn   chan struct{}
	lastID int64
	id     []byte
	out    []byte

	// mu guards the four fields below.
	mu      sync.Mutex
	live    *session      // nil: no connection
	down    error         // why there is none; nil while one is being made
	last    error         // why there was none the last time
	changed chan struct{} // closed when live or down changes

	connects, resyncs, stale, garbage atomic.Uint64
	roundTrip                         atomic.Int64
}

var _ Transport = (*stream)(nil)

func newStream(addr Addr, cfg *AgentConfig) (*stream, error) {
	dial := cfg.Dial
	if dial == nil {
		var err error
		if dial, err = dialer(addr); err != nil {
			return nil, err
		}
	}
	s := &stream{
		addr:        addr,
		log:         cfg.Logger.With("agent", addr.String()),
		dial:        dial,
		dialTimeout: cfg.DialTimeout,
		callTimeout: cfg.CallTimeout,
		maxBackoff:  cfg.MaxBackoff,
		turn:        make(chan struct{}, 1),
		changed:     make(chan struct{}),
		// A reply to an earlier process of ours may still come, so ids do not
		// start where that one's did. 2^53 is where some agents' numbers end.
		lastID: rand.Int64N(1 << 48),
	}
	s.turn <- struct{}{}
	return s, nil
}

// Run keeps the connection up. It reads in its own goroutine, which is why a
// connection is drained even when nobody calls.
func (s *stream) Run(ctx context.Context) error {
	defer s.set(nil, errors.New("the client has stopped"))
	retry := backoff{max: s.maxBackoff}
	for said := ""; ; {
		s.set(nil, nil)
		conn, err := s.connect(ctx)
		if err == nil {
			s.log.Debug("connected to the guest agent's channel")
			sess := newSession(s, conn)
			s.set(sess, nil)
			err = sess.run(ctx)
			if sess.answered() {
				retry.reset()
				said = ""
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if text := err.Error(); text != said {
			// Once per kind of failure, not once per attempt: a channel that
			// accepts and hangs up must not fill the log either.
			s.log.Info("no connection to the guest agent's channel", "err", err)
			said = text
		}
		if d := retry.next(); d > 0 {
			s.set(nil, err)
			pause(ctx, d)
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

func (s *stream) connect(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.dialTimeout)
	defer cancel()
	conn, err := s.dial(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		// Our own deadline must not make a call look as if a connected agent
		// had been silent.
		err = fmt.Errorf("%w: %v", syscall.ETIMEDOUT, err)
	}
	if err != nil {
		return nil, err
	}
	s.connects.Add(1)
	return conn, nil
}

// set publishes the connection, or why there is none.
func (s *stream) set(live *session, down error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live, s.down = live, down
	if down != nil {
		s.last = down
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// session returns the connection. It waits for one that is being made, and
// fails at once between two attempts.
func (s *stream) session(ctx context.Context) (*session, error) {
	for {
		s.mu.Lock()
		live, down, last, changed := s.live, s.down, s.last, s.changed
		s.mu.Unlock()
		if live != nil {
			return live, nil
		}
		if down != nil {
			return nil, fmt.Errorf("%w: %w", ErrNotConnected, down)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			switch {
			case !errors.Is(ctx.Err(), context.DeadlineExceeded):
				return nil, fmt.Errorf("%w: %w", ErrNotConnected, ctx.Err())
			case last != nil:
				return nil, fmt.Errorf("%w: still connecting after: %w", ErrNotConnected, last)
			}
			// Not a silent agent: nobody was asked. So the deadline is not in
			// the chain.
			return nil, fmt.Errorf("%w: still connecting", ErrNotConnected)
		}
	}
}

// RoundTrip implements Transport.
func (s *stream) RoundTrip(ctx context.Context, req Request) ([]byte, error) {
	var reply []byte
	err := s.call(ctx, func(ctx context.Context, sess *session) (err error) {
		if err := sess.sync(ctx, false); err != nil {
			return err
		}
		reply, err = s.command(ctx, sess, &req)
		if errors.Is(err, errNoIDs) {
			reply, err = s.command(ctx, sess, &req)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", s.addr, req.Command, err)
	}
	return reply, nil
}

// Sync implements Transport.
func (s *stream) Sync(ctx context.Context) error {
	err := s.call(ctx, func(ctx context.Context, sess *session) error {
		return sess.sync(ctx, true)
	})
	if err != nil {
		return fmt.Errorf("%s: synchronise: %w", s.addr, err)
	}
	return nil
}

// call runs f when its turn has come and there is a connection. A context
// without a deadline gets one: nothing here may wait for ever on a guest.
func (s *stream) call(ctx context.Context, f func(context.Context, *session) error) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.callTimeout)
		defer cancel()
	}
	select {
	case <-s.turn:
	case <-ctx.Done():
		return fmt.Errorf("an earlier call is still waiting: %w", ctx.Err())
	}
	defer func() { s.turn <- struct{}{} }()
	if err := ctx.Err(); err != nil {
		return err
	}
	sess, err := s.session(ctx)
	if err != nil {
		return err
	}
	return f(ctx, sess)
}

// command sends req under a fresh id, unless this agent knows no ids.
func (s *stream) command(ctx context.Context, sess *session, req *Request) ([]byte, error) {
	s.id = s.id[:0]
	if sess.usesIDs() {
		s.lastID++
		s.id = strconv.AppendInt(s.id, s.lastID, 10)
	}
	s.out = appendRequest(s.out[:0], req, s.id)
	start := time.Now()
	reply, err := sess.command(ctx, req, s.id, s.out)
	if cap(s.out) > defaultReply {
		s.out = nil
	}
	if err == nil || isAnswer(err) {
		s.roundTrip.Store(int64(time.Since(start)))
	}
	return reply, err
}

// isAnswer reports whether err is what the agent said.
func isAnswer(err error) bool {
	var said *Error
	return errors.As(err, &said)
}

// reopened says that the guest has opened its end anew, so what it had not
// read by then is lost.
func (s *stream) reopened() {
	s.mu.Lock()
	live := s.live
	s.mu.Unlock()
	if live != nil {
		live.resend()
	}
}

// Stats implements Transport.
func (s *stream) Stats() AgentStats {
	s.mu.Lock()
	live := s.live
	s.mu.Unlock()
	return AgentStats{
		Connected:    live != nil,
		InSync:       live != nil && live.synced(),
		Connects:     s.connects.Load(),
		Resyncs:      s.resyncs.Load(),
		StaleReplies: s.stale.Load(),
		Garbage:      s.garbage.Load(),
		RoundTrip:    time.Duration(s.roundTrip.Load()),
	}
}
