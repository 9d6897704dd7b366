package qga

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/guestprobe/guestprobe/qga/qgatest"
)

// A pipeListener listens inside a process, so that time can be simulated.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (l *pipeListener) dial(ctx context.Context) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.closed:
		return nil, os.ErrNotExist
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func inSeconds(t *testing.T, n float64) context.Context {
	t.Helper()
	return within(t, time.Duration(n*float64(time.Second)))
}

// The pauses between attempts to connect: none, then growing to the maximum,
// each shortened by up to a half.
func TestAgentBackoff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var at []time.Time
		runAgent(t, "unix:none", &AgentConfig{MaxBackoff: time.Second, Dial: func(context.Context) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Now())
			return nil, os.ErrNotExist
		}})
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if n := len(at); n < 60 || n > 130 {
			t.Errorf("%d attempts in a minute", n)
		}
		steady := false
		for i, want := range []time.Duration{0, 100, 200, 400, 800, 1000, 1000, 1000, 1000} {
			want *= time.Millisecond
			got := at[i+1].Sub(at[i])
			if got > want || got < want/2 {
				t.Errorf("pause %d is %v, want %v to %v", i, got, want/2, want)
			}
			steady = steady || got != want
		}
		if !steady {
			t.Error("no jitter")
		}
	})
}

// A peer that hangs up at once is not called in a tight loop, and one that had
// answered is called again at once.
func TestAgentBackoffAfterConnect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		connects := 0
		l := newPipeListener()
		agent := runAgent(t, "unix:none", &AgentConfig{MaxBackoff: time.Second, Dial: func(ctx context.Context) (net.Conn, error) {
			mu.Lock()
			connects++
			n := connects
			mu.Unlock()
			if n < 10 {
				here, there := net.Pipe()
				there.Close()
				return here, nil
			}
			return l.dial(ctx)
		}})
		start := time.Now()
		fake := fakeAgent(t, qgatest.AgentConfig{Listener: l, Sessions: true})
		for agent.Ping(inSeconds(t, 1)) != nil {
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(start); took < 2*time.Second || took > 10*time.Second {
			t.Errorf("nine hang-ups took %v", took)
		}
		fake.Kill()
		fake.Start()
		before := time.Now()
		if err := fake.WaitHost(inSeconds(t, 5), true); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := agent.Ping(inSeconds(t, 1)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(before); took != 0 {
			t.Errorf("reconnected after %v, want at once", took)
		}
	})
}

// Every call ends at its deadline, to the instant, whatever does not happen.
func TestAgentDeadlines(t *testing.T) {
	t.Parallel()
	ends := func(t *testing.T, agent *Agent, want time.Duration, ctx context.Context) error {
		t.Helper()
		start := time.Now()
		err := agent.Ping(ctx)
		if got := time.Since(start); err == nil || got != want {
			t.Errorf("Ping took %v, want %v: %v", got, want, err)
		}
		return err
	}
	t.Run("dial", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			agent := runAgent(t, "unix:none", &AgentConfig{Dial: func(ctx context.Context) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}})
			err := ends(t, agent, time.Second, inSeconds(t, 1))
			if !errors.Is(err, ErrNotConnected) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error = %v, want not connected, and no silence", err)
			}
			time.Sleep(10 * time.Second) // both first attempts have timed out
			err = ends(t, agent, time.Second, inSeconds(t, 1))
			if !errors.Is(err, ErrNotConnected) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error = %v, want not connected, and no silence", err)
			}
		})
	})
	t.Run("write", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe() // nobody reads
			defer there.Close()
			agent := runAgent(t, "unix:none", &AgentConfig{Dial: dialOnce(here)})
			for range 3 {
				wantSilence(t, ends(t, agent, time.Second, inSeconds(t, 1)))
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			defer cancel()
			time.AfterFunc(time.Minute, cancel)
			if err := ends(t, agent, time.Minute, ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("error = %v, want canceled", err)
			}
		})
	})
	t.Run("exchange", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newPipeListener()
			fake := fakeAgent(t, qgatest.AgentConfig{Listener: l})
			agent := runAgent(t, "unix:none", &AgentConfig{Dial: l.dial})
			if err := agent.Ping(inSeconds(t, 1)); err != nil {
				t.Fatal(err)
			}
			fake.Stop()
			wantSilence(t, ends(t, agent, 2*time.Second, inSeconds(t, 2)))
			wantSilence(t, ends(t, agent, 3*time.Second, inSeconds(t, 3)))
			// Without a deadline the client has one of its own.
			wantSilence(t, ends(t, agent, 10*time.Second, context.Background()))
		})
	})
	t.Run("trickle", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			var peer sync.WaitGroup
			peer.Go(func() {
				qgatest.PlayScript(there, qgatest.Script{
					{On: "sync", TX: `\xff{"return": ${S}}` + "\n"},
					{On: "ping", TX: `{"return": {}, "id": ${I}}` + "\n", DribbleMS: 1000},
				})
			})
			agent := runAgent(t, "unix:none", &AgentConfig{Dial: dialOnce(here)})
			wantSilence(t, ends(t, agent, 5*time.Second, inSeconds(t, 5)))
			here.Close()
			peer.Wait()
		})
	})
}

func dialOnce(conn net.Conn) func(context.Context) (net.Conn, error) {
	conns := make(chan net.Conn, 1)
	conns <- conn
	return func(context.Context) (net.Conn, error) {
		select {
		case conn := <-conns:
			return conn, nil
		default:
			return nil, os.ErrNotExist
		}
	}
}

// A synchronisation that was lost is sent again, but seldom: in an hour of
// silence, probed each second, the agent is left a handful to answer.
func TestAgentResends(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		fake := fakeAgent(t, qgatest.AgentConfig{Listener: l})
		agent := runAgent(t, "unix:none", &AgentConfig{Dial: l.dial})
		if err := agent.Ping(inSeconds(t, 1)); err != nil {
			t.Fatal(err)
		}
		fake.Stop()
		for range 3 {
			wantSilence(t, agent.Ping(inSeconds(t, 1)))
		}
		// The guest is reset: what it had taken in is gone.
		fake.Kill()
		fake.Start()
		start := time.Now()
		for agent.Ping(inSeconds(t, 1)) != nil {
		}
		if took := time.Since(start); took > firstResend {
			t.Errorf("back after %v, want at most %v", took, firstResend)
		}

		fake.Stop()
		before := fake.Calls("guest-sync-delimited")
		for range 3600 {
			wantSilence(t, agent.Ping(inSeconds(t, 1)))
		}
		fake.Continue()
		if err := agent.Ping(inSeconds(t, 1)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := fake.Calls("guest-sync-delimited") - before; got < 5 || got > 20 {
			t.Errorf("%d synchronisations in an hour of silence", got)
		}
		if got := agent.Stats(); got.Connects != 1 || !got.InSync {
			t.Errorf("Stats = %+v", got)
		}
	})
}

// What a guest sends without being asked is limited.
func TestAgentUnaskedFlood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		fake := fakeAgent(t, qgatest.AgentConfig{Listener: l, Sessions: true})
		agent := runAgent(t, "unix:none", &AgentConfig{Dial: l.dial})
		if err := agent.Ping(inSeconds(t, 1)); err != nil {
			t.Fatal(err)
		}
		for range 100 {
			fake.Inject([]byte(`{"return": {}}` + "\n"))
		}
		synctest.Wait()
		if got := agent.Stats(); got.StaleReplies != 100 || got.Connects != 1 {
			t.Errorf("Stats = %+v, want 100 stale replies", got)
		}
		fake.Inject(make([]byte, 1<<20))
		synctest.Wait()
		if err := agent.Ping(inSeconds(t, 1)); err != nil {
			t.Errorf("after the flood: %v", err)
		}
		if got := agent.Stats(); got.Connects != 2 {
			t.Errorf("Stats = %+v, want a second connection", got)
		}
	})
}

// An address where no guest is: the call neither hangs nor takes it for a
// silent agent.
func TestAgentVsockNobody(t *testing.T) {
	t.Parallel()
	agent := runAgent(t, "vsock:4000000000:1", nil)
	err := agent.Ping(within(t, long))
	if !errors.Is(err, ErrNotConnected) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error = %v, want not connected", err)
	}
}

func TestAgentStops(t *testing.T) {
	t.Parallel()
	l := newPipeListener()
	fake := fakeAgent(t, qgatest.AgentConfig{Listener: l})
	agent, err := NewAgent(Addr{Scheme: "unix", Path: "none"}, &AgentConfig{Dial: l.dial})
	if err != nil {
		t.Fatal(err)
	}
	fake.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- agent.Run(ctx) }()
	call := make(chan error, 1)
	go func() { call <- agent.Ping(within(t, long)) }()
	if err := fake.WaitHost(within(t, long), true); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if err := <-call; !errors.Is(err, ErrConnectionLost) && !errors.Is(err, ErrNotConnected) {
		t.Errorf("call in progress: %v", err)
	}
	if err := agent.Ping(within(t, long)); !errors.Is(err, ErrNotConnected) {
		t.Errorf("call afterwards: %v", err)
	}
}

func TestNewAgentRefuses(t *testing.T) {
	for _, addr := range []Addr{{}, {Scheme: "tcp"}} {
		if _, err := NewAgent(addr, nil); err == nil {
			t.Errorf("NewAgent(%+v) succeeded", addr)
		}
	}
}
