package qga

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// blockedRPCs are what a guest agent that runs on this host must never do.
const blockedRPCs = "guest-shutdown,guest-suspend-disk,guest-suspend-ram,guest-suspend-hybrid," +
	"guest-set-time,guest-fsfreeze-freeze,guest-fsfreeze-freeze-list,guest-fstrim"

// A realAgent is a qemu-ga process of this host, on a unix socket.
type realAgent struct {
	dir, version string
	cmd          *exec.Cmd
}

// startRealAgent starts qemu-ga in dir, with more blocked commands. The test
// is skipped where there is none, unless the environment says that there must.
func startRealAgent(t testing.TB, dir string, args []string, env ...string) *realAgent {
	t.Helper()
	path, err := exec.LookPath("qemu-ga")
	if err != nil {
		if os.Getenv("CI") == "true" || os.Getenv("GUESTPROBE_REQUIRE_REAL") == "1" {
			t.Fatalf("no real guest agent: %v", err)
		}
		t.Skipf("NOT TESTED against a real guest agent: %v (Debian: apt-get install qemu-guest-agent)", err)
	}
	version, err := exec.Command(path, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	block := blockedRPCs
	if len(args) == 2 && args[0] == "-b" {
		block, args = block+","+args[1], nil
	}
	a := &realAgent{dir: dir, version: regexp.MustCompile(`[0-9.]+`).FindString(string(version))}
	args = append([]string{"-m", "unix-listen", "-p", a.path(), "-t", dir, "-b", block}, args...)
	a.cmd = exec.Command(path, args...)
	a.cmd.Dir = dir
	a.cmd.Env = append(os.Environ(), env...)
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.kill)
	return a
}

func (a *realAgent) path() string { return filepath.Join(a.dir, "sock") }
func (a *realAgent) addr() string { return "unix:" + a.path() }

func (a *realAgent) signal(t testing.TB, sig os.Signal) {
	t.Helper()
	if err := a.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// kill ends the process whatever it is doing: a frozen agent ignores SIGTERM,
// and a stopped one sees nothing else.
func (a *realAgent) kill() {
	if a.cmd.ProcessState == nil {
		a.cmd.Process.Kill()
		a.cmd.Wait()
	}
}

// dial connects once the agent listens.
func (a *realAgent) dial(t testing.TB) net.Conn {
	t.Helper()
	timeout := time.After(long)
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		conn, err := net.Dial("unix", a.path())
		if err == nil {
			tick.Stop()
			t.Cleanup(func() { conn.Close() })
			return conn
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatal(err)
		}
	}
}

// client returns a client that is connected.
func (a *realAgent) client(t testing.TB) *Agent {
	t.Helper()
	agent := runAgent(t, a.addr(), &AgentConfig{MaxBackoff: 20 * time.Millisecond})
	waitConnected(t, agent)
	return agent
}

func waitConnected(t testing.TB, agent *Agent) {
	t.Helper()
	ctx := within(t, long)
	for {
		err := agent.Sync(ctx)
		if err == nil {
			return
		}
		if !errors.Is(err, ErrNotConnected) && !errors.Is(err, ErrConnectionLost) || ctx.Err() != nil {
			t.Fatal(err)
		}
		pause(ctx, 5*time.Millisecond)
	}
}

func TestAgentReal(t *testing.T) {
	t.Parallel()
	agent := startRealAgent(t, socketDir(t), nil).client(t)
	ctx := within(t, long)
	for range 10 {
		if err := agent.Ping(ctx); err != nil {
			t.Fatal(err)
		}
		if err := agent.Sync(ctx); err != nil {
			t.Fatal(err)
		}
	}
	info, err := agent.Info(ctx)
	if err != nil || !info.Enabled("guest-ping") || info.Enabled("guest-shutdown") {
		t.Errorf("Info = %+v, %v", info, err)
	}
	if err := agent.Do(ctx, "guest-fstrim", nil, nil); !errors.Is(err, ErrUnsupported) {
		t.Errorf("blocked command: %v", err)
	}
	if err := agent.Do(ctx, "guest-nope", nil, nil); !errors.Is(err, ErrUnsupported) {
		t.Errorf("unknown command: %v", err)
	}
	var said *Error
	err = agent.Do(ctx, "guest-ping", map[string]int{"foo": 42}, nil)
	if !errors.As(err, &said) || errors.Is(err, ErrUnsupported) {
		t.Errorf("bad argument: %v", err)
	}
	if got := agent.Stats(); got.Connects != 1 || got.Resyncs != 0 || got.StaleReplies != 0 || got.Garbage != 0 {
		t.Errorf("Stats = %+v", got)
	}
}

// A hung agent is found silent, and is back without a new connection.
func TestAgentRealStopContinue(t *testing.T) {
	t.Parallel()
	real := startRealAgent(t, socketDir(t), nil)
	agent := real.client(t)
	before := agent.Stats()
	real.signal(t, syscall.SIGSTOP)
	for range 3 {
		wantSilence(t, agent.Ping(within(t, short)))
	}
	wantSilence(t, agent.Sync(within(t, short)))
	real.signal(t, syscall.SIGCONT)
	if err := agent.Ping(within(t, long)); err != nil {
		t.Fatal(err)
	}
	got := agent.Stats()
	if got.Connects != before.Connects || got.Resyncs != 1 || !got.InSync {
		t.Errorf("Stats = %+v, want one resync and no reconnect", got)
	}
}

// A killed agent closes the connection; a new one on the same path is found.
func TestAgentRealRestart(t *testing.T) {
	t.Parallel()
	dir := socketDir(t)
	real := startRealAgent(t, dir, nil)
	agent := real.client(t)
	for range 3 {
		real.kill()
		if err := agent.Ping(within(t, long)); !errors.Is(err, ErrNotConnected) && !errors.Is(err, ErrConnectionLost) {
			t.Errorf("killed: %v", err)
		}
		real = startRealAgent(t, dir, nil)
		waitConnected(t, agent)
		if err := agent.Ping(within(t, long)); err != nil {
			t.Error(err)
		}
	}
}

// Half a request that another client left does not eat ours.
func TestAgentRealHalfRequest(t *testing.T) {
	t.Parallel()
	real := startRealAgent(t, socketDir(t), nil)
	for _, half := range []string{`{"execute":`, `{"execute":"guest-pi`, `[[[`} {
		t.Run(half, func(t *testing.T) { // the agent serves one client at a time
			conn := real.dial(t)
			send(t, conn, half)
			conn.Close()
			if err := real.client(t).Ping(within(t, long)); err != nil {
				t.Error(err)
			}
		})
	}
}

// The agent's own note that it froze the filesystems makes it come up frozen;
// nothing is frozen here.
func TestAgentRealFrozen(t *testing.T) {
	t.Parallel()
	dir := socketDir(t)
	if err := os.WriteFile(filepath.Join(dir, "qga.state.isfrozen"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	agent := startRealAgent(t, dir, nil).client(t)
	ctx := within(t, long)
	if status, err := agent.FSFreezeStatus(ctx); status != "frozen" || err != nil {
		t.Errorf("FSFreezeStatus = %q, %v", status, err)
	}
	if err := agent.Ping(ctx); err != nil {
		t.Errorf("Ping: %v", err)
	}
	if _, err := agent.Exec(ctx, ExecRequest{Path: "true"}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("Exec: %v, want ErrUnsupported", err)
	}
	if info, err := agent.Info(ctx); err != nil || info.Enabled("guest-exec") || !info.Enabled("guest-ping") {
		t.Errorf("Info = %+v, %v", info, err)
	}
}

func TestAgentRealExec(t *testing.T) {
	t.Parallel()
	agent := startRealAgent(t, socketDir(t), nil).client(t)
	ctx := within(t, 6*long) // the big output takes seconds of a processor
	shell := func(script string, args ...string) ExecRequest {
		return ExecRequest{Path: "sh", Args: append([]string{"-c", script, "sh"}, args...)}
	}

	res, err := agent.Exec(ctx, shell("echo out; echo err >&2; exit 3"))
	if err != nil || res.ExitCode != 3 || string(res.Stdout) != "out\n" || string(res.Stderr) != "err\n" || res.StdoutTruncated {
		t.Errorf("Exec = %+v, %v", res, err)
	}
	for _, arg := range []string{`a"b\c`, "line\nbreak\ttab", "<&>\u2028é😀", `"}, {"execute":"guest-ping"}`, "", "'$(id)'"} {
		res, err := agent.Exec(ctx, shell(`printf %s "$1"`, arg))
		if err != nil || string(res.Stdout) != arg {
			t.Errorf("argument %q arrived as %q, %v", arg, res.Stdout, err)
		}
	}
	res, err = agent.Exec(ctx, ExecRequest{Path: "sh", Args: []string{"-c", "cat; echo $A"}, Env: []string{"A=b c"}, Input: []byte("in\x00put ")})
	if err != nil || string(res.Stdout) != "in\x00put b c\n" {
		t.Errorf("input and environment: %+v, %v", res, err)
	}
	if res, err := agent.Exec(ctx, shell("kill -9 $$")); err != nil || res.Signal != 9 {
		t.Errorf("killed by a signal: %+v, %v", res, err)
	}
	var said *Error
	if _, err := agent.Exec(ctx, ExecRequest{Path: "/no/such/program"}); !errors.As(err, &said) || errors.Is(err, ErrUnsupported) {
		t.Errorf("no such program: %v", err)
	}

	// 17 MB of output on one line of 22 MB is read to its end; 10 KiB are kept.
	res, err = agent.Exec(ctx, shell("yes 0123456789 | head -c 17000000; echo done >&2"))
	if err != nil || len(res.Stdout) != 10<<10 || !res.StdoutTruncated || string(res.Stderr) != "done\n" {
		t.Errorf("big output: %d bytes, truncated %v, stderr %q, %v", len(res.Stdout), res.StdoutTruncated, res.Stderr, err)
	}
	if err := agent.Ping(ctx); err != nil {
		t.Errorf("after big output: %v", err)
	}

	// A program outlives the patience of its caller and is collected later.
	fifo := filepath.Join(socketDir(t), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = agent.Exec(within(t, mid), shell(`read line < "$1"; echo "$line"`, fifo))
	var running *StillRunningError
	if !errors.As(err, &running) || running.PID == 0 || running.Err != nil {
		t.Fatalf("still running: %v", err)
	}
	if _, err := agent.ExecStatus(ctx, running.PID); !errors.As(err, &running) {
		t.Errorf("still running: %v", err)
	}
	if err := os.WriteFile(fifo, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	for {
		res, err = agent.ExecStatus(ctx, running.PID)
		if !errors.As(err, &running) || ctx.Err() != nil {
			break
		}
		pause(ctx, 5*time.Millisecond)
	}
	if err != nil || string(res.Stdout) != "go\n" {
		t.Errorf("collected later: %+v, %v", res, err)
	}
	if _, err := agent.ExecStatus(ctx, running.PID); !errors.As(err, &said) {
		t.Errorf("collected twice: %v", err)
	}
	if got := agent.Stats(); got.Connects != 1 {
		t.Errorf("Stats = %+v", got)
	}
}

func TestAgentRealWire(t *testing.T) {
	t.Parallel()
	all := readCases(t).Wire
	for _, c := range all {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			real := startRealAgent(t, socketDir(t), nil)
			agent := &caseAgent{dial: func(t *testing.T) net.Conn { return real.dial(t) }}
			// The texts are 7.2's; the number and kind of lines are everybody's.
			runWire(t, agent, all, c, strings.HasPrefix(real.version, "7.2."))
		})
	}
}

func TestAgentRealCases(t *testing.T) {
	t.Parallel()
	for _, c := range readCases(t).Cases {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			dir := socketDir(t)
			expand := func(s string) string { return strings.ReplaceAll(s, "${dir}", dir) }
			var env []string
			for name, value := range c.Setup.Env {
				env = append(env, name+"="+expand(value))
			}
			for name, content := range c.Setup.Files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if c.OS == "windows" {
				t.Skip("for Windows agents")
			}
			if c.Requires != "" {
				if _, err := os.Stat(c.Requires); err != nil {
					t.Skip(err)
				}
			}
			if c.Setup.NoSocket {
				if _, err := exec.LookPath("qemu-ga"); err != nil {
					t.Skip("NOT TESTED against a real guest agent: ", err)
				}
				checkKeyfile(t, &c.Steps[0], env)
				return
			}
			var real *realAgent
			if !newer(c.Since, "7.2") {
				real = startRealAgent(t, dir, c.Setup.Args, env...)
			} else {
				// Not to be started with options that it does not know.
				probe := startRealAgent(t, socketDir(t), nil)
				if newer(c.Since, probe.version) {
					t.Skipf("needs %s, this is %s", c.Since, probe.version)
				}
				real = startRealAgent(t, dir, c.Setup.Args, env...)
			}
			agent := &caseAgent{
				dial: func(t *testing.T) net.Conn { return real.dial(t) },
				dir:  dir,
				vars: map[string]any{
					"rand_u32":     json.Number(fmt.Sprint(rand.Uint32())),
					"QEMU_VERSION": real.version,
				},
			}
			agent.run(t, c.Steps)
			if !t.Failed() {
				real.signal(t, syscall.SIGTERM)
				if err := real.cmd.Wait(); err != nil {
					t.Errorf("after SIGTERM: %v", err)
				}
			}
		})
	}
}
