package qga

import (
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// answerQueries plays a small VM: it answers each command by its name with one
// of the replies, and others with an error, until the client hangs up or until
// n commands are answered.
func answerQueries(conn net.Conn, line func() string, n int, replies map[string]string) {
	for range n {
		cmd := line()
		if cmd == "" {
			return
		}
		reply := ""
		for name, r := range replies {
			if strings.Contains(cmd, `"`+name+`"`) {
				reply = r
			}
		}
		if reply == "" {
			say(conn, "{\"id\": %s, \"error\": {\"class\": \"CommandNotFound\", \"desc\": \"no\"}}\r\n", idOf(cmd))
			continue
		}
		// What follows a line end in the reply is an event.
		reply, events, _ := strings.Cut(reply, "\n")
		say(conn, "{\"return\": %s, \"id\": %s}\r\n%s", reply, idOf(cmd), events)
	}
}

func TestWatchOldQEMU(t *testing.T) {
	var sawOOB atomic.Bool
	r := record(t, newMonitor(t, scripted(t, func(conn net.Conn, line func() string) {
		say(conn, "%s", strings.Replace(testGreeting, `["oob"]`, `[]`, 1))
		// It lacks query-cpus-fast and query-chardev, and falls silent.
		answerQueries(conn, line, 6, map[string]string{
			"qmp_capabilities": `{}`,
			"query-status":     `{"status": "running", "running": true}`,
			"query-name":       `{}`,
			"query-uuid":       `{"UUID": "5b0f9bd8-4e0b-4a8c-8d4d-0a7c9e3b2f11"}`,
		})
		for cmd := line(); cmd != ""; cmd = line() {
			if strings.Contains(cmd, "oob") {
				sawOOB.Store(true)
			}
		}
	}), quick("")))
	if s := r.waitStatus("running"); s.Instance == "" || s.AgentPort != PortUnknown || s.UUID == "" {
		t.Errorf("%+v", s)
	}
	r.waitStuck("query-")
	r.stop()
	if sawOOB.Load() {
		t.Error("a command went out of band to one that does not take it")
	}
}

// What comes during the first round counts in the order in which it came.
func TestWatchEventsDuringTheFirstRound(t *testing.T) {
	event := func(name, data string) string {
		return fmt.Sprintf("{\"timestamp\": {\"seconds\": %d, \"microseconds\": 0}, \"event\": %q, \"data\": %s}\r\n", time.Now().Unix(), name, data)
	}
	r := record(t, newMonitor(t, scripted(t, func(conn net.Conn, line func() string) {
		say(conn, "%s", testGreeting)
		answerQueries(conn, line, 6, map[string]string{
			"qmp_capabilities": "{}\n" + event("STOP", `{}`) + event("RESUME", `{}`), // older than the status
			"query-status":     `{"status": "paused"}` + "\n" + event("GUEST_PANICKED", `{"action": "pause"}`),
			"query-name":       `{}`,
			"query-uuid":       `{}`,
			"query-cpus-fast":  `[]`,
			"query-chardev":    `[]` + "\n" + event("STOP", `{}`),
		})
		line()
		line()
	}), nil))
	s := r.wait("the first state", func(s VMState) bool { return s.Link == LinkUp })
	if s.Status != "guest-panicked" || s.Panic == nil || s.Panics != 1 {
		t.Errorf("%+v", s)
	}
}

func TestWatchFlappingPeer(t *testing.T) {
	var connects atomic.Int32
	enough := make(chan struct{})
	r := record(t, newMonitor(t, scripted(t, func(conn net.Conn, line func() string) {
		if connects.Add(1) == 5 {
			close(enough)
		}
		say(conn, "%s", testGreeting)
		answerQueries(conn, line, 6, map[string]string{
			"qmp_capabilities": `{}`, "query-status": `{"status": "running"}`, "query-name": `{}`,
			"query-uuid": `{}`, "query-cpus-fast": `[]`, "query-chardev": `[]`,
		})
	}), nil))
	start := time.Now()
	r.waitLink(LinkUp)
	<-enough
	if took := time.Since(start); took < 300*time.Millisecond {
		t.Errorf("5 connections within %v", took)
	}
}
