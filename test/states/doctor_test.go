package states_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A finding is a line of `guestprobe probe -o json`.
type finding struct {
	Layer, Name, Reason, Detail, Help string
	OK                                bool
}

const doctorManifest = `apiVersion: guestprobe.dev/v1alpha1
kind: GuestProbes
metadata: {name: doctor}
spec:
  readinessProbe: {httpGet: {port: WEB, path: /healthz}, timeoutSeconds: 2}
  livenessProbe:  {guestAgentPing: {}, timeoutSeconds: 1}
  checks:
  - {name: command, kind: readiness, exec: {command: [/bin/true]}, timeoutSeconds: 1}
`

// doctor breaks the set-up in each way that guestprobe probe is to tell, and asks what it says: which layer is at fault,
// why, and what to do; as a table and as JSON. On the main daemon's sockets it finds those held by another client.
func doctor(t *testing.T, m *machine) {
	m.agent("start")
	dir := t.TempDir()
	manifest, program := filepath.Join(dir, "manifest.yaml"), filepath.Join(dir, "guestprobe")
	port := m.vm.Web[strings.LastIndexByte(m.vm.Web, ':')+1:]
	if err := os.WriteFile(manifest, []byte(strings.ReplaceAll(doctorManifest, "port: WEB", "port: "+port)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(m.binary, program); err != nil {
		t.Fatal(err)
	}
	const nothing = ":"
	monitor, agent := "unix:"+m.second, "unix:"+m.spare
	for _, c := range []struct {
		name, monitor, agent string
		guest, after         string // what the guest is told to do before and after
		stopped              bool
		layer, reason        string // of the finding that names the fault; no reason: all is well
		detail, help         string
	}{
		{name: "all is well", layer: "command"},
		{name: "monitor held by another client", monitor: "unix:" + m.vm.Monitor, layer: "monitor", reason: "MonitorBusy",
			detail: "no greeting", help: "a monitor socket of its own"},
		{name: "agent's channel held by another client", agent: "unix:" + m.vm.Agent, layer: "agent", reason: "AgentTimeout",
			help: "Another client holds the agent's socket"},
		{name: "wrong path of the monitor", monitor: "unix:" + dir + "/qmp.sock", layer: "monitor", reason: "NoDomain",
			detail: "no such file", help: "correct the address of its monitor"},
		{name: "wrong path of the agent", agent: "unix:" + dir + "/qga.sock", layer: "agent", reason: "AgentNotConnected",
			detail: "no such file", help: "correct the path, or start the VM"},
		{name: "the two are mixed up", monitor: agent, agent: monitor, layer: "monitor", reason: "MonitorUnreachable",
			help: "another kind of socket"},
		{name: "guest paused", stopped: true, layer: "vm", reason: "Paused", help: "Resume the VM"},
		{name: "guest paused, as its agent has it", stopped: true, layer: "agent", reason: "AgentTimeout", help: "see the VM's own line"},
		{name: "agent hung", guest: "agent stop " + sparePort, after: "agent cont " + sparePort, layer: "agent", reason: "AgentTimeout",
			help: "hung, starved of CPU or frozen"},
		{name: "web server on the guest's 127.0.0.1 alone", guest: "killall guestd; httpd -p 127.0.0.1:1500 -h /run",
			after: "killall httpd; guestd </dev/null >/dev/ttyS0 2>&1 &", layer: "readinessProbe", reason: "ProbeFailed",
			help: "listens on 127.0.0.1 alone"},
		{name: "agent's port closed", guest: "agent kill " + sparePort, after: nothing, layer: "agent", reason: "AgentNotConnected",
			detail: "no process in the guest has the agent's port open", help: "Install or start qemu-guest-agent"},
		{name: "exec disabled", guest: "agent start " + sparePort, after: "agent kill " + sparePort, layer: "command", reason: "AgentUnsupported",
			help: "allow-rpcs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m.use(t)
			switch {
			case c.stopped:
				m.vm.Command("stop", nil, nil)
				defer m.vm.Command("cont", nil, nil)
			case c.name == "exec disabled":
				m.agent("start", "-b guest-exec")
				defer m.agent("kill")
			case c.guest != "":
				m.vm.Run(c.guest)
				defer m.vm.Run(c.after)
			}
			args := []string{"probe", "--manifest", manifest, "--guest-host", "127.0.0.1"}
			args = append(args, "--monitor", or(c.monitor, monitor), "--agent", or(c.agent, agent))
			examine(t, exec.Command(program, args...), c.reason == "", finding{Layer: c.layer, Reason: c.reason, Detail: c.detail, Help: c.help})
		})
	}
	t.Run("no permission", func(t *testing.T) {
		m.use(t)
		if os.Getuid() != 0 {
			t.Skip("only root can become somebody else")
		}
		const nobody = 65534
		for _, d := range []string{dir, filepath.Dir(dir)} { // of the program's own folders
			if err := os.Chmod(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(filepath.Dir(m.second), 0o755); err != nil { // so that it is the sockets' own mode that forbids
			t.Fatal(err)
		}
		for _, socket := range []string{m.second, m.spare} {
			if err := os.Chmod(socket, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for _, layer := range []finding{{Layer: "monitor", Reason: "MonitorUnreachable"}, {Layer: "agent", Reason: "AgentNotConnected"}} {
			cmd := exec.Command(program, "probe", "--manifest", manifest, "--guest-host", "127.0.0.1", "--monitor", monitor, "--agent", agent)
			cmd.Dir = "/"
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
			layer.Detail, layer.Help = "permission denied", "Run as the user who owns the socket"
			examine(t, cmd, false, layer)
		}
	})
	m.ready(t)
}

func or(s, otherwise string) string {
	if s != "" {
		return s
	}
	return otherwise
}

// examine runs the doctor twice, and asks that it says what is wanted in either form.
func examine(t *testing.T, cmd *exec.Cmd, well bool, want finding) {
	t.Helper()
	asJSON := exec.Command(cmd.Path, append(cmd.Args[1:len(cmd.Args):len(cmd.Args)], "-o", "json")...)
	asJSON.Dir, asJSON.SysProcAttr = cmd.Dir, cmd.SysProcAttr
	out := ask(t, asJSON, well)
	var findings []finding
	if err := json.Unmarshal(out, &findings); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	found := false
	for _, f := range findings {
		if f.Layer != want.Layer && f.Name != want.Layer {
			continue
		}
		found = true
		if f.OK != well || f.Reason != want.Reason || !strings.Contains(f.Detail, want.Detail) || !strings.Contains(f.Help, want.Help) {
			t.Errorf("%+v\nwant %+v", f, want)
		}
		t.Logf("%s %s: %s %s; %s", f.Layer, f.Name, f.Reason, f.Detail, f.Help)
	}
	if !found {
		t.Errorf("nothing about %s: %s", want.Layer, out)
	}
	if well {
		return
	}
	table := string(ask(t, cmd, well))
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "FAIL") && strings.Contains(line, want.Layer) && strings.Contains(line, want.Reason) &&
			strings.Contains(line, want.Detail) && strings.Contains(table, want.Help) {
			return
		}
	}
	t.Errorf("want %+v in the table:\n%s", want, table)
}

// ask runs a command that exits with 0 if all is well, and else with 1.
func ask(t *testing.T, cmd *exec.Cmd, well bool) []byte {
	t.Helper()
	var text strings.Builder
	cmd.Stderr = &text
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	out, err := cmd.Output()
	exit, failed := errors.AsType[*exec.ExitError](err)
	if err != nil && (!failed || exit.ExitCode() != 1) || well != (err == nil) {
		t.Fatalf("%v: %s%s", err, out, &text)
	}
	return out
}
