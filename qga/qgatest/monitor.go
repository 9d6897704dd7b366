package qgatest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// A monitor is the QMP server of a VM. As QEMU's character device it serves
// one client at a time: the kernel accepts others, and they hear nothing until
// their turn (qemu-10.0 chardev/char-socket.c).
type monitor struct {
	path   string
	vm     *VM // answers the commands
	listen *net.UnixListener
	wg     sync.WaitGroup
	closed chan struct{}

	process *gate // closed while the whole process is stopped
	loop    *gate // closed while the main loop is stuck

	mu     sync.Mutex
	silent bool
	client *qmpClient // nil: none is served
	seen   []string
}

// listenMonitor binds the socket and begins to serve.
func listenMonitor(path string, vm *VM) (*monitor, error) {
	l, err := listenChardev(path)
	if err != nil {
		return nil, err
	}
	m := &monitor{
		path:    path,
		vm:      vm,
		listen:  l,
		closed:  make(chan struct{}),
		process: newGate(),
		loop:    newGate(),
	}
	m.wg.Go(m.accept)
	return m, nil
}

// listenChardev binds a unix socket with a queue as short as QEMU's: two
// clients wait, the next is turned away at once with EAGAIN. As QEMU does, it
// takes the path from whoever had it (qemu-10.0 util/qemu-sockets.c
// unix_listen_saddr).
func listenChardev(path string) (*net.UnixListener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	raw, err := l.SyscallConn()
	if err == nil {
		// Linux lets a listening socket change its backlog.
		cerr := raw.Control(func(fd uintptr) { err = syscall.Listen(int(fd), 1) })
		err = errors.Join(err, cerr)
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("listen %s: %w", path, err)
	}
	return l, nil
}

func (m *monitor) accept() {
	for {
		if !m.process.wait(m.closed) {
			return
		}
		conn, err := m.listen.Accept()
		if err != nil {
			return
		}
		// A stopped process does not get to what the kernel accepted for it.
		if !m.process.wait(m.closed) {
			conn.Close()
			return
		}
		c := &qmpClient{m: m, conn: conn, inBand: make(chan request), gone: make(chan struct{}), wake: make(chan struct{}, 1)}
		m.mu.Lock()
		m.client = c
		silent := m.silent
		m.mu.Unlock()
		select {
		case <-m.closed:
			c.hangUp()
		default:
		}
		if silent {
			c.ignore()
		} else {
			c.send(greeting())
			c.serve()
		}
		m.mu.Lock()
		m.client = nil
		m.mu.Unlock()
	}
}

func greeting() any {
	return json.RawMessage(`{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, ` +
		`"package": "qgatest"}, "capabilities": ["oob"]}}`)
}

// setSilent makes the monitor say nothing to its next clients, as if another one
// held it, or greet them again.
func (m *monitor) setSilent(silent bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.silent = silent
}

// drop ends the connection of the client that is served.
func (m *monitor) drop() {
	m.mu.Lock()
	c := m.client
	m.mu.Unlock()
	if c != nil {
		c.hangUp()
	}
}

// sendRaw gives bytes to the client that is served.
func (m *monitor) sendRaw(p []byte) {
	m.mu.Lock()
	c := m.client
	m.mu.Unlock()
	if c != nil {
		c.write(p)
	}
}

// event sends an event to the client that is served, if it has negotiated.
func (m *monitor) event(name string, data any, at time.Time) {
	m.mu.Lock()
	c := m.client
	m.mu.Unlock()
	if c != nil && c.isNegotiated() {
		c.send(wireEvent{
			Timestamp: wireTime{Seconds: at.Unix(), Microseconds: at.Nanosecond() / 1000},
			Event:     name,
			Data:      data,
		})
	}
}

type wireEvent struct {
	Timestamp wireTime `json:"timestamp"`
	Event     string   `json:"event"`
	Data      any      `json:"data,omitempty"`
}

type wireTime struct {
	Seconds      int64 `json:"seconds"`
	Microseconds int   `json:"microseconds"`
}

// requests returns what clients have sent, oldest first, one text per command.
func (m *monitor) requests() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.seen...)
}

const maxSeen = 1000

func (m *monitor) saw(line []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.seen) == maxSeen {
		m.seen = m.seen[1:]
	}
	m.seen = append(m.seen, string(line))
}

// close ends the monitor and waits for its goroutines. unlink says whether the
// socket's file goes too, as when QEMU ends in order.
func (m *monitor) close(unlink bool) {
	m.listen.SetUnlinkOnClose(unlink)
	close(m.closed)
	m.listen.Close()
	m.drop()
	m.wg.Wait()
}
