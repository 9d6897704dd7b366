package qgatest

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"sync"
	"time"
)

// A request is one command.
type request struct {
	Execute   string          `json:"execute"`
	ExecOOB   string          `json:"exec-oob"`
	Arguments json.RawMessage `json:"arguments"`
	ID        json.RawMessage `json:"id"`
}

type reply struct {
	Return any             `json:"return"`
	ID     json.RawMessage `json:"id,omitempty"`
}

type errorReply struct {
	ID    json.RawMessage `json:"id,omitempty"`
	Error qmpError        `json:"error"`
}

type qmpError struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

// A qmpClient is one connection. What it is sent is queued without bound, as
// in QEMU: a client that does not read blocks nobody.
type qmpClient struct {
	m      *monitor
	conn   net.Conn
	inBand chan request
	gone   chan struct{} // closed by hangUp
	wake   chan struct{}

	mu         sync.Mutex
	hungUp     bool
	negotiated bool
	oob        bool
	out        []byte
}

// serve runs until the connection ends, by either side.
func (c *qmpClient) serve() {
	var wg sync.WaitGroup
	wg.Go(c.writeLoop)
	wg.Go(c.dispatchLoop)
	c.readLoop()
	c.hangUp()
	wg.Wait()
}

// ignore says nothing until either side hangs up.
func (c *qmpClient) ignore() {
	var wg sync.WaitGroup
	wg.Go(func() {
		<-c.gone
		c.conn.Close()
	})
	_, _ = io.Copy(io.Discard, c.conn)
	c.hangUp()
	wg.Wait()
}

// hangUp ends the connection once what is queued has been written.
func (c *qmpClient) hangUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.hungUp {
		c.hungUp = true
		close(c.gone)
	}
}

func (c *qmpClient) isNegotiated() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.negotiated
}

func (c *qmpClient) send(v any) {
	line, err := json.Marshal(v)
	if err != nil { // of our own types
		line = []byte(`{"error": {"class": "GenericError", "desc": "qgatest: cannot encode"}}`)
	}
	c.write(append(appendQEMU(nil, line), '\r', '\n'))
}

func (c *qmpClient) write(p []byte) {
	c.mu.Lock()
	c.out = append(c.out, p...)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// writeLoop writes what is queued, and closes the connection after hangUp.
func (c *qmpClient) writeLoop() {
	defer c.conn.Close()
	for {
		last := false
		select {
		case <-c.wake:
		case <-c.gone:
			last = true
			_ = c.conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		}
		if !last && !c.m.process.wait(c.gone) {
			continue // hung up: write the rest
		}
		c.mu.Lock()
		out := c.out
		c.out = nil
		c.mu.Unlock()
		if _, err := c.conn.Write(out); err != nil || last {
			return
		}
	}
}

// readLoop takes commands until the client hangs up. A bad one is answered
// with an error, and what follows its line end is taken again.
func (c *qmpClient) readLoop() {
	r := &gatedReader{r: c.conn, gate: c.m.process, gone: c.gone}
	buf := make([]byte, 4096)
	var p parser
	for {
		n, err := r.Read(buf)
		for _, b := range buf[:n] {
			p.feed(b, c.take, func(desc string) {
				c.send(errorReply{Error: qmpError{"GenericError", desc}})
			})
		}
		if err != nil {
			return
		}
	}
}

// take takes one JSON value, which the caller goes on writing to.
func (c *qmpClient) take(value []byte) {
	value = bytes.Clone(value)
	c.m.saw(value)
	var req request
	if err := checkJSON(value); err != nil {
		c.send(errorReply{Error: qmpError{"GenericError", err.Error()}})
		return
	}
	if err := json.Unmarshal(value, &req); err != nil {
		c.send(errorReply{Error: qmpError{"GenericError", "QMP input must be a JSON object"}})
		return
	}
	if req.ExecOOB != "" {
		c.answerOutOfBand(req)
		return
	}
	select {
	case c.inBand <- req:
	case <-c.gone:
	}
}

// answerOutOfBand answers in the reader, as QEMU's monitor thread does.
func (c *qmpClient) answerOutOfBand(req request) {
	c.mu.Lock()
	oob := c.oob
	c.mu.Unlock()
	switch {
	case !oob:
		c.send(errorReply{req.ID, qmpError{"GenericError", "QMP input member 'exec-oob' is unexpected"}})
	case req.ExecOOB != "query-yank":
		c.send(errorReply{req.ID, qmpError{"GenericError", "The command " + req.ExecOOB + " does not support OOB"}})
	default:
		c.send(reply{[]any{}, req.ID})
	}
}

// dispatchLoop answers in-band commands in the VM's main loop. They queue
// without bound here, so that the reader goes on to those out of band.
func (c *qmpClient) dispatchLoop() {
	var queue []request
	for {
		if len(queue) == 0 {
			select {
			case req := <-c.inBand:
				queue = append(queue, req)
			case <-c.gone:
				return
			}
		}
		select {
		case req := <-c.inBand:
			queue = append(queue, req)
		case <-c.m.loop.opened():
			c.answer(queue[0])
			queue = queue[1:]
		case <-c.gone:
			return
		}
	}
}

func (c *qmpClient) answer(req request) {
	if req.Execute == "qmp_capabilities" {
		c.negotiate(req)
		return
	}
	if !c.isNegotiated() {
		c.send(errorReply{req.ID, qmpError{"CommandNotFound", "Expecting capabilities negotiation with 'qmp_capabilities'"}})
		return
	}
	c.m.vm.answer(req.Execute, func(result any, err *qmpError) {
		if err != nil {
			c.send(errorReply{req.ID, *err})
			return
		}
		c.send(reply{result, req.ID})
	})
}

func (c *qmpClient) negotiate(req request) {
	var args struct {
		Enable []string `json:"enable"`
	}
	_ = json.Unmarshal(req.Arguments, &args) // no arguments, nothing enabled
	c.mu.Lock()
	already := c.negotiated
	c.negotiated = true
	if !already {
		c.oob = len(args.Enable) == 1 && args.Enable[0] == "oob"
	}
	c.mu.Unlock()
	if already {
		c.send(errorReply{req.ID, qmpError{"CommandNotFound", "Capabilities negotiation is already complete, command ignored"}})
		return
	}
	c.send(reply{struct{}{}, req.ID})
}
