package qga

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/guestprobe/guestprobe/qga/qgatest"
)

func TestAgentCommands(t *testing.T) {
	t.Parallel()
	fake := fakeAgent(t, qgatest.AgentConfig{
		Blocked: []string{"guest-get-time"},
		Commands: map[string]func(json.RawMessage) (any, error){
			"guest-get-time":      func(json.RawMessage) (any, error) { return 1, nil },
			"guest-get-host-name": func(json.RawMessage) (any, error) { return map[string]string{"host-name": "vm"}, nil },
			"guest-fail":          func(json.RawMessage) (any, error) { return nil, errors.New("it failed") },
		},
	})
	agent := runAgent(t, fake.Addr(), nil)
	ctx := within(t, long)

	if err := agent.Ping(ctx); err != nil {
		t.Errorf("Ping: %v", err)
	}
	if err := agent.Sync(ctx); err != nil {
		t.Errorf("Sync: %v", err)
	}
	info, err := agent.Info(ctx)
	if err != nil || info.Version != "7.2.22" || !info.Enabled("guest-ping") || info.Enabled("guest-get-time") || info.Enabled("no") {
		t.Errorf("Info = %+v, %v", info, err)
	}
	if status, err := agent.FSFreezeStatus(ctx); status != "thawed" || err != nil {
		t.Errorf("FSFreezeStatus = %q, %v", status, err)
	}
	fake.SetFrozen(true)
	if status, err := agent.FSFreezeStatus(ctx); status != "frozen" || err != nil {
		t.Errorf("FSFreezeStatus = %q, %v", status, err)
	}
	if err := agent.Do(ctx, "guest-get-host-name", nil, nil); !errors.Is(err, ErrUnsupported) {
		t.Errorf("frozen: error = %v, want ErrUnsupported", err)
	}
	fake.SetFrozen(false)

	var name struct {
		HostName string `json:"host-name"`
	}
	if err := agent.Do(ctx, "guest-get-host-name", struct{}{}, &name); err != nil || name.HostName != "vm" {
		t.Errorf("Do = %+v, %v", name, err)
	}
	var said *Error
	if err := agent.Do(ctx, "guest-fail", nil, nil); !errors.As(err, &said) || *said != (Error{"GenericError", "it failed"}) || errors.Is(err, ErrUnsupported) {
		t.Errorf("guest-fail: %v", err)
	}
	if err := agent.Do(ctx, "guest-get-time", nil, nil); !errors.Is(err, ErrUnsupported) {
		t.Errorf("blocked command: %v", err)
	}
	if err := agent.Do(ctx, "guest-get-host-name", nil, new(int)); !errors.Is(err, ErrProtocol) {
		t.Errorf("result of another type: %v", err)
	}
	for _, bad := range []struct {
		command string
		args    any
	}{{"", nil}, {`x"}`, nil}, {"guest-ping", []int{1}}, {"guest-ping", func() {}}} {
		if err := agent.Do(ctx, bad.command, bad.args, nil); err == nil || errors.As(err, &said) {
			t.Errorf("Do(%q, %v) = %v, want an error of our own", bad.command, bad.args, err)
		}
	}
	stats := agent.Stats()
	if !stats.Connected || !stats.InSync || stats.Connects != 1 || stats.Resyncs != 0 || stats.StaleReplies != 0 || stats.RoundTrip <= 0 {
		t.Errorf("Stats = %+v", stats)
	}
}

func TestAgentOldVersions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		cfg  qgatest.AgentConfig
	}{
		{"before 4.0: no ids", qgatest.AgentConfig{NoIDs: true}},
		{"no delimited sync", qgatest.AgentConfig{Blocked: []string{"guest-sync-delimited"}}},
		{"neither", qgatest.AgentConfig{NoIDs: true, Blocked: []string{"guest-sync-delimited"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			fake := fakeAgent(t, tt.cfg)
			agent := runAgent(t, fake.Addr(), nil)
			for range 3 {
				if err := agent.Ping(within(t, long)); err != nil {
					t.Fatal(err)
				}
				if err := agent.Sync(within(t, long)); err != nil {
					t.Fatal(err)
				}
			}
			fake.Stop()
			wantSilence(t, agent.Ping(within(t, short)))
			wantSilence(t, agent.Sync(within(t, short)))
			fake.Continue()
			if _, err := agent.Info(within(t, long)); err != nil {
				t.Fatal(err)
			}
			if err := agent.Ping(within(t, long)); err != nil {
				t.Fatal(err)
			}
			if got := agent.Stats(); got.Connects != 1 {
				t.Errorf("Stats = %+v, want one connection", got)
			}
		})
	}
}

// An agent that may not even synchronise says so: it is alive.
func TestAgentSyncRefused(t *testing.T) {
	t.Parallel()
	fake := fakeAgent(t, qgatest.AgentConfig{Blocked: []string{"guest-sync-delimited", "guest-sync"}})
	agent := runAgent(t, fake.Addr(), nil)
	for range 2 {
		var said *Error
		if err := agent.Ping(within(t, long)); !errors.As(err, &said) || !errors.Is(err, ErrUnsupported) {
			t.Errorf("error = %v, want an *Error", err)
		}
	}
}

// An agent of somebody else may answer without ids. It is given up once, and
// understood from then on.
func TestAgentWithoutEcho(t *testing.T) {
	t.Parallel()
	addr := serveScript(t, qgatest.Script{
		{On: "sync", TX: `\xff{"return": ${S}}` + "\n"},
		{On: "ping", TX: `{"return": {}}` + "\n"},
	})
	agent := runAgent(t, addr, nil)
	wantSilence(t, agent.Ping(within(t, mid)))
	for range 3 {
		if err := agent.Ping(within(t, long)); err != nil {
			t.Fatal(err)
		}
	}
}

// Calls from many goroutines take turns, and each gets its own answer.
func TestAgentConcurrentCalls(t *testing.T) {
	t.Parallel()
	fake := fakeAgent(t, qgatest.AgentConfig{
		Commands: map[string]func(json.RawMessage) (any, error){
			"guest-echo": func(args json.RawMessage) (any, error) { return args, nil },
		},
	})
	agent := runAgent(t, fake.Addr(), nil)
	ctx := within(t, long)
	var calls sync.WaitGroup
	for i := range 16 {
		calls.Go(func() {
			for j := range 20 {
				in, out := map[string]int{"n": i*1000 + j}, map[string]int{}
				if err := agent.Do(ctx, "guest-echo", in, &out); err != nil || out["n"] != in["n"] {
					t.Errorf("Do(%v) = %v, %v", in, out, err)
					return
				}
				if i%4 == 0 { // some give up in the middle
					gone, cancel := context.WithCancel(ctx)
					cancel()
					if err := agent.Ping(gone); !errors.Is(err, context.Canceled) {
						t.Errorf("canceled: %v", err)
					}
				}
			}
		})
	}
	calls.Wait()
}

// A caller that leaves does not shift the replies of the next one.
func TestAgentCanceledCall(t *testing.T) {
	t.Parallel()
	fake := fakeAgent(t, qgatest.AgentConfig{NoIDs: true})
	agent := runAgent(t, fake.Addr(), nil)
	if err := agent.Ping(within(t, long)); err != nil {
		t.Fatal(err)
	}
	fake.Stop()
	ctx, cancel := context.WithCancel(within(t, long))
	done := make(chan error, 1)
	go func() {
		_, err := agent.Info(ctx)
		done <- err
	}()
	waiting := make(chan error, 1)
	go func() { waiting <- agent.Ping(within(t, long)) }()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	fake.Continue()
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	if status, err := agent.FSFreezeStatus(within(t, long)); status != "thawed" || err != nil {
		t.Errorf("FSFreezeStatus = %q, %v", status, err)
	}
}

// A guest chooses the bytes of errors and garbage; they stay on one short line.
func TestAgentHostileText(t *testing.T) {
	t.Parallel()
	evil := "\x1b[2J\nlevel=ERROR msg=forged " + strings.Repeat("x", 5000)
	fake := fakeAgent(t, qgatest.AgentConfig{
		Commands: map[string]func(json.RawMessage) (any, error){
			"guest-evil": func(json.RawMessage) (any, error) { return nil, errors.New(evil) },
		},
	})
	agent := runAgent(t, fake.Addr(), nil)
	check := func(err error) {
		t.Helper()
		if err == nil || strings.ContainsAny(err.Error(), "\x1b\n") || len(err.Error()) > 600 {
			t.Errorf("error of %d bytes: %q", len(fmt.Sprint(err)), err)
		}
	}
	check(agent.Do(within(t, long), "guest-evil", nil, nil))

	addr := serveScript(t, qgatest.Script{{On: "sync", TX: evil + "\n"}})
	err := runAgent(t, addr, nil).Ping(within(t, mid))
	wantSilence(t, err)
	if !errors.Is(err, ErrProtocol) {
		t.Errorf("garbage is not mentioned: %v", err)
	}
	check(err)
}
