package qga

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	// defaultOutput is how much of stdout and of stderr is kept: what the
	// kubelet keeps of a probe's output (k8s v1.37.2 pkg/probe/exec/exec.go).
	defaultOutput = 10 << 10
	// maxOutput bounds ExecRequest.MaxOutput, so that a kept reply still fits
	// in one frame.
	maxOutput = 16 << 10
	// statusReply caps the wire form of a guest-exec-status reply. The agent
	// keeps 16 MiB of each stream (qemu-10.0 qga/commands.c) and sends them in
	// base64. A reply that is refused is lost, for the agent forgets a process
	// once it has reported its end.
	statusReply = 48 << 20

	firstPoll = 5 * time.Millisecond
	maxPoll   = 250 * time.Millisecond

	// maxLate bounds what is remembered of replies that nobody waited for.
	maxLate = 16
)

// An ExecRequest is a program to run in the guest. There is no shell, and no
// argument is changed.
type ExecRequest struct {
	// Path is looked up in the agent's PATH if it has no slash.
	Path string
	// Args are the arguments after the program's name.
	Args []string
	// Env, if not empty, replaces the environment: "NAME=value".
	Env []string
	// Input is the program's standard input.
	Input []byte
	// MaxOutput is how many bytes of stdout and of stderr are kept. 0 means
	// 10 KiB; at most 16 KiB.
	MaxOutput int
	// Started, if not nil, is told the process id as soon as the agent has said
	// it, even if that is after Exec has returned: a program that the agent
	// started late runs all the same. It must not block. It is called at most
	// once, and before any later call to the agent returns.
	Started func(pid int64)
}

// An ExecResult is how a program in the guest ended.
type ExecResult struct {
	// PID is the process id in the guest.
	PID int64
	// ExitCode is the program's exit code, if no signal ended it.
	ExitCode int64
	// Signal is the signal, or on Windows the exception, that ended it; 0: none.
	Signal int64
	// Stdout and Stderr are what was kept of its output.
	Stdout, Stderr []byte
	// StdoutTruncated and StderrTruncated say that there was more.
	StdoutTruncated, StderrTruncated bool
}

// A StillRunningError says that a program was started in the guest and has not
// been seen to end. The agent has no way to stop it, and it goes on;
// [Agent.ExecStatus] collects its result later.
type StillRunningError struct {
	// PID is the process id in the guest.
	PID int64
	// Err is why nothing more is known: the last question was not answered.
	// nil: the agent answered that the program runs.
	Err error
}

// Error names the process.
func (e *StillRunningError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("process %d in the guest: no word of its end: %v", e.PID, e.Err)
	}
	return fmt.Sprintf("process %d in the guest still runs", e.PID)
}

// Unwrap returns Err.
func (e *StillRunningError) Unwrap() error { return e.Err }

// Exec runs a program in the guest and waits for its end until ctx ends. A
// program that could not be started is an *Error of the agent.
//
// If ctx ends first, the error is a *StillRunningError. If it ends even before
// the agent has said that it started the program, the error is that of a
// silent agent, and the program may yet be run. Exec never starts a program
// twice; whether to call it again then is for the caller to decide.
//
// A program counts as running as long as anything holds its output open, such
// as a process that it left behind in the background.
func (a *Agent) Exec(ctx context.Context, req ExecRequest) (ExecResult, error) {
	args, err := req.encode()
	if err != nil {
		return ExecResult{}, fmt.Errorf("guest-exec: %w", err)
	}
	a.forgetStrays(ctx)
	late := a.lateStart
	if req.Started != nil {
		late = func(ret []byte, err error) {
			if pid, ok := startedLate(ret, err); ok {
				req.Started(pid)
			}
		}
	}
	ret, err := a.transport.RoundTrip(ctx, Request{Command: "guest-exec", Arguments: args, Late: late})
	if err != nil {
		return ExecResult{}, err
	}
	pid, err := decodePID(ret)
	if err != nil {
		return ExecResult{}, err
	}
	a.takeLate(pid) // of a former process with that number
	if req.Started != nil {
		req.Started(pid)
	}
	for poll := firstPoll; ; poll = min(2*poll, maxPoll) {
		asked := time.Now()
		res, err := a.execStatus(ctx, pid, req.maxOutput())
		var running *StillRunningError
		if !errors.As(err, &running) {
			return res, err
		}
		if running.Err != nil {
			if errors.Is(running.Err, context.DeadlineExceeded) && poll > firstPoll && time.Since(asked) < maxPoll {
				// The deadline merely fell into a question. The agent answered
				// the one before, and is not to be called silent.
				err = &StillRunningError{PID: pid}
			}
			return res, err
		}
		pause(ctx, poll)
		if ctx.Err() != nil {
			return res, err
		}
	}
}

// ExecStatus collects the result of a program that Exec left running. It asks
// once. While the program runs, the error is a *StillRunningError; once its
// result was returned, or the agent was restarted, it is an *Error.
func (a *Agent) ExecStatus(ctx context.Context, pid int64) (ExecResult, error) {
	return a.execStatus(ctx, pid, defaultOutput)
}

// execStatus asks once for the state of a process.
func (a *Agent) execStatus(ctx context.Context, pid int64, keep int) (ExecResult, error) {
	if late, ok := a.takeLate(pid); ok {
		res, err := late.result(pid, keep)
		var running *StillRunningError
		if !errors.As(err, &running) {
			return res, err
		}
	}
	ret, err := a.transport.RoundTrip(ctx, Request{
		Command:   "guest-exec-status",
		Arguments: fmt.Appendf(nil, `{"pid":%d}`, pid),
		MaxReply:  statusReply,
		MaxString: base64.StdEncoding.EncodedLen(keep + 1),
		Late: func(ret []byte, err error) {
			a.keepLate(pid, lateStatus{ret, err})
		},
	})
	if late, ok := a.takeLate(pid); ok && err != nil {
		return late.result(pid, keep)
	}
	return lateStatus{ret, err}.result(pid, keep)
}

// lateStatus is an undecoded outcome of guest-exec-status. A reply that came
// too late for its caller is kept, because the agent tells the end of a
// process only once.
type lateStatus struct {
	ret []byte
	err error
}

func (l lateStatus) result(pid int64, keep int) (ExecResult, error) {
	res := ExecResult{PID: pid}
	var said *Error
	switch {
	case errors.As(l.err, &said):
		return res, l.err
	case l.err != nil:
		return res, &StillRunningError{PID: pid, Err: l.err}
	}
	var status struct {
		Exited       bool   `json:"exited"`
		ExitCode     int64  `json:"exitcode"`
		Signal       int64  `json:"signal"`
		OutData      string `json:"out-data"`
		ErrData      string `json:"err-data"`
		OutTruncated bool   `json:"out-truncated"`
		ErrTruncated bool   `json:"err-truncated"`
	}
	if err := decodeReturn("guest-exec-status", l.ret, &status); err != nil {
		return res, err
	}
	if !status.Exited {
		return res, &StillRunningError{PID: pid}
	}
	res.ExitCode, res.Signal = status.ExitCode, status.Signal
	var outErr, errErr error
	var more bool
	res.Stdout, more, outErr = decodeOutput(status.OutData, keep)
	res.StdoutTruncated = more || status.OutTruncated
	res.Stderr, more, errErr = decodeOutput(status.ErrData, keep)
	res.StderrTruncated = more || status.ErrTruncated
	if err := errors.Join(outErr, errErr); err != nil {
		return res, fmt.Errorf("guest-exec-status: %w: output of process %d: %w", ErrProtocol, pid, err)
	}
	return res, nil
}

// decodeOutput decodes base64 text that may have been cut, and keeps so many
// bytes of it.
func decodeOutput(text string, keep int) (out []byte, more bool, err error) {
	if text == "" {
		return nil, false, nil
	}
	text = text[:min(len(text), base64.StdEncoding.EncodedLen(keep+1))]
	out, err = base64.StdEncoding.DecodeString(text)
	if len(out) > keep {
		return out[:keep], true, err
	}
	return out, false, err
}

func (a *Agent) keepLate(pid int64, l lateStatus) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.results) >= maxLate {
		for old := range a.results {
			delete(a.results, old)
			break
		}
	}
	a.results[pid] = l
}

func (a *Agent) takeLate(pid int64) (lateStatus, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l, ok := a.results[pid]
	delete(a.results, pid)
	return l, ok
}

// lateStart gets the reply to a guest-exec that had been given up: the program
// runs, and no caller knows its number.
func (a *Agent) lateStart(ret []byte, err error) {
	pid, ok := startedLate(ret, err)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.strays) < maxLate {
		a.strays = append(a.strays, pid)
	}
}

// startedLate returns the process id in a reply to guest-exec, if it started one.
func startedLate(ret []byte, err error) (pid int64, ok bool) {
	if err != nil {
		return 0, false
	}
	pid, err = decodePID(ret)
	return pid, err == nil
}

// forgetStrays asks once for each program that was started behind our back, so
// that the agent need not remember those that ended.
func (a *Agent) forgetStrays(ctx context.Context) {
	a.mu.Lock()
	strays := a.strays
	a.strays = nil
	a.mu.Unlock()
	for i, pid := range strays {
		_, err := a.execStatus(ctx, pid, 0)
		var running *StillRunningError
		if !errors.As(err, &running) {
			continue
		}
		keep := strays[i : i+1]
		if running.Err != nil {
			keep = strays[i:]
		}
		a.mu.Lock()
		a.strays = append(a.strays, keep...)
		a.mu.Unlock()
		if running.Err != nil {
			return
		}
	}
}

func decodePID(ret []byte) (int64, error) {
	var started struct {
		PID *int64 `json:"pid"`
	}
	if err := decodeReturn("guest-exec", ret, &started); err != nil {
		return 0, err
	}
	if started.PID == nil {
		return 0, fmt.Errorf("guest-exec: %w: no pid in %s", ErrProtocol, clean(ret))
	}
	return *started.PID, nil
}

func (r *ExecRequest) maxOutput() int {
	if r.MaxOutput <= 0 {
		return defaultOutput
	}
	return min(r.MaxOutput, maxOutput)
}

// encode returns the arguments of guest-exec. capture-output is a boolean,
// for the modes by name came only with QEMU 8.0.
func (r *ExecRequest) encode() ([]byte, error) {
	if r.Path == "" {
		return nil, errors.New("no program")
	}
	for _, text := range append(append([]string{r.Path}, r.Args...), r.Env...) {
		// Neither can be said in JSON as QEMU reads it; changed silently, it
		// would be another command.
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return nil, fmt.Errorf("%q is not UTF-8 text without NUL", text)
		}
	}
	return json.Marshal(struct {
		Path    string   `json:"path"`
		Args    []string `json:"arg,omitempty"`
		Env     []string `json:"env,omitempty"`
		Input   []byte   `json:"input-data,omitempty"`
		Capture bool     `json:"capture-output"`
	}{r.Path, r.Args, r.Env, r.Input, true})
}
