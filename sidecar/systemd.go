package sidecar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// notifyRetry is how long a message that could not be sent waits for the next attempt.
const notifyRetry = time.Second

// UseSystemd takes over what systemd has given to this process (sd_notify(3), sd_listen_fds(3)): where it wants to
// be told how the service is, how often, and sockets that are open already. Those win over Listen. Outside systemd
// it changes nothing. It is the one place that reads systemd's environment, and the sockets can be taken over once.
func (c *Config) UseSystemd() error {
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("systemd's watchdog: %w", err)
	}
	listeners, err := inherit(activation.Files(true))
	if err != nil {
		return err
	}
	c.Watchdog = watchdog
	c.Notify = func(message string) error {
		_, err := daemon.SdNotify(false, message)
		return err
	}
	c.Listeners = append(c.Listeners, listeners...)
	for _, l := range listeners {
		c.Listen = ""
		if addr := l.Addr(); addr.Network() == "unix" && addr.String() == c.ListenUnix {
			c.ListenUnix = "" // it is this one
		}
	}
	return nil
}

// inherit makes listeners of all files, or of none. It closes the files.
func inherit(files []*os.File) (listeners []net.Listener, err error) {
	for _, f := range files {
		l, listenErr := inheritOne(f)
		f.Close() // the listener has a descriptor of its own
		if listenErr != nil {
			err = errors.Join(err, fmt.Errorf("socket %q from systemd: %w", f.Name(), listenErr))
			continue
		}
		listeners = append(listeners, l)
	}
	if err != nil {
		closeAll(listeners)
		return nil, err
	}
	return listeners, nil
}

func inheritOne(f *os.File) (net.Listener, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	accepts := 0
	var optErr error
	if err := raw.Control(func(fd uintptr) { accepts, optErr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ACCEPTCONN) }); err != nil {
		return nil, err
	}
	if optErr != nil {
		return nil, optErr
	}
	if accepts == 0 {
		return nil, errors.New("it accepts no connections: the unit needs ListenStream= and Accept=no")
	}
	return net.FileListener(f)
}

// A notifier tells the service manager how the service is. READY waits until the VM is ready for the first time, so
// that a start of the unit returns then, and what is ordered after it finds a VM that works.
//
// It has a goroutine of its own: a service manager that does not read must not delay a verdict.
type notifier struct {
	log      *slog.Logger
	notify   func(string) error // nil: nobody wants to know
	watchdog time.Duration      // 0: no pings are wanted
	wake     chan struct{}

	sending  sync.Mutex // held while messages are sent, so that they arrive in order; guards what follows
	told     string     // the last status sent
	began    bool       // READY was sent
	stopping bool       // STOPPING was sent, the last message but for pings and status
	broken   bool       // the last message could not be sent

	mu     sync.Mutex // held for moments; guards what follows
	ready  bool       // the VM has been ready
	status string
}

func newNotifier(log *slog.Logger, cfg *Config) *notifier {
	return &notifier{log: log, notify: cfg.Notify, watchdog: cfg.Watchdog, wake: make(chan struct{}, 1)}
}

// tell takes the newest state of the VM. It never waits for the service manager.
func (n *notifier) tell(ready bool, status string) {
	if n.notify == nil {
		return
	}
	n.mu.Lock()
	n.ready, n.status = n.ready || ready, status
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default: // it is awake already
	}
}

// run sends what it is told, and the watchdog's pings while alive says that the daemon is, until ctx is done.
func (n *notifier) run(ctx context.Context, alive func(context.Context) error) error {
	if n.notify == nil {
		return nil
	}
	var ping <-chan time.Time
	if n.watchdog > 0 {
		ticker := time.NewTicker(n.watchdog / 2)
		defer ticker.Stop()
		ping = ticker.C
	}
	var retry <-chan time.Time
	stuck := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.wake:
		case <-retry:
		case <-ping:
			limit, cancel := context.WithTimeout(ctx, n.watchdog/2)
			err := alive(limit)
			cancel()
			switch {
			case err == nil:
				n.ping()
			case ctx.Err() == nil && !stuck:
				n.log.Error("no ping for systemd's watchdog", "error", err)
			}
			stuck = err != nil
		}
		retry = nil
		if !n.flush() {
			retry = time.After(notifyRetry)
		}
	}
}

// flush sends what is new, and reports whether nothing is left to send.
func (n *notifier) flush() bool {
	n.sending.Lock()
	defer n.sending.Unlock()
	n.mu.Lock()
	ready, status := n.ready, n.status
	n.mu.Unlock()
	message := "STATUS=" + status
	switch {
	case ready && !n.began && !n.stopping:
		message = daemon.SdNotifyReady + "\n" + message
	case status == n.told:
		return true
	}
	if !n.send(message) {
		return false
	}
	n.told, n.began = status, n.began || ready
	return true
}

func (n *notifier) ping() {
	n.sending.Lock()
	defer n.sending.Unlock()
	n.send(daemon.SdNotifyWatchdog)
}

// reload has the service manager see how long apply takes. Before the first READY it tells nothing: the READY that
// ends a reload would say that the VM is ready.
func (n *notifier) reload(apply func()) {
	n.sending.Lock()
	defer n.sending.Unlock()
	tell := n.began && !n.stopping
	if tell {
		n.send(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
	}
	apply()
	if tell {
		n.send(daemon.SdNotifyReady)
	}
}

// stop says that the service is about to end. Whatever ends it calls it first.
func (n *notifier) stop(why string) {
	n.sending.Lock()
	defer n.sending.Unlock()
	n.stopping, n.told = true, why
	n.send(daemon.SdNotifyStopping + "\nSTATUS=" + why)
}

// send sends one message and reports whether that worked. It needs the lock of the sender.
func (n *notifier) send(message string) bool {
	if n.notify == nil {
		return true
	}
	err := n.notify(message)
	if err != nil && !n.broken {
		n.log.Warn("telling systemd", "error", err)
	}
	n.broken = err != nil
	return !n.broken
}

// A heart is how a loop proves that it still turns: it receives from it in its select, and closes what it received
// when it has come round.
type heart chan chan struct{}

// beats asks the loop, and returns the context's error if it has not come round by then.
func (h heart) beats(ctx context.Context) error {
	answer := make(chan struct{})
	select {
	case h <- answer:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-answer:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// alive returns an error unless the loops without which the daemon is of no use come round before ctx ends.
func (s *Sidecar) alive(ctx context.Context) error {
	if err := s.state.heart.beats(ctx); err != nil {
		return fmt.Errorf("the loop that decides does not come round: %w", err)
	}
	if err := s.heart.beats(ctx); err != nil {
		return fmt.Errorf("the loop that ends the daemon does not come round: %w", err)
	}
	return nil
}
