package qga

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// proveInterval is how often a direct way that does not work is tried.
	proveInterval = 2 * time.Second
	// proveTimeout bounds one try. One synchronisation at most is outstanding,
	// so that trying for ever fills no buffer.
	proveTimeout = time.Second
)

// WithFallback returns an agent that is asked over direct while that works, and
// over other while it does not: where a VM was started without a channel of our
// own, or its guest runs no agent on it, libvirt's agent still answers. Both
// must be new, and are run by the agent that is returned.
func WithFallback(direct, other *Agent, log *slog.Logger) *Agent {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	t := &fallbackTransport{
		direct: direct.transport, other: other.transport, log: log,
		interrupt: func() {}, kick: make(chan struct{}, 1), proof: make(chan struct{}),
	}
	return &Agent{transport: t, results: make(map[int64]lateStatus)}
}

// A fallbackTransport takes the direct way only while it is in step, so that no
// call waits for an agent that is not there. Trying is Run's.
type fallbackTransport struct {
	direct, other Transport
	log           *slog.Logger
	kick          chan struct{} // of capacity 1: try the direct way now

	mu        sync.Mutex
	shut      bool          // no process in the guest has the direct channel open
	interrupt func()        // ends the try in progress
	proof     chan struct{} // closed with the try that calls wait for; nil: they need not
	fellBack  bool          // what was logged last
}

var _ Transport = (*fallbackTransport)(nil)

// Run implements Transport.
func (t *fallbackTransport) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var tasks sync.WaitGroup
	errs := make([]error, 2)
	for i, way := range []Transport{t.direct, t.other} {
		tasks.Go(func() {
			defer stop()
			errs[i] = way.Run(ctx)
		})
	}
	tasks.Go(func() { t.prove(ctx) })
	tasks.Wait()
	if errs[0] != nil {
		return errs[0]
	}
	return errs[1]
}

// prove tries the direct way whenever it does not work, until ctx ends.
func (t *fallbackTransport) prove(ctx context.Context) {
	ticker := time.NewTicker(proveInterval)
	defer ticker.Stop()
	for {
		if !t.usable() || t.awaited() {
			t.try(ctx)
		}
		if t.usable() && ctx.Err() == nil {
			t.tell(false)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-t.kick:
		}
	}
}

// try asks the direct way for a sign of life, and tells the calls that wait for
// the outcome.
func (t *fallbackTransport) try(parent context.Context) {
	ctx, cancel := context.WithTimeout(parent, proveTimeout)
	defer cancel()
	t.mu.Lock()
	t.interrupt = cancel
	t.mu.Unlock()
	err := t.direct.Sync(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil && ctx.Err() == context.Canceled && parent.Err() == nil {
		return // interrupted, for a better one
	}
	if err == nil {
		t.shut = false // who said so is late
	}
	if t.proof != nil {
		close(t.proof)
		t.proof = nil
	}
}

// awaited tells whether calls wait for a try.
func (t *fallbackTransport) awaited() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.proof != nil
}

// reopened is ChannelOpened's part here: the direct way is tried at once, and calls
// wait for it, so that the new agent gets the first of them.
func (t *fallbackTransport) reopened() {
	if r, ok := t.direct.(interface{ reopened() }); ok {
		r.reopened()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shut = false
	if t.proof == nil {
		t.proof = make(chan struct{})
	}
	t.interrupt()
	select {
	case t.kick <- struct{}{}:
	default:
	}
}

// closed is ChannelClosed's: the next call takes the other way, instead of
// waiting in vain.
func (t *fallbackTransport) closed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shut = true
}

// tell logs a change of the way, once.
func (t *fallbackTransport) tell(falls bool) {
	t.mu.Lock()
	was := t.fellBack
	t.fellBack = falls
	t.mu.Unlock()
	switch {
	case was == falls:
	case falls:
		t.log.Warn("no guest agent answers on the direct channel, falling back")
	default:
		t.log.Info("the guest agent answers on the direct channel again")
	}
}

// usable tells whether the direct way works, as far as is known.
func (t *fallbackTransport) usable() bool {
	t.mu.Lock()
	shut := t.shut
	t.mu.Unlock()
	return !shut && t.direct.Stats().InSync
}

// choose returns the way for a call that has until ctx's end.
func (t *fallbackTransport) choose(ctx context.Context) Transport {
	t.mu.Lock()
	proof := t.proof
	t.mu.Unlock()
	if proof != nil {
		// Half of the time at most, for the other way needs some too.
		patience := proveTimeout
		if end, ok := ctx.Deadline(); ok {
			patience = min(patience, time.Until(end)/2)
		}
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-proof:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	if t.usable() {
		return t.direct
	}
	return t.other
}

// heard notes a call's end: it is the other way's answer that makes it the one
// in use, and while a guest boots nobody answers.
func (t *fallbackTransport) heard(way Transport, err error) {
	if way == t.other && (err == nil || isAnswer(err)) && !t.usable() {
		t.tell(true)
	}
}

// RoundTrip implements Transport.
func (t *fallbackTransport) RoundTrip(ctx context.Context, req Request) ([]byte, error) {
	way := t.choose(ctx)
	reply, err := way.RoundTrip(ctx, req)
	t.heard(way, err)
	return reply, err
}

// Sync implements Transport.
func (t *fallbackTransport) Sync(ctx context.Context) error {
	way := t.choose(ctx)
	err := way.Sync(ctx)
	t.heard(way, err)
	return err
}

// Stats implements Transport: those of the way in use.
func (t *fallbackTransport) Stats() AgentStats {
	if t.usable() {
		return t.direct.Stats()
	}
	stats := t.other.Stats()
	stats.Fallback = true
	return stats
}
