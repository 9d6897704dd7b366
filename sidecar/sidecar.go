package sidecar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/sidecar/manifest"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

// goneGrace is how long a VM has to be gone before it is gone for good. A QEMU that is started again on the same
// paths at once is a restart and not an end.
const goneGrace = time.Second

// errVMGone ends a Run that was asked to end with its VM.
var errVMGone = errors.New("the VM is gone")

// A Sidecar watches one VM. It may be run once.
type Sidecar struct {
	cfg      Config
	log      *slog.Logger
	agent    *qga.Agent
	monitor  *qga.Monitor
	watch    func(context.Context) error // follows the monitor, and its fallback
	fallback *fallbackWatch              // nil: there is no other monitor
	port     qga.Port                    // as follow was last told; nobody else reads it
	link     qga.Link                    // the last one told in the log; follow's
	freezer  *freezer                    // nil: there is nobody to ask
	state    *state
	notifier *notifier
	shadow   *shadowWatch
	handler  http.Handler
	commands *commands

	policy   atomic.Pointer[manifest.Policy] // the one in force
	reloaded chan struct{}                   // tells runChecks that other checks are in force
	heart    heart                           // supervise's
}

// New makes a sidecar of a configuration. It starts nothing and opens nothing.
func New(cfg Config) (*Sidecar, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Sidecar{cfg: cfg, log: cfg.Logger, reloaded: make(chan struct{}, 1), heart: make(heart), commands: newCommands()}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := s.connect(); err != nil {
		return nil, err
	}
	s.notifier = newNotifier(s.log, &cfg)
	s.state = newState(s.log, s.monitor != nil, verdict.Policy{})
	s.state.tell = s.notifier.tell
	if s.agent != nil {
		s.freezer = newFreezer(s.agent, func() time.Duration { return s.policy.Load().FreezeHold }, s.state)
	}
	s.apply(cfg.Manifest)
	s.shadow = newShadowWatch(s.log, s.state)
	s.handler = s.shadow.sign(newHandler(s))
	return s, nil
}

// connect makes the clients of the VM. They connect when they are run.
func (s *Sidecar) connect() error {
	cfg := &s.cfg
	monitor := func(addr *qga.Addr) (*qga.Monitor, error) {
		m, err := qga.NewMonitor(*addr, &qga.MonitorConfig{Logger: s.log, AgentPath: agentPath(cfg.Agent)})
		if err != nil {
			return nil, fmt.Errorf("monitor %s: %w", addr, err)
		}
		return m, nil
	}
	agent := func(addr *qga.Addr) (*qga.Agent, error) {
		a, err := qga.NewAgent(*addr, &qga.AgentConfig{Logger: s.log})
		if err != nil {
			return nil, fmt.Errorf("agent %s: %w", addr, err)
		}
		return a, nil
	}
	var err error
	if cfg.Monitor != nil {
		if s.monitor, err = monitor(cfg.Monitor); err != nil {
			return err
		}
		s.watch = func(ctx context.Context) error { return s.monitor.Watch(ctx, s.follow) }
		if cfg.MonitorFallback != nil {
			other, err := monitor(cfg.MonitorFallback)
			if err != nil {
				return err
			}
			s.fallback = newFallbackWatch(s.monitor, other, s.follow, s.followOther, s.log)
			s.watch = s.fallback.run
		}
	}
	if cfg.Agent != nil {
		if s.agent, err = agent(cfg.Agent); err != nil {
			return err
		}
		if cfg.AgentFallback != nil {
			other, err := agent(cfg.AgentFallback)
			if err != nil {
				return err
			}
			s.agent = qga.WithFallback(s.agent, other, s.log)
		}
	}
	return nil
}

// agentPath is the agent's socket as QEMU names it, by which the monitor finds the agent's channel.
func agentPath(addr *qga.Addr) string {
	if addr == nil || addr.Scheme != "unix" {
		return ""
	}
	return addr.Path
}

// Run watches the VM and serves the endpoints until ctx is done, or until the VM is gone if the configuration says
// so; both return nil. It opens its listeners before anything else, so that it works as a whole or not at all.
func (s *Sidecar) Run(ctx context.Context) error {
	listeners, err := listen(ctx, &s.cfg)
	if err != nil {
		return err
	}
	for _, l := range listeners {
		s.log.Info("listening", "address", l.Addr().String())
	}
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, work := errgroup.WithContext(work)
	group.Go(func() error { return serve(work, s.log, s.handler, listeners) })
	group.Go(func() error { return s.state.run(work) })
	for _, l := range listeners {
		group.Go(func() error { return s.shadow.run(work, l.Addr()) })
	}
	if s.monitor != nil {
		group.Go(func() error { return named("monitor", s.watch(work)) })
	}
	if s.agent != nil {
		group.Go(func() error { return named("agent", s.agent.Run(work)) })
	}
	if s.freezer != nil {
		group.Go(func() error { return s.freezer.run(work) })
	}
	if s.cfg.HoldFile != "" {
		group.Go(func() error { return watchHold(work, s.log, s.cfg.HoldFile, s.state) })
	}
	group.Go(func() error { return s.runChecks(work) })
	group.Go(func() error { return s.notifier.run(work, s.alive) })
	group.Go(func() error {
		defer stop()
		return s.supervise(ctx, work)
	})
	if err := group.Wait(); !errors.Is(err, errVMGone) {
		return err
	}
	s.log.Info("the VM is gone; ending with it")
	return nil
}

// follow takes over what the monitor learns, and tells the agent's client when the guest has opened or closed its end of
// the channel.
func (s *Sidecar) follow(vm qga.VMState) { s.take(s.cfg.Monitor, vm) }

// followOther takes over what the other monitor learns. The channel that it knows is the other agent's.
func (s *Sidecar) followOther(vm qga.VMState) {
	if s.cfg.AgentFallback != nil {
		vm.AgentPort = qga.PortUnknown
	}
	s.take(s.cfg.MonitorFallback, vm)
}

func (s *Sidecar) take(from *qga.Addr, vm qga.VMState) {
	was, port := s.port, vm.AgentPort
	s.port = port
	if s.cfg.AgentFallback != nil {
		// The monitor knows of one channel, and the agent is asked over either.
		vm.AgentPort, vm.AgentEverOpen = qga.PortUnknown, false
	}
	s.tellLink(from, vm)
	s.state.setVM(vm)
	if s.agent == nil || port == was {
		return
	}
	switch port {
	case qga.PortOpen:
		s.agent.ChannelOpened()
	case qga.PortClosed:
		s.agent.ChannelClosed()
	}
}

// tellLink logs what has become of the monitor, once per change: its trouble fails no check, so no transition tells of it.
func (s *Sidecar) tellLink(from *qga.Addr, vm qga.VMState) {
	if vm.Link == s.link || vm.Link == qga.LinkConnecting {
		return
	}
	s.link = vm.Link
	switch vm.Link {
	case qga.LinkUp:
		s.log.Info("monitor connected", "monitor", from.String())
	case qga.LinkGone: // the verdict says so
	default:
		s.log.Warn("monitor", "monitor", from.String(), "link", vm.Link.String(), "error", printable(fmt.Sprint(vm.LinkErr)))
	}
}

func named(task string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", task, err)
	}
	return nil
}

// supervise returns when the sidecar has to end: after ctx has, or after the VM has. ctx is the caller's, work is
// that of the tasks, which outlives it by the shutdown delay.
func (s *Sidecar) supervise(ctx, work context.Context) error {
	const interval = 100 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	done := ctx.Done()
	var deadline <-chan time.Time
	for {
		select {
		case <-work.Done():
			return nil
		case <-done:
			done = nil
			s.notifier.stop(string(verdict.Terminating))
			s.state.update(func() { s.state.terminating = true })
			if s.cfg.ShutdownDelay <= 0 {
				return nil
			}
			deadline = time.After(s.cfg.ShutdownDelay)
			s.log.Info("terminating", "delay", s.cfg.ShutdownDelay.String())
		case <-deadline:
			return nil
		case asked := <-s.heart:
			close(asked)
		case now := <-ticker.C:
			gone := s.state.get().goneSince
			isGone := !gone.IsZero() && now.Sub(gone) >= goneGrace
			if isGone && s.cfg.ExitWithVM {
				s.notifier.stop(string(verdict.NoDomain))
				return errVMGone
			}
			if isGone && deadline != nil {
				return nil // nobody is left to answer for
			}
		}
	}
}
