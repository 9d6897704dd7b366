package sidecar

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/qga"
)

// fallbackPatience is how long the direct monitor may be out of reach before the other one is asked: a restart of
// QEMU is no reason.
const fallbackPatience = 5 * time.Second

// A fallbackWatch follows the VM through its direct monitor, and through another one while that is out of reach: a VM
// that was started before the direct access was set up has no socket for it, and libvirt still tells its state.
type fallbackWatch struct {
	direct, other func(context.Context, func(qga.VMState)) error
	follow        func(qga.VMState) // what the direct one says
	followOther   func(qga.VMState)
	log           *slog.Logger

	mu      sync.Mutex
	inUse   bool          // the other one is
	isUp    bool          // the direct one is
	changed chan struct{} // of capacity 1: isUp has changed
	names   instanceNames
}

func newFallbackWatch(direct, other *qga.Monitor, follow, followOther func(qga.VMState), log *slog.Logger) *fallbackWatch {
	return &fallbackWatch{direct: direct.Watch, other: other.Watch, follow: follow, followOther: followOther, log: log, changed: make(chan struct{}, 1)}
}

// run watches until ctx is done.
func (w *fallbackWatch) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var directErr, otherErr error
	var tasks sync.WaitGroup
	tasks.Go(func() {
		defer stop()
		directErr = w.direct(ctx, w.fromDirect)
	})
	tasks.Go(func() {
		defer stop()
		otherErr = w.standIn(ctx)
	})
	tasks.Wait()
	if directErr != nil {
		return directErr
	}
	return otherErr
}

// fromDirect takes what the direct monitor says. Once it is up, it is the one that counts.
func (w *fallbackWatch) fromDirect(vm qga.VMState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if up := vm.Link == qga.LinkUp; up != w.isUp {
		w.isUp = up
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
	if w.isUp {
		w.inUse = false
	}
	if !w.inUse {
		w.follow(w.names.settle(false, vm))
	}
}

// fromOther takes what the other monitor says, while it is in use.
func (w *fallbackWatch) fromOther(vm qga.VMState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.inUse {
		w.followOther(w.names.settle(true, vm))
	}
}

// standIn watches through the other monitor whenever the direct one has been out of reach for a while.
func (w *fallbackWatch) standIn(ctx context.Context) error {
	for {
		if !w.outOfReach(ctx) {
			return nil
		}
		w.log.Warn("the direct monitor is out of reach, falling back")
		other, stop := context.WithCancel(ctx)
		var watching sync.WaitGroup
		var err error
		watching.Go(func() { err = w.other(other, w.fromOther) })
		for !w.directUp() && other.Err() == nil {
			select {
			case <-other.Done():
			case <-w.changed:
			}
		}
		stop()
		watching.Wait()
		if err != nil || ctx.Err() != nil {
			return err
		}
		w.log.Info("the direct monitor is in reach again")
	}
}

// outOfReach waits until the direct monitor has been down for fallbackPatience, and reports false if ctx ends first.
func (w *fallbackWatch) outOfReach(ctx context.Context) bool {
	for {
		var due <-chan time.Time
		if !w.directUp() {
			due = time.After(fallbackPatience)
		}
		select {
		case <-ctx.Done():
			return false
		case <-w.changed:
		case <-due:
			w.mu.Lock()
			w.inUse = !w.isUp
			falls := w.inUse
			w.mu.Unlock()
			if falls {
				return true
			}
		}
	}
}

// used tells that the VM's state is the other monitor's word.
func (w *fallbackWatch) used() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.inUse
}

func (w *fallbackWatch) directUp() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.isUp
}
