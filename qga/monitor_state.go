package qga

import (
	"encoding/json"
	"fmt"
	"time"
)

const (
	// resetWindow: a RESET by the guest this soon after another, or after it
	// began to boot, is the same one. Firmware resets the machine once more on
	// its own: SeaBIOS some 40 ms after RESUME and after each reset, seen on
	// QEMU 7.2; on a starved host that took more than a second.
	resetWindow = 5 * time.Second
	// stopGrace is how long the STOP may take that an event has announced.
	// Until it comes query-status still says "running", and that must not
	// take the bad news back.
	stopGrace = 250 * time.Millisecond
)

// needs says what a change makes worth asking for.
type needs uint

const (
	needStatus needs = 1 << iota
	needChardev
	needBlock
)

// A qmpTracker turns what a monitor says into a VMState. It is pure: it knows
// neither connection nor clock.
type qmpTracker struct {
	s         VMState
	agentPath string

	// STOP was announced: the status it will bring, and until when to wait.
	announced      string
	announcedUntil time.Time

	// A live migration is under way: MIGRATION told, which QEMU sends only if
	// somebody has asked it to (libvirt does).
	migrating bool

	lastBoot  time.Time // the last RESET that counted, or the first RESUME
	agentPort string    // label of the agent's chardev, once matched
}

// attach begins a connection to the QEMU with the given identity. started is
// when its process began, as far as can be told.
func (t *qmpTracker) attach(id identity, version string, started time.Time) {
	if instance := id.String(); instance != t.s.Instance {
		t.s = VMState{
			Instance: instance,
			Resets:   t.s.Resets, Panics: t.s.Panics, IOErrors: t.s.IOErrors, Events: t.s.Events,
			StartedAt: started, // status takes it back for a guest not begun
		}
		t.announced, t.lastBoot, t.agentPort = "", time.Time{}, ""
	}
	t.s.Name, t.s.UUID, t.s.Version = id.name, id.uuid, version
	t.s.Link, t.s.LinkErr = LinkUp, nil
}

// detach ends a connection: what can change unseen is forgotten.
func (t *qmpTracker) detach() {
	t.s.Status, t.s.AgentPort, t.s.IOError = "", PortUnknown, nil
	t.announced = ""
	t.migrating = false
}

// setStatus takes a status over, and what hangs on it.
func (t *qmpTracker) setStatus(status string, at time.Time) {
	before := t.s.Status
	t.s.Status = status
	switch status {
	case "prelaunch": // not begun, or reset, perhaps unseen
		t.s.StartedAt = time.Time{}
		t.s.Panic, t.s.Shutdown, t.s.CrashDumping = nil, nil, false
	case "inmigrate":
		t.s.StartedAt = time.Time{}
		t.s.Incoming = true
		if t.s.AgentPort == PortClosed { // see setPort
			t.s.AgentPort = PortUnknown
		}
	case "running":
		if t.s.StartedAt.IsZero() {
			t.s.StartedAt = at
			t.lastBoot = at
		}
		t.s.Shutdown = nil
	}
	if status != "io-error" {
		t.s.IOError = nil
	}
	if before != status && status != t.announced {
		t.announced = ""
	}
}

// announce takes over a status whose STOP is on its way.
func (t *qmpTracker) announce(status string, now time.Time) {
	t.setStatus(status, now)
	t.announced, t.announcedUntil = status, now.Add(stopGrace)
}

// status takes a reply to query-status in. Where it contradicts a STOP that
// was announced a moment ago, it returns when to ask again.
func (t *qmpTracker) status(result json.RawMessage, now time.Time) (n needs, again time.Time, err error) {
	var info struct {
		Status string `json:"status"`
	}
	if err := json.Unmarshal(result, &info); err != nil {
		return 0, time.Time{}, fmt.Errorf("query-status: %w: %s", ErrProtocol, clean(err.Error()))
	}
	if t.announced != "" && info.Status == "running" && now.Before(t.announcedUntil) {
		return 0, t.announcedUntil, nil
	}
	t.announced = ""
	n = t.arrival(info.Status)
	t.setStatus(info.Status, now)
	if info.Status == "io-error" && t.s.IOError == nil {
		n |= needBlock
	}
	return n, time.Time{}, nil
}

// arrival returns what to ask when status says that a migrated guest is here:
// it has brought its agent along, with the port open, and no event tells.
func (t *qmpTracker) arrival(status string) needs {
	if t.s.Status == "inmigrate" && status != "inmigrate" {
		return needChardev
	}
	return 0
}

// event takes an event in. It tells at once what the event itself says, and
// returns what to ask for the rest.
func (t *qmpTracker) event(e qmpEvent, now time.Time) needs {
	t.s.Events++
	at := e.at
	if at.IsZero() || at.After(now) {
		at = now
	}
	switch e.name {
	case "STOP":
		t.stop(now)
		return needStatus
	case "RESUME":
		n := needStatus | t.arrival("running")
		t.announced = ""
		t.setStatus("running", at)
		return n
	case "SUSPEND":
		t.setStatus("suspended", at)
		return needStatus
	case "WAKEUP":
		return needStatus // it may wake to something else than running
	case "RESET":
		t.reset(e.data, at)
		return needStatus
	case "SHUTDOWN":
		t.shutdown(e.data, now)
		return needStatus
	case "GUEST_PANICKED":
		return t.panicked(e.data, now)
	case "GUEST_CRASHLOADED":
		t.s.CrashDumping = true
		return needStatus
	case "BLOCK_IO_ERROR":
		return t.ioError(e.data, now)
	case "WATCHDOG":
		if eventAction(e.data) == "pause" {
			t.announce("watchdog", now)
		}
		return needStatus
	case "VSERPORT_CHANGE":
		t.portChange(e.data)
		return needChardev
	case "MIGRATION":
		t.migrating = isMigrating(e.data)
		return needStatus
	case "MIGRATION_PASS", "SUSPEND_DISK", "POWERDOWN", "COLO_EXIT":
		return needStatus
	}
	return 0
}

func (t *qmpTracker) stop(now time.Time) {
	if t.announced != "" {
		t.announced = ""
		return
	}
	// The word for it ("paused", "save-vm", "finish-migrate", …) comes with
	// query-status; that it runs no more is certain now.
	switch t.s.Status {
	case "running", "":
		word := "paused"
		if t.migrating {
			word = "finish-migrate"
		}
		t.setStatus(word, now)
	}
}

func (t *qmpTracker) reset(data json.RawMessage, at time.Time) {
	var reset struct {
		Guest bool `json:"guest"`
	}
	_ = json.Unmarshal(data, &reset) // no data: count it
	t.s.Panic, t.s.CrashDumping, t.s.Shutdown, t.s.Incoming = nil, false, nil, false
	repeated := reset.Guest && !t.lastBoot.IsZero() && at.Sub(t.lastBoot).Abs() < resetWindow
	if !repeated {
		t.s.Resets++
		t.lastBoot = at
	}
	switch t.s.Status {
	case "inmigrate", "finish-migrate":
	case "running", "":
		if !repeated {
			t.s.StartedAt = at
		}
	default:
		// A guest that was stopped boots when it is resumed (qemu-10.0
		// system/runstate.c main_loop_should_exit).
		t.setStatus("prelaunch", at)
	}
}

func (t *qmpTracker) shutdown(data json.RawMessage, now time.Time) {
	var end struct {
		Guest  bool   `json:"guest"`
		Reason string `json:"reason"`
	}
	_ = json.Unmarshal(data, &end) // that it ended is known without
	t.announce("shutdown", now)
	t.s.Shutdown = &Shutdown{Guest: end.Guest, Reason: clean(end.Reason)}
}

func (t *qmpTracker) panicked(data json.RawMessage, now time.Time) needs {
	p := decodePanic(data)
	t.s.Panic = &p
	t.s.Panics++
	switch p.Action {
	case "pause", "poweroff": // both stop it first
		t.announce("guest-panicked", now)
	}
	return needStatus
}

func (t *qmpTracker) ioError(data json.RawMessage, now time.Time) needs {
	t.s.IOErrors++
	e, action, byNode := decodeIOError(data)
	if action != "stop" {
		return 0
	}
	// Requests in flight go on failing while a VM is stopped for another
	// reason, and do not change that reason.
	if t.s.Status != "running" && t.s.Status != "" {
		return needStatus
	}
	t.announce("io-error", now)
	t.s.IOError = &e
	if byNode {
		return needStatus | needBlock
	}
	return needStatus
}
