package qga

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"
)

// eventAction returns the action an event says QEMU takes, or "".
func eventAction(data json.RawMessage) string {
	var d struct {
		Action string `json:"action"`
	}
	_ = json.Unmarshal(data, &d) // no data, no action
	return d.Action
}

// isMigrating reports whether a MIGRATION event says that one is under way
// (qemu-10.0 qapi/migration.json MigrationStatus).
func isMigrating(data json.RawMessage) bool {
	var d struct {
		Status string `json:"status"`
	}
	_ = json.Unmarshal(data, &d) // no data, no migration
	switch d.Status {
	case "active", "pre-switchover", "device", "postcopy-device", "postcopy-active", "wait-unplug":
		return true
	}
	return false
}

// decodePanic reads the data of GUEST_PANICKED (qemu-10.0 qapi/run-state.json
// GuestPanicInformation). All of it is optional, and the guest wrote some of it.
func decodePanic(data json.RawMessage) Panic {
	var d struct {
		Action string `json:"action"`
		Info   struct {
			Type string `json:"type"`

			// hyper-v. The parameters are those of the Windows bug check.
			Arg1 uint64 `json:"arg1"`
			Arg2 uint64 `json:"arg2"`
			Arg3 uint64 `json:"arg3"`
			Arg4 uint64 `json:"arg4"`
			Arg5 uint64 `json:"arg5"`

			// s390
			Core   uint64 `json:"core"`
			Reason string `json:"reason"`

			// tdx
			ErrorCode uint64 `json:"error-code"`
			Message   string `json:"message"`
		} `json:"info"`
	}
	if err := json.Unmarshal(data, &d); err != nil {
		return Panic{Action: eventAction(data)}
	}
	p := Panic{Action: d.Action, Type: clean(d.Info.Type)}
	switch i := d.Info; i.Type {
	case "hyper-v":
		p.Detail = fmt.Sprintf("bug check 0x%x (0x%x, 0x%x, 0x%x, 0x%x)", i.Arg1, i.Arg2, i.Arg3, i.Arg4, i.Arg5)
	case "s390":
		p.Detail = fmt.Sprintf("core %d: %s", i.Core, clean(i.Reason))
	case "tdx":
		p.Detail = fmt.Sprintf("error 0x%x: %s", i.ErrorCode, clean(i.Message))
	}
	return p
}

// decodeIOError reads the data of BLOCK_IO_ERROR (qemu-10.0
// qapi/block-core.json) and the action QEMU takes. byNode: the device has only
// its block node's name, which tells people little.
func decodeIOError(data json.RawMessage) (e IOError, action string, byNode bool) {
	var d struct {
		Device   string `json:"device"`   // empty for -blockdev, and so for libvirt
		QOMPath  string `json:"qom-path"` // since 9.2
		NodeName string `json:"node-name"`
		Action   string `json:"action"`
		NoSpace  bool   `json:"nospace"`
		Reason   string `json:"reason"`
	}
	if err := json.Unmarshal(data, &d); err != nil {
		return IOError{}, eventAction(data), false
	}
	e = IOError{NoSpace: d.NoSpace, Reason: clean(d.Reason), Device: deviceName(d.Device, d.QOMPath, d.NodeName)}
	return e, d.Action, d.Device == "" && d.QOMPath == ""
}

// blocks takes a reply to query-block in while the VM is stopped by a block
// error. It finds the device for a monitor that came too late for
// BLOCK_IO_ERROR, or whose event was one too many for QEMU's rate limit, and a
// better name for one that is known by its node.
func (t *qmpTracker) blocks(result json.RawMessage) {
	if t.s.Status != "io-error" {
		return
	}
	var devices []struct {
		Device   string `json:"device"`
		QDev     string `json:"qdev"`
		IOStatus string `json:"io-status"`
		Inserted struct {
			NodeName string `json:"node-name"`
		} `json:"inserted"`
	}
	if err := json.Unmarshal(result, &devices); err != nil {
		return // nothing known is lost
	}
	for _, d := range devices {
		name := deviceName(d.Device, d.QDev, d.Inserted.NodeName)
		failed := d.IOStatus == "failed" || d.IOStatus == "nospace"
		switch known := t.s.IOError; {
		case known == nil && failed:
			t.s.IOError = &IOError{Device: name, NoSpace: d.IOStatus == "nospace"}
			return
		case known != nil && known.Device != "" && known.Device == clean(d.Inserted.NodeName):
			better := *known
			better.Device = name
			t.s.IOError = &better
			return
		}
	}
}

// firstNonEmpty returns the first name there is, fit for a log.
func firstNonEmpty(candidates ...string) string {
	for _, s := range candidates {
		if s != "" {
			return clean(s)
		}
	}
	return ""
}

// deviceName chooses the first name there is. Of a device's place in QEMU's
// object tree it keeps the id that its owner gave it.
func deviceName(device, qomPath, node string) string {
	if id, ok := strings.CutPrefix(qomPath, "/machine/peripheral/"); ok {
		qomPath = strings.TrimSuffix(id, "/virtio-backend")
	}
	return firstNonEmpty(device, qomPath, node)
}

// A chardev is one entry of query-chardev.
type chardev struct {
	Label    string `json:"label"`
	Filename string `json:"filename"`
	Open     bool   `json:"frontend-open"`
}

// decodeChardevs reads a reply to query-chardev.
func decodeChardevs(result json.RawMessage) ([]chardev, error) {
	var list []chardev
	if err := json.Unmarshal(result, &list); err != nil {
		return nil, fmt.Errorf("query-chardev: %w: %s", ErrProtocol, clean(err.Error()))
	}
	return list, nil
}

// path returns the socket path in the filename, which reads
// "[disconnected:]unix:PATH,server=on" (qemu-10.0 chardev/char-socket.c
// qemu_chr_socket_address), or "" for another kind.
func (c chardev) path() string {
	name := strings.TrimPrefix(c.Filename, "disconnected:")
	name, ok := strings.CutPrefix(name, "unix:")
	if !ok {
		return ""
	}
	if i := strings.LastIndex(name, ",server"); i >= 0 {
		name = name[:i]
	}
	return name
}

// agentPortName is the name of the virtio-serial port of a guest agent, which
// libvirt puts at the end of the socket's path.
const agentPortName = "org.qemu.guest_agent.0"

// findAgent returns the agent's chardev, or nil. want is a socket path or the
// name of a chardev, a device or a port; empty: the standard port's name.
func findAgent(list []chardev, want string) *chardev {
	if want == "" {
		want = agentPortName
	}
	for i, c := range list {
		// libvirt's chardev of device channel0 is charchannel0.
		if c.path() == want || c.Label == want || c.Label == "char"+want {
			return &list[i]
		}
	}
	// The same socket under another mount: the last element, if it is the only
	// one of that name.
	var found *chardev
	for i, c := range list {
		if p := c.path(); p != "" && path.Base(p) == path.Base(want) {
			if found != nil {
				return nil
			}
			found = &list[i]
		}
	}
	return found
}

// chardevs takes a reply to query-chardev in.
func (t *qmpTracker) chardevs(list []chardev) {
	c := findAgent(list, t.agentPath)
	if c == nil {
		t.agentPort = ""
		t.s.AgentPort = PortUnknown
		return
	}
	t.agentPort = c.Label
	t.setPort(c.Open)
}

// portChange takes VSERPORT_CHANGE in. Its id is the device's, which need not
// tell the chardev: query-chardev decides where the two names do not match.
func (t *qmpTracker) portChange(data json.RawMessage) {
	var d struct {
		ID   string `json:"id"`
		Open bool   `json:"open"`
	}
	if err := json.Unmarshal(data, &d); err != nil || d.ID == "" {
		return
	}
	if d.ID == t.agentPath || t.agentPort != "" && (d.ID == t.agentPort || "char"+d.ID == t.agentPort) {
		t.setPort(d.Open)
	}
}

func (t *qmpTracker) setPort(open bool) {
	switch {
	case open:
		t.s.AgentPort = PortOpen
		t.s.AgentEverOpen = true
	case t.s.Status == "inmigrate":
		// Nobody is here yet who could have it open. That is no news of an
		// agent, which must not be said of the guest once it has arrived.
		t.s.AgentPort = PortUnknown
	default:
		t.s.AgentPort = PortClosed
	}
}

// ownedByLibvirt reports whether the monitor at socketPath is the one through
// which libvirt manages the VM. Whoever holds that keeps libvirt out: it loses
// the domain when it restarts.
func ownedByLibvirt(list []chardev, socketPath string) bool {
	for _, c := range list {
		if c.Label == "charmonitor" && sameSocket(c.path(), socketPath) {
			return true
		}
	}
	return false
}

// sameSocket compares paths that may be seen through different mounts:
// libvirt's is …/domain-1-NAME/monitor.sock.
func sameSocket(a, b string) bool {
	if a == b {
		return true
	}
	return path.Base(a) == path.Base(b) && path.Base(path.Dir(a)) == path.Base(path.Dir(b))
}
