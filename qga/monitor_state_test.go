package qga

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// step feeds one line of a script to a tracker: "NAME {data}" is an event,
// "status WORD" a reply to query-status, "port open|closed" one to
// query-chardev, and "+DURATION" lets time pass.
func step(t *testing.T, tr *qmpTracker, now *time.Time, line string) needs {
	t.Helper()
	word, rest, _ := strings.Cut(line, " ")
	switch {
	case strings.HasPrefix(word, "+"):
		d, err := time.ParseDuration(word[1:])
		if err != nil {
			t.Fatal(err)
		}
		*now = now.Add(d)
		return 0
	case word == "status":
		n, _, err := tr.status(json.RawMessage(fmt.Sprintf(`{"status": %q}`, rest)), *now)
		if err != nil {
			t.Fatal(err)
		}
		return n
	case word == "port":
		tr.chardevs([]chardev{{Label: "qga0", Filename: "unix:/d/org.qemu.guest_agent.0,server=on", Open: rest == "open"}})
		return 0
	}
	return tr.event(qmpEvent{name: word, data: json.RawMessage(rest), at: *now}, *now)
}

func TestTracker(t *testing.T) {
	began := time.Unix(1796079296, 0)
	at := func(d time.Duration) time.Time { return began.Add(d) }
	processStart := at(-time.Hour)
	const ioError = `BLOCK_IO_ERROR {"device":"disk0","nospace":true,"action":"stop","reason":"No space left on device","operation":"write"}`
	disk0 := &IOError{Device: "disk0", NoSpace: true, Reason: "No space left on device"}
	tests := []struct {
		name   string
		script []string
		want   VMState
	}{
		{"found running", []string{"status running"}, VMState{Status: "running", StartedAt: processStart}},
		{"found paused", []string{"status paused"}, VMState{Status: "paused", StartedAt: processStart}},
		{"found not begun", []string{"status prelaunch"}, VMState{Status: "prelaunch"}},
		{"a word newer than this program", []string{"status hibernating"}, VMState{Status: "hibernating", StartedAt: processStart}},
		{"begins to run", []string{"status prelaunch", "+5s", "RESUME"},
			VMState{Status: "running", StartedAt: at(5 * time.Second), Events: 1}},
		{"began to run unseen", []string{"status prelaunch", "+5s", "status running"},
			VMState{Status: "running", StartedAt: at(5 * time.Second)}},
		{"the firmware's own reset is none", []string{"status prelaunch", "RESUME", "+40ms", `RESET {"guest":true,"reason":"guest-reset"}`},
			VMState{Status: "running", StartedAt: began, Events: 2}},
		{"reset: two events count once", []string{"status running", "+10s",
			`RESET {"guest":false,"reason":"host-qmp-system-reset"}`, "+40ms", `RESET {"guest":true,"reason":"guest-reset"}`},
			VMState{Status: "running", StartedAt: at(10 * time.Second), Resets: 1, Events: 2}},
		{"two resets by the host count twice", []string{"status running", "+10s",
			`RESET {"guest":false,"reason":"host-qmp-system-reset"}`, "+100ms", `RESET {"guest":false,"reason":"host-qmp-system-reset"}`},
			VMState{Status: "running", StartedAt: at(10*time.Second + 100*time.Millisecond), Resets: 2, Events: 2}},
		{"reset while paused: boots when resumed", []string{"status running", "STOP", "status paused", "+1s",
			`RESET {"guest":false}`, "status prelaunch", "+1s", "RESUME", "status running"},
			VMState{Status: "running", StartedAt: at(2 * time.Second), Resets: 1, Events: 3}},
		{"reset while paused, resumed before the reply", []string{"status paused", `RESET {"guest":false}`, "+1s", "RESUME"},
			VMState{Status: "running", StartedAt: at(time.Second), Resets: 1, Events: 2}},
		{"pause and resume leave the start alone", []string{"status running", "STOP", "status paused", "+9s", "RESUME", "status running"},
			VMState{Status: "running", StartedAt: processStart, Events: 2}},
		{"STOP says paused before the reply", []string{"status running", "STOP"},
			VMState{Status: "paused", StartedAt: processStart, Events: 1}},
		{"STOP refined", []string{"status running", "STOP", "status finish-migrate"},
			VMState{Status: "finish-migrate", StartedAt: processStart, Events: 1}},
		{"io-error at once", []string{"status running", ioError},
			VMState{Status: "io-error", IOError: disk0, IOErrors: 1, StartedAt: processStart, Events: 1}},
		{"io-error outlives a reply from before its STOP", []string{"status running", ioError, "status running", "+1ms", "STOP", "status io-error"},
			VMState{Status: "io-error", IOError: disk0, IOErrors: 1, StartedAt: processStart, Events: 2}},
		{"io-error whose STOP never came", []string{"status running", ioError, "+1s", "status running"},
			VMState{Status: "running", IOErrors: 1, StartedAt: processStart, Events: 1}},
		{"io-error gone on", []string{"status running", ioError, "STOP", "status io-error", "RESUME", "status running"},
			VMState{Status: "running", IOErrors: 1, StartedAt: processStart, Events: 3}},
		{"io-error reported to the guest", []string{"status running", `BLOCK_IO_ERROR {"device":"d","action":"report"}`},
			VMState{Status: "running", IOErrors: 1, StartedAt: processStart, Events: 1}},
		{"io-error of a paused VM keeps the pause", []string{"status paused", ioError, "status paused"},
			VMState{Status: "paused", IOErrors: 1, StartedAt: processStart, Events: 1}},
		{"io-error of a paused VM, before the reply", []string{"status paused", ioError},
			VMState{Status: "paused", IOErrors: 1, StartedAt: processStart, Events: 1}},
		{"panic at once", []string{"status running", `GUEST_PANICKED {"action":"pause"}`, "status running", "STOP"},
			VMState{Status: "guest-panicked", Panic: &Panic{Action: "pause"}, Panics: 1, StartedAt: processStart, Events: 2}},
		{"Windows' bug check", []string{"status running",
			`GUEST_PANICKED {"action":"pause","info":{"type":"hyper-v","arg1":209,"arg2":16,"arg3":2,"arg4":0,"arg5":18446735291010000000}}`, "STOP"},
			VMState{Status: "guest-panicked", Panics: 1, StartedAt: processStart, Events: 2,
				Panic: &Panic{Action: "pause", Type: "hyper-v", Detail: "bug check 0xd1 (0x10, 0x2, 0x0, 0xfffff8031e502480)"}}},
		{"panic that QEMU lets run", []string{"status running", `GUEST_PANICKED {"action":"run","info":{"type":"s390","core":1,"reason":"disabled-wait"}}`},
			VMState{Status: "running", Panics: 1, StartedAt: processStart, Events: 1,
				Panic: &Panic{Action: "run", Type: "s390", Detail: "core 1: disabled-wait"}}},
		{"panic reset", []string{"status running", `GUEST_PANICKED {"action":"pause"}`, "STOP", "status guest-panicked", `RESET {"guest":false}`},
			VMState{Status: "prelaunch", Panics: 1, Resets: 1, Events: 3}},
		{"kdump, then its reboot", []string{"status running", `GUEST_CRASHLOADED {"action":"run"}`, "+30s", `RESET {"guest":true}`},
			VMState{Status: "running", StartedAt: at(30 * time.Second), Resets: 1, Events: 2}},
		{"kdump", []string{"status running", `GUEST_CRASHLOADED {"action":"run"}`},
			VMState{Status: "running", StartedAt: processStart, CrashDumping: true, Events: 1}},
		{"guest off, QEMU stays", []string{"status running", `SHUTDOWN {"guest":true,"reason":"guest-shutdown"}`, "STOP", "status shutdown"},
			VMState{Status: "shutdown", Shutdown: &Shutdown{Guest: true, Reason: "guest-shutdown"}, StartedAt: processStart, Events: 2}},
		{"guest off, and on again", []string{"status running", `SHUTDOWN {"guest":true,"reason":"guest-shutdown"}`, "STOP", "status shutdown",
			`RESET {"guest":false}`, "status prelaunch", "+1m", "RESUME"},
			VMState{Status: "running", StartedAt: at(time.Minute), Resets: 1, Events: 4}},
		{"suspend and wake", []string{"status running", "SUSPEND", "status suspended", "WAKEUP", "status running"},
			VMState{Status: "running", StartedAt: processStart, Events: 2}},
		{"suspended", []string{"status running", "SUSPEND"},
			VMState{Status: "suspended", StartedAt: processStart, Events: 1}},
		{"watchdog", []string{"status running", `WATCHDOG {"action":"pause"}`},
			VMState{Status: "watchdog", StartedAt: processStart, Events: 1}},
		{"watchdog that resets", []string{"status running", `WATCHDOG {"action":"reset"}`},
			VMState{Status: "running", StartedAt: processStart, Events: 1}},
		{"migration's target", []string{"status inmigrate", "+3s", "RESUME", "status running"},
			VMState{Status: "running", Incoming: true, StartedAt: at(3 * time.Second), Events: 1}},
		{"migration's target, source was paused", []string{"status inmigrate", "+3s", "status paused", "+3s", "RESUME"},
			VMState{Status: "running", Incoming: true, StartedAt: at(6 * time.Second), Events: 1}},
		{"migration's source", []string{"status running", `MIGRATION {"status":"setup"}`, `MIGRATION {"status":"active"}`, "STOP"},
			VMState{Status: "finish-migrate", StartedAt: processStart, Events: 3}},
		{"paused during a migration", []string{"status running", `MIGRATION {"status":"active"}`, "STOP", "status paused"},
			VMState{Status: "paused", StartedAt: processStart, Events: 2}},
		{"paused after a migration that failed", []string{"status running", `MIGRATION {"status":"active"}`, `MIGRATION {"status":"failed"}`, "STOP"},
			VMState{Status: "paused", StartedAt: processStart, Events: 3}},
		{"migration's target, before the guest", []string{"status inmigrate", "port closed"},
			VMState{Status: "inmigrate", Incoming: true}},
		{"migration's target, the port first", []string{"port closed", "status inmigrate"},
			VMState{Status: "inmigrate", Incoming: true}},
		{"migration's target, the agent with the guest", []string{"status inmigrate", "port closed", "RESUME", "port open"},
			VMState{Status: "running", Incoming: true, AgentPort: PortOpen, AgentEverOpen: true, StartedAt: began, Events: 1}},
		{"migration's target, no agent in the guest", []string{"status inmigrate", "port closed", "RESUME", "port closed"},
			VMState{Status: "running", Incoming: true, AgentPort: PortClosed, StartedAt: began, Events: 1}},
		{"port by query", []string{"status running", "port closed", "port open"},
			VMState{Status: "running", AgentPort: PortOpen, AgentEverOpen: true, StartedAt: processStart}},
		{"port by an event that names the chardev", []string{"status running", "port open", `VSERPORT_CHANGE {"open":false,"id":"qga0"}`},
			VMState{Status: "running", AgentPort: PortClosed, AgentEverOpen: true, StartedAt: processStart, Events: 1}},
		{"port of another device", []string{"status running", "port open", `VSERPORT_CHANGE {"open":false,"id":"channel1"}`},
			VMState{Status: "running", AgentPort: PortOpen, AgentEverOpen: true, StartedAt: processStart, Events: 1}},
		{"an event that means nothing here", []string{"status running", `RTC_CHANGE {"offset":0}`},
			VMState{Status: "running", StartedAt: processStart, Events: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var tr qmpTracker
			now := began
			id := identity{vcpu: 1}
			tr.attach(id, "7.2.22", processStart)
			for _, line := range tt.script {
				step(t, &tr, &now, line)
			}
			tt.want.Link, tt.want.Instance, tt.want.Version = LinkUp, id.String(), "7.2.22"
			if diff := cmp.Diff(tt.want, tr.s); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTrackerAsks(t *testing.T) {
	tests := []struct {
		line string
		want needs
	}{
		{"STOP", needStatus}, {"RESUME", needStatus}, {"WAKEUP", needStatus},
		{`MIGRATION {"status":"active"}`, needStatus},
		{`VSERPORT_CHANGE {"open":true,"id":"channel0"}`, needChardev},
		{"status io-error", needBlock},
		{"status running", 0}, {`RTC_CHANGE {"offset":0}`, 0},
		{`BLOCK_IO_ERROR {"action":"report"}`, 0},
		{`BLOCK_IO_ERROR {"action":"stop","device":"","node-name":"n"}`, needStatus | needBlock},
		{`BLOCK_IO_ERROR {"action":"stop","device":"","node-name":"n","qom-path":"/machine/peripheral/d"}`, needStatus},
	}
	for _, tt := range tests {
		var tr qmpTracker
		now := time.Unix(1796079296, 0)
		if got := step(t, &tr, &now, tt.line); got != tt.want {
			t.Errorf("%s: asks %b, want %b", tt.line, got, tt.want)
		}
	}
}

// A guest that arrives brings its agent's open port along without an event.
func TestTrackerAsksOnArrival(t *testing.T) {
	for line, want := range map[string]needs{
		"RESUME": needStatus | needChardev, "status paused": needChardev, "status running": needChardev,
		"status inmigrate": 0, `MIGRATION {"status":"active"}`: needStatus,
	} {
		var tr qmpTracker
		now := time.Unix(1796079296, 0)
		step(t, &tr, &now, "status inmigrate")
		if got := step(t, &tr, &now, line); got != want {
			t.Errorf("%s: asks %b, want %b", line, got, want)
		}
	}
}

// Whether a migration still goes on after a gap, nobody has told.
func TestTrackerForgetsAMigration(t *testing.T) {
	var tr qmpTracker
	now := time.Unix(1796079296, 0)
	tr.attach(identity{vcpu: 1}, "7.2.22", now)
	step(t, &tr, &now, "status running")
	step(t, &tr, &now, `MIGRATION {"status":"active"}`)
	tr.detach()
	tr.attach(identity{vcpu: 1}, "7.2.22", now)
	step(t, &tr, &now, "status running")
	if step(t, &tr, &now, "STOP"); tr.s.Status != "paused" {
		t.Errorf("status %s", tr.s.Status)
	}
}

func TestTrackerNextInstance(t *testing.T) {
	var tr qmpTracker
	now := time.Unix(1796079296, 0)
	tr.attach(identity{name: "vm", vcpu: 1}, "7.2.22", now)
	for _, line := range []string{"status running", "port open", `GUEST_PANICKED {"action":"pause"}`, "STOP"} {
		step(t, &tr, &now, line)
	}
	before := tr.s

	tr.detach()
	tr.attach(identity{name: "vm", vcpu: 1}, "7.2.22", now.Add(time.Hour))
	if tr.s.Panic == nil || !tr.s.AgentEverOpen || !tr.s.StartedAt.Equal(before.StartedAt) {
		t.Errorf("the same QEMU, connected again, forgot: %+v", tr.s)
	}

	tr.detach()
	tr.attach(identity{name: "vm", vcpu: 2}, "7.2.23", now)
	want := VMState{
		Link: LinkUp, Name: "vm", Version: "7.2.23", Instance: identity{name: "vm", vcpu: 2}.String(),
		StartedAt: now, Panics: 1, Events: 2,
	}
	if diff := cmp.Diff(want, tr.s); diff != "" {
		t.Errorf("another QEMU (-want +got):\n%s", diff)
	}
}

func TestFindAgent(t *testing.T) {
	lab := []chardev{
		{Label: "compat_monitor0", Filename: "unix:/d/qmp.sock,server=on", Open: true},
		{Label: "qga0", Filename: "disconnected:unix:/d/qga.sock,server=on"},
	}
	libvirt := []chardev{
		{Label: "charmonitor", Filename: "unix:/var/lib/libvirt/qemu/domain-1-vm/monitor.sock,server=on", Open: true},
		{Label: "charchannel0", Filename: "unix:/run/libvirt/qemu/channel/1-vm/org.qemu.guest_agent.0,server=on"},
		{Label: "charchannel1", Filename: "unix:/run/libvirt/qemu/channel/1-vm/own.agent,server=on"},
		{Label: "charserial0", Filename: "pty:/dev/pts/3"},
	}
	twice := []chardev{
		{Label: "a", Filename: "unix:/x/qga.sock,server=on"},
		{Label: "b", Filename: "unix:/y/qga.sock,server=on"},
	}
	tests := []struct {
		name string
		list []chardev
		want string // AgentPath
		got  string // label
	}{
		{"path, while disconnected", lab, "/d/qga.sock", "qga0"},
		{"label", lab, "qga0", "qga0"},
		{"path under another mount", lab, "/mnt/vm/qga.sock", "qga0"},
		{"no standard name", lab, "", ""},
		{"standard name", libvirt, "", "charchannel0"},
		{"device's alias", libvirt, "channel1", "charchannel1"},
		{"port's name", libvirt, "own.agent", "charchannel1"},
		{"two of that name", twice, "/mnt/qga.sock", ""},
		{"two of that name, one exact", twice, "/y/qga.sock", "b"},
		{"nothing", nil, "/d/qga.sock", ""},
	}
	for _, tt := range tests {
		label := ""
		if c := findAgent(tt.list, tt.want); c != nil {
			label = c.Label
		}
		if label != tt.got {
			t.Errorf("%s: %q, want %q", tt.name, label, tt.got)
		}
	}
	for path, want := range map[string]bool{
		"/var/lib/libvirt/qemu/domain-1-vm/monitor.sock": true,
		"/mnt/qemu/domain-1-vm/monitor.sock":             true,
		"/mnt/own/monitor.sock":                          false,
	} {
		if got := ownedByLibvirt(libvirt, path); got != want {
			t.Errorf("%s is libvirt's: %v, want %v", path, got, want)
		}
	}
}

func TestTrackerBlocks(t *testing.T) {
	byNode := &IOError{Device: "libvirt-1-format", Reason: "r"}
	tests := []struct {
		known *IOError
		reply string
		want  *IOError
	}{
		{nil, `[]`, nil},
		{nil, `7`, nil},
		{nil, `[{"device":"a","io-status":"ok"},{"device":"b"}]`, nil},
		{nil, `[{"device":"a","io-status":"ok"},{"device":"b","io-status":"nospace"}]`, &IOError{Device: "b", NoSpace: true}},
		{nil, `[{"device":"","qdev":"/machine/peripheral/ua-disk/virtio-backend","io-status":"failed"}]`, &IOError{Device: "ua-disk"}},
		{nil, `[{"device":"","qdev":"/machine/unattached/x","io-status":"failed"}]`, &IOError{Device: "/machine/unattached/x"}},
		{nil, `[{"device":"","io-status":"failed","inserted":{"node-name":"n"}}]`, &IOError{Device: "n"}},
		{byNode, `[{"device":"","qdev":"/machine/peripheral/ua-disk","io-status":"failed","inserted":{"node-name":"libvirt-1-format"}}]`,
			&IOError{Device: "ua-disk", Reason: "r"}},
		{byNode, `[{"device":"","qdev":"/machine/peripheral/other","io-status":"failed","inserted":{"node-name":"n"}}]`, byNode},
		{byNode, `7`, byNode},
	}
	for _, tt := range tests {
		tr := qmpTracker{s: VMState{Status: "io-error", IOError: tt.known}}
		tr.blocks(json.RawMessage(tt.reply))
		if diff := cmp.Diff(tt.want, tr.s.IOError); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.reply, diff)
		}
	}
	tr := qmpTracker{s: VMState{Status: "running"}}
	tr.blocks(json.RawMessage(`[{"device":"b","io-status":"nospace"}]`))
	if tr.s.IOError != nil {
		t.Errorf("a running VM has %+v", tr.s.IOError)
	}
}
