package sidecar

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/qga/qgatest"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

// crowd counts the processes that run in the guest at once.
type crowd struct {
	mu      sync.Mutex
	running []chan struct{}
	most    int
	started int
}

func (c *crowd) run(qgatest.Exec) (qgatest.Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	end := make(chan struct{})
	c.running = append(c.running, end)
	c.started++
	c.most = max(c.most, len(c.running))
	return qgatest.Process{Running: end}, nil
}

// end ends all processes.
func (c *crowd) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, end := range c.running {
		close(end)
	}
	c.running = nil
}

// TestExecNeverCrowds: whatever happens to the agent, the VM and the manifest while a command hangs, the guest never
// has two of it. Reboots are left out: nobody can count processes across them.
func TestExecNeverCrowds(t *testing.T) {
	c := &crowd{}
	vm := execVM(t, c.run)
	r := start(t, vm, config(t, vm, execSpec))
	vm.Boot()
	random := rand.New(rand.NewPCG(3, 7))
	specs := []string{
		execSpec, webSpec, strings.Replace(execSpec, "periodSeconds: 1", "periodSeconds: 2", 1),
		strings.Replace(execSpec, "failureThreshold: 1", "timeoutSeconds: 2", 1),
	}
	tick := time.NewTicker(15 * time.Millisecond)
	defer tick.Stop()
	for range 150 {
		switch random.IntN(8) {
		case 0:
			vm.AgentStop()
		case 1, 2:
			vm.AgentContinue()
		case 3:
			vm.Pause()
		case 4, 5:
			vm.Resume()
		case 6:
			r.reload(specs[random.IntN(len(specs))])
		case 7:
			if random.IntN(4) == 0 {
				c.end()
			}
		}
		<-tick.C
	}
	vm.AgentContinue()
	vm.Resume()
	r.reload(execSpec)
	r.reason(verdict.ProbeFailed)
	c.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.most != 1 || c.started < 2 {
		t.Errorf("%d processes at once, of %d", c.most, c.started)
	}
}
