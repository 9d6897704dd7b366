package qgatest

import (
	"io"
	"sync"
)

// A gate holds goroutines up while it is shut. It begins open.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // closed while the gate is open
}

func newGate() *gate {
	g := &gate{open: make(chan struct{})}
	close(g.open)
	return g
}

// opened returns a channel that is closed once the gate is open.
func (g *gate) opened() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open
}

// set opens or shuts the gate.
func (g *gate) set(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	isOpen := false
	select {
	case <-g.open:
		isOpen = true
	default:
	}
	switch {
	case open && !isOpen:
		close(g.open)
	case !open && isOpen:
		g.open = make(chan struct{})
	}
}

// wait waits until the gate is open, and reports false if gone came first.
func (g *gate) wait(gone <-chan struct{}) bool {
	select {
	case <-gone:
		return false
	default:
	}
	select {
	case <-g.opened():
		return true
	case <-gone:
		return false
	}
}

// A gatedReader hands on what it reads only while its gate is open. A read
// that is under way ends when gone is closed, with the reader it wraps.
type gatedReader struct {
	r    io.Reader
	gate *gate
	gone <-chan struct{}
}

func (g *gatedReader) Read(p []byte) (int, error) {
	n, err := g.r.Read(p)
	if !g.gate.wait(g.gone) {
		return 0, io.EOF
	}
	return n, err
}
