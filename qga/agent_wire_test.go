package qga

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/qga/qgatest"
)

type wireCase struct {
	Name  string `json:"name"`
	TX    string `json:"tx_hex"`
	RX    string `json:"rx_exact_hex"`
	After string `json:"after"`
	Dirty bool   `json:"leaves_parser_dirty"`
}

// runWire runs one raw exchange, with those that it comes after before it.
func runWire(t *testing.T, agent *caseAgent, all []wireCase, c wireCase, exact bool) {
	if c.After != "" {
		i := slices.IndexFunc(all, func(w wireCase) bool { return w.Name == c.After })
		runWire(t, agent, all, all[i], exact)
	}
	tx, err := hex.DecodeString(c.TX)
	if err != nil {
		t.Fatal(err)
	}
	want, err := hex.DecodeString(c.RX)
	if err != nil {
		t.Fatal(err)
	}
	conn := agent.dial(t)
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(long))
	if _, err := conn.Write(tx); err != nil {
		t.Fatal(err)
	}
	var got []byte
	in := newLineReader(conn)
	for range bytes.Count(want, []byte("\n")) {
		line, err := in.next(false)
		if err != nil {
			t.Fatalf("after %q: %v", got, err)
		}
		got = append(append(got, line...), '\n')
	}
	// And nothing more comes.
	conn.SetReadDeadline(time.Now().Add(short))
	if line, err := in.next(false); len(line) > 0 || !os.IsTimeout(err) {
		t.Errorf("after the reply came %q, %v", line, err)
	}
	if exact && !bytes.Equal(got, want) {
		t.Errorf("%q\n got %q\nwant %q", tx, got, want)
	}
	if !exact && shape(got) != shape(want) {
		t.Errorf("%q\n got %q\nwant the likes of %q", tx, got, want)
	}
}

// shape reduces replies to what must not differ from version to version.
func shape(lines []byte) string {
	var out []string
	for line := range bytes.Lines(lines) {
		kind := "other"
		for _, k := range []string{"return", "error"} {
			if bytes.Contains(line, []byte(`"`+k+`":`)) {
				kind = k
			}
		}
		out = append(out, fmt.Sprintf("%v %s", line[0] == sentinel, kind))
	}
	return strings.Join(out, ",")
}

// The simulated agent answers as the real one, byte by byte, in all that it
// claims to know.
func TestFakeAgentWire(t *testing.T) {
	t.Parallel()
	all := readCases(t).Wire
	for _, c := range all {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			runWire(t, fakeCaseAgent(t, qgatest.AgentConfig{}), all, c, true)
		})
	}
}

func TestFakeAgentCases(t *testing.T) {
	t.Parallel()
	known := []string{
		"guest-sync", "guest-sync-delimited", "guest-ping", "guest-info", "guest-fsfreeze-status",
		"guest-exec", "guest-exec-status", "guest-get-time", "guest-get-fsinfo",
		"guest-invalid-cmd", // must be unknown
	}
	ran := 0
	for _, c := range readCases(t).Cases {
		if c.OS == "windows" || newer(c.Since, "7.2") || c.Setup.NoSocket {
			continue
		}
		if slices.ContainsFunc(c.Steps, func(s caseStep) bool {
			name, ok := s.Send["execute"].(string)
			return s.CheckFile != "" || ok && !slices.Contains(known, name)
		}) {
			continue
		}
		ran++
		t.Run(c.Name, func(t *testing.T) {
			cfg := qgatest.AgentConfig{
				Exec: echo,
				Commands: map[string]func(json.RawMessage) (any, error){
					"guest-get-time":   func(json.RawMessage) (any, error) { return time.Now().UnixNano(), nil },
					"guest-get-fsinfo": func(json.RawMessage) (any, error) { return []any{}, nil },
				},
			}
			if len(c.Setup.Args) == 2 && c.Setup.Args[0] == "-b" {
				cfg.Blocked = strings.Split(c.Setup.Args[1], ",")
			}
			fakeCaseAgent(t, cfg).run(t, c.Steps)
		})
	}
	if ran < 12 {
		t.Errorf("only %d cases apply", ran)
	}
}

// echo is a guest whose only program is echo -n.
func echo(e qgatest.Exec) (qgatest.Process, error) {
	if e.Path != "echo" || len(e.Args) != 2 || e.Args[0] != "-n" {
		return qgatest.Process{}, fmt.Errorf("Failed to execute child process “%s” (No such file or directory)", e.Path)
	}
	return qgatest.Process{Stdout: []byte(e.Args[1])}, nil
}

func fakeCaseAgent(t *testing.T, cfg qgatest.AgentConfig) *caseAgent {
	fake := fakeAgent(t, cfg)
	return &caseAgent{
		dial: func(t *testing.T) net.Conn {
			if err := fake.WaitHost(within(t, long), false); err != nil {
				t.Fatal(err)
			}
			return rawClient(t, fake)
		},
		vars: map[string]any{
			"rand_u32":     json.Number(fmt.Sprint(rand.Uint32())),
			"QEMU_VERSION": "7.2.22",
		},
	}
}

// newer reports whether version a is newer than b, both as "7.2".
func newer(a, b string) bool {
	var am, an, bm, bn int
	fmt.Sscanf(a, "%d.%d", &am, &an)
	fmt.Sscanf(b, "%d.%d", &bm, &bn)
	return am > bm || am == bm && an > bn
}
