package qga

import (
	"encoding/json"
	"os"
	"testing"
	"time"
)

func TestParseProcStat(t *testing.T) {
	const rest = " S 1 4 4 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 7741 123 456"
	for _, comm := range []string{"(qemu)", "(a b)", "(x) R 1 (y)", "())"} {
		state, ticks, err := parseProcStat([]byte("12 " + comm + rest))
		if err != nil || state != 'S' || ticks != 7741 {
			t.Errorf("%s: %c, %d, %v", comm, state, ticks, err)
		}
	}
	for _, bad := range []string{"", "12 qemu S 1", "12 (qemu) S 1 2", "12 (qemu) SS" + rest[2:], "12 (qemu) S 1 4 4 0 -1 4 1 2 3 4 5 6 7 8 20 0 3 0 x 1"} {
		if _, _, err := parseProcStat([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestReadProcessSelf(t *testing.T) {
	p := readProcess(os.Getpid())
	if p.ticks == 0 || p.stopped {
		t.Errorf("this process: %+v", p)
	}
	if age := time.Since(p.started); age < -time.Second || age > time.Hour {
		t.Errorf("this process is %v old", age)
	}
	if p := readProcess(1 << 30); p.ticks != 0 || !p.started.IsZero() {
		t.Errorf("a process that is not there: %+v", p)
	}
}

func TestIdentityString(t *testing.T) {
	bound := time.Unix(100, 0)
	base := identity{
		name: "vm", uuid: "u", vcpu: 7,
		peer:   process{pid: 3, ticks: 9, started: time.Unix(5, 0)},
		socket: socketFile{inode: 4, modTime: bound},
	}
	noPID := base
	noPID.peer = process{}
	change := func(id identity, f func(*identity)) identity { f(&id); return id }
	tests := []struct {
		name string
		a, b identity
		same bool
	}{
		{"read again, at another time of day", base, change(base, func(id *identity) { id.peer.started = time.Unix(6, 0) }), true},
		{"stopped meanwhile", base, change(base, func(id *identity) { id.peer.stopped = true }), true},
		{"another process", base, change(base, func(id *identity) { id.peer.pid = 4 }), false},
		{"the pid reused", base, change(base, func(id *identity) { id.peer.ticks = 10 }), false},
		{"another vCPU thread behind the same proxy", base, change(base, func(id *identity) { id.vcpu = 8 }), false},
		{"another VM", base, change(base, func(id *identity) { id.uuid = "v" }), false},
		{"socket bound anew, pid unseen", noPID, change(noPID, func(id *identity) { id.socket.modTime = bound.Add(time.Millisecond) }), false},
		{"another socket file, pid unseen", noPID, change(noPID, func(id *identity) { id.socket.inode = 5 }), false},
		{"all the same, pid unseen", noPID, noPID, true},
	}
	for _, tt := range tests {
		if same := tt.a.String() == tt.b.String(); same != tt.same {
			t.Errorf("%s: %q and %q", tt.name, tt.a, tt.b)
		}
	}
}

func TestIdentityReplies(t *testing.T) {
	var id identity
	id.readName(json.RawMessage(`{}`))
	id.readUUID(json.RawMessage(`{"UUID": "00000000-0000-0000-0000-000000000000"}`))
	id.readVCPU(json.RawMessage(`[{"cpu-index": 1, "thread-id": 11}, {"cpu-index": 0, "thread-id": 10}]`))
	if id.name != "" || id.uuid != "" || id.vcpu != 10 {
		t.Errorf("%+v", id)
	}
	id.readName(json.RawMessage(`7`))
	id.readVCPU(json.RawMessage(`[]`))
	id.readVCPU(nil)
	if id.vcpu != 10 {
		t.Errorf("%+v", id)
	}
}

func TestStartedNeedsTheVCPUsThread(t *testing.T) {
	bound := time.Now().Add(-time.Minute)
	id := identity{peer: readProcess(os.Getpid()), vcpu: os.Getpid(), socket: socketFile{modTime: bound}}
	if got := id.started(); !got.Equal(id.peer.started) {
		t.Errorf("with its thread: %v, want the process's start", got)
	}
	id.vcpu = 1 << 30 // as when the socket was handed over by another process
	if got := id.started(); !got.Equal(bound) {
		t.Errorf("without its thread: %v, want the socket's age", got)
	}
}
