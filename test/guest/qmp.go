package guest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"time"
)

// A monitor is the test's own QMP client, deliberately not the product's.
type monitor struct {
	conn net.Conn
	done chan struct{} // closed when the reader has ended

	mu      sync.Mutex
	id      int
	waiting map[int]chan message
	events  []Event
	changed chan struct{} // closed and replaced when events grow or the connection ends
	err     error
}

// An Event is what QEMU has told on the test's own monitor.
type Event struct {
	Name string
	At   time.Time // by QEMU's clock, which is this machine's
	Data json.RawMessage
}

type message struct {
	ID        *int            `json:"id"`
	Event     string          `json:"event"`
	Data      json.RawMessage `json:"data"`
	Timestamp struct {
		Seconds      int64 `json:"seconds"`
		Microseconds int64 `json:"microseconds"`
	} `json:"timestamp"`
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
	QMP json.RawMessage `json:"QMP"`
}

// newMonitor takes over a connection from QEMU and negotiates.
func newMonitor(ctx context.Context, conn net.Conn) (*monitor, error) {
	m := &monitor{
		conn: conn, done: make(chan struct{}),
		waiting: make(map[int]chan message), changed: make(chan struct{}),
	}
	go m.read()
	if err := m.execute(ctx, "qmp_capabilities", nil, nil); err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

func (m *monitor) read() {
	defer close(m.done)
	for dec := json.NewDecoder(m.conn); ; {
		var msg message
		err := dec.Decode(&msg)
		m.mu.Lock()
		switch {
		case err != nil:
			m.err = err
			for _, reply := range m.waiting {
				close(reply)
			}
			m.waiting = nil
			close(m.changed)
			m.mu.Unlock()
			return
		case msg.Event != "":
			at := time.Unix(msg.Timestamp.Seconds, msg.Timestamp.Microseconds*1000)
			m.events = append(m.events, Event{msg.Event, at, msg.Data})
			close(m.changed)
			m.changed = make(chan struct{})
		case msg.ID != nil && m.waiting[*msg.ID] != nil:
			m.waiting[*msg.ID] <- msg
			delete(m.waiting, *msg.ID)
		}
		m.mu.Unlock()
	}
}

// execute runs one command and decodes what it returns into out, unless that is nil.
func (m *monitor) execute(ctx context.Context, command string, args, out any) error {
	reply := make(chan message, 1)
	m.mu.Lock()
	if m.waiting == nil {
		m.mu.Unlock()
		return fmt.Errorf("%s: connection lost: %w", command, m.err)
	}
	m.id++
	m.waiting[m.id] = reply
	request, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        int    `json:"id"`
	}{command, args, m.id})
	m.mu.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	if _, err := m.conn.Write(request); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	select {
	case msg, ok := <-reply:
		switch {
		case !ok:
			return fmt.Errorf("%s: connection lost", command)
		case msg.Error != nil:
			return fmt.Errorf("%s: %s: %s", command, msg.Error.Class, msg.Error.Desc)
		case out == nil:
			return nil
		}
		return json.Unmarshal(msg.Return, out)
	case <-ctx.Done():
		return fmt.Errorf("%s: no reply: %w", command, context.Cause(ctx))
	}
}

// mark returns the number of events so far, for await.
func (m *monitor) mark() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.events)
}

// await waits until an event of that name has come after the mark, and returns the first.
func (m *monitor) await(ctx context.Context, mark int, name string) (Event, error) {
	for {
		m.mu.Lock()
		for ; mark < len(m.events); mark++ {
			if e := m.events[mark]; e.Name == name {
				m.mu.Unlock()
				return e, nil
			}
		}
		changed, err := m.changed, m.err
		m.mu.Unlock()
		if err != nil {
			return Event{}, fmt.Errorf("event %s: connection lost: %w", name, err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Event{}, fmt.Errorf("event %s: %w", name, context.Cause(ctx))
		}
	}
}

func (m *monitor) close() {
	_ = m.conn.Close()
	<-m.done
}
