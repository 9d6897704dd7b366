package qga

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// A Transport carries one command at a time to a guest agent and its reply
// back. It is the seam between a byte stream, where the client itself must
// keep in step with the agent, and libvirt, where a call is an RPC.
//
// RoundTrip may be called from several goroutines; the calls take turns.
type Transport interface {
	// Run keeps up the connection until ctx ends, and then returns nil.
	// RoundTrip and Sync work only while it runs.
	Run(ctx context.Context) error

	// RoundTrip returns the value of the reply's "return" member, or an *Error
	// if the agent answered with one. The slice belongs to the caller.
	RoundTrip(ctx context.Context, req Request) (reply []byte, err error)

	// Sync proves that the agent reads and answers now, without a command
	// that leaves traces in the guest.
	Sync(ctx context.Context) error

	// Stats returns what has been counted so far.
	Stats() AgentStats
}

// A Request is one command for a guest agent.
type Request struct {
	// Command is the command's name, such as "guest-ping".
	Command string
	// Arguments is a JSON object; nil for none.
	Arguments []byte
	// MaxReply caps the reply, in bytes on the wire. 0 means 64 KiB.
	MaxReply int
	// MaxString, if not 0, is how many bytes of each JSON string in the reply
	// are needed. A transport may cut longer ones while it reads them, so that
	// a big reply costs little memory.
	MaxString int
	// Late, if not nil, gets a reply that came after RoundTrip had given up.
	// It is called at most once, from the transport's goroutine, and must not
	// block.
	Late func(reply []byte, err error)
}

const (
	// defaultReply caps replies that are short by nature; guest-info, the
	// longest of them, takes about 5 kB.
	defaultReply = 64 << 10
	// syncAllowance is how much stale output an exchange may wade through to
	// get in step: a blocked virtio-serial channel was seen to hold 0.7 MB.
	syncAllowance = 4 << 20
)

// appendRequest appends req as one line. An empty id leaves the member out.
// The newline is for agents that read line by line; QEMU's counts braces.
func appendRequest(dst []byte, req *Request, id []byte) []byte {
	dst = append(dst, `{"execute":"`...)
	dst = append(dst, req.Command...)
	dst = append(dst, '"')
	if req.Arguments != nil {
		dst = append(dst, `,"arguments":`...)
		dst = append(dst, req.Arguments...)
	}
	if len(id) > 0 {
		dst = append(dst, `,"id":`...)
		dst = append(dst, id...)
	}
	return append(dst, '}', '\n')
}

// appendSync appends the request that gets in step: a byte that resets the
// agent's parser if it may hold half a request of somebody else, then the
// token to be returned. An older Windows agent is said to want the newline.
func appendSync(dst []byte, command string, token int64, reset bool) []byte {
	if reset {
		dst = append(dst, sentinel, '\n')
	}
	dst = append(dst, `{"execute":"`...)
	dst = append(dst, command...)
	dst = append(dst, `","arguments":{"id":`...)
	dst = strconv.AppendInt(dst, token, 10)
	return append(dst, '}', '}', '\n')
}

// AgentStats are counters since the Agent was made, and its present condition.
type AgentStats struct {
	// Connected is whether there is a connection; nobody need be behind it.
	Connected bool
	// InSync is whether the agent has answered on this connection, and has
	// answered each command since.
	InSync bool
	// Fallback is whether these are the fallback's, see WithFallback.
	Fallback bool
	// Connects counts connections made.
	Connects uint64
	// Resyncs counts synchronisations sent because an exchange had failed.
	Resyncs uint64
	// StaleReplies counts replies that answered none of our pending requests.
	StaleReplies uint64
	// Garbage counts lines that were no JSON object.
	Garbage uint64
	// RoundTrip is how long the last answered exchange took.
	RoundTrip time.Duration
}

// newTransport returns the transport for addr. It is the only place that knows
// which transport serves which kind of address.
func newTransport(addr Addr, cfg *AgentConfig) (Transport, error) {
	switch addr.Scheme {
	case "unix", "vsock":
		return newStream(addr, cfg)
	case "libvirt":
		return newLibvirtAgent(addr, cfg), nil
	}
	return nil, fmt.Errorf("agent address %s: unknown scheme %q", addr, addr.Scheme)
}
