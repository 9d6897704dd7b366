package qgatest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
)

// AgentConfig says how a simulated guest agent behaves. The zero value is a
// qemu-ga 7.2 behind a virtio-serial port, whose host end is a unix socket.
type AgentConfig struct {
	// Path is the unix socket to listen on, unless Listener is set.
	Path string
	// Listener is where clients come from. The Agent closes it.
	Listener net.Listener
	// Sessions makes each connection a session of its own, as with qemu-ga
	// -m unix-listen and vsock: replies to a client that has gone are dropped.
	// Otherwise they pile up and go to the next one.
	Sessions bool
	// Down leaves the agent's program unstarted: call Start.
	Down bool
	// Version is what guest-info says; empty: "7.2.22".
	Version string
	// NoIDs makes the agent refuse the member "id", as those before 4.0.
	NoIDs bool
	// Blocked are commands that the guest's administrator has disabled.
	Blocked []string
	// Commands adds commands, or replaces them. An error that is not a
	// *CommandError is answered as a GenericError.
	Commands map[string]func(args json.RawMessage) (any, error)
	// Exec stands for all programs in the guest. nil: there are none.
	Exec func(Exec) (Process, error)
	// OnPort, if set, is told when the guest's end of the port opens and
	// closes, in order, from whoever calls Start, Kill and Close.
	OnPort func(open bool)
}

// maxPiled is what a port and its socket hold before a writer has to wait.
const maxPiled = 700 << 10

// An Agent is a simulated guest agent and the channel to it. The channel
// serves one client at a time and outlives both the clients and the agent's
// program.
type Agent struct {
	cfg      AgentConfig
	listener net.Listener
	running  sync.WaitGroup

	portMu sync.Mutex // serialises Start and Kill with their OnPort

	mu        sync.Mutex
	changed   *sync.Cond
	closed    bool
	up        bool // the program runs
	stopped   bool // as by SIGSTOP, or with the whole VM
	frozen    bool
	boots     int // of the program
	client    net.Conn
	held      []byte // from the client, while the port is closed
	in, out   []byte // on the way to the agent, and to a client
	parser    parser
	processes map[int64]Process
	lastPID   int64
	counts    map[string]int
}

// StartAgent listens, and starts an agent. The caller closes it.
func StartAgent(cfg AgentConfig) (*Agent, error) {
	l := cfg.Listener
	if l == nil {
		var err error
		if l, err = net.Listen("unix", cfg.Path); err != nil {
			return nil, fmt.Errorf("qgatest: agent: %w", err)
		}
	}
	a := &Agent{
		cfg:       cfg,
		listener:  l,
		processes: make(map[int64]Process),
		lastPID:   1000,
		counts:    make(map[string]int),
	}
	a.changed = sync.NewCond(&a.mu)
	a.running.Go(a.accept)
	a.running.Go(a.write)
	a.running.Go(a.serve)
	if !cfg.Down {
		a.Start()
	}
	return a, nil
}

// Close ends the channel with all that is connected, as QEMU's end does, and
// returns when nothing runs any more. The port's end is not reported.
func (a *Agent) Close() error {
	a.mu.Lock()
	a.closed, a.up = true, false
	a.mu.Unlock()
	err := a.listener.Close() // first, or a client could connect once more
	a.update(func() {
		if a.client != nil {
			a.client.Close()
		}
	})
	a.running.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Start starts the agent's program in the guest, which opens the port.
func (a *Agent) Start() { a.port(true) }

// Kill ends the agent's program: the port closes, and what the agent had not
// read is lost. The host's socket does not notice, except with Sessions.
func (a *Agent) Kill() { a.port(false) }

func (a *Agent) port(open bool) {
	a.portMu.Lock()
	defer a.portMu.Unlock()
	a.mu.Lock()
	was := a.up
	if was != open && !a.closed {
		a.up = open
		a.boots++
		a.in, a.held, a.parser = a.held, nil, parser{}
		clear(a.processes)
		if !open {
			a.in, a.stopped = nil, false
			if a.cfg.Sessions && a.client != nil {
				a.client.Close()
			}
		}
	}
	now := a.up
	a.changed.Broadcast()
	a.mu.Unlock()
	if was != now && a.cfg.OnPort != nil {
		a.cfg.OnPort(now)
	}
}

// Stop makes the agent silent, as SIGSTOP or a paused VM does: requests are
// taken and not answered.
func (a *Agent) Stop() { a.update(func() { a.stopped = true }) }

// Continue ends a Stop; what has piled up is answered.
func (a *Agent) Continue() { a.update(func() { a.stopped = false }) }

// SetFrozen says whether the guest's filesystems are frozen.
func (a *Agent) SetFrozen(frozen bool) { a.update(func() { a.frozen = frozen }) }

// Inject sends bytes to the client, as any process in the guest can that has
// the port.
func (a *Agent) Inject(p []byte) { a.update(func() { a.out = append(a.out, p...) }) }

func (a *Agent) update(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
	a.changed.Broadcast()
}

// Addr returns the address that qga.ParseAddr reads, for a unix socket.
func (a *Agent) Addr() string { return "unix:" + a.listener.Addr().String() }

// PortOpen reports whether the guest's end of the port is open.
func (a *Agent) PortOpen() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.up
}

// HostConnected reports whether a client is attached on the host.
func (a *Agent) HostConnected() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.client != nil
}

// Calls returns how often the agent has dealt with the command.
func (a *Agent) Calls(command string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.counts[command]
}

// WaitCalls waits until the agent has dealt with the command n times in all.
func (a *Agent) WaitCalls(ctx context.Context, command string, n int) error {
	return a.wait(ctx, func() bool { return a.counts[command] >= n })
}

// WaitHost waits until a client is attached on the host, or none is.
func (a *Agent) WaitHost(ctx context.Context, attached bool) error {
	return a.wait(ctx, func() bool { return (a.client != nil) == attached })
}

func (a *Agent) wait(ctx context.Context, until func() bool) error {
	stop := context.AfterFunc(ctx, func() { a.update(func() {}) })
	defer stop()
	a.mu.Lock()
	defer a.mu.Unlock()
	for !until() {
		if err := ctx.Err(); err != nil {
			return err
		}
		a.changed.Wait()
	}
	return nil
}

func (a *Agent) isFrozen() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.frozen
}

// accept serves one client after the other. The next one waits in the
// listener's queue meanwhile, and learns nothing of that.
func (a *Agent) accept() {
	for {
		if a.cfg.Sessions && !a.await(func() bool { return a.up }) {
			return
		}
		conn, err := a.listener.Accept()
		if err != nil {
			return
		}
		a.update(func() {
			a.client = conn
			if a.closed {
				conn.Close()
			}
		})
		a.read(conn)
		a.update(func() {
			a.client = nil
			if a.cfg.Sessions {
				a.out = nil
			}
		})
		conn.Close()
	}
}

// await waits, with the lock while it checks, and returns false on Close.
func (a *Agent) await(until func() bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for !until() && !a.closed {
		a.changed.Wait()
	}
	return !a.closed
}

// read takes what a client sends. While the guest's port is closed it stays on
// the host: the agent gets it when it starts, if the client is still there.
func (a *Agent) read(conn net.Conn) {
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		a.update(func() {
			if a.up {
				a.in = append(a.in, buf[:n]...)
			} else {
				a.held = append(a.held, buf[:n]...)
			}
			if err != nil {
				a.held = nil
			}
		})
		if err != nil || !a.await(func() bool { return len(a.in)+len(a.held) < maxPiled }) {
			return
		}
	}
}

// write sends what the guest has written to whoever is attached.
func (a *Agent) write() {
	for a.await(func() bool { return a.client != nil && len(a.out) > 0 }) {
		a.mu.Lock()
		conn, p := a.client, a.out
		a.mu.Unlock()
		if conn == nil || len(p) == 0 {
			continue
		}
		n, err := conn.Write(p)
		a.update(func() {
			if !a.cfg.Sessions || a.client == conn { // else dropped already
				a.out = a.out[min(n, len(a.out)):]
			}
			if err != nil && a.client == conn {
				conn.Close() // its reader sees it
				a.client = nil
			}
		})
	}
}

// serve is the agent's program.
func (a *Agent) serve() {
	ready := func() bool { return a.up && !a.stopped && len(a.in) > 0 && len(a.out) < maxPiled }
	for a.await(ready) {
		a.mu.Lock()
		if !ready() {
			a.mu.Unlock()
			continue
		}
		in, p, boot := a.in, a.parser, a.boots
		a.in = nil
		a.mu.Unlock()

		var out []byte
		var commands []string
		for _, b := range in {
			p.feed(b,
				func(value []byte) {
					command, line := a.answer(value)
					out = append(out, line...)
					commands = append(commands, command)
				},
				func(desc string) { out = append(out, errorLine(nil, genericError("%s", desc))...) })
		}
		a.update(func() {
			for _, command := range commands {
				a.counts[command]++
			}
			if a.boots == boot {
				a.parser = p
				a.out = append(a.out, out...)
			}
		})
	}
}
