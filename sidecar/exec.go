package sidecar

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/sidecar/probe"
)

// exec runs a command in the guest. An exit code other than 0 is a failure, and so is a deadline
// (k8s v1.37.2 pkg/probe/exec/exec.go). The agent knows no way to end a process, so one that
// outlives its deadline stays in the guest: the next round asks for it first and starts nothing
// while it runs, so that a hung command is there once and not once per period.
func (g *guest) exec(check string, kind probe.Kind, command []string) probe.Func {
	c := g.commands.get(check, command)
	return func(ctx context.Context) error {
		if err := g.portOpen(); err != nil {
			c.keepOutput(nil)
			return err
		}
		if err := c.take(ctx); err != nil {
			return &probe.Indeterminate{Err: err}
		}
		defer c.release()
		output, err := g.execOnce(ctx, c, kind, command)
		c.keepOutput(output)
		return err
	}
}

// execOnce runs a command, unless it still runs. The output is that of one that failed.
func (g *guest) execOnce(ctx context.Context, c *command, kind probe.Kind, command []string) (output []byte, err error) {
	failed := func(err error) error { return agentFailure(kind, err, fmt.Errorf("%s: %w", command[0], err)) }
	pid, err := g.settle(ctx, c)
	switch {
	case err != nil:
		return nil, failed(err)
	case pid != 0:
		return nil, fmt.Errorf("%s: process %d of an earlier round still runs in the guest", command[0], pid)
	}
	g.collect(ctx)
	result, err := g.agent.Exec(ctx, qga.ExecRequest{
		Path: command[0], Args: command[1:],
		Started: func(pid int64) { g.commands.started(c, pid, g.boot()) },
	})
	running, unfinished := errors.AsType[*qga.StillRunningError](err)
	switch {
	case unfinished && running.Err == nil:
		return nil, fmt.Errorf("%s: still running at the deadline, left in the guest as process %d", command[0], running.PID)
	case unfinished:
		return nil, failed(err)
	case g.isOver(c, err):
		g.commands.ended(c)
	default:
		g.commands.lost(c)
	}
	if err != nil {
		return nil, failed(err)
	}
	return execOutcome(command[0], result)
}

// settle finds out whether a process of the command's is left in the guest, as far as can be told, and returns the
// number of one that still runs.
func (g *guest) settle(ctx context.Context, c *command) (pid int64, err error) {
	if g.commands.unanswered(c) {
		// An answer that is still to come is here before the agent is in step again.
		if err := g.agent.Sync(ctx); err != nil {
			return 0, err
		}
		g.commands.found(c)
	}
	pid = g.commands.left(c, g.boot())
	if pid == 0 {
		return 0, nil
	}
	_, err = g.agent.ExecStatus(ctx, pid)
	if running, ok := errors.AsType[*qga.StillRunningError](err); ok && running.Err == nil {
		return pid, nil
	}
	if !g.isOver(c, err) {
		return 0, fmt.Errorf("asking for process %d of an earlier round: %w", pid, err)
	}
	g.commands.ended(c)
	return 0, nil
}

// collect asks once for a process whose check is gone, so that the agent need not remember it for ever.
func (g *guest) collect(ctx context.Context) {
	if c := g.commands.orphan(g.boot()); c != nil {
		_, _ = g.settle(ctx, c) // that it still runs is nobody's failure any more
	}
}

// isOver reports whether err, of the agent's client, leaves nothing of the command's in the guest: it has ended, never
// began, or is not known to the agent (any more). That the agent may not tell says nothing about the process.
func (g *guest) isOver(c *command, err error) bool {
	if err == nil {
		return true
	}
	_, answered := errors.AsType[*qga.Error](err)
	return answered && !(errors.Is(err, qga.ErrUnsupported) && g.commands.left(c, g.boot()) != 0)
}

// boot is the run of the guest that process numbers belong to.
func (g *guest) boot() boot {
	vm := g.vm()
	return boot{vm.Instance, vm.Resets}
}

// maxOutput is how much of a command's output is kept, as by the kubelet (k8s v1.37.2 pkg/probe/exec/exec.go).
const maxOutput = 10 << 10

// execOutcome judges how a command ended. The output is returned if it failed: first what it wrote to stdout, then
// what it wrote to stderr, at most 10 KiB.
func execOutcome(name string, r qga.ExecResult) (output []byte, failure error) {
	if r.Signal == 0 && r.ExitCode == 0 {
		return nil, nil
	}
	how := fmt.Sprintf("exit code %d", r.ExitCode)
	if r.Signal != 0 {
		how = fmt.Sprintf("killed by signal %d", r.Signal)
	}
	output = append(append(output, r.Stdout...), r.Stderr...)
	output = output[:min(len(output), maxOutput)]
	text := strings.TrimSpace(string(output))
	if text == "" {
		return output, fmt.Errorf("%s: %s", name, how)
	}
	return output, fmt.Errorf("%s: %s: %s", name, how, printable(text))
}
