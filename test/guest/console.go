package guest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
)

// A console speaks with the guest's first process over a serial line (see init for the language).
type console struct {
	conn net.Conn
	done chan struct{} // closed when the reader has ended

	mu      sync.Mutex
	id      int
	output  []string
	waiting map[int]chan result
	boots   int           // how often the guest has said that it is ready
	changed chan struct{} // closed and replaced with every boot, closed for good with the connection
	closed  bool
}

type result struct {
	status int
	output string
}

func newConsole(conn net.Conn) *console {
	c := &console{conn: conn, done: make(chan struct{}), waiting: make(map[int]chan result), changed: make(chan struct{})}
	go c.read()
	return c
}

func (c *console) read() {
	defer close(c.done)
	lines := bufio.NewScanner(c.conn)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		c.line(strings.TrimSuffix(lines.Text(), "\r"))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	close(c.changed)
	for _, reply := range c.waiting {
		close(reply)
	}
	c.waiting = nil
}

func (c *console) line(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if output, ok := strings.CutPrefix(text, "| "); ok {
		c.output = append(c.output, output)
		return
	}
	if text == "ready" {
		c.boots++
		c.output = nil
		close(c.changed)
		c.changed = make(chan struct{})
		return
	}
	var id, status int
	if _, err := fmt.Sscanf(text, "done %d %d", &id, &status); err != nil {
		return // the firmware's words before the guest's
	}
	if reply := c.waiting[id]; reply != nil {
		reply <- result{status, strings.Join(c.output, "\n")}
		delete(c.waiting, id)
	}
	c.output = nil
}

// send writes a command and returns the channel for its result; it is closed without one when QEMU ends.
func (c *console) send(command string) (<-chan result, error) {
	if strings.ContainsAny(command, "\r\n") {
		return nil, fmt.Errorf("command %q is more than one line", command)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("command %q: the serial line is closed", command)
	}
	c.id++
	reply := make(chan result, 1)
	c.waiting[c.id] = reply
	_, err := c.conn.Write([]byte(strconv.Itoa(c.id) + " " + command + "\n"))
	return reply, err
}

// run waits for a command's end and returns its output; a status other than 0 is an error.
func (c *console) run(ctx context.Context, command string) (string, error) {
	reply, err := c.send(command)
	if err != nil {
		return "", err
	}
	select {
	case r, ok := <-reply:
		switch {
		case !ok:
			return "", fmt.Errorf("command %q: the serial line was closed", command)
		case r.status != 0:
			return r.output, fmt.Errorf("command %q: exit status %d: %s", command, r.status, r.output)
		}
		return r.output, nil
	case <-ctx.Done():
		return "", fmt.Errorf("command %q: the guest has not answered: %w", command, context.Cause(ctx))
	}
}

// booted returns how often the guest has come up on this line.
func (c *console) booted() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.boots
}

// await waits until the guest has come up n times.
func (c *console) await(ctx context.Context, n int) error {
	for {
		c.mu.Lock()
		boots, changed, closed := c.boots, c.changed, c.closed
		c.mu.Unlock()
		switch {
		case boots >= n:
			return nil
		case closed:
			return fmt.Errorf("waiting for the guest: the serial line was closed")
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for the guest: %w", context.Cause(ctx))
		}
	}
}

func (c *console) close() {
	_ = c.conn.Close()
	<-c.done
}
