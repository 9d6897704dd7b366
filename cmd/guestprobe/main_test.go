package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/guestprobe/guestprobe/cmd/internal/cli"
	"github.com/guestprobe/guestprobe/qga/qgatest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"guestprobe": main})
}

// The scripts are the program's manual by example; each runs the real main.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"vm": startVM, "silent": startSilent, "garbage": startGarbage, "take-port": takePort, "wait-for": waitForText,
		},
	})
}

// startVM starts a fake VM that has booted. It sets MONITOR, AGENT, WEB_HOST and WEB_PORT.
// Each further argument does something to the VM.
func startVM(ts *testscript.TestScript, _ bool, args []string) {
	dir, err := os.MkdirTemp("", "gp")
	ts.Check(err)
	vm, err := qgatest.Start(qgatest.Config{Dir: dir, Name: "fedora"})
	ts.Check(err)
	ts.Defer(func() {
		vm.Close()
		os.RemoveAll(dir)
	})
	vm.Boot()
	for _, arg := range args {
		switch arg {
		case "pause":
			vm.Pause()
		case "agent-hangs":
			vm.AgentStop()
		case "agent-killed":
			vm.AgentKill()
		case "monitor-silent":
			vm.SetMonitorSilent(true)
		case "web-500":
			vm.SetHTTPStatus(500)
		default:
			ts.Fatalf("vm: unknown argument %q", arg)
		}
	}
	host, port, err := net.SplitHostPort(vm.HTTPAddr())
	ts.Check(err)
	ts.Setenv("MONITOR", vm.MonitorAddr())
	ts.Setenv("AGENT", vm.AgentAddr())
	ts.Setenv("WEB_HOST", host)
	ts.Setenv("WEB_PORT", port)
	for _, name := range []string{"vm.yaml"} {
		if data, err := os.ReadFile(ts.MkAbs(name)); err == nil {
			ts.Check(os.WriteFile(ts.MkAbs(name), []byte(strings.ReplaceAll(string(data), "1500", port)), 0o600))
		}
	}
}

// startSilent listens on a unix socket and says nothing: SILENT.
func startSilent(ts *testscript.TestScript, _ bool, _ []string) { serveUnix(ts, "SILENT", "") }

// startGarbage listens on a unix socket and answers everybody with bytes of no protocol: GARBAGE.
func startGarbage(ts *testscript.TestScript, _ bool, _ []string) {
	serveUnix(ts, "GARBAGE", "\x00\x01not json\n[1,2]\n\x1b[31m{\"return\": {}}\n")
}

func serveUnix(ts *testscript.TestScript, name, text string) {
	dir, err := os.MkdirTemp("", "gp")
	ts.Check(err)
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	ts.Check(err)
	done := make(chan struct{})
	go func() { // ends when the listener is closed
		defer close(done)
		var conns []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				break
			}
			_, _ = c.Write([]byte(text)) // a client that has gone is no matter
			conns = append(conns, c)
		}
		for _, c := range conns {
			c.Close()
		}
	}()
	ts.Defer(func() {
		l.Close()
		<-done
		os.RemoveAll(dir)
	})
	ts.Setenv(name, "unix:"+filepath.Join(dir, "s"))
}

// takePort listens on a TCP port: TAKEN.
func takePort(ts *testscript.TestScript, _ bool, _ []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { l.Close() })
	ts.Setenv("TAKEN", l.Addr().String())
}

func TestCommandsAreListed(t *testing.T) {
	var out strings.Builder
	if code := program().Run(context.Background(), cli.Env{Args: []string{"help"}, Stdout: &out}); code != 0 {
		t.Errorf("help exits with %d", code)
	}
	for _, c := range program().Commands {
		if !strings.Contains(out.String(), "  "+c.Name+" ") {
			t.Errorf("help does not list %s", c.Name)
		}
	}
}
