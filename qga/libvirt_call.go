package qga

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"
)

// minDaemonPatience is how long the daemon has to say that it is there before
// it is taken for stuck.
const minDaemonPatience = 400 * time.Millisecond

// A libvirtCall is one agent command on its way. It ends when the daemon
// answers or the connection ends, whichever comes first.
type libvirtCall struct {
	conn    *libvirtConn
	started time.Time
	done    chan struct{} // closed when reply and err are set
	reply   string
	err     error // as go-libvirt or the connection has it

	mu   sync.Mutex
	late func([]byte, error)
}

// start sends req. The domain is looked up each time: it may have been defined
// anew, and the daemon answers that from memory.
func (a *libvirtAgent) start(ctx context.Context, conn *libvirtConn, req *Request, id []byte) (*libvirtCall, error) {
	c := &libvirtCall{conn: conn, started: time.Now(), done: make(chan struct{})}
	line := string(bytes.TrimSpace(appendRequest(nil, req, id)))
	// Whole seconds, and never so few that libvirt gives up before the caller.
	deadline, _ := ctx.Deadline()
	timeout := int32(max(1, (time.Until(deadline)+time.Second-1)/time.Second))
	started := conn.spawn(func() {
		dom, err := conn.domain(conn.rpc, a.addr.Domain)
		var reply libvirt.OptString
		if err == nil {
			reply, err = conn.rpc.QEMUDomainAgentCommand(dom, line, timeout, 0)
		}
		if len(reply) > 0 {
			c.reply = reply[0]
		}
		c.err = conn.explain(err)
		c.finish(id)
	})
	if !started {
		return nil, fmt.Errorf("%w: %w", ErrDaemon, ErrConnectionLost)
	}
	return c, nil
}

// finish publishes the end of the call, and hands the reply to whom the caller
// left behind for it.
func (c *libvirtCall) finish(id []byte) {
	c.mu.Lock()
	close(c.done)
	late := c.late
	c.mu.Unlock()
	if late == nil || c.err != nil {
		return
	}
	if r, ok := parseReply([]byte(c.reply)); ok && r.isAnswer() && bytes.Equal(r.id, id) {
		late(r.result())
	}
}

// abandon says that the caller leaves, and reports false if the call has just
// ended. late, if not nil, gets the reply if it still comes.
func (c *libvirtCall) abandon(late func([]byte, error)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.done:
		return false
	default:
		c.late = late
		return true
	}
}

// wait waits until done, until ctx ends. When half of that time has passed it
// asks the daemon something that needs no VM; for if that is not answered
// either, then the daemon is stuck, not the agent silent.
func (a *libvirtAgent) wait(ctx context.Context, done <-chan struct{}) error {
	deadline, _ := ctx.Deadline()
	half := time.NewTimer(time.Until(deadline) / 2)
	defer half.Stop()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return a.outOfTime(ctx)
	case <-half.C:
	}
	asked := time.Now()
	alive := make(chan struct{})
	a.mu.Lock()
	conn := a.live
	a.mu.Unlock()
	if conn != nil {
		conn.spawn(func() {
			if _, err := conn.rpc.ConnectGetLibVersion(); err == nil {
				close(alive)
			}
		})
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) || time.Since(asked) < minDaemonPatience {
		return a.outOfTime(ctx)
	}
	select {
	case <-alive:
		return ctx.Err()
	default:
	}
	if conn != nil {
		conn.guard.end() // nothing else ends the calls that wait for it
	}
	return fmt.Errorf("%w: it does not answer: %v", ErrDaemon, ctx.Err())
}

// outOfTime returns the error of a caller whose time is up before it could ask.
func (a *libvirtAgent) outOfTime(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && (a.live == nil || a.live.guard.ended.Load()) {
		return fmt.Errorf("%w: it has not answered earlier calls: %v", ErrDaemon, ctx.Err())
	}
	return ctx.Err()
}
