package daemon

import (
	"sync"
	"testing"
	"time"
)

// A Sample is what the daemons said at one moment, in the order in which they were asked.
type Sample struct {
	At          time.Time
	Ready, Live []int // the HTTP statuses; 0: no answer
}

// Watch asks several daemons again and again for /readyz and /livez, until the function it returns is called, which
// returns all that was said. It lasts no longer than the test.
func Watch(t testing.TB, every time.Duration, daemons ...*Daemon) (stop func() []Sample) {
	var samples []Sample
	quit, done := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop, which joins it
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			s := Sample{At: time.Now()}
			for _, d := range daemons {
				ready, _, _ := d.Get("/readyz") // no answer is 0
				s.Ready = append(s.Ready, ready)
			}
			for _, d := range daemons {
				live, _, _ := d.Get("/livez")
				s.Live = append(s.Live, live)
			}
			samples = append(samples, s)
			select {
			case <-quit:
				return
			case <-tick.C:
			}
		}
	}()
	end := sync.OnceFunc(func() {
		close(quit)
		<-done
	})
	t.Cleanup(end)
	return func() []Sample {
		end()
		return samples
	}
}
