package qga

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

const (
	// maxLibvirtPacket is the cap for one packet of libvirt's daemon. The
	// protocol caps a string at 4 MiB (libvirt 9.0 remote_protocol.x
	// REMOTE_STRING_MAX), and nothing that is asked for here returns more than
	// one long string.
	maxLibvirtPacket = 5 << 20

	libvirtHeader = 28 // the length and six words, each 4 bytes
)

// A libvirtGuard stands between libvirt's daemon and go-libvirt, and passes on
// only what go-libvirt can bear: whole packets of a sane length that are
// events, or the first reply to a call in progress. Without it a short length
// panics in go-libvirt's reader, a long one allocates as much, and a second
// reply to one call blocks the reader for ever with a lock held.
type libvirtGuard struct {
	net.Conn
	r       *bufio.Reader // only Read uses it
	packet  []byte        // checked, and not yet passed on
	outLeft int           // bytes of the packet being written; only Write uses it

	done     chan struct{} // closed when the connection has ended, after err is set
	released chan struct{} // see failed
	ended    atomic.Bool   // the connection is of no use any more

	mu         sync.Mutex
	err        error
	isReleased bool
	calls      map[uint32]struct{} // serials that await their reply
}

func newLibvirtGuard(nc net.Conn) *libvirtGuard {
	return &libvirtGuard{
		Conn:     nc,
		r:        bufio.NewReader(nc),
		done:     make(chan struct{}),
		released: make(chan struct{}),
		calls:    map[uint32]struct{}{},
	}
}

// Read implements net.Conn for go-libvirt's reader.
func (g *libvirtGuard) Read(p []byte) (int, error) {
	for len(g.packet) == 0 {
		packet, err := g.readPacket()
		if err != nil {
			return 0, g.failed(err)
		}
		g.packet = packet
	}
	n := copy(p, g.packet)
	g.packet = g.packet[n:]
	return n, nil
}

// readPacket returns one whole packet, or nothing for one that nobody awaits.
func (g *libvirtGuard) readPacket() ([]byte, error) {
	var head [libvirtHeader]byte
	if _, err := io.ReadFull(g.r, head[:]); err != nil {
		return nil, lostDaemon(err)
	}
	word := func(i int) uint32 { return binary.BigEndian.Uint32(head[4*i:]) }
	length, program, version, kind, serial := word(0), word(1), word(2), word(4), word(5)
	const (
		remoteProgram    = 0x20008086 // libvirt 9.0 src/remote/remote_protocol.x
		qemuProgram      = 0x20008087 // qemu_protocol.x
		keepaliveProgram = 0x6b656570 // src/rpc/virkeepaliveprotocol.x
	)
	switch {
	case program != remoteProgram && program != qemuProgram && program != keepaliveProgram, version != 1, length < libvirtHeader:
		return nil, fmt.Errorf("%w: %q is no packet of libvirt's daemon", ErrProtocol, clean(head[:]))
	case length > maxLibvirtPacket:
		return nil, fmt.Errorf("%w: a packet of %d bytes", ErrTooLarge, length)
	}
	packet := make([]byte, length)
	copy(packet, head[:])
	if _, err := io.ReadFull(g.r, packet[libvirtHeader:]); err != nil {
		return nil, lostDaemon(err)
	}
	const reply, message = 1, 2 // src/rpc/virnetprotocol.x virNetMessageType
	switch {
	case program != keepaliveProgram && kind == message:
		return packet, nil
	case program != keepaliveProgram && kind == reply && g.answered(serial):
		return packet, nil
	}
	return nil, nil
}

func lostDaemon(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: libvirt's daemon hung up", ErrConnectionLost)
	}
	return fmt.Errorf("%w: %w", ErrConnectionLost, err)
}

// answered reports whether the call still awaits its reply, and ends the wait.
func (g *libvirtGuard) answered(serial uint32) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.calls[serial]
	delete(g.calls, serial)
	return ok
}

// Write implements net.Conn. go-libvirt flushes its buffer after each packet,
// so the first piece of one holds the whole header.
func (g *libvirtGuard) Write(p []byte) (int, error) {
	if g.outLeft == 0 && len(p) >= libvirtHeader {
		g.outLeft = int(binary.BigEndian.Uint32(p))
		g.mu.Lock()
		err := g.err
		if err == nil {
			g.calls[binary.BigEndian.Uint32(p[20:])] = struct{}{}
		}
		g.mu.Unlock()
		if err != nil {
			return 0, err
		}
	}
	n, err := g.Conn.Write(p)
	g.outLeft -= n
	return n, err
}

// Close implements net.Conn for go-libvirt, which closes after it has failed
// to open. Everyone else uses end.
func (g *libvirtGuard) Close() error {
	g.release()
	return g.Conn.Close()
}

// end breaks the connection: calls in progress fail, and the reader ends.
func (g *libvirtGuard) end() {
	g.ended.Store(true)
	g.Conn.Close()
}

// release says that go-libvirt's attempt to open is over.
func (g *libvirtGuard) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.isReleased {
		g.isReleased = true
		close(g.released)
	}
}

// failed ends the connection and returns the error for go-libvirt's reader.
//
// While go-libvirt opens the connection it replaces a channel that the end of
// its reader closes, without a lock, and a connection lost in between is then
// never reported. So with no call under way that the end would wake, the end
// is held back until the opening is over.
func (g *libvirtGuard) failed(err error) error {
	g.mu.Lock()
	g.ended.Store(true)
	first := g.err == nil
	if first {
		g.err = err
	}
	err = g.err
	waiting := len(g.calls) > 0
	g.mu.Unlock()
	g.Conn.Close()
	if first {
		close(g.done)
	}
	if !waiting {
		<-g.released
	}
	return err
}

// cause returns why the connection has ended, or nil.
func (g *libvirtGuard) cause() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}
