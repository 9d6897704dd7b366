package qga

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// libvirtGiveUp is how long a call may stay unanswered after its caller
	// has left. libvirt waits 30 s for another agent command to end, up to
	// twice 5 s for the agent to get in step, and then for the command.
	libvirtGiveUp = 45 * time.Second
	// maxForeign is how many replies to somebody else one exchange may get.
	maxForeign = 3
)

// A libvirtAgent is the Transport over libvirt: each command is one RPC
// (virDomainQemuAgentCommand). libvirt itself keeps in step with the agent,
// but matches replies by their order alone, so each command carries an id and
// a reply under another one is not taken.
//
// The daemon runs each call in a worker of its own and cannot be told to stop.
// So a call that its caller gave up is not followed by another before it has
// ended: a hung agent must not use up the daemon's workers.
type libvirtAgent struct {
	addr        Addr
	log         *slog.Logger
	dial        func(context.Context) (net.Conn, error)
	dialTimeout time.Duration
	callTimeout time.Duration
	maxBackoff  time.Duration

	// turn holds one value: who has taken it may use the fields below.
	turn    chan struct{}
	pending *libvirtCall // the last call, if its caller has left
	lastID  int64
	known   bool // whether the agent returns ids has been found out
	noIDs   bool // it refuses them, or does not return them

	// mu guards the four fields below.
	mu      sync.Mutex
	live    *libvirtConn  // nil: no connection
	down    error         // why there is none; nil while one is being made
	inSync  bool          // the last command was answered
	changed chan struct{} // closed when live or down changes

	absent                   atomic.Bool // libvirt says that no agent is connected
	connects, resyncs, stale atomic.Uint64
	garbage                  atomic.Uint64
	roundTrip                atomic.Int64
}

var _ Transport = (*libvirtAgent)(nil)

func newLibvirtAgent(addr Addr, cfg *AgentConfig) *libvirtAgent {
	a := &libvirtAgent{
		addr:        addr,
		log:         cfg.Logger.With("agent", addr.String()),
		dial:        cfg.Dial,
		dialTimeout: cfg.DialTimeout,
		callTimeout: cfg.CallTimeout,
		maxBackoff:  cfg.MaxBackoff,
		turn:        make(chan struct{}, 1),
		changed:     make(chan struct{}),
		lastID:      rand.Int64N(1 << 48), // as for a stream
	}
	if a.dial == nil {
		a.dial = libvirtDialer(addr)
	}
	a.turn <- struct{}{}
	return a
}

// Run implements Transport.
func (a *libvirtAgent) Run(ctx context.Context) error {
	defer a.set(nil, errors.New("the client has stopped"))
	retry := backoff{max: a.maxBackoff}
	for said := ""; ; {
		a.set(nil, nil)
		openCtx, cancel := context.WithTimeout(ctx, a.dialTimeout)
		conn, err := openLibvirt(openCtx, a.dial)
		cancel()
		if err == nil {
			a.connects.Add(1)
			a.log.Info("connected to libvirt for the guest agent")
			a.set(conn, nil)
			select {
			case <-conn.guard.done:
			case <-ctx.Done():
			}
			conn.close()
			err = conn.guard.cause()
			retry.reset()
			said = ""
		}
		if ctx.Err() != nil {
			return nil
		}
		if text := err.Error(); text != said {
			a.log.Info("no connection to libvirt for the guest agent", "err", err)
			said = text
		}
		d := retry.next()
		if d > 0 {
			a.set(nil, err)
		}
		pause(ctx, d)
		if ctx.Err() != nil {
			return nil
		}
	}
}

// set publishes the connection, or why there is none.
func (a *libvirtAgent) set(live *libvirtConn, down error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.live, a.down, a.inSync = live, down, false
	close(a.changed)
	a.changed = make(chan struct{})
}

// conn returns the connection. It waits for one that is being made, and fails
// at once between two attempts.
func (a *libvirtAgent) conn(ctx context.Context) (*libvirtConn, error) {
	for {
		a.mu.Lock()
		live, down, changed := a.live, a.down, a.changed
		a.mu.Unlock()
		switch {
		case live != nil:
			return live, nil
		case errors.Is(down, ErrNotConnected) && errors.Is(down, ErrDaemon):
			return nil, down
		case errors.Is(down, ErrDaemon):
			return nil, fmt.Errorf("%w: %w", ErrNotConnected, down)
		case down != nil:
			return nil, fmt.Errorf("%w: %w: %w", ErrDaemon, ErrNotConnected, down)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			// Nobody was asked, so no deadline in the chain.
			return nil, fmt.Errorf("%w: %w: still connecting: %v", ErrDaemon, ErrNotConnected, ctx.Err())
		}
	}
}

// RoundTrip implements Transport.
func (a *libvirtAgent) RoundTrip(ctx context.Context, req Request) ([]byte, error) {
	if req.Command == "guest-sync-delimited" {
		// Its reply begins with a byte that is no JSON, and for that libvirt
		// would drop the agent until the guest restarts it.
		return nil, fmt.Errorf("%s: %s refused: libvirt cannot bear its reply", a.addr, req.Command)
	}
	var reply []byte
	err := a.exchange(ctx, func(ctx context.Context, conn *libvirtConn) (err error) {
		for range maxForeign {
			if err = a.learn(ctx, conn); err != nil {
				return err
			}
			reply, err = a.command(ctx, conn, &req)
			again := errors.Is(err, errNoIDs) || errors.Is(err, errForeignReply) && repeatable(req.Command)
			if !again {
				return err
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", a.addr, clean(req.Command), err)
	}
	return reply, nil
}

// repeatable reports whether a command may be sent twice.
func repeatable(command string) bool {
	switch command {
	case "guest-ping", "guest-info", "guest-sync", "guest-fsfreeze-status":
		return true
	}
	return false
}

// Sync implements Transport, with the plain guest-sync.
func (a *libvirtAgent) Sync(ctx context.Context) error {
	if err := a.exchange(ctx, a.sync); err != nil {
		return fmt.Errorf("%s: synchronise: %w", a.addr, err)
	}
	return nil
}

// exchange runs f when its turn has come.
func (a *libvirtAgent) exchange(ctx context.Context, f func(context.Context, *libvirtConn) error) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.callTimeout)
		defer cancel()
	}
	if err := a.wait(ctx, a.turn); err != nil {
		return fmt.Errorf("an earlier call is still waiting: %w", err)
	}
	defer func() { a.turn <- struct{}{} }()
	if err := a.settle(ctx); err != nil {
		return err
	}
	conn, err := a.conn(ctx)
	if err != nil {
		return err
	}
	err = f(ctx, conn)
	var said *Error
	answered := err == nil || errors.As(err, &said)
	a.absent.Store(errors.Is(err, ErrNotConnected) && !errors.Is(err, ErrDaemon))
	a.mu.Lock()
	a.inSync = answered && a.live != nil
	a.mu.Unlock()
	return err
}

// settle waits until the call that its caller gave up has ended. If it does
// not end in the longest time that libvirt may take, its connection is given
// up too.
func (a *libvirtAgent) settle(ctx context.Context) error {
	p := a.pending
	if p == nil {
		return a.timeLeft(ctx)
	}
	if time.Since(p.started) > libvirtGiveUp {
		p.conn.guard.end()
		<-p.done
	} else if err := a.wait(ctx, p.done); err != nil {
		return fmt.Errorf("an earlier command is not answered: %w", err)
	}
	a.pending = nil
	return a.timeLeft(ctx)
}

func (a *libvirtAgent) timeLeft(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return a.outOfTime(ctx)
}

// learn finds out, once per agent, whether it returns ids: with guest-sync,
// whose reply identifies itself.
func (a *libvirtAgent) learn(ctx context.Context, conn *libvirtConn) error {
	if a.known {
		return nil
	}
	err := a.sync(ctx, conn)
	var said *Error
	if errors.As(err, &said) { // it may not even know guest-sync
		return nil
	}
	return err
}

// sync sends guest-sync until its own reply comes.
func (a *libvirtAgent) sync(ctx context.Context, conn *libvirtConn) error {
	var err error
	for range maxForeign {
		token := strconv.FormatInt(rand.Int64(), 10)
		req := Request{Command: "guest-sync", Arguments: []byte(`{"id":` + token + `}`)}
		id := a.nextID()
		var r reply
		r, err = a.roundTripOnce(ctx, conn, &req, id)
		switch {
		case errors.Is(err, errNoIDs):
			continue
		case err != nil:
			return err
		}
		ret, rerr := r.result()
		if rerr == nil && string(ret) == token {
			a.known = true
			a.noIDs = r.id == nil
			return nil
		}
		a.stale.Add(1)
		a.resyncs.Add(1)
		err = errForeignReply
	}
	return err
}

func (a *libvirtAgent) nextID() []byte {
	if a.noIDs {
		return nil
	}
	a.lastID++
	return strconv.AppendInt(nil, a.lastID, 10)
}

// errForeignReply says that libvirt returned the reply to another command.
var errForeignReply = fmt.Errorf("%w: libvirt returned the reply to another command", ErrProtocol)

// command sends req and takes no reply but its own.
func (a *libvirtAgent) command(ctx context.Context, conn *libvirtConn, req *Request) ([]byte, error) {
	id := a.nextID()
	r, err := a.roundTripOnce(ctx, conn, req, id)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(r.id, id) {
		a.stale.Add(1)
		a.known = false // another agent, perhaps, or out of step
		return nil, errForeignReply
	}
	return r.result()
}

// roundTripOnce makes one call, and returns the reply whosever it is.
func (a *libvirtAgent) roundTripOnce(ctx context.Context, conn *libvirtConn, req *Request, id []byte) (reply, error) {
	c, err := a.start(ctx, conn, req, id)
	if err != nil {
		return reply{}, err
	}
	if err := a.wait(ctx, c.done); err != nil && c.abandon(req.Late) {
		a.pending = c
		return reply{}, fmt.Errorf("no answer: %w", err)
	}
	if c.err != nil {
		err := agentError(c.err)
		var said *Error
		if errors.As(err, &said) && id != nil && strings.Contains(said.Desc, "'id' is unexpected") {
			a.known, a.noIDs = true, true // older than QEMU 4.0: the command was not run
			return reply{}, errNoIDs
		}
		return reply{}, err
	}
	a.roundTrip.Store(int64(time.Since(c.started)))
	if limit := cmp.Or(req.MaxReply, defaultReply); len(c.reply) > limit {
		return reply{}, fmt.Errorf("%w: a reply of more than %d bytes", ErrTooLarge, limit)
	}
	r, ok := parseReply([]byte(c.reply))
	if !ok || !r.isAnswer() {
		a.garbage.Add(1)
		return reply{}, fmt.Errorf("%w: %q is no reply", ErrProtocol, clean(c.reply))
	}
	return r, nil
}

// Stats implements Transport.
func (a *libvirtAgent) Stats() AgentStats {
	a.mu.Lock()
	connected, inSync := a.live != nil && !a.absent.Load(), a.inSync
	a.mu.Unlock()
	return AgentStats{
		Connected:    connected,
		InSync:       inSync,
		Connects:     a.connects.Load(),
		Resyncs:      a.resyncs.Load(),
		StaleReplies: a.stale.Load(),
		Garbage:      a.garbage.Load(),
		RoundTrip:    time.Duration(a.roundTrip.Load()),
	}
}
