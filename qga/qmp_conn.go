package qga

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

// maxQMPFrame is the cap for one line of a monitor. The longest that is asked
// for, query-block of a VM with a hundred disks, is some hundred KiB.
const maxQMPFrame = 4 << 20

// A qmpConn is one connection to a QMP monitor. One reader always runs, so a
// peer that talks is never blocked by us. Replies are matched by id; a reply
// that nobody waits for any more is dropped.
//
// Its methods are safe for concurrent use. Close joins the reader.
type qmpConn struct {
	nc       net.Conn
	onEvent  func(qmpMessage) // called by the reader in order; must not block
	onStray  func(qmpMessage) // the same for replies that nobody waits for
	greeted  chan struct{}    // closed when greeting is set
	greeting qmpGreeting
	done     chan struct{} // closed when err is set and the reader has ended
	err      error

	writeMu sync.Mutex // serialises writes, one whole line each

	mu      sync.Mutex
	lastID  uint64
	pending map[string]func(qmpMessage, error)
}

// newQMPConn takes nc over and starts to read.
func newQMPConn(nc net.Conn, onEvent, onStray func(qmpMessage)) *qmpConn {
	c := &qmpConn{
		nc:      nc,
		onEvent: onEvent,
		onStray: onStray,
		greeted: make(chan struct{}),
		done:    make(chan struct{}),
		pending: map[string]func(qmpMessage, error){},
	}
	go c.read() // joined by close
	return c
}

// close ends the connection and waits for the reader.
func (c *qmpConn) close() {
	c.nc.Close()
	<-c.done
}

// read runs until the connection ends, by either side or by nonsense.
func (c *qmpConn) read() {
	defer close(c.done)
	err := c.readFrames()
	c.nc.Close()

	c.mu.Lock()
	c.err = err
	waiting := c.pending
	c.pending = nil
	c.mu.Unlock()
	for _, deliver := range waiting {
		deliver(qmpMessage{}, err)
	}
}

func (c *qmpConn) readFrames() error {
	frames := newFrameReader(c.nc, fixedLimit(maxQMPFrame))
	greeted := false
	for {
		f, err := frames.next()
		switch {
		case errors.Is(err, ErrProtocol):
			return err
		case errors.Is(err, io.EOF):
			return fmt.Errorf("%w: the peer hung up", ErrConnectionLost)
		case err != nil:
			return fmt.Errorf("%w: %w", ErrConnectionLost, err)
		case f.delimited: // no monitor sends it, and each agent does
			return fmt.Errorf("%w: a guest agent's sentinel on a monitor", ErrWrongPeer)
		case len(f.data) == 0:
			continue
		}
		msg, err := decodeQMP(f.data)
		if err != nil {
			return err
		}
		if !greeted {
			if msg.kind != qmpGreetingKind {
				return fmt.Errorf("%w: %q instead of a monitor's greeting", ErrWrongPeer, clean(f.data))
			}
			greeted = true
			c.greeting = msg.greeting
			close(c.greeted)
			continue
		}
		c.dispatch(msg)
	}
}

func (c *qmpConn) dispatch(msg qmpMessage) {
	switch msg.kind {
	case qmpEventKind:
		c.onEvent(msg)
	case qmpReply:
		c.mu.Lock()
		deliver := c.pending[msg.id]
		delete(c.pending, msg.id)
		c.mu.Unlock()
		if deliver == nil {
			c.onStray(msg)
			return
		}
		deliver(msg, nil)
	}
}

// start sends a command and returns its id. deliver is called exactly once if
// start returns no error: with the reply, or with the error that ended the
// connection. The reader calls it, so it must not block.
func (c *qmpConn) start(cmd qmpCommand, deadline time.Time, deliver func(qmpMessage, error)) (id string, err error) {
	if err := cmd.check(); err != nil {
		return "", err
	}
	c.mu.Lock()
	if c.pending == nil {
		defer c.mu.Unlock()
		return "", fmt.Errorf("%s: %w", cmd.name(), c.err)
	}
	c.lastID++
	id = strconv.FormatUint(c.lastID, 10)
	c.pending[id] = deliver
	c.mu.Unlock()

	cmd.ID = json.RawMessage(id)
	line, err := json.Marshal(cmd)
	if err == nil {
		err = c.write(append(line, '\n'), deadline)
	}
	if err != nil && c.forget(id) {
		return "", fmt.Errorf("%s: %w", cmd.name(), err)
	}
	return id, nil
}

// forget gives up the wait for a reply. It reports whether it was still
// awaited: if not, deliver has been called or is about to be.
func (c *qmpConn) forget(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, waiting := c.pending[id]
	delete(c.pending, id)
	return waiting
}

func (c *qmpConn) write(line []byte, deadline time.Time) error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if err := c.nc.SetWriteDeadline(deadline); err != nil {
		return fmt.Errorf("%w: %w", ErrConnectionLost, err)
	}
	n, err := c.nc.Write(line)
	if err == nil {
		return nil
	}
	if n > 0 {
		// Half a command is out: what follows it would be parsed as its rest.
		c.nc.Close()
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("%w: the peer does not read", context.DeadlineExceeded)
	}
	return fmt.Errorf("%w: %w", ErrConnectionLost, err)
}

// call sends a command and waits for its reply until ctx ends. An error reply
// is returned as *Error. A reply that comes after ctx has ended is dropped,
// and the connection stays usable.
func (c *qmpConn) call(ctx context.Context, cmd qmpCommand) (qmpMessage, error) {
	type answer struct {
		msg qmpMessage
		err error
	}
	answers := make(chan answer, 1)
	deadline, _ := ctx.Deadline() // the zero Time is no deadline
	id, err := c.start(cmd, deadline, func(msg qmpMessage, err error) { answers <- answer{msg, err} })
	if err != nil {
		return qmpMessage{}, err
	}
	select {
	case a := <-answers:
		if a.err == nil && a.msg.err != nil {
			a.err = a.msg.err
		}
		if a.err != nil {
			return a.msg, fmt.Errorf("%s: %w", cmd.name(), a.err)
		}
		return a.msg, nil
	case <-ctx.Done():
		c.forget(id)
		return qmpMessage{}, fmt.Errorf("%s: no reply: %w", cmd.name(), ctx.Err())
	}
}

// awaitGreeting waits for the peer's first line.
func (c *qmpConn) awaitGreeting(ctx context.Context) error {
	select {
	case <-c.greeted:
		return nil
	case <-c.done:
		select {
		case <-c.greeted: // it greeted and then hung up: the next call says so
			return nil
		default:
			return c.err
		}
	case <-ctx.Done():
		return fmt.Errorf("no greeting: %w", ctx.Err())
	}
}

// capabilities is the command that ends the negotiation.
func (c *qmpConn) capabilities() qmpCommand {
	cmd := qmpCommand{Execute: "qmp_capabilities"}
	if c.greeting.oob {
		cmd.Arguments = json.RawMessage(`{"enable":["oob"]}`)
	}
	return cmd
}

// alive reports whether the connection has not ended.
func (c *qmpConn) alive() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}
