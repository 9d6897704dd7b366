package qga

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// An identity tells one QEMU process from the next on the same address.
//
// No single source does that everywhere. QMP has no word for it: a restarted
// VM has the same name and UUID. The kernel tells the peer's process id, but
// zero where the two are in different PID namespaces, as in a pod. There the
// id of the first vCPU's thread and the socket file, which each QEMU makes
// anew, take its place.
type identity struct {
	name, uuid string
	peer       process // pid 0 where it cannot be seen
	vcpu       int     // thread id of the vCPU with the lowest index, as QEMU sees it
	socket     socketFile
}

// A process is the peer of a unix socket.
type process struct {
	pid     int
	ticks   uint64    // start time since boot, in clock ticks: tells a reused pid
	started time.Time // the same as a time of day; zero if unknown
	stopped bool      // by SIGSTOP or a debugger
}

// A socketFile is what tells a socket that was bound anew.
type socketFile struct {
	inode   uint64
	modTime time.Time // when it was bound
}

// String returns the identity as opaque text. Equal text means the same QEMU.
func (id identity) String() string {
	var b strings.Builder
	if id.name != "" {
		fmt.Fprintf(&b, "%s ", id.name)
	}
	if id.uuid != "" {
		fmt.Fprintf(&b, "%s ", id.uuid)
	}
	if id.peer.pid != 0 {
		fmt.Fprintf(&b, "pid %d", id.peer.pid)
		if id.peer.ticks != 0 {
			fmt.Fprintf(&b, "@%d", id.peer.ticks)
		}
	} else {
		fmt.Fprintf(&b, "socket %d", id.socket.inode)
		if !id.socket.modTime.IsZero() {
			fmt.Fprintf(&b, "@%d", id.socket.modTime.UnixMicro())
		}
	}
	if id.vcpu != 0 {
		fmt.Fprintf(&b, " vcpu %d", id.vcpu)
	}
	return b.String()
}

// started returns when the VM's process began, or the age of its socket, or
// the zero Time.
func (id identity) started() time.Time {
	// The kernel names who called listen, and with a socket handed over that
	// is not QEMU. The vCPU's thread proves that it is.
	if id.peer.pid != 0 && !id.peer.started.IsZero() {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", id.peer.pid, id.vcpu)); err == nil {
			return id.peer.started
		}
	}
	return id.socket.modTime
}

// identify collects what the connection and its socket file tell.
func identify(nc net.Conn, path string) identity {
	return identity{peer: peerProcess(nc), socket: statSocket(path)}
}

// statSocket returns the zero socketFile for a path that names no file, such
// as one in the abstract namespace.
func statSocket(path string) socketFile {
	if path == "" || path[0] == '@' {
		return socketFile{}
	}
	info, err := os.Stat(path)
	if err != nil {
		return socketFile{}
	}
	f := socketFile{modTime: info.ModTime()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		f.inode = st.Ino
	}
	return f
}

// peerProcess asks the kernel who listens at the other end (SO_PEERCRED).
func peerProcess(nc net.Conn) process {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return process{}
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return process{}
	}
	var cred *syscall.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err != nil || credErr != nil || cred.Pid <= 0 {
		return process{}
	}
	return readProcess(int(cred.Pid))
}

// readProcess reads /proc/PID/stat (proc(5)). What cannot be read stays zero.
func readProcess(pid int) process {
	p := process{pid: pid}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return p
	}
	state, ticks, err := parseProcStat(stat)
	if err != nil {
		return p
	}
	p.ticks = ticks
	p.stopped = state == 'T' || state == 't'
	if up, err := uptime(); err == nil {
		// USER_HZ is 100 on every Linux that Go runs on.
		p.started = time.Now().Add(time.Duration(ticks)*10*time.Millisecond - up)
	}
	return p
}

// parseProcStat returns the fields "state" and "starttime". The second field,
// the command in brackets, may hold anything, brackets and spaces included.
func parseProcStat(stat []byte) (state byte, startTicks uint64, err error) {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return 0, 0, errors.New("process status without a command")
	}
	fields := bytes.Fields(stat[i+1:])
	const stateField, startField = 0, 19 // the 3rd and the 22nd of all
	if len(fields) <= startField || len(fields[stateField]) != 1 {
		return 0, 0, errors.New("process status too short")
	}
	startTicks, err = strconv.ParseUint(string(fields[startField]), 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("process start time: %w", err)
	}
	return fields[stateField][0], startTicks, nil
}

// uptime returns the time since boot.
func uptime() (time.Duration, error) {
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), " ")
	seconds, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0, fmt.Errorf("uptime: %w", err)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// readName, readUUID and readVCPU take one reply each in. A reply of another
// shape leaves the identity as it is.

func (id *identity) readName(result json.RawMessage) {
	var d struct {
		Name string `json:"name"` // absent without -name
	}
	if json.Unmarshal(result, &d) == nil {
		id.name = clean(d.Name)
	}
}

func (id *identity) readUUID(result json.RawMessage) {
	var d struct {
		UUID string `json:"UUID"`
	}
	const unset = "00000000-0000-0000-0000-000000000000"
	if json.Unmarshal(result, &d) == nil && d.UUID != unset {
		id.uuid = clean(d.UUID)
	}
}

func (id *identity) readVCPU(result json.RawMessage) {
	var cpus []struct {
		Index  int `json:"cpu-index"`
		Thread int `json:"thread-id"`
	}
	if json.Unmarshal(result, &cpus) != nil || len(cpus) == 0 {
		return
	}
	first := cpus[0] // others come and go while the VM runs
	for _, c := range cpus {
		if c.Index < first.Index {
			first = c
		}
	}
	id.vcpu = first.Thread
}
