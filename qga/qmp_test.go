package qga

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDecodeQMP(t *testing.T) {
	tests := []struct {
		name string
		line string
		want qmpMessage
	}{
		{
			name: "greeting",
			line: `{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "Debian 1:7.2"}, "capabilities": ["oob"]}}`,
			want: qmpMessage{kind: qmpGreetingKind, greeting: qmpGreeting{version: "7.2.22 (Debian 1:7.2)", oob: true}},
		},
		{
			name: "greeting with capabilities of another shape",
			line: `{"QMP": {"version": {}, "capabilities": [{"name": "oob"}, 7]}}`,
			want: qmpMessage{kind: qmpGreetingKind, greeting: qmpGreeting{version: "0.0.0"}},
		},
		{
			name: "event without data",
			line: `{"timestamp": {"seconds": 1796079296, "microseconds": 332648}, "event": "RESUME"}`,
			want: qmpMessage{kind: qmpEventKind, event: qmpEvent{name: "RESUME", at: time.Unix(1796079296, 332648000)}},
		},
		{
			name: "event without a clock",
			line: `{"timestamp": {"seconds": -1, "microseconds": -1}, "event": "STOP", "data": {"a": 1}}`,
			want: qmpMessage{kind: qmpEventKind, event: qmpEvent{name: "STOP", data: json.RawMessage(`{"a": 1}`)}},
		},
		{
			name: "reply with a number as id",
			line: `{"return": {}, "id": 7}`,
			want: qmpMessage{id: "7", result: json.RawMessage(`{}`)},
		},
		{
			name: "reply with a text as id",
			line: `{"return": [], "id": "libvirt-7"}`,
			want: qmpMessage{id: `"libvirt-7"`, result: json.RawMessage(`[]`)},
		},
		{
			name: "reply of null",
			line: `{"return": null}`,
			want: qmpMessage{result: json.RawMessage(`null`)},
		},
		{
			name: "error without a text",
			line: `{"id": 3, "error": {"class": "GenericError", "desc": ""}}`,
			want: qmpMessage{id: "3", err: &Error{Class: "GenericError"}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decodeQMP([]byte(tt.line))
			if err != nil {
				t.Fatal(err)
			}
			tt.want.line = []byte(tt.line)
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(qmpMessage{}, qmpEvent{}, qmpGreeting{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeQMPRefuses(t *testing.T) {
	for _, line := range []string{
		``, `hello`, `7`, `[]`, `"text"`, `null`, `{}`, `{"execute":"stop"}`,
		`{"return": {}} trailing`, `{"event": 7}`, `{"QMP": null}`, `{"error": "no object"}`,
		strings.Repeat(`[`, 20000),
	} {
		_, err := decodeQMP([]byte(line))
		if !errors.Is(err, ErrProtocol) {
			t.Errorf("%.40q: error %v, want ErrProtocol", line, err)
		}
		if err != nil && len(err.Error()) > 1000 {
			t.Errorf("%.40q: an error of %d bytes", line, len(err.Error()))
		}
	}
}

func TestCommandList(t *testing.T) {
	refused := []qmpCommand{
		{},
		{Execute: "stop"}, {Execute: "cont"}, {Execute: "quit"}, {Execute: "system_reset"},
		{Execute: "human-monitor-command"}, {Execute: "device_del"}, {Execute: "getfd"},
		{Execute: "query-status", ExecOOB: "query-yank"},
		{ExecOOB: "yank"}, {ExecOOB: "query-status"}, {ExecOOB: "migrate-pause"},
		{Execute: "QUERY-STATUS"}, {Execute: "query-status\x00"},
	}
	for _, cmd := range refused {
		if err := cmd.check(); err == nil {
			t.Errorf("%+v is let through", cmd)
		}
	}
	for _, cmd := range []qmpCommand{{Execute: "query-status"}, {Execute: "query-chardev"}, {ExecOOB: "query-yank"}} {
		if err := cmd.check(); err != nil {
			t.Errorf("%+v: %v", cmd, err)
		}
	}
}

// FuzzDecodeQMP: what decodes does not depend on spaces, keeps nothing of the
// line's buffer, and can be taken into a state; what does not is ErrProtocol.
func FuzzDecodeQMP(f *testing.F) {
	for _, seed := range []string{
		`{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ""}, "capabilities": ["oob"]}}`,
		`{"timestamp": {"seconds": 1796079296, "microseconds": 332648}, "event": "RESET", "data": {"guest": true, "reason": "guest-reset"}}`,
		`{"timestamp": {"seconds": 1, "microseconds": 0}, "event": "BLOCK_IO_ERROR", "data": {"device": "d", "nospace": true, "action": "stop", "reason": "x"}}`,
		`{"timestamp": {"seconds": 1, "microseconds": 0}, "event": "GUEST_PANICKED", "data": {"action": "pause", "info": {"type": "hyper-v", "arg1": 18446744073709551615}}}`,
		`{"event": "VSERPORT_CHANGE", "data": {"open": true, "id": "channel0"}}`,
		`{"return": {"status": "running", "singlestep": false, "running": true}, "id": 2}`,
		`{"return": [{"frontend-open": true, "filename": "unix:/a/qga.sock,server=on", "label": "qga0"}]}`,
		`{"id": 1, "error": {"class": "CommandNotFound", "desc": "no"}}`,
		`{"return": {}, "return": 1, "id": null}`, "\xff{}", `{"event":"\ud800"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		buffer := bytes.Clone(line)
		msg, err := decodeQMP(buffer)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatalf("error %v is no ErrProtocol", err)
			}
			return
		}
		clear(buffer)
		if !bytes.Equal(msg.line, line) {
			t.Fatal("the message aliases its line")
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, line); err != nil {
			t.Fatal(err)
		}
		again, err := decodeQMP(compact.Bytes())
		if err != nil || again.kind != msg.kind || again.event.name != msg.event.name || !again.event.at.Equal(msg.event.at) ||
			(again.err == nil) != (msg.err == nil) || (again.result == nil) != (msg.result == nil) {
			t.Fatalf("%+v, compacted %+v, %v", msg, again, err)
		}

		now := time.Unix(1796079300, 0)
		var tr qmpTracker
		tr.event(msg.event, now)
		if list, err := decodeChardevs(msg.result); err == nil {
			tr.chardevs(list)
			ownedByLibvirt(list, "/a/b.sock")
		}
		_, _, _ = tr.status(msg.result, now)
		tr.s.Status = "io-error"
		tr.blocks(msg.result)
		var id identity
		id.readName(msg.result)
		id.readUUID(msg.result)
		id.readVCPU(msg.result)
		if tr.s.Panic != nil && strings.ContainsAny(tr.s.Panic.Detail, "\n\r\x1b") {
			t.Fatalf("a control character in %q", tr.s.Panic.Detail)
		}
	})
}
