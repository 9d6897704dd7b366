package sidecar

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"
)

const (
	// instanceHeader tells our own answers from those of whoever else sits behind our address.
	instanceHeader = "X-Guestprobe-Instance"
	// shadowInterval is how often the listener is looked at, and shadowTimeout how long one look takes at most.
	shadowInterval = 10 * time.Second
	shadowTimeout  = 2 * time.Second
	// shadowMisses in a row are needed: one may be chance.
	shadowMisses = 2
)

// A shadowWatch notices when connections to our own TCP listener reach somebody else. KubeVirt's masquerade binding
// without a list of ports forwards every port of the pod to the guest, and what is sent to 127.0.0.1 inside the pod
// along with it (kubevirt pkg/network/setup/netpod/masquerade), so that asking ourselves tells what others meet.
// A bridge binding takes the pod's address away without such a trace.
type shadowWatch struct {
	log      *slog.Logger
	state    *state
	instance string // our own, unguessable
}

func newShadowWatch(log *slog.Logger, s *state) *shadowWatch {
	return &shadowWatch{log: log, state: s, instance: rand.Text()}
}

// sign puts our instance on every answer.
func (w *shadowWatch) sign(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set(instanceHeader, w.instance)
		next.ServeHTTP(rw, r)
	})
}

// run looks at the listener until ctx is done. addr is where it listens.
func (w *shadowWatch) run(ctx context.Context, addr net.Addr) error {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() && !tcp.IP.IsLoopback() {
		return nil // forwarding changes nothing about a listener on an address of its own
	}
	ticker := time.NewTicker(shadowInterval)
	defer ticker.Stop()
	misses := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		err := w.look(ctx, tcp)
		switch {
		case err == nil:
			misses = 0
		case ownTrouble(err):
			continue // nobody was asked
		default:
			misses++
		}
		if misses == shadowMisses {
			w.log.Warn("our own TCP listener is answered by somebody else", "address", addr.String(), "error", err)
		}
		w.set(misses >= shadowMisses)
	}
}

func (w *shadowWatch) set(shadowed bool) {
	if w.state.get().shadowed != shadowed {
		w.state.update(func() { w.state.shadowed = shadowed })
	}
}

// look asks our own listener over the loopback address, and fails unless we answer ourselves.
func (w *shadowWatch) look(ctx context.Context, addr *net.TCPAddr) error {
	ctx, cancel := context.WithTimeout(ctx, shadowTimeout)
	defer cancel()
	host := "127.0.0.1"
	if addr.IP.To4() == nil && addr.IP.IsLoopback() {
		host = "::1"
	}
	url := "http://" + hostPort(host, addr.Port) + "/healthz"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{DisableKeepAlives: true} // no proxy: the question is who listens here
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 1<<10) // what it says is no matter
	if got := resp.Header.Get(instanceHeader); got != w.instance {
		return fmt.Errorf("%s is answered by another server (%s %q)", url, resp.Status, printable(got))
	}
	return nil
}
