package qga

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"
)

// AgentConfig holds what an Agent may be told. The zero value is useful.
type AgentConfig struct {
	// Logger gets a record when a connection is made or lost, and never one
	// per call. nil: nothing is logged.
	Logger *slog.Logger
	// Dial, if set, opens the stream instead of the address's own way.
	Dial func(context.Context) (net.Conn, error)
	// DialTimeout bounds one attempt to connect. 0 means 5 s.
	DialTimeout time.Duration
	// CallTimeout bounds a call whose context has no deadline. 0 means 10 s.
	CallTimeout time.Duration
	// MaxBackoff is the longest pause between two attempts to connect. 0
	// means 2 s: a missing unix socket costs next to nothing to look for.
	MaxBackoff time.Duration
}

// An Agent is a client of one guest agent. Its methods may be called from
// several goroutines; the agent serves one command at a time, so the calls
// take turns under their own contexts. They need Run to be running.
//
// An error of a method tells what happened, see the package comment. In
// particular a context that ended while the agent was asked, and only that,
// is in the error's chain as context.DeadlineExceeded.
type Agent struct {
	transport Transport

	mu      sync.Mutex
	results map[int64]lateStatus // of guest-exec-status, by pid
	strays  []int64              // pids that guest-exec returned too late
}

// NewAgent returns a client of the agent at addr. It connects to nothing; Run
// does. A nil cfg means the defaults.
func NewAgent(addr Addr, cfg *AgentConfig) (*Agent, error) {
	var c AgentConfig
	if cfg != nil {
		c = *cfg
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.DialTimeout <= 0 {
		c.DialTimeout = 5 * time.Second
	}
	if c.CallTimeout <= 0 {
		c.CallTimeout = 10 * time.Second
	}
	if c.MaxBackoff <= 0 {
		c.MaxBackoff = 2 * time.Second
	}
	t, err := newTransport(addr, &c)
	if err != nil {
		return nil, err
	}
	return &Agent{transport: t, results: make(map[int64]lateStatus)}, nil
}

// Run keeps the connection to the agent: it connects, reads, and connects
// again, with growing pauses while that fails. It returns nil when ctx ends,
// after all that it started has ended. It is called once.
func (a *Agent) Run(ctx context.Context) error { return a.transport.Run(ctx) }

// Stats returns counters and the present condition, from memory.
func (a *Agent) Stats() AgentStats { return a.transport.Stats() }

// Ping sends guest-ping, which the guest's agent writes to its log each time.
func (a *Agent) Ping(ctx context.Context) error {
	_, err := a.transport.RoundTrip(ctx, Request{Command: "guest-ping"})
	return err
}

// Sync proves with guest-sync-delimited that the agent answers. It proves as
// much as Ping, for the same loop of the agent serves both, and leaves no
// trace in the guest (qemu-10.0 qga/commands.c logs guest-ping alone).
func (a *Agent) Sync(ctx context.Context) error { return a.transport.Sync(ctx) }

// ChannelOpened says that the guest was seen to open its end of the channel,
// as a monitor's VSERPORT_CHANGE event tells. What was under way to the agent
// before is lost, so the next call does not wait for it to be answered.
func (a *Agent) ChannelOpened() {
	if r, ok := a.transport.(interface{ reopened() }); ok {
		r.reopened()
	}
}

// ChannelClosed says that no process in the guest has the channel open any
// more. Where there is a fallback, the next call takes it.
func (a *Agent) ChannelClosed() {
	if c, ok := a.transport.(interface{ closed() }); ok {
		c.closed()
	}
}

// AgentInfo is the answer to guest-info.
type AgentInfo struct {
	// Version is the agent's version, as a guest chose to report it.
	Version string `json:"version"`
	// Commands are all that the agent knows, usable now or not.
	Commands []AgentCommand `json:"supported_commands"`
}

// An AgentCommand is one command that an agent knows.
type AgentCommand struct {
	Name string `json:"name"`
	// Enabled is false for a command that the guest's administrator blocked,
	// and for most of them while filesystems are frozen.
	Enabled bool `json:"enabled"`
}

// Enabled reports whether the agent knows the command and may run it.
func (i AgentInfo) Enabled(command string) bool {
	for _, c := range i.Commands {
		if c.Name == command {
			return c.Enabled
		}
	}
	return false
}

// Info returns the agent's version and commands.
func (a *Agent) Info(ctx context.Context) (AgentInfo, error) {
	var info AgentInfo
	err := a.do(ctx, Request{Command: "guest-info"}, &info)
	return info, err
}

// FSFreezeStatus returns "thawed" or "frozen", or another word if a newer
// agent has one; then it is a guest's and must be escaped before it is shown.
func (a *Agent) FSFreezeStatus(ctx context.Context) (string, error) {
	var status string
	err := a.do(ctx, Request{Command: "guest-fsfreeze-status"}, &status)
	return status, err
}

// doReply caps a reply to a command that the package has no method for.
const doReply = 1 << 20

// Do runs any command that answers: args, if not nil, is encoded as its
// arguments and must become a JSON object; the result is decoded into out, if
// that is not nil. The reply may take 1 MiB.
//
// Commands that do not answer when they succeed (guest-shutdown,
// guest-suspend-*) end in a timeout here.
func (a *Agent) Do(ctx context.Context, command string, args, out any) error {
	req := Request{Command: command, MaxReply: doReply}
	if !isCommandName(command) {
		return fmt.Errorf("guest agent command %q: not a command name", command)
	}
	if args != nil {
		encoded, err := json.Marshal(args)
		if err != nil {
			return fmt.Errorf("%s: encode arguments: %w", command, err)
		}
		if encoded[0] != '{' {
			return fmt.Errorf("%s: arguments must be a JSON object, not %T", command, args)
		}
		req.Arguments = encoded
	}
	return a.do(ctx, req, out)
}

func (a *Agent) do(ctx context.Context, req Request, out any) error {
	ret, err := a.transport.RoundTrip(ctx, req)
	if err != nil || out == nil {
		return err
	}
	return decodeReturn(req.Command, ret, out)
}

// decodeReturn decodes a returned value. Unknown members are left alone and
// missing ones stay zero: agents differ from version to version.
func decodeReturn(command string, ret []byte, out any) error {
	if err := json.Unmarshal(ret, out); err != nil {
		return fmt.Errorf("%s: %w: unexpected result %s: %w", command, ErrProtocol, clean(ret), err)
	}
	return nil
}

// isCommandName reports whether s is made of the characters that QAPI allows
// in a name, and so needs no escaping.
func isCommandName(s string) bool {
	for _, r := range s {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '-', r == '_', r == '.':
		default:
			return false
		}
	}
	return s != ""
}
