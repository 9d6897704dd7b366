package guest

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A Process is a child of the test that ends with it: at the test's clean-up, and by the kernel's hand (PDEATHSIG)
// should the test binary die before.
type Process struct {
	// Done is closed once the process has ended.
	Done <-chan struct{}

	cmd    *exec.Cmd
	output *os.File // stdout and stderr; without a name, it goes with its last user
}

// Spawn starts cmd, with its standard output and error collected, and fails the test if it cannot.
func Spawn(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	output, err := os.CreateTemp("", "gp")
	if err != nil {
		t.Fatalf("collecting the output of %s: %v", cmd.Path, err)
	}
	_ = os.Remove(output.Name()) // the open file is all that is needed
	cmd.Stdout, cmd.Stderr = output, output
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL

	done := make(chan struct{})
	p := &Process{Done: done, cmd: cmd, output: output}
	started := make(chan error)
	go func() {
		// PDEATHSIG fires when the parent's thread ends: this goroutine keeps its thread until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the exit status is in cmd.ProcessState
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("starting %s: %v", cmd.Path, err)
	}
	t.Cleanup(func() { p.Kill() })
	return p
}

// PID returns the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal; a process that has ended is no error.
func (p *Process) Signal(t testing.TB, sig os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("sending %v to %s: %v", sig, p.cmd.Path, err)
	}
}

// Kill ends the process with SIGKILL, if it has not ended yet, and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.Done
}

// Wait waits for the process to end by itself and returns its exit code (-1: killed by a signal); it fails the test
// when that takes longer than the limit.
func (p *Process) Wait(t testing.TB, limit time.Duration) int {
	t.Helper()
	select {
	case <-p.Done:
	case <-time.After(limit):
		t.Fatalf("%s has not ended after %v; it said:\n%s", p.cmd.Path, limit, p.Output())
	}
	return p.cmd.ProcessState.ExitCode()
}

// Output returns what the process has written so far to its standard output and error, at most a MiB.
func (p *Process) Output() string {
	var text strings.Builder
	if _, err := io.Copy(&text, io.NewSectionReader(p.output, 0, 1<<20)); err != nil {
		return err.Error()
	}
	return text.String()
}
