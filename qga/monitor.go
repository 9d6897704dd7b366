package qga

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/digitalocean/go-qemu/qmp"
)

// MonitorConfig holds the options of a Monitor. The zero value of each field
// means its default.
type MonitorConfig struct {
	// Logger gets what is below a state's change: events and dropped replies,
	// at debug level. The changes themselves go to Watch's notify. Default:
	// discard.
	Logger *slog.Logger
	// AgentPath tells the guest agent's channel among the VM's character
	// devices: the path of its socket, or the name of the chardev, of its
	// device or of its port. Default: the port org.qemu.guest_agent.0.
	AgentPath string
	// GreetingTimeout bounds the wait for QEMU's greeting. Silence means that
	// another client holds the monitor. Default 2 s.
	GreetingTimeout time.Duration
	// CommandTimeout bounds each command. Default 2 s. A busy host may take
	// longer: a late reply still counts.
	CommandTimeout time.Duration
	// PollInterval is how often Watch asks for the state although no event
	// came, to notice a monitor that no longer answers. Default 5 s.
	PollInterval time.Duration
	// Dial replaces the dialing of the address, for tests.
	Dial func(context.Context) (net.Conn, error)
}

// A Monitor is a client of one QEMU monitor (QMP) on a unix socket. It sends
// only commands that read; anything else is refused before it reaches QEMU.
//
// Use Watch to follow the VM. While it runs, and only while its link is up,
// Do and Run share its connection, for a monitor serves one client. Without
// Watch, Connect and Disconnect make and end a connection.
//
// A Monitor implements go-qemu's qmp.Monitor, so that qmp/raw's typed commands
// run over it. Mind that in qmp/raw the zero RunState reads "debug" and a
// state newer than 2017 fails to decode: for the VM's state use Watch.
//
// Its methods are safe for concurrent use.
type Monitor struct {
	addr Addr
	cfg  MonitorConfig

	mu         sync.Mutex
	conn       *qmpConn           // negotiated; nil: none
	why        error              // why there is none
	connecting context.CancelFunc // of a Connect under way
	watching   bool
	subs       map[*eventSub]struct{}
}

var _ qmp.Monitor = (*Monitor)(nil)

// NewMonitor returns a Monitor for a unix or a libvirt address. It does not
// connect. Over libvirt only Watch works.
func NewMonitor(addr Addr, cfg *MonitorConfig) (*Monitor, error) {
	m := &Monitor{addr: addr, subs: map[*eventSub]struct{}{}}
	if cfg != nil {
		m.cfg = *cfg
	}
	if m.cfg.Dial == nil && addr.Scheme != "libvirt" {
		if addr.Scheme != "unix" {
			return nil, fmt.Errorf("monitor %s: QMP is spoken over unix sockets only", addr)
		}
		dial, err := dialer(addr)
		if err != nil {
			return nil, fmt.Errorf("monitor: %w", err)
		}
		m.cfg.Dial = dial
	}
	if m.cfg.Logger == nil {
		m.cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if m.cfg.GreetingTimeout <= 0 {
		m.cfg.GreetingTimeout = 2 * time.Second
	}
	if m.cfg.CommandTimeout <= 0 {
		m.cfg.CommandTimeout = 2 * time.Second
	}
	if m.cfg.PollInterval <= 0 {
		m.cfg.PollInterval = 5 * time.Second
	}
	return m, nil
}

// newConn takes nc over, with what reaches every client of this Monitor.
func (m *Monitor) newConn(nc net.Conn, onEvent func(qmpMessage)) *qmpConn {
	return newQMPConn(nc,
		func(msg qmpMessage) {
			if m.cfg.Logger.Enabled(context.Background(), slog.LevelDebug) { // storms come
				m.cfg.Logger.Debug("monitor event", "event", clean(msg.event.name), "data", clean([]byte(msg.event.data)))
			}
			m.broadcast(msg)
			onEvent(msg)
		},
		func(msg qmpMessage) {
			m.cfg.Logger.Debug("monitor reply that nobody awaits", "id", clean(msg.id))
		})
}

// Connect makes a connection and negotiates. It returns within the greeting's
// and one command's timeout. A monitor that accepts and stays silent is an
// error that matches context.DeadlineExceeded: another client holds it. While
// Watch runs, Connect only reports whether Watch is connected.
func (m *Monitor) Connect() error {
	if m.addr.Scheme == "libvirt" {
		return fmt.Errorf("monitor %s: %w", m.addr, errNoQMP)
	}
	m.mu.Lock()
	switch {
	case m.conn != nil && m.conn.alive():
		m.mu.Unlock()
		return nil
	case m.watching:
		defer m.mu.Unlock()
		return m.notConnected()
	case m.connecting != nil:
		m.mu.Unlock()
		return fmt.Errorf("monitor %s: already connecting", m.addr)
	}
	dead := m.conn
	m.conn = nil
	ctx, cancel := context.WithTimeout(context.Background(), m.cfg.GreetingTimeout+m.cfg.CommandTimeout)
	defer cancel()
	m.connecting = cancel
	m.mu.Unlock()

	if dead != nil {
		dead.close()
	}
	c, err := m.connect(ctx)

	m.mu.Lock()
	defer m.mu.Unlock()
	m.connecting = nil
	if err == nil && ctx.Err() != nil { // Disconnect came first
		c.close()
		err = fmt.Errorf("%w: %w", ErrNotConnected, ctx.Err())
	}
	if err != nil {
		m.why = err
		return fmt.Errorf("monitor %s: %w", m.addr, err)
	}
	m.conn = c
	return nil
}

// connect dials and negotiates until ctx ends.
func (m *Monitor) connect(ctx context.Context) (*qmpConn, error) {
	nc, err := m.cfg.Dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotConnected, err)
	}
	c := m.newConn(nc, func(qmpMessage) {})
	greetCtx, cancel := context.WithTimeout(ctx, m.cfg.GreetingTimeout)
	defer cancel()
	err = c.awaitGreeting(greetCtx)
	if err == nil {
		_, err = c.call(ctx, c.capabilities())
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// Disconnect ends the connection that Connect made, or a Connect under way,
// and the channels of Events. It leaves Watch's connection alone.
func (m *Monitor) Disconnect() error {
	m.mu.Lock()
	if m.watching {
		m.mu.Unlock()
		return nil
	}
	if m.connecting != nil {
		m.connecting()
	}
	c := m.conn
	m.conn, m.why = nil, nil
	subs := m.takeSubs()
	m.mu.Unlock()
	if c != nil {
		c.close()
	}
	for _, s := range subs {
		s.end()
	}
	return nil
}

// notConnected returns the error of a call without a connection. The caller
// holds mu.
func (m *Monitor) notConnected() error {
	if m.why != nil && !errors.Is(m.why, ErrNotConnected) {
		return fmt.Errorf("monitor %s: %w: %w", m.addr, ErrNotConnected, m.why)
	}
	if m.why != nil {
		return fmt.Errorf("monitor %s: %w", m.addr, m.why)
	}
	return fmt.Errorf("monitor %s: %w", m.addr, ErrNotConnected)
}

// use returns the connection for one call.
func (m *Monitor) use() (*qmpConn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn == nil {
		return nil, m.notConnected()
	}
	return m.conn, nil
}

// Do runs one command until ctx ends, and decodes what it returns into out
// (nil: not wanted). args is marshalled to the command's arguments; nil: none.
// An answer that says no is an *Error; silence matches
// context.DeadlineExceeded, and leaves the connection usable.
func (m *Monitor) Do(ctx context.Context, command string, args, out any) error {
	cmd := qmpCommand{Execute: command}
	if args != nil {
		encoded, err := json.Marshal(args)
		if err != nil {
			return fmt.Errorf("monitor %s: %s: arguments: %w", m.addr, clean(command), err)
		}
		cmd.Arguments = encoded
	}
	msg, err := m.do(ctx, cmd)
	if err != nil {
		return err
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(msg.result, out); err != nil {
		return fmt.Errorf("monitor %s: %s: %w: %s", m.addr, command, ErrProtocol, clean(err.Error()))
	}
	return nil
}

func (m *Monitor) do(ctx context.Context, cmd qmpCommand) (qmpMessage, error) {
	if err := cmd.check(); err != nil {
		return qmpMessage{}, fmt.Errorf("monitor %s: %w", m.addr, err)
	}
	c, err := m.use()
	if err != nil {
		return qmpMessage{}, err
	}
	msg, err := c.call(ctx, cmd)
	if err != nil {
		return qmpMessage{}, fmt.Errorf("monitor %s: %w", m.addr, err)
	}
	return msg, nil
}

// Run sends one command, a JSON object as QMP has it, and returns QEMU's whole
// reply, within the command's timeout. A command that is not on the list of
// those that only read is refused here. The command's own id comes back in the
// reply. An answer that says no is an *Error and no reply.
//
// It is part of go-qemu's qmp.Monitor; elsewhere use Do.
func (m *Monitor) Run(command []byte) ([]byte, error) {
	var cmd qmpCommand
	if err := json.Unmarshal(command, &cmd); err != nil {
		return nil, fmt.Errorf("monitor %s: command is no JSON object: %w", m.addr, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), m.cfg.CommandTimeout)
	defer cancel()
	msg, err := m.do(ctx, cmd)
	if err != nil {
		return nil, err
	}
	reply := struct {
		Return json.RawMessage `json:"return"`
		ID     json.RawMessage `json:"id,omitempty"`
	}{msg.result, cmd.ID}
	return json.Marshal(reply)
}
