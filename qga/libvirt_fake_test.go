package qga

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/digitalocean/go-libvirt"
)

// Procedures of libvirt's protocol, by their numbers (libvirt 9.0
// src/remote/remote_protocol.x and qemu_protocol.x).
const (
	procOpen           = 1
	procVersion        = 4
	procXML            = 14
	procLookupByName   = 23
	procLookupByUUID   = 24
	procAuthList       = 66
	procLibVersion     = 157
	procGetState       = 212
	procRegister       = 316
	procDeregister     = 317
	procEventLifecycle = 318
	procEventReboot    = 319
	procEventIOError   = 324
	procEventAgent     = 348
	procAgentCommand   = 1003 // 3 of the QEMU program
	procQEMURegister   = 1004
	procQEMUDeregister = 1005
	procQEMUEvent      = 1006
)

// A fakeLibvirt is a daemon that speaks libvirt's protocol on a unix socket,
// as well or as badly as the test wants.
type fakeLibvirt struct {
	t    *testing.T
	path string
	l    net.Listener
	wg   sync.WaitGroup
	// accepted gets one for each connection, as far as there is room.
	accepted chan struct{}

	mu        sync.Mutex
	conns     map[*fakeLibvirtConn]bool
	dom       libvirt.Domain
	defined   bool
	state     libvirtState
	port      string // the channel's state in the XML
	agent     func(command string, timeout int32) (string, *libvirt.Error)
	intercept func(c *fakeLibvirtConn, call libvirtFakeCall) bool // true: dealt with
}

type libvirtFakeCall struct {
	proc    uint32
	serial  uint32
	payload *xdrReader
}

type fakeLibvirtConn struct {
	nc        net.Conn
	mu        sync.Mutex
	callbacks map[uint32]uint32 // event id: callback id
}

func newFakeLibvirt(t *testing.T) *fakeLibvirt {
	t.Helper()
	f := &fakeLibvirt{
		t:        t,
		path:     filepath.Join(t.TempDir(), "libvirt-sock"),
		conns:    map[*fakeLibvirtConn]bool{},
		accepted: make(chan struct{}, 16),
		dom:      libvirt.Domain{Name: "vm", UUID: libvirt.UUID{0xAB, 15: 1}, ID: -1},
		port:     "disconnected",
	}
	f.listen()
	t.Cleanup(func() {
		f.stop()
		f.wg.Wait()
	})
	return f
}

func (f *fakeLibvirt) addr() Addr { return Addr{Scheme: "libvirt", Domain: "vm", Socket: f.path} }

func (f *fakeLibvirt) listen() {
	f.t.Helper()
	l, err := net.Listen("unix", f.path)
	if err != nil {
		f.t.Fatal(err)
	}
	f.l = l
	f.wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			c := &fakeLibvirtConn{nc: nc, callbacks: map[uint32]uint32{}}
			f.mu.Lock()
			f.conns[c] = true
			f.mu.Unlock()
			select {
			case f.accepted <- struct{}{}:
			default:
			}
			f.wg.Go(func() { f.serve(c) })
		}
	})
}

// stop ends the daemon and its connections.
func (f *fakeLibvirt) stop() {
	f.l.Close()
	f.hangUp()
}

// hangUp ends the connections alone.
func (f *fakeLibvirt) hangUp() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		c.nc.Close()
	}
}

// set changes the daemon's mind.
func (f *fakeLibvirt) set(change func(*fakeLibvirt)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fakeLibvirt) serve(c *fakeLibvirtConn) {
	defer func() {
		c.nc.Close()
		f.mu.Lock()
		delete(f.conns, c)
		f.mu.Unlock()
	}()
	for {
		var head [libvirtHeader]byte
		if _, err := io.ReadFull(c.nc, head[:]); err != nil {
			return
		}
		word := func(i int) uint32 { return binary.BigEndian.Uint32(head[4*i:]) }
		payload := make([]byte, word(0)-libvirtHeader)
		if _, err := io.ReadFull(c.nc, payload); err != nil {
			return
		}
		call := libvirtFakeCall{proc: word(3), serial: word(5), payload: &xdrReader{payload}}
		if word(1) == 0x20008087 {
			call.proc += 1000
		}
		f.mu.Lock()
		intercept := f.intercept
		f.mu.Unlock()
		if intercept != nil && intercept(c, call) {
			continue
		}
		f.wg.Go(func() { f.answer(c, call) }) // a worker each, as the real one
	}
}

func (f *fakeLibvirt) answer(c *fakeLibvirtConn, call libvirtFakeCall) {
	f.mu.Lock()
	dom, defined, state, port, agent := f.dom, f.defined, f.state, f.port, f.agent
	f.mu.Unlock()
	var w xdrWriter
	switch call.proc {
	case procAuthList:
		w.u32(1).u32(0)
	case procOpen, procDeregister, procQEMUDeregister:
	case procQEMURegister:
		c.mu.Lock()
		c.callbacks[qemuEvents] = 200
		c.mu.Unlock()
		w.u32(200)
	case procVersion:
		w.u64(7_002_022)
	case procLibVersion:
		w.u64(9_000_000)
	case procLookupByName, procLookupByUUID:
		if !defined || call.proc == procLookupByName && call.payload.str() != dom.Name {
			c.refuse(call, libvirt.Error{Code: 42, Message: "Domain not found: no domain with matching name"})
			return
		}
		w.domain(dom)
	case procGetState:
		w.u32(uint32(state.state)).u32(uint32(state.reason))
	case procXML:
		w.str(fmt.Sprintf(`<domain type='qemu' id='%d'><name>vm</name><devices>
			<channel type='unix'><source mode='bind' path='/nowhere/agent.sock'/>
			<target type='virtio' name='org.qemu.guest_agent.0' state='%s'/><alias name='channel0'/></channel>
			</devices></domain>`, dom.ID, port))
	case procRegister:
		event := call.payload.u32()
		c.mu.Lock()
		c.callbacks[event] = 100 + event
		c.mu.Unlock()
		w.u32(100 + event)
	case procAgentCommand:
		call.payload.domain()
		command, timeout := call.payload.str(), int32(call.payload.u32())
		reply, err := agent(command, timeout)
		if err != nil {
			c.refuse(call, *err)
			return
		}
		w.u32(1).str(reply)
	default:
		c.refuse(call, libvirt.Error{Code: 3, Message: fmt.Sprintf("the fake has no procedure %d", call.proc)})
		return
	}
	c.reply(call, w.Bytes())
}

func (c *fakeLibvirtConn) reply(call libvirtFakeCall, payload []byte) {
	c.send(call.proc, 1, call.serial, 0, payload)
}

func (c *fakeLibvirtConn) refuse(call libvirtFakeCall, e libvirt.Error) {
	var w xdrWriter
	w.u32(e.Code).u32(10).u32(1).str(e.Message).u32(2)
	c.send(call.proc, 1, call.serial, 1, w.Bytes())
}

func (c *fakeLibvirtConn) send(proc, kind, serial, status uint32, payload []byte) {
	program := uint32(0x20008086)
	if proc > 1000 {
		program, proc = 0x20008087, proc-1000
	}
	var w xdrWriter
	w.u32(uint32(libvirtHeader + len(payload))).u32(program).u32(1).u32(proc).u32(kind).u32(serial).u32(status)
	w.Write(payload)
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.nc.Write(w.Bytes()) // a client that has gone is its own business
}

// event sends an event to all who asked for it. body is what follows the
// callback's id.
func (f *fakeLibvirt) event(proc uint32, id libvirt.DomainEventID, body func(*xdrWriter)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		c.mu.Lock()
		callback := c.callbacks[uint32(id)]
		c.mu.Unlock()
		if callback == 0 {
			continue
		}
		var w xdrWriter
		w.u32(callback)
		body(&w)
		c.send(proc, 2, 0, 0, w.Bytes())
	}
}

func (f *fakeLibvirt) lifecycle(dom libvirt.Domain, event libvirt.DomainEventType, detail int) {
	f.event(procEventLifecycle, libvirt.DomainEventIDLifecycle, func(w *xdrWriter) {
		w.domain(dom).u32(uint32(event)).u32(uint32(detail))
	})
}

func (f *fakeLibvirt) reboot(dom libvirt.Domain) {
	f.event(procEventReboot, libvirt.DomainEventIDReboot, func(w *xdrWriter) { w.domain(dom) })
}

func (f *fakeLibvirt) ioError(dom libvirt.Domain, device string, action uint32, reason string) {
	f.event(procEventIOError, libvirt.DomainEventIDIoErrorReason, func(w *xdrWriter) {
		w.domain(dom).str("/disk.img").str(device).u32(action).str(reason)
	})
}

func (f *fakeLibvirt) agentEvent(dom libvirt.Domain, state uint32) {
	f.event(procEventAgent, libvirt.DomainEventIDAgentLifecycle, func(w *xdrWriter) {
		w.domain(dom).u32(state).u32(2)
	})
}

// qemuEvents is no id of libvirt's: QEMU's own events are all in one.
const qemuEvents = 1000

func (f *fakeLibvirt) qemuEvent(dom libvirt.Domain, name, details string) {
	f.event(procQEMUEvent, qemuEvents, func(w *xdrWriter) {
		w.domain(dom).str(name).u64(1).u32(2).u32(1).str(details)
	})
}

// An xdrWriter encodes XDR (RFC 4506), as far as libvirt uses it here.
type xdrWriter struct{ bytes.Buffer }

func (w *xdrWriter) u32(v uint32) *xdrWriter {
	w.Write(binary.BigEndian.AppendUint32(nil, v))
	return w
}

func (w *xdrWriter) u64(v uint64) *xdrWriter {
	w.Write(binary.BigEndian.AppendUint64(nil, v))
	return w
}

func (w *xdrWriter) str(s string) *xdrWriter {
	w.u32(uint32(len(s)))
	w.WriteString(s)
	w.Write(make([]byte, -len(s)&3))
	return w
}

func (w *xdrWriter) domain(d libvirt.Domain) *xdrWriter {
	w.str(d.Name)
	w.Write(d.UUID[:])
	return w.u32(uint32(d.ID))
}

// An xdrReader decodes what an xdrWriter encodes. It panics on anything else.
type xdrReader struct{ p []byte }

func (r *xdrReader) u32() uint32 {
	v := binary.BigEndian.Uint32(r.p)
	r.p = r.p[4:]
	return v
}

func (r *xdrReader) str() string {
	n := int(r.u32())
	s := string(r.p[:n])
	r.p = r.p[n+(-n&3):]
	return s
}

func (r *xdrReader) domain() {
	r.str()
	r.p = r.p[16:]
	r.u32()
}
