package sidecar

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/guestprobe/guestprobe/qga"
)

// A scriptedWatch is a monitor that says what the test says.
type scriptedWatch struct {
	mu     sync.Mutex
	notify func(qga.VMState) // nil: not watched
}

func (s *scriptedWatch) watch(ctx context.Context, notify func(qga.VMState)) error {
	s.mu.Lock()
	s.notify = notify
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	s.notify = nil
	s.mu.Unlock()
	return nil
}

func (s *scriptedWatch) watched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.notify != nil
}

func (s *scriptedWatch) say(link qga.Link, name string) {
	s.mu.Lock()
	notify := s.notify
	s.mu.Unlock()
	if notify != nil {
		notify(qga.VMState{Link: link, Name: name})
	}
}

func TestFallbackWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var direct, other scriptedWatch
		var last qga.VMState // written under the watch's lock, read when all is at rest
		w := &fallbackWatch{
			direct: direct.watch, other: other.watch, log: discard(), changed: make(chan struct{}, 1),
			follow: func(vm qga.VMState) { last = vm }, followOther: func(vm qga.VMState) { last = vm },
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := w.run(ctx); err != nil {
				t.Errorf("run: %v", err)
			}
		})
		expect := func(name string, watchedOther bool) {
			t.Helper()
			synctest.Wait()
			if last.Name != name || other.watched() != watchedOther || w.used() != watchedOther {
				t.Errorf("after %q the other monitor is watched: %v; want %q, %v", last.Name, other.watched(), name, watchedOther)
			}
		}
		synctest.Wait()
		direct.say(qga.LinkGone, "no socket")
		expect("no socket", false)
		time.Sleep(fallbackPatience)
		expect("no socket", true)
		other.say(qga.LinkUp, "libvirt")
		direct.say(qga.LinkGone, "still no socket")
		expect("libvirt", true)

		direct.say(qga.LinkUp, "direct")
		other.say(qga.LinkUp, "late word of libvirt's")
		expect("direct", false)

		// A moment's trouble is the direct monitor's own.
		direct.say(qga.LinkConnecting, "reconnecting")
		time.Sleep(fallbackPatience - time.Second)
		expect("reconnecting", false)
		direct.say(qga.LinkUp, "direct again")
		time.Sleep(time.Hour)
		expect("direct again", false)
		stop()
		running.Wait()
	})
}
