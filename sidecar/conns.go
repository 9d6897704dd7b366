package sidecar

import (
	"container/list"
	"net"
	"net/http"
	"sync"
	"syscall"
)

const (
	// maxConns is far above what a kubelet, a Prometheus and a few people need at once.
	maxConns = 128
	minConns = 8
)

// A connLimit bounds the connections to the endpoints. Beyond the limit it closes the one that has done nothing for
// the longest: who opens many and dribbles is the one who loses, and a new question is always answered. Without it,
// a slow client takes all files that the process may open, and the probes then have none for the guest.
type connLimit struct {
	limit int

	mu    sync.Mutex
	order *list.List // of net.Conn, the last one that did something at the back
	known map[net.Conn]*list.Element
}

func newConnLimit(limit int) *connLimit {
	return &connLimit{limit: limit, order: list.New(), known: make(map[net.Conn]*list.Element)}
}

// connsAllowed is the limit for this process: at most half of the files that it may open.
func connsAllowed() int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil || files.Cur/2 > maxConns {
		return maxConns
	}
	return max(int(files.Cur/2), minConns)
}

// track is the server's ConnState.
func (l *connLimit) track(c net.Conn, state http.ConnState) {
	if victim := l.move(c, state); victim != nil {
		victim.Close()
	}
}

func (l *connLimit) move(c net.Conn, state http.ConnState) (victim net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.known[c]
	switch {
	case state == http.StateNew:
		l.known[c] = l.order.PushBack(c)
	case e == nil: // it was the victim of another
	case state == http.StateClosed || state == http.StateHijacked:
		l.forget(e)
	default:
		l.order.MoveToBack(e)
	}
	if l.order.Len() <= l.limit {
		return nil
	}
	return l.forget(l.order.Front())
}

func (l *connLimit) forget(e *list.Element) net.Conn {
	c, _ := l.order.Remove(e).(net.Conn)
	delete(l.known, c)
	return c
}
