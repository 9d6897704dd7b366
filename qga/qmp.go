package qga

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// qmpKind says what a line of a QMP monitor is.
type qmpKind int

const (
	qmpReply qmpKind = iota
	qmpEventKind
	qmpGreetingKind
)

// A qmpMessage is one decoded line of a QMP monitor (qemu-10.0
// docs/interop/qmp-spec.rst). Nothing in it aliases the line it came from.
type qmpMessage struct {
	kind qmpKind
	line []byte // the whole line, for those who decode it themselves

	// Of a reply. The id is raw JSON, and empty where the peer sent none: then
	// it could not even parse what it answers.
	id     string
	result json.RawMessage
	err    *Error

	event    qmpEvent
	greeting qmpGreeting
}

// A qmpEvent is one event. Events carry no state, only what happened.
type qmpEvent struct {
	name string
	data json.RawMessage
	at   time.Time // the peer's clock, which is this host's; zero if it had none
}

// A qmpGreeting is the first line of a monitor.
type qmpGreeting struct {
	version string // QEMU's own, with the packager's in brackets
	oob     bool   // commands can be sent past a stuck main loop
}

// decodeQMP decodes one line. Unknown members are ignored. An object that is
// neither greeting, nor event, nor reply, and anything that is no object, is
// an ErrProtocol.
func decodeQMP(line []byte) (qmpMessage, error) {
	var wire struct {
		QMP   *wireGreeting   `json:"QMP"`
		Event *string         `json:"event"`
		Data  json.RawMessage `json:"data"`
		Time  wireTime        `json:"timestamp"`

		ID     json.RawMessage `json:"id"`
		Return json.RawMessage `json:"return"`
		Error  *struct {
			Class string `json:"class"`
			Desc  string `json:"desc"`
		} `json:"error"`
	}
	line = bytes.Clone(line)
	if err := json.Unmarshal(line, &wire); err != nil {
		return qmpMessage{}, fmt.Errorf("%w: %q is no QMP message: %s", ErrProtocol, clean(line), clean(err.Error()))
	}
	msg := qmpMessage{line: line}
	switch {
	case wire.QMP != nil:
		msg.kind = qmpGreetingKind
		msg.greeting = wire.QMP.greeting()
	case wire.Event != nil:
		msg.kind = qmpEventKind
		msg.event = qmpEvent{name: *wire.Event, data: wire.Data, at: wire.Time.time()}
	case wire.Error != nil: // its presence counts: an empty text is legal
		msg.id = string(wire.ID)
		msg.err = &Error{Class: wire.Error.Class, Desc: wire.Error.Desc}
	case wire.Return != nil:
		msg.id = string(wire.ID)
		msg.result = wire.Return
	default:
		return qmpMessage{}, fmt.Errorf("%w: %q is no QMP message", ErrProtocol, clean(line))
	}
	return msg, nil
}

type wireGreeting struct {
	Version struct {
		QEMU    struct{ Major, Minor, Micro int } `json:"qemu"`
		Package string                            `json:"package"`
	} `json:"version"`
	// Not []string: a capability of another shape is none that we know.
	Capabilities []json.RawMessage `json:"capabilities"`
}

func (w *wireGreeting) greeting() qmpGreeting {
	q := w.Version.QEMU
	g := qmpGreeting{version: fmt.Sprintf("%d.%d.%d", q.Major, q.Minor, q.Micro)}
	if w.Version.Package != "" {
		g.version += " (" + clean(w.Version.Package) + ")"
	}
	for _, c := range w.Capabilities {
		if string(c) == `"oob"` {
			g.oob = true
		}
	}
	return g
}

type wireTime struct {
	Seconds      int64 `json:"seconds"`
	Microseconds int64 `json:"microseconds"`
}

// time returns the zero Time for -1, which is QEMU's for "no clock".
func (w wireTime) time() time.Time {
	if w.Seconds <= 0 {
		return time.Time{}
	}
	return time.Unix(w.Seconds, w.Microseconds*int64(time.Microsecond))
}

// A qmpCommand is what goes to the monitor.
type qmpCommand struct {
	Execute   string          `json:"execute,omitempty"`
	ExecOOB   string          `json:"exec-oob,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	ID        json.RawMessage `json:"id,omitempty"`
}

// name returns the command's name, in band or out of band.
func (c qmpCommand) name() string {
	if c.Execute != "" {
		return c.Execute
	}
	return c.ExecOOB
}

// check refuses what this program must never send. A monitor is a full
// administrative interface: it can end the VM and read any file its process
// can. So what may be asked is a list in code, and all of it only reads.
func (c qmpCommand) check() error {
	if (c.Execute == "") == (c.ExecOOB == "") {
		return fmt.Errorf("command needs exactly one of execute and exec-oob")
	}
	if c.ExecOOB != "" && c.ExecOOB != "query-yank" {
		return fmt.Errorf("command %q refused: only query-yank is sent out of band", clean(c.ExecOOB))
	}
	switch c.name() {
	case "qmp_capabilities", // the negotiation itself
		"query-status", "query-version", "query-name", "query-uuid", "query-kvm",
		"query-chardev", "query-cpus-fast", "query-yank", "query-migrate",
		"query-block", "query-named-block-nodes":
		return nil
	}
	return fmt.Errorf("command %q refused: not on the list of commands that only read", clean(c.name()))
}
