package qga

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"
)

// A libvirtEvent is one event of our domain.
type libvirtEvent struct {
	needsXML bool
	apply    func(*libvirtTracker, time.Time)
}

// libvirtEvents merges the events that are followed. Each kind comes over a
// channel of go-libvirt, unbuffered but fed from a queue without bound, so
// calls of the reader of all cannot block it. The order within a kind is kept.
type libvirtEvents struct {
	addr Addr
	all  chan libvirtEvent

	sources []<-chan any
	merging sync.WaitGroup
	gone    chan struct{} // closed when nobody reads all any more
}

func newLibvirtEvents(addr Addr) *libvirtEvents {
	return &libvirtEvents{addr: addr, all: make(chan libvirtEvent), gone: make(chan struct{})}
}

// subscribe asks for the events of all domains: only so are those seen of one
// that is not yet defined. life bounds the subscription, ctx the calls.
func (e *libvirtEvents) subscribe(life, ctx context.Context, conn *libvirtConn) error {
	err := conn.call(ctx, func(rpc *libvirt.Libvirt) error {
		for _, id := range []libvirt.DomainEventID{
			libvirt.DomainEventIDLifecycle,
			libvirt.DomainEventIDReboot,
			libvirt.DomainEventIDIoErrorReason,
			libvirt.DomainEventIDAgentLifecycle,
		} {
			source, err := rpc.SubscribeEvents(life, id, nil)
			if err != nil {
				return err
			}
			e.sources = append(e.sources, source)
		}
		return nil
	})
	for _, source := range e.sources {
		e.merging.Go(func() { mergeEvents(e, source, e.decode) }) // joined by drain
	}
	if err != nil {
		return daemonError(err)
	}
	return nil
}

// subscribeQEMU asks for QEMU's own events of a domain: libvirt's tell neither
// the kind of a panic nor each failed disk. To ask is no monitor command, and
// taints nothing. libvirt promises no support for them, so without them less
// is known and nothing fails.
func (e *libvirtEvents) subscribeQEMU(life context.Context, conn *libvirtConn, domain string) {
	conn.spawn(func() {
		source, err := conn.rpc.SubscribeQEMUEvents(life, domain)
		if err == nil {
			e.merging.Go(func() { mergeEvents(e, source, decodeQEMUEvent) })
		}
	})
}

// askVersion asks for QEMU's version, and has the answer come as an event: a
// daemon that was just started runs every QEMU of the host before it knows.
func (e *libvirtEvents) askVersion(conn *libvirtConn) {
	conn.spawn(func() {
		v, err := conn.rpc.ConnectGetVersion()
		if err != nil {
			return // no QEMU there, and all else works
		}
		version := fmt.Sprintf("%d.%d.%d", v/1_000_000, v/1000%1000, v%1000)
		select {
		case e.all <- libvirtEvent{apply: func(t *libvirtTracker, _ time.Time) { t.version = version }}:
		case <-conn.guard.done:
		}
	})
}

// mergeEvents passes the events of our domain on, until source is closed. It
// reads on even when nobody wants them, for go-libvirt's own goroutine would
// hang.
func mergeEvents[T any](e *libvirtEvents, source <-chan T, decode func(T) (libvirtEvent, bool)) {
	for msg := range source {
		event, ok := decode(msg)
		if !ok {
			continue
		}
		select {
		case e.all <- event:
		case <-e.gone:
		}
	}
}

// decodeQEMUEvent returns false for events that libvirt's own tell as well.
func decodeQEMUEvent(m libvirt.DomainEvent) (libvirtEvent, bool) {
	switch m.Event {
	case "GUEST_PANICKED":
		p := decodePanic(m.Details)
		return libvirtEvent{apply: func(t *libvirtTracker, _ time.Time) { t.panicDetail(p) }}, true
	case "BLOCK_IO_ERROR":
		io, action, _ := decodeIOError(m.Details)
		return libvirtEvent{apply: func(t *libvirtTracker, _ time.Time) { t.ioDetail(io) }}, action == "stop"
	}
	return libvirtEvent{}, false
}

// drain waits until go-libvirt has closed all channels, which it does when the
// connection has ended.
func (e *libvirtEvents) drain() {
	close(e.gone)
	e.merging.Wait()
}

// decode returns false for events of other domains.
func (e *libvirtEvents) decode(msg any) (libvirtEvent, bool) {
	switch m := msg.(type) {
	case *libvirt.DomainEventCallbackLifecycleMsg:
		return libvirtEvent{true, func(t *libvirtTracker, now time.Time) {
			t.lifecycle(m.Msg.Dom, m.Msg.Event, m.Msg.Detail, now)
		}}, e.ours(m.Msg.Dom)
	case *libvirt.DomainEventCallbackRebootMsg:
		return libvirtEvent{false, func(t *libvirtTracker, now time.Time) { t.reboot(now) }}, e.ours(m.Msg.Dom)
	case *libvirt.DomainEventCallbackIOErrorReasonMsg:
		return libvirtEvent{false, func(t *libvirtTracker, now time.Time) { t.ioError(m.Msg, now) }}, e.ours(m.Msg.Dom)
	case *libvirt.DomainEventCallbackAgentLifecycleMsg:
		return libvirtEvent{true, func(t *libvirtTracker, _ time.Time) { t.agent(m.State) }}, e.ours(m.Dom)
	}
	return libvirtEvent{}, false
}

func (e *libvirtEvents) ours(dom libvirt.Domain) bool {
	return dom.Name == e.addr.Domain || uuidString(dom.UUID) == e.addr.Domain
}
