package qga

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
)

// obedient answers as a new agent does.
func obedient(command string, _ int32) (string, *libvirt.Error) {
	return answerAgent(command, true), nil
}

func answerAgent(command string, withID bool) string {
	var req struct {
		Execute   string                     `json:"execute"`
		Arguments map[string]json.RawMessage `json:"arguments"`
		ID        json.RawMessage            `json:"id"`
	}
	if err := json.Unmarshal([]byte(command), &req); err != nil {
		return err.Error()
	}
	ret := "{}"
	if req.Execute == "guest-sync" {
		ret = string(req.Arguments["id"])
	}
	if !withID || req.ID == nil {
		return fmt.Sprintf(`{"return": %s}`, ret)
	}
	return fmt.Sprintf(`{"return": %s, "id": %s}`, ret, req.ID)
}

// runningFake is a daemon with a running domain whose agent is as given.
func runningFake(t *testing.T, agent func(string, int32) (string, *libvirt.Error)) *fakeLibvirt {
	f := newFakeLibvirt(t)
	f.set(func(f *fakeLibvirt) {
		f.defined, f.dom.ID, f.state, f.agent = true, 1, libvirtState{1, 1}, agent
	})
	return f
}

func runLibvirtAgent(t *testing.T, addr Addr, cfg *AgentConfig) *Agent {
	t.Helper()
	a, err := NewAgent(addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return a
}

func pingWithin(a *Agent, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return a.Ping(ctx)
}

// awaitPing pings until it succeeds. A ping fails at once between two attempts
// to connect.
func awaitPing(t *testing.T, a *Agent) {
	t.Helper()
	awaitPingError(t, a, func(err error) bool { return err == nil })
}

// awaitPingError pings until the outcome is as wanted.
func awaitPingError(t *testing.T, a *Agent, ok func(error) bool) {
	t.Helper()
	limit := time.After(plenty)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := pingWithin(a, time.Second)
		if ok(err) {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal(err)
		}
	}
}

const plenty = 20 * time.Second // for what must happen and needs no time to speak of

func TestLibvirtAgent(t *testing.T) {
	var timeout atomic.Int32
	f := runningFake(t, func(command string, limit int32) (string, *libvirt.Error) {
		timeout.Store(limit)
		if strings.Contains(command, "\n") || !strings.HasPrefix(command, `{"execute":`) {
			t.Errorf("command %q", command)
		}
		return obedient(command, limit)
	})
	a := runLibvirtAgent(t, f.addr(), nil)
	if err := pingWithin(a, plenty); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(plenty - 500*time.Millisecond)
	if err := pingWithin(a, time.Until(deadline)); err != nil {
		t.Fatal(err)
	}
	if got, left := time.Duration(timeout.Load())*time.Second, time.Until(deadline); got < left || got > plenty {
		t.Errorf("libvirt was given %v, want whole seconds that are no less than %v", got, left)
	}
	if err := a.Sync(t.Context()); err != nil {
		t.Error(err)
	}
	if st := a.Stats(); !st.Connected || !st.InSync || st.Connects != 1 || st.RoundTrip <= 0 || st.StaleReplies != 0 {
		t.Errorf("stats %+v", st)
	}
	if err := a.Do(t.Context(), "guest-sync-delimited", nil, nil); err == nil {
		t.Error("guest-sync-delimited went out")
	}
}

// The domain may be named by its UUID.
func TestLibvirtAgentByUUID(t *testing.T) {
	f := runningFake(t, obedient)
	addr := f.addr()
	addr.Domain = uuidString(f.dom.UUID)
	if err := pingWithin(runLibvirtAgent(t, addr, nil), plenty); err != nil {
		t.Error(err)
	}
}

func TestLibvirtAgentIDs(t *testing.T) {
	for _, tt := range []struct {
		name  string
		agent func(string, int32) (string, *libvirt.Error)
	}{
		{"older than 4.0", func(command string, _ int32) (string, *libvirt.Error) {
			if strings.Contains(command, `},"id":`) || strings.Contains(command, `ping","id":`) {
				return "", &libvirt.Error{Code: 1, Message: "internal error: unable to execute QEMU agent command 'x': QMP input object member 'id' is unexpected"}
			}
			return answerAgent(command, false), nil
		}},
		{"returns none", func(command string, _ int32) (string, *libvirt.Error) { return answerAgent(command, false), nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := runLibvirtAgent(t, runningFake(t, tt.agent).addr(), nil)
			for range 2 {
				if err := pingWithin(a, plenty); err != nil {
					t.Error(err)
				}
			}
			if st := a.Stats(); st.StaleReplies != 0 {
				t.Errorf("stats %+v", st)
			}
		})
	}
}

// libvirt matches replies by order alone, so one may be somebody else's.
func TestLibvirtAgentForeignReply(t *testing.T) {
	var foreign, execs atomic.Int32
	f := runningFake(t, func(command string, limit int32) (string, *libvirt.Error) {
		if strings.Contains(command, "guest-exec\"") {
			execs.Add(1)
		}
		if !strings.Contains(command, "guest-sync") && foreign.Add(-1) >= 0 {
			return `{"return": {"pid": 1}}`, nil
		}
		return obedient(command, limit)
	})
	a := runLibvirtAgent(t, f.addr(), nil)
	if err := pingWithin(a, plenty); err != nil {
		t.Fatal(err)
	}
	foreign.Store(1)
	if err := pingWithin(a, plenty); err != nil {
		t.Errorf("one foreign reply: %v", err)
	}
	if st := a.Stats(); st.StaleReplies != 1 {
		t.Errorf("stats %+v", st)
	}
	foreign.Store(1)
	ctx, cancel := context.WithTimeout(t.Context(), plenty)
	defer cancel()
	if err := a.Do(ctx, "guest-exec", nil, nil); !errors.Is(err, ErrProtocol) {
		t.Errorf("a foreign reply to guest-exec: %v", err)
	}
	if n := execs.Load(); n != 1 {
		t.Errorf("guest-exec ran %d times", n)
	}
	foreign.Store(100)
	if err := pingWithin(a, plenty); !errors.Is(err, ErrProtocol) || errors.Is(err, ErrDaemon) {
		t.Errorf("foreign replies for ever: %v", err)
	}
	foreign.Store(0)
	if err := pingWithin(a, plenty); err != nil {
		t.Error(err)
	}
}

// A hung agent: the caller leaves in time, the call stays, and no other is
// sent before it has ended.
func TestLibvirtAgentSilent(t *testing.T) {
	release := make(chan struct{})
	var calls atomic.Int32
	hang := atomic.Bool{}
	f := runningFake(t, func(command string, limit int32) (string, *libvirt.Error) {
		if hang.Load() {
			calls.Add(1)
			<-release
		}
		return obedient(command, limit)
	})
	a := runLibvirtAgent(t, f.addr(), nil)
	if err := pingWithin(a, plenty); err != nil {
		t.Fatal(err)
	}
	hang.Store(true)
	late := make(chan string, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := a.transport.RoundTrip(ctx, Request{Command: "guest-info", Late: func(reply []byte, _ error) { late <- string(reply) }})
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrDaemon) {
		t.Errorf("error %v", err)
	}
	const callers = 4
	errs := make(chan error, callers)
	for range callers {
		go func() { errs <- pingWithin(a, time.Second) }()
	}
	for range callers {
		if err := <-errs; !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrDaemon) {
			t.Errorf("error %v", err)
		}
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("%d calls are with the daemon, want 1", n)
	}
	if st := a.Stats(); !st.Connected || st.InSync || st.Connects != 1 {
		t.Errorf("stats %+v", st)
	}
	hang.Store(false)
	close(release)
	if err := pingWithin(a, plenty); err != nil {
		t.Errorf("after it woke: %v", err)
	}
	if got := <-late; got != "{}" {
		t.Errorf("late reply %q", got)
	}
}

// A daemon that hangs is not a guest that hangs.
func TestLibvirtAgentSilentDaemon(t *testing.T) {
	f := runningFake(t, obedient)
	a := runLibvirtAgent(t, f.addr(), nil)
	if err := pingWithin(a, plenty); err != nil {
		t.Fatal(err)
	}
	f.set(func(f *fakeLibvirt) {
		f.intercept = func(*fakeLibvirtConn, libvirtFakeCall) bool { return true }
	})
	for range 2 { // on the connection there is, and on one that cannot be opened
		const callers = 3 // of which two wait for their turn
		errs := make(chan error, callers)
		for range callers {
			go func() { errs <- pingWithin(a, time.Second) }()
		}
		for range callers {
			if err := <-errs; !errors.Is(err, ErrDaemon) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
		}
	}
	f.set(func(f *fakeLibvirt) { f.intercept = nil })
	f.hangUp()
	awaitPing(t, a)
}

// The daemon ends in the middle of a call, and is started again.
func TestLibvirtAgentDaemonEnds(t *testing.T) {
	called := make(chan struct{}, 1)
	release := make(chan struct{})
	f := runningFake(t, func(command string, limit int32) (string, *libvirt.Error) {
		if strings.Contains(command, "guest-ping") {
			called <- struct{}{}
			<-release
		}
		return obedient(command, limit)
	})
	a := runLibvirtAgent(t, f.addr(), &AgentConfig{MaxBackoff: 200 * time.Millisecond})
	result := make(chan error, 1)
	go func() { result <- pingWithin(a, plenty) }()
	<-called
	f.stop()
	if err := <-result; !errors.Is(err, ErrDaemon) || !errors.Is(err, ErrConnectionLost) {
		t.Errorf("error %v", err)
	}
	close(release)
	awaitPingError(t, a, func(err error) bool {
		return errors.Is(err, fs.ErrNotExist) && errors.Is(err, ErrDaemon) && errors.Is(err, ErrNotConnected)
	})
	f.set(func(f *fakeLibvirt) { f.agent = obedient })
	f.listen()
	awaitPing(t, a)
	if st := a.Stats(); st.Connects != 2 {
		t.Errorf("stats %+v", st)
	}
}
