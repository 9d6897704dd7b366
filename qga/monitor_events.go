package qga

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/digitalocean/go-qemu/qmp"
)

// maxQueuedEvents bounds what a slow reader of events can make us keep. Beyond
// it the oldest are dropped.
const maxQueuedEvents = 1024

// An eventSub is one channel of Events. What it queues never makes the reader
// of the connection wait.
type eventSub struct {
	ready chan struct{} // holds a token while queue may be non-empty
	ended chan struct{} // closed by end
	done  chan struct{} // closed when the forwarding goroutine has ended

	mu    sync.Mutex
	queue []qmp.Event
}

// Events returns a channel with the VM's events from now on. It is closed when
// ctx ends, and by Disconnect or the end of Watch. Who reads too slowly loses
// the oldest of 1024 events; nobody else is held up.
//
// It is part of go-qemu's qmp.Monitor; to know the VM's state use Watch, which
// also makes up for events that were lost.
func (m *Monitor) Events(ctx context.Context) (<-chan qmp.Event, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn == nil && !m.watching {
		return nil, m.notConnected()
	}
	s := &eventSub{
		ready: make(chan struct{}, 1),
		ended: make(chan struct{}),
		done:  make(chan struct{}),
	}
	m.subs[s] = struct{}{}
	out := make(chan qmp.Event)
	go func() { // ends with ctx or by end, which joins it
		defer close(s.done)
		defer close(out)
		s.forward(ctx, out)
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.subs, s)
	}()
	return out, nil
}

// forward moves events from the queue to out until ctx or the subscription
// ends.
func (s *eventSub) forward(ctx context.Context, out chan<- qmp.Event) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.ended:
			return
		case <-s.ready:
		}
		s.mu.Lock()
		events := s.queue
		s.queue = nil
		s.mu.Unlock()
		for _, e := range events {
			select {
			case <-ctx.Done():
				return
			case <-s.ended:
				return
			case out <- e:
			}
		}
	}
}

func (s *eventSub) put(e qmp.Event) {
	s.mu.Lock()
	if len(s.queue) == maxQueuedEvents {
		s.queue = s.queue[1:]
	}
	s.queue = append(s.queue, e)
	s.mu.Unlock()
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// end closes the subscription's channel and waits for its goroutine.
func (s *eventSub) end() {
	close(s.ended)
	<-s.done
}

// takeSubs removes and returns all subscriptions. The caller holds mu, and
// calls end on each without it.
func (m *Monitor) takeSubs() []*eventSub {
	var subs []*eventSub
	for s := range m.subs {
		subs = append(subs, s)
	}
	clear(m.subs)
	return subs
}

// broadcast gives an event to all subscriptions.
func (m *Monitor) broadcast(msg qmpMessage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.subs) == 0 {
		return
	}
	var e qmp.Event
	if err := json.Unmarshal(msg.line, &e); err != nil {
		return // its members have types go-qemu does not expect
	}
	for s := range m.subs {
		s.put(e)
	}
}
