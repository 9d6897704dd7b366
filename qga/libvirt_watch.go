package qga

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/digitalocean/go-libvirt"
)

// stuckPatience is how many command timeouts a silent daemon gets before its
// connection is made anew.
const stuckPatience = 10

// A libvirtWatcher is the state of one Watch over libvirt.
//
// It asks for states and follows events, and sends no monitor command: each
// would taint the domain.
type libvirtWatcher struct {
	addr      Addr
	agentPath string
	greeting  time.Duration
	command   time.Duration
	poll      time.Duration
	dial      func(context.Context) (net.Conn, error)
	notify    func(VMState)

	tracker libvirtTracker
	told    VMState
	spoke   bool // the daemon has answered at some time
}

func newLibvirtWatcher(m *Monitor, notify func(VMState)) *libvirtWatcher {
	w := &libvirtWatcher{
		tracker:   libvirtTracker{otherPort: m.cfg.AgentPath != "" && m.cfg.AgentPath != agentPortName},
		addr:      m.addr,
		agentPath: m.cfg.AgentPath,
		greeting:  m.cfg.GreetingTimeout,
		command:   m.cfg.CommandTimeout,
		poll:      m.cfg.PollInterval,
		dial:      m.cfg.Dial,
		notify:    notify,
	}
	if w.dial == nil {
		w.dial = libvirtDialer(m.addr)
	}
	return w
}

// publish tells the state if it differs from what was told.
func (w *libvirtWatcher) publish() {
	if w.tracker.s.sameAs(w.told) {
		return
	}
	w.told = w.tracker.s
	w.notify(w.told)
}

func (w *libvirtWatcher) setLink(l Link, err error) {
	w.tracker.s.Link, w.tracker.s.LinkErr = l, err
	w.publish()
}

// run makes one connection after the other until ctx ends.
func (w *libvirtWatcher) run(ctx context.Context) error {
	var retry backoff
	for {
		wasUp, err := w.connection(ctx)
		if ctx.Err() != nil {
			return nil
		}
		link := w.linkOf(err)
		if link == LinkStuck { // what was heard last stands
			w.tracker.following = false
		} else {
			w.tracker.detach()
		}
		if wasUp {
			retry.reset()
		}
		if wasUp && errors.Is(err, ErrConnectionLost) {
			// The next attempt comes at once; what comes of it is published.
			w.tracker.s.Link, w.tracker.s.LinkErr = LinkConnecting, err
		} else {
			w.setLink(link, err)
		}
		retry.max = maxPause(err)
		pause(ctx, retry.next())
	}
}

// linkOf classifies the end of a connection. A daemon that is gone says
// nothing about the VM, which runs on without it.
func (w *libvirtWatcher) linkOf(err error) Link {
	switch {
	case !errors.Is(err, context.DeadlineExceeded):
		return LinkUnreachable
	case w.spoke:
		return LinkStuck
	}
	return LinkBusy
}

// connection serves one connection. wasUp: the domain was read on it.
func (w *libvirtWatcher) connection(ctx context.Context) (wasUp bool, err error) {
	openCtx, cancel := context.WithTimeout(ctx, w.greeting+w.command)
	defer cancel()
	conn, err := openLibvirt(openCtx, w.dial)
	if err != nil {
		return false, err
	}
	ctx, stop := context.WithCancel(ctx)
	events := newLibvirtEvents(w.addr)
	// The order counts: what waits for the daemon ends with the connection,
	// and what waits for us ends when it is drained.
	defer events.drain()
	defer conn.close()
	defer stop()

	subCtx, cancel := context.WithTimeout(ctx, w.command)
	defer cancel()
	if err := events.subscribe(ctx, subCtx, conn); err != nil {
		return false, err
	}
	f := newLibvirtFollower(w, conn, events)
	err = f.follow(ctx)
	return f.attached, err
}

// A libvirtFollower reads the domain's state and follows its events on one
// connection. Readings are made in a goroutine of their own, one at a time, so
// that a daemon that is slow to answer does not hold events up.
type libvirtFollower struct {
	w      *libvirtWatcher
	conn   *libvirtConn
	events *libvirtEvents

	asks    chan readingAsk
	answers chan readingAnswer
	asked   time.Time // when the reading under way was asked for; zero: none is
	want    bool      // another is wanted
	wantXML bool
	// changes counts events: a reading begun before the last of them may be
	// older than what the event told.
	changes  uint64
	attached bool
	qemu     libvirt.UUID // whose own events were asked for
}

type readingAsk struct {
	xml     bool
	changes uint64
}

type readingAnswer struct {
	readingAsk
	reading libvirtReading
	err     error
}

func newLibvirtFollower(w *libvirtWatcher, conn *libvirtConn, events *libvirtEvents) *libvirtFollower {
	return &libvirtFollower{
		w: w, conn: conn, events: events,
		asks:    make(chan readingAsk, 1),
		answers: make(chan readingAnswer, 1),
		want:    true,
		wantXML: true,
	}
}

// follow returns why it ended.
func (f *libvirtFollower) follow(ctx context.Context) error {
	reader := libvirtReader{conn: f.conn, domain: f.w.addr.Domain, agentPath: f.w.agentPath}
	f.conn.spawn(func() {
		for ask := range f.asks {
			r, err := reader.read(ask.xml)
			f.answers <- readingAnswer{ask, r, err} // one under way, one slot
		}
	})
	defer close(f.asks)
	f.events.askVersion(f.conn)

	poll := time.NewTicker(f.w.poll)
	defer poll.Stop()
	overdue := time.NewTimer(0)
	defer overdue.Stop()
	for {
		if f.want && f.asked.IsZero() {
			f.asks <- readingAsk{f.wantXML, f.changes}
			f.want, f.wantXML = false, false
			f.asked = time.Now()
			overdue.Reset(f.w.command)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.conn.guard.done:
			return fmt.Errorf("%w: %w", ErrDaemon, f.conn.guard.cause())
		case e := <-f.events.all:
			f.event(e)
		case a := <-f.answers:
			f.asked = time.Time{}
			if err := f.answer(ctx, a); err != nil {
				return err
			}
		case <-poll.C:
			f.want, f.wantXML = true, true
		case <-overdue.C:
			if f.asked.IsZero() {
				continue
			}
			if err := f.late(); err != nil {
				return err
			}
			overdue.Reset(f.w.command)
		}
	}
}

// late reports a daemon that does not answer, and gives its connection up when
// that has lasted.
func (f *libvirtFollower) late() error {
	silent := time.Since(f.asked)
	err := fmt.Errorf("%w: no answer for %v: %w", ErrDaemon, silent.Round(100*time.Millisecond), context.DeadlineExceeded)
	if silent >= stuckPatience*f.w.command {
		return err
	}
	switch link := f.w.linkOf(err); f.w.tracker.s.Link {
	case link: // told once, not with each new duration
	case LinkGone: // so it was told, and it takes no answer to believe that
	default:
		f.w.setLink(link, err)
	}
	return nil
}

func (f *libvirtFollower) answer(ctx context.Context, a readingAnswer) error {
	if a.err != nil {
		return daemonError(a.err)
	}
	f.w.spoke = true
	if a.changes != f.changes {
		f.want = true
		f.wantXML = f.wantXML || a.xml
		return nil
	}
	f.attached = true
	if dom := a.reading.dom; a.reading.found && dom.UUID != f.qemu {
		f.qemu = dom.UUID
		f.events.subscribeQEMU(ctx, f.conn, dom.Name)
	}
	f.w.tracker.reading(a.reading, time.Now())
	f.w.publish()
	return nil
}

func (f *libvirtFollower) event(e libvirtEvent) {
	f.changes++
	f.want = true
	f.wantXML = f.wantXML || e.needsXML
	e.apply(&f.w.tracker, time.Now())
	f.w.publish()
}
