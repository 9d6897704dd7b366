package qga

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/qga/qgatest"
)

func TestExec(t *testing.T) {
	t.Parallel()
	got := make(chan qgatest.Exec, 1)
	fake := fakeAgent(t, qgatest.AgentConfig{Exec: func(e qgatest.Exec) (qgatest.Process, error) {
		got <- e
		return qgatest.Process{ExitCode: 7, Stdout: []byte("out\x00"), Stderr: []byte("err")}, nil
	}})
	agent := runAgent(t, fake.Addr(), nil)
	req := ExecRequest{
		Path:  "/bin/a b",
		Args:  []string{"", `"`, `\`, "é\u2028<>&", "${x}", "\x01\n"},
		Env:   []string{"A=1", "B="},
		Input: []byte{0, 1, 255},
	}
	res, err := agent.Exec(within(t, long), req)
	if err != nil {
		t.Fatal(err)
	}
	want := ExecResult{PID: res.PID, ExitCode: 7, Stdout: []byte("out\x00"), Stderr: []byte("err")}
	if diff := cmp.Diff(want, res); diff != "" || res.PID == 0 {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(qgatest.Exec{Path: req.Path, Args: req.Args, Env: req.Env, Input: req.Input}, <-got); diff != "" {
		t.Errorf("program as it arrived (-want +got):\n%s", diff)
	}
	for _, bad := range []ExecRequest{{}, {Path: "a\xff"}, {Path: "a", Args: []string{"\x00"}}} {
		if _, err := agent.Exec(within(t, long), bad); err == nil || fake.Calls("guest-exec") != 1 {
			t.Errorf("Exec(%+v) = %v, want an error of our own", bad, err)
		}
	}
}

// However much a program prints, reading its result takes little memory, and
// exactly what fits is not called truncated.
func TestExecOutputIsCut(t *testing.T) {
	for _, size := range []int{0, 1, 10<<10 - 1, 10 << 10, 10<<10 + 1, 10<<10 + 2, 10<<10 + 3, 1 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			output := bytes.Repeat([]byte("0123456789abcdef!"), size/17+1)[:size]
			fake := fakeAgent(t, qgatest.AgentConfig{Exec: func(qgatest.Exec) (qgatest.Process, error) {
				return qgatest.Process{Stdout: output, Stderr: output}, nil
			}})
			agent := runAgent(t, fake.Addr(), nil)
			res, err := agent.Exec(within(t, 3*long), ExecRequest{Path: "x"})
			if err != nil {
				t.Fatal(err)
			}
			keep := min(size, 10<<10)
			for _, got := range []struct {
				data []byte
				more bool
			}{{res.Stdout, res.StdoutTruncated}, {res.Stderr, res.StderrTruncated}} {
				if !bytes.Equal(got.data, output[:keep]) || got.more != (size > keep) {
					t.Errorf("%d bytes kept, truncated %v, of %d", len(got.data), got.more, size)
				}
			}
		})
	}
}

// The memory of the client alone, with the bytes made beforehand.
func TestExecMemory(t *testing.T) {
	line := fmt.Sprintf(`{"return": {"exited": true, "exitcode": 0, "out-data": "%s"}}`+"\n", strings.Repeat("QUJD", 8<<20/4))
	limit := frameLimit{frame: defaultReply, stringN: 13657}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	frames := newFrameReader(strings.NewReader(line), func(int) (frameLimit, error) { return limit, nil })
	f, err := frames.next()
	runtime.ReadMemStats(&after)
	if err != nil || len(f.data) > 15<<10 {
		t.Errorf("%d bytes, %v", len(f.data), err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 256<<10 {
		t.Errorf("8 MiB of output took %d bytes", used)
	}
}

func TestExecStillRunning(t *testing.T) {
	t.Parallel()
	ends := make(chan struct{})
	fake := fakeAgent(t, qgatest.AgentConfig{Exec: func(qgatest.Exec) (qgatest.Process, error) {
		return qgatest.Process{Running: ends, Signal: 15}, nil
	}})
	agent := runAgent(t, fake.Addr(), nil)
	_, err := agent.Exec(within(t, mid), ExecRequest{Path: "sleep"})
	var running *StillRunningError
	if !errors.As(err, &running) || running.PID == 0 || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error = %v, want one with the pid, and no silence", err)
	}
	close(ends)
	res, err := agent.ExecStatus(within(t, long), running.PID)
	if err != nil || res.Signal != 15 || fake.Calls("guest-exec") != 1 {
		t.Errorf("ExecStatus = %+v, %v", res, err)
	}
}

// An agent tells the end of a process once. If that answer comes after its
// caller has left, the next caller gets it.
func TestExecLateResult(t *testing.T) {
	t.Parallel()
	ends := make(chan struct{})
	fake := fakeAgent(t, qgatest.AgentConfig{Exec: func(qgatest.Exec) (qgatest.Process, error) {
		return qgatest.Process{Running: ends, Stdout: []byte("precious")}, nil
	}})
	agent := runAgent(t, fake.Addr(), nil)
	_, err := agent.Exec(within(t, mid), ExecRequest{Path: "x"})
	var running *StillRunningError
	if !errors.As(err, &running) {
		t.Fatal(err)
	}
	close(ends)
	fake.Stop()
	_, err = agent.ExecStatus(within(t, mid), running.PID)
	wantSilence(t, err)
	if !errors.As(err, &running) {
		t.Errorf("error = %v does not carry the pid", err)
	}
	fake.Continue()
	res, err := agent.ExecStatus(within(t, long), running.PID)
	if err != nil || string(res.Stdout) != "precious" {
		t.Errorf("ExecStatus = %+v, %v", res, err)
	}
}

// A program that was started after its caller had left is looked after.
func TestExecLateStart(t *testing.T) {
	t.Parallel()
	fake := fakeAgent(t, qgatest.AgentConfig{Exec: func(qgatest.Exec) (qgatest.Process, error) {
		return qgatest.Process{}, nil
	}})
	agent := runAgent(t, fake.Addr(), nil)
	if err := agent.Ping(within(t, long)); err != nil {
		t.Fatal(err)
	}
	fake.Stop()
	_, err := agent.Exec(within(t, mid), ExecRequest{Path: "x"})
	wantSilence(t, err)
	fake.Continue()
	if err := agent.Ping(within(t, long)); err != nil {
		t.Fatal(err)
	}
	res, err := agent.Exec(within(t, long), ExecRequest{Path: "x"})
	if err != nil {
		t.Fatal(err)
	}
	var said *Error
	if _, err := agent.ExecStatus(within(t, long), res.PID-1); !errors.As(err, &said) {
		t.Errorf("the agent still remembers the stray program: %v", err)
	}
}

// A caller that wants to know learns of a program that was started after it had
// left, and before it can start another; collecting the result is then its part.
func TestExecStartedIsTold(t *testing.T) {
	t.Parallel()
	fake := fakeAgent(t, qgatest.AgentConfig{Exec: func(qgatest.Exec) (qgatest.Process, error) {
		return qgatest.Process{ExitCode: 3}, nil
	}})
	agent := runAgent(t, fake.Addr(), nil)
	started := make(chan int64, 2)
	req := ExecRequest{Path: "x", Started: func(pid int64) { started <- pid }}
	res, err := agent.Exec(within(t, long), req)
	if err != nil || res.PID != <-started {
		t.Fatalf("Exec = %+v, %v", res, err)
	}
	fake.Stop()
	_, err = agent.Exec(within(t, mid), req)
	wantSilence(t, err)
	if len(started) > 0 {
		t.Error("told of a start that the agent had not confirmed")
	}
	fake.Continue()
	if err := agent.Sync(within(t, long)); err != nil {
		t.Fatal(err)
	}
	select {
	case pid := <-started:
		if late, err := agent.ExecStatus(within(t, long), pid); err != nil || late.ExitCode != 3 {
			t.Errorf("ExecStatus of the late one = %+v, %v", late, err)
		}
	default:
		t.Error("the agent is in step again, and the late start was not told")
	}
}

func FuzzDecodeOutput(f *testing.F) {
	f.Add("QUJD", 2)
	f.Add("QQ==", 1)
	f.Fuzz(func(t *testing.T, text string, keep int) {
		keep = keep & 0xFF
		out, more, err := decodeOutput(text, keep)
		if len(out) > keep || err == nil && more && len(out) != keep {
			t.Errorf("decodeOutput(%q, %d) = %q, %v, %v", text, keep, out, more, err)
		}
	})
}
