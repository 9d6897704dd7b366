package qga

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"
)

const (
	// The longest pauses between attempts. A new QEMU on the same path must be found
	// within a second, so a missing one is looked for more often than a peer
	// that cannot be used is tried again.
	maxRetry      = 700 * time.Millisecond
	maxRetryWrong = 5 * time.Second
	retryLibvirts = 30 * time.Second

	// replacedCheck is how often a silent connection looks whether another
	// QEMU has bound its path meanwhile.
	replacedCheck = 500 * time.Millisecond
)

var (
	// errLibvirtsMonitor: see ownedByLibvirt.
	errLibvirtsMonitor = errors.New("this monitor is libvirt's own; use libvirt:DOMAIN, or a second -qmp socket")
	// errReplaced ends a silent connection to a QEMU that has lost its path.
	errReplaced = fmt.Errorf("%w: another socket took the path", ErrConnectionLost)
)

// Watch follows the VM until ctx ends, and then returns nil. It connects,
// negotiates, reads the state anew and follows events; when the connection
// ends it begins again, for ever, with growing and jittered pauses. A socket
// that is not there yet is LinkGone and is waited for.
//
// notify gets the whole state on every change, from one goroutine. A change
// that an event tells is passed on as the event arrives, and refined when
// query-status has answered. Bad news is never held back for good news; and
// nothing is damped here.
//
// Only one Watch may run, and none while a connection made by Connect stands:
// that is an error at once.
func (m *Monitor) Watch(ctx context.Context, notify func(VMState)) error {
	if err := m.beginWatch(); err != nil {
		return err
	}
	defer m.endWatch()
	if m.addr.Scheme == "libvirt" {
		return newLibvirtWatcher(m, notify).run(ctx)
	}
	w := &watcher{m: m, notify: notify, tracker: qmpTracker{agentPath: m.cfg.AgentPath}}
	return w.run(ctx)
}

func (m *Monitor) beginWatch() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.watching || m.conn != nil || m.connecting != nil {
		return fmt.Errorf("monitor %s: watch: already in use", m.addr)
	}
	m.watching = true
	return nil
}

func (m *Monitor) endWatch() {
	m.mu.Lock()
	m.watching = false
	subs := m.takeSubs()
	m.mu.Unlock()
	for _, s := range subs {
		s.end()
	}
}

// setConn makes Watch's connection usable for Do and Run, or takes it back.
func (m *Monitor) setConn(c *qmpConn, why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conn, m.why = c, why
}

// A watcher is the state of one Watch.
type watcher struct {
	m       *Monitor
	notify  func(VMState)
	tracker qmpTracker
	told    VMState
}

// publish tells the state if it differs from what was told.
func (w *watcher) publish() {
	if w.tracker.s.sameAs(w.told) {
		return
	}
	w.told = w.tracker.s
	w.notify(w.told)
}

// setLink changes the link's condition and publishes it.
func (w *watcher) setLink(l Link, err error) {
	w.tracker.s.Link, w.tracker.s.LinkErr = l, err
	w.publish()
}

// run makes one connection after the other.
func (w *watcher) run(ctx context.Context) error {
	var retry backoff
	var lastUp time.Time
	for {
		wasUp, err := w.connectAndFollow(ctx)
		w.m.setConn(nil, err)
		if ctx.Err() != nil {
			return nil
		}
		w.tracker.detach()
		switch {
		case wasUp && errors.Is(err, ErrConnectionLost):
			// The next attempt comes at once and decides between a hiccup and
			// the VM's end. What comes of it is published then.
			w.tracker.s.Link, w.tracker.s.LinkErr = LinkConnecting, err
		case errors.Is(err, errReplaced):
			w.setLink(LinkConnecting, err)
			retry.reset()
		default:
			w.setLink(w.linkOf(err), err)
		}
		// A peer that hangs up after each negotiation must not make us run.
		if now := time.Now(); wasUp && now.Sub(lastUp) > time.Second {
			retry.reset()
			lastUp = now
		}
		retry.max = maxPause(err)
		d := retry.next()
		if d > 0 {
			w.publish()
		}
		pause(ctx, d)
	}
}

// maxPause returns the longest pause after an attempt that ended with err.
func maxPause(err error) time.Duration {
	switch {
	case errors.Is(err, errLibvirtsMonitor):
		return retryLibvirts
	case errors.Is(err, ErrProtocol):
		return maxRetryWrong
	}
	return maxRetry
}

// connectAndFollow serves one connection. wasUp: it has been LinkUp.
func (w *watcher) connectAndFollow(ctx context.Context) (wasUp bool, err error) {
	socket := statSocket(w.m.addr.Path) // before dialing: a later one is another's
	nc, err := w.m.cfg.Dial(ctx)
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrNotConnected, w.explain(err))
	}
	inbox := newQMPInbox()
	c := w.m.newConn(nc, func(msg qmpMessage) { inbox.put(inboxItem{msg: msg}) })
	defer c.close()
	if w.tracker.s.Link == LinkConnecting {
		w.publish()
	}
	if err := w.greet(ctx, c, socket); err != nil {
		return false, err
	}
	f := newFollower(w, c, inbox, socket)
	err = f.follow(ctx)
	return f.attached, err
}

// greet waits for the greeting, for as long as it takes: our place in the
// queue of a busy monitor is then kept, and no dead connections pile up in it.
// Nothing of what is written meanwhile can do harm when it is read.
func (w *watcher) greet(ctx context.Context, c *qmpConn, socket socketFile) error {
	timeout := time.NewTimer(w.m.cfg.GreetingTimeout)
	defer timeout.Stop()
	replaced := time.NewTicker(replacedCheck)
	defer replaced.Stop()
	for {
		select {
		case <-c.greeted:
			return nil
		case <-c.done:
			return c.err
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout.C:
			if err := w.silentGreeting(c); err != nil {
				return err
			}
		case <-replaced.C:
			if now := statSocket(w.m.addr.Path); now.inode != 0 && now != socket {
				return errReplaced
			}
		}
	}
}

// silentGreeting reports a peer that accepted and says nothing, and finds out
// whether it is a guest agent, which never speaks first.
func (w *watcher) silentGreeting(c *qmpConn) error {
	if strings.Contains(path.Base(w.m.addr.Path), "org.qemu.guest_agent") {
		// libvirt holds a channel of that name, and would get the answer to
		// what is asked below as the answer to a command of its own.
		return fmt.Errorf("%w: silent, and named as a guest agent's channel", ErrWrongPeer)
	}
	timeout := w.m.cfg.GreetingTimeout
	if p := peerProcess(c.nc); p.stopped {
		w.setLink(LinkStuck, fmt.Errorf("no greeting within %v, process %d is stopped: %w", timeout, p.pid, context.DeadlineExceeded))
		return nil
	}
	w.setLink(LinkBusy, fmt.Errorf("accepted, but no greeting within %v: another client holds it, or it is no monitor: %w",
		timeout, context.DeadlineExceeded))
	// An agent answers this with an error, which is no greeting. A monitor
	// answers when it serves us, with an error too: it is not negotiated yet.
	_, err := c.start(qmpCommand{Execute: "query-version"}, time.Now().Add(w.m.cfg.CommandTimeout), func(qmpMessage, error) {})
	if err != nil && !c.alive() {
		return err
	}
	return nil
}

// explain makes the error of a dial say more, where the kernel says little.
func (w *watcher) explain(err error) error {
	if errors.Is(err, syscall.ECONNREFUSED) {
		if info, serr := os.Stat(w.m.addr.Path); serr == nil && info.Mode()&fs.ModeSocket == 0 {
			return fmt.Errorf("%w: %s is no socket", ErrProtocol, w.m.addr.Path)
		}
	}
	return err
}

// linkOf classifies the end of a connection that was not up.
func (w *watcher) linkOf(err error) Link {
	switch {
	case errors.Is(err, ErrProtocol), errors.Is(err, errLibvirtsMonitor):
		return LinkUnreachable
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, ErrConnectionLost):
		return LinkGone
	case errors.Is(err, syscall.EAGAIN): // the queue of waiting clients is full
		return LinkBusy
	case errors.Is(err, context.DeadlineExceeded):
		return LinkStuck
	}
	return LinkUnreachable
}
