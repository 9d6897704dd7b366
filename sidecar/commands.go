package sidecar

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"unicode"

	"github.com/guestprobe/guestprobe/sidecar/manifest"
)

// commands are what exec checks have in the guest. They outlive the checks' workers: a reload makes new workers and
// ends no process.
type commands struct {
	mu  sync.Mutex
	all map[string]*command // by check and command line
}

// A command is the program of one exec check.
type command struct {
	turn chan struct{} // held by the attempt in flight: the last of a worker that has been stopped may still return

	// commands.mu guards what follows.
	pid    int64 // the process that has not been seen to end; 0: none
	of     boot  // the boot that it belongs to
	asked  bool  // the agent was asked to start one, and has not said whether it did
	output string
	// retired: no check of the manifest has it any more.
	retired bool
	mu      *sync.Mutex
}

// A boot is one run of a guest. Process numbers mean something within one boot only. Its instance is empty while no
// monitor tells.
type boot struct {
	instance string
	resets   uint64
}

func newCommands() *commands { return &commands{all: make(map[string]*command)} }

func commandKey(check string, line []string) string {
	return check + "\x00" + strings.Join(line, "\x00")
}

// get returns the command of a check, with all that is known of it.
func (cs *commands) get(check string, line []string) *command {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	key := commandKey(check, line)
	c := cs.all[key]
	if c == nil {
		c = &command{turn: make(chan struct{}, 1), mu: &cs.mu}
		cs.all[key] = c
	}
	c.retired = false
	return c
}

// maxRetired bounds the commands that are remembered for a process alone.
const maxRetired = 100

// retire forgets the commands that no check of the manifest has any more, but for those with a process in the guest:
// the next reload may bring them back, and the agent keeps a record of each until it is asked.
func (cs *commands) retire(m *manifest.Manifest) {
	wanted := make(map[string]bool)
	for _, c := range m.Checks {
		if c.Handler.Exec != nil {
			wanted[commandKey(c.Name, c.Handler.Exec.Command)] = true
		}
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	retired := 0
	for key, c := range cs.all {
		if wanted[key] {
			continue
		}
		c.retired = true
		if retired++; c.idle() || retired > maxRetired {
			delete(cs.all, key)
		}
	}
}

// idle reports whether nothing of the command is in the guest. It needs the lock.
func (c *command) idle() bool { return c.pid == 0 && !c.asked && len(c.turn) == 0 }

// orphan returns a retired command that may have a process in the guest, and forgets those that have none any more.
func (cs *commands) orphan(now boot) *command {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for key, c := range cs.all {
		if !c.retired {
			continue
		}
		c.forget(now)
		switch {
		case c.idle():
			delete(cs.all, key)
		case len(c.turn) == 0:
			return c
		}
	}
	return nil
}

// started remembers a process. Whoever had its number before has ended: a guest's kernel numbers no two alike.
func (cs *commands) started(c *command, pid int64, of boot) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, other := range cs.all {
		if other.pid == pid {
			other.pid = 0
		}
	}
	c.pid, c.of, c.asked = pid, of, false
}

// ended forgets the process.
func (cs *commands) ended(c *command) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.pid, c.asked = 0, false
}

// lost says that nobody answered the request to start a process.
func (cs *commands) lost(c *command) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.asked = c.pid == 0
}

// unanswered reports whether a process may have been started that is not known.
func (cs *commands) unanswered(c *command) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return c.asked
}

// found says that all answers are in.
func (cs *commands) found(c *command) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.asked = false
}

// left returns the process that may still be there, if now is the boot that it was started in. In another one it is
// gone, and its number may be another's, whose result must not be taken away.
func (cs *commands) left(c *command, now boot) int64 {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.forget(now)
	return c.pid
}

// forget drops a process of another boot. It needs the lock.
func (c *command) forget(now boot) {
	if c.of.instance != "" && now.instance != "" && c.of != now {
		c.pid = 0
	}
}

// take waits for the command's turn.
func (c *command) take(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the attempt before has not ended: %w", ctx.Err())
	}
}

func (c *command) release() { <-c.turn }

// keepOutput keeps what the command printed, fit to be shown.
func (c *command) keepOutput(output []byte) {
	text := strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, strings.ToValidUTF8(string(output), "?"))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.output = text
}

// lastOutput is what the command printed when it last failed; empty if it has not failed since.
func (c *command) lastOutput() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.output
}
