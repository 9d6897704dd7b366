package qgatest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// A web is the guest's web server. It answers /healthz, and like a guest it
// refuses connections while it is down, and accepts and stays silent while the
// VM does not run.
type web struct {
	addr string // fixed by the first listen

	runs *gate // shut while the VM does not run

	mu      sync.Mutex
	status  int
	stalled bool
	server  *http.Server // nil: down
	wg      sync.WaitGroup
}

// newWeb takes a port on loopback, and begins down.
func newWeb(addr string) (*web, error) {
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	addr = l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	return &web{addr: addr, runs: newGate(), status: http.StatusOK}, nil
}

// up begins to serve. It does nothing if it serves already.
func (w *web) up() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.server != nil {
		return nil
	}
	l, err := listenAgain(w.addr)
	if err != nil {
		return fmt.Errorf("guest's web server: %w", err)
	}
	mux := http.NewServeMux()
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	mux.HandleFunc("/healthz", func(rw http.ResponseWriter, req *http.Request) {
		if w.enter(server) {
			defer w.wg.Done()
			w.healthz(rw, req)
		}
	})
	w.server = server
	w.wg.Go(func() { _ = server.Serve(l) }) // ends with Close, always with an error
	return nil
}

// listenAgain binds an address that was ours a moment ago. Another process may
// hold it for the length of an outgoing connection.
func listenAgain(addr string) (net.Listener, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	retry := time.NewTicker(10 * time.Millisecond)
	defer retry.Stop()
	for {
		l, err := net.Listen("tcp", addr)
		if err == nil {
			return l, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		case <-retry.C:
		}
	}
}

// down ends all connections and waits for their handlers.
func (w *web) down() {
	w.mu.Lock()
	server := w.server
	w.server = nil
	w.mu.Unlock()
	if server != nil {
		_ = server.Close() // its listener is all there could be an error about
	}
	w.wg.Wait()
}

// enter counts a handler, unless down came first.
func (w *web) enter(server *http.Server) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.server != server {
		return false
	}
	w.wg.Add(1)
	return true
}

// set changes what /healthz answers from now on.
func (w *web) set(status int, stalled bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status, w.stalled = status, stalled
}

func (w *web) healthz(rw http.ResponseWriter, req *http.Request) {
	gone := req.Context().Done()
	if !w.runs.wait(gone) {
		return
	}
	w.mu.Lock()
	status, stalled := w.status, w.stalled
	w.mu.Unlock()
	if stalled {
		<-gone
		return
	}
	rw.WriteHeader(status)
	fmt.Fprintf(rw, "%d %s\n", status, http.StatusText(status))
}
