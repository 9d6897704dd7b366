package handlers_test

import (
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/guestprobe/guestprobe/test/daemon"
	"github.com/guestprobe/guestprobe/test/guest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// handlers are all there are, as they succeed in the guest, and what makes the guest fail them.
type handler struct {
	name, probe string
	down, up    string // in the guest
	reason      string
	detail      string // a part of it
}

func handlers() []handler {
	const broken, well = "echo 500 >/run/guestd.code", "echo 200 >/run/guestd.code"
	const suspend, resume = "kill -STOP $(pidof guestd)", "kill -CONT $(pidof guestd)"
	return []handler{
		{"http", "httpGet: {port: WEB, path: /healthz}", broken, well, "ProbeFailed", "HTTP probe failed with statuscode: 500"},
		{"https", "httpGet: {port: TLS, path: /healthz, scheme: HTTPS}", broken, well, "ProbeFailed", "HTTP probe failed with statuscode: 500"},
		{"verified", "httpGet: {port: TLS, path: /healthz, scheme: HTTPS}, tls: {verify: true, serverName: guest, caFile: CAFILE}", suspend, resume, "ProbeFailed", ""},
		{"tcp", "tcpSocket: {port: SSH}", "", "", "", ""}, // QEMU's user network accepts for the guest: it cannot fail here
		{"expect", `tcpSocket: {port: SSH}, expect: "^SSH-2.0-[a-z]+\r\n"`, suspend, resume, "ProbeFailed", "no byte received, expected"},
		{"send", `tcpSocket: {port: WEB}, send: "GET /healthz HTTP/1.0\r\n\r\n", expect: "^HTTP/1.0 200 OK"`, broken, well, "ProbeFailed", "HTTP/1.0 500"},
		{"grpc", "grpc: {port: WEB}", suspend, resume, "ProbeFailed", "timeout: "},
		{"grpcs", "grpc: {port: TLS}, tls: {verify: true, serverName: guest, caFile: CAFILE}", suspend, resume, "ProbeFailed", "timeout: "},
		{"exec", `exec: {command: [sh, -c, "cat /run/says >&2; test ! -e /run/drain"]}`, "touch /run/drain", "rm /run/drain", "ProbeFailed", "sh: exit code 1: out of order"},
		{"ping", "guestAgentPing: {}", "agent stop", "agent cont", "AgentTimeout", "guest-ping"},
	}
}

// TestHandlers boots one guest for all. Its parts build on one another.
func TestHandlers(t *testing.T) {
	binary := daemon.Build(t)
	vm := guest.Start(t, guest.Options{})
	secure := forward(t, vm, 1543)
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	on := func(t *testing.T, manifest string) *daemon.Daemon {
		t.Helper()
		_, port, err := net.SplitHostPort(secure)
		if err != nil {
			t.Fatal(err)
		}
		manifest = strings.NewReplacer("TLS", port, "CAFILE", caFile).Replace(manifest)
		return daemon.On(t, binary, t.Name(), vm, "apiVersion: guestprobe.dev/v1alpha1\nkind: GuestProbes\nspec:\n"+manifest)
	}
	for _, part := range []struct {
		name string
		run  func(t *testing.T, vm *guest.VM, on func(*testing.T, string) *daemon.Daemon)
	}{
		{"each kind from boot on", func(t *testing.T, vm *guest.VM, on func(*testing.T, string) *daemon.Daemon) {
			fromBoot(t, vm, on, secure, caFile)
		}},
		{"each failure has its reason", failures},
		{"warnings fail nothing", warnings},
		{"named ports", namedPorts},
		{"exec: arguments, ends and output", execResults},
		{"exec: one process at most", execHangs},
		{"exec: disabled in the guest", execDisabled},
	} {
		if !t.Run(part.name, func(t *testing.T) { vm.Use(t); part.run(t, vm, on) }) {
			t.FailNow() // the guest is in no known state
		}
	}
}

// forward has QEMU lead a port here to one of the guest's, and returns it.
func forward(t *testing.T, vm *guest.VM, port int) string {
	t.Helper()
	monitor := func(line string) (text string) {
		vm.Command("human-monitor-command", map[string]any{"command-line": line}, &text)
		return text
	}
	refused := monitor(fmt.Sprintf("hostfwd_add net0 tcp:127.0.0.1:0-:%d", port))
	match := regexp.MustCompile(fmt.Sprintf(`HOST_FORWARD\]\s+\d+\s+(\S+)\s+(\d+)\s+\S+\s+%d\s`, port)).FindStringSubmatch(monitor("info usernet"))
	if match == nil {
		t.Fatalf("QEMU forwards nothing to port %d: %s", port, refused)
	}
	return net.JoinHostPort(match[1], match[2])
}

// fromBoot runs every handler as a startup, a readiness and a liveness check of one daemon that is there before the
// guest has booted.
func fromBoot(t *testing.T, vm *guest.VM, on func(*testing.T, string) *daemon.Daemon, secure, caFile string) {
	// The authority is known only once the server is up; until then the file is missing, which is the probe's failure.
	manifest := "  checks:\n"
	for _, kind := range []string{"startup", "readiness", "liveness"} {
		for _, h := range handlers() {
			threshold := 3
			if kind == "startup" {
				threshold = 600
			}
			manifest += fmt.Sprintf("  - {name: %s-%s, kind: %s, %s, periodSeconds: 1, timeoutSeconds: 5, failureThreshold: %d}\n", kind, h.name, kind, h.probe, threshold)
		}
	}
	d := on(t, manifest)
	s := d.Await(daemon.Verdict{Reason: "Starting", Live: true})
	if s.Started {
		t.Error("started before the guest has booted")
	}
	vm.WaitReady()
	vm.Run("echo out of order >/run/says")
	fetchCA(t, secure, caFile)
	s = d.Await(daemon.Verdict{Reason: "Ready", Ready: true, Live: true})
	if !s.Started || len(s.Checks) != 3*len(handlers()) {
		t.Errorf("started %v, %d checks", s.Started, len(s.Checks))
	}
	s = d.Until("a round of each check", func(s daemon.Status) error {
		for _, c := range s.Checks {
			if c.State != "success" || c.Runs == 0 {
				return fmt.Errorf("%s: %s after %d rounds: %s", c.Name, c.State, c.Runs, c.Error)
			}
		}
		return nil
	})
	for _, c := range s.Checks {
		if (c.Step == "done") != (c.Kind == "startup") {
			t.Errorf("%s: step %s", c.Name, c.Step)
		}
		if c.Kind == "liveness" && c.Failures > 0 {
			t.Errorf("%s failed %d times in a boot that its startup checks guard: %+v", c.Name, c.Failures, c.History)
		}
	}
	d.Stop()
}

// fetchCA writes the certificate that the guest's server shows, which is its own authority, to a file.
func fetchCA(t *testing.T, addr, file string) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var conn *tls.Conn
	for deadline := time.After(time.Minute); conn == nil; { // it makes its key when it starts
		var err error
		if conn, err = tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, ServerName: "guest"}); err == nil {
			break
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("the guest's HTTPS server: %v", err)
		}
	}
	defer conn.Close()
	block := &pem.Block{Type: "CERTIFICATE", Bytes: conn.ConnectionState().PeerCertificates[0].Raw}
	if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
}

// failures makes the guest fail each handler in turn, as the only check there is.
func failures(t *testing.T, vm *guest.VM, on func(*testing.T, string) *daemon.Daemon) {
	for _, h := range handlers() {
		t.Run(h.name, func(t *testing.T) {
			vm.Use(t)
			d := on(t, fmt.Sprintf("  readinessProbe: {%s, periodSeconds: 1, timeoutSeconds: 1, failureThreshold: 2}\n", h.probe))
			ready := daemon.Verdict{Reason: "Ready", Ready: true, Live: true}
			d.Await(ready)
			if h.down == "" {
				return
			}
			vm.Run(h.down)
			d.Await(daemon.Verdict{Reason: h.reason, Live: true, Detail: h.detail})
			vm.Run(h.up)
			d.Await(ready)
			d.Stop()
		})
	}
	// The four reasons of TLS are held apart in package sidecar. One, against the guest's own server:
	d := on(t, "  readinessProbe: {httpGet: {port: TLS, scheme: HTTPS}, tls: {verify: true, serverName: shop, caFile: CAFILE}, periodSeconds: 1, timeoutSeconds: 5}\n")
	d.Await(daemon.Verdict{Reason: "ProbeFailed", Live: true, Detail: "TLSName: "})
	d.Stop()
}

// warnings has every handler warn and fail, with nothing else to decide by but the agent.
func warnings(t *testing.T, vm *guest.VM, on func(*testing.T, string) *daemon.Daemon) {
	manifest := "  readinessProbe: {guestAgentPing: {}, periodSeconds: 1, timeoutSeconds: 5}\n  checks:\n"
	failing := 0
	for _, h := range handlers() {
		if h.down == "" || h.name == "ping" {
			continue
		}
		failing++
		manifest += fmt.Sprintf("  - {name: %s, kind: liveness, severity: warn, %s, periodSeconds: 1, timeoutSeconds: 1, failureThreshold: 2}\n", h.name, h.probe)
		vm.Run(h.down)
	}
	d := on(t, manifest)
	d.Await(daemon.Verdict{Reason: "Ready", Ready: true, Live: true})
	const record = "check fails, with severity warn"
	d.Until("every warning", func(s daemon.Status) error {
		_, body, err := d.Get("/livez?verbose")
		n, logged := strings.Count(body, " warning: ProbeFailed: "), strings.Count(d.Output(), record)
		if err == nil && (n != failing || logged != failing) {
			err = fmt.Errorf("of %d warnings %d, %d of them logged:\n%s", failing, n, logged, body)
		}
		if err == nil && !(s.Ready && s.Live) {
			err = fmt.Errorf("ready %v, live %v", s.Ready, s.Live)
		}
		return err
	})
	for _, h := range handlers() {
		if h.up != "" && h.name != "ping" {
			vm.Run(h.up + " || true") // some are undone by one command
		}
	}
	d.Until("no warning", func(daemon.Status) error {
		_, body, err := d.Get("/livez?verbose")
		if err == nil && strings.Contains(body, "warning") {
			err = fmt.Errorf("still warned:\n%s", body)
		}
		return err
	})
	d.Stop()
}

// namedPorts are those of the instance's interfaces.
func namedPorts(t *testing.T, vm *guest.VM, _ func(*testing.T, string) *daemon.Daemon) {
	d := daemon.On(t, daemon.Build(t), t.Name(), vm, `apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: shop}
spec:
  domain:
    devices:
      interfaces:
      - {name: default, masquerade: {}, ports: [{name: ssh, port: SSH}, {name: web, port: WEB}]}
  readinessProbe: {httpGet: {port: web, path: /healthz}, periodSeconds: 2, timeoutSeconds: 1}
  livenessProbe: {tcpSocket: {port: ssh}, periodSeconds: 2, timeoutSeconds: 1, terminationGracePeriodSeconds: 5}
`)
	d.Await(daemon.Verdict{Reason: "Ready", Ready: true, Live: true})
	d.Until("a round of each", func(s daemon.Status) error {
		if s.Check("readinessProbe").Outcome != "success" || s.Check("livenessProbe").Outcome != "success" {
			return fmt.Errorf("%+v", s.Checks)
		}
		return nil
	})
	d.Stop()
}

func execResults(t *testing.T, vm *guest.VM, on func(*testing.T, string) *daemon.Daemon) {
	args := []string{"", `"`, `\`, `\\"`, "é€😀", "<>&'", "a  b", "${HOME}", "$(date)", "\t\n\x01", "--guestAgentPing", "--", "*"}
	command, err := json.Marshal(append([]string{"sh", "-c", `printf "%s\0" "$@" >/run/args`, "sh"}, args...))
	if err != nil {
		t.Fatal(err)
	}
	d := on(t, "  readinessProbe: {exec: {command: "+string(command)+"}, periodSeconds: 1, timeoutSeconds: 5}\n")
	d.Await(daemon.Verdict{Reason: "Ready", Ready: true, Live: true})
	got := vm.Run(`hexdump -v -e '1/1 "%02x"' /run/args; echo`)
	if want := hex.EncodeToString([]byte(strings.Join(args, "\x00") + "\x00")); strings.TrimSpace(got) != want {
		t.Errorf("in the guest the arguments are %s, want %s", got, want)
	}
	d.Stop()

	for _, tt := range []struct{ command, detail string }{
		{`[sh, -c, "echo out; echo err >&2; exit 42"]`, "sh: exit code 42: out err"},
		{`[sh, -c, "kill -9 $$$$"]`, "sh: killed by signal 9"},
		{`[/no/such/program]`, "No such file or directory"},
		{`[virt-probe, --domainName, a_b, --timeoutSeconds, "5", --command, sh, --, -c, "echo $0; exit 3", --command]`, "sh: exit code 3: --command"},
	} {
		d := on(t, "  readinessProbe: {exec: {command: "+tt.command+"}, periodSeconds: 1, timeoutSeconds: 5, failureThreshold: 1}\n")
		reason := "ProbeFailed"
		if strings.Contains(tt.detail, "No such file") {
			reason = "AgentError" // it answers that it could not
		}
		d.Await(daemon.Verdict{Reason: reason, Live: true, Detail: tt.detail})
		d.Stop()
	}

	d = on(t, `  readinessProbe: {exec: {command: [sh, -c, "yes 0123456789 | head -n 2000; exit 5"]}, periodSeconds: 1, timeoutSeconds: 5, failureThreshold: 1}`+"\n")
	d.Await(daemon.Verdict{Reason: "ProbeFailed", Live: true, Detail: "sh: exit code 5: 0123456789 0123456789"})
	if output := output(t, d); len(output) != 10<<10 || !strings.HasPrefix(output, "0123456789\n0123456789\n") {
		t.Errorf("%d bytes of output in /status: %.30q", len(output), output)
	}
	d.Stop()
}

// output is what the first check's command printed.
func output(t *testing.T, d *daemon.Daemon) string {
	t.Helper()
	_, body, err := d.Get("/status")
	if err != nil {
		t.Fatal(err)
	}
	var s struct{ Checks []struct{ Output string } }
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		t.Fatal(err)
	}
	return s.Checks[0].Output
}

func execHangs(t *testing.T, vm *guest.VM, on func(*testing.T, string) *daemon.Daemon) {
	d := on(t, `  readinessProbe: {exec: {command: [sleep, "12345"]}, periodSeconds: 1, failureThreshold: 1}`+"\n")
	d.Await(daemon.Verdict{Reason: "ProbeFailed", Live: true, Detail: " of an earlier round still runs in the guest"})
	runs := d.MustStatus().Checks[0].Runs
	d.Until("more rounds", func(s daemon.Status) error {
		if s.Checks[0].Runs < runs+4 {
			return fmt.Errorf("%d rounds", s.Checks[0].Runs)
		}
		return nil
	})
	count := func() string { return strings.TrimSpace(vm.Run("pidof sleep | wc -w")) }
	if n := count(); n != "1" {
		t.Errorf("%s processes in the guest", n)
	}
	// The guest reboots: the process is gone, and one takes its place.
	vm.Reset()
	vm.WaitReady()
	d.Await(daemon.Verdict{Reason: "ProbeFailed", Live: true, Detail: " of an earlier round still runs in the guest"})
	if n := count(); n != "1" {
		t.Errorf("%s processes in the guest after a reboot", n)
	}
	// It ends, and the next round begins another.
	before := vm.Run("pidof sleep")
	vm.Run("kill $(pidof sleep)")
	d.Until("another process", func(daemon.Status) error {
		if now := vm.Run("pidof sleep || true"); now == "" || now == before {
			return fmt.Errorf("process %q", now)
		}
		return nil
	})
	d.Stop()
	vm.Run("kill $(pidof sleep)")
}

func execDisabled(t *testing.T, vm *guest.VM, on func(*testing.T, string) *daemon.Daemon) {
	vm.AgentKill()
	const port = guest.AgentPort
	vm.Run("qemu-ga -d -b guest-exec -m virtio-serial -p /dev/virtio-ports/" + port + " -t /run/agent/" + port + " -f /run/agent/" + port + ".pid")
	d := on(t, `  readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1, failureThreshold: 1}
  livenessProbe: {guestAgentPing: {}, periodSeconds: 1, timeoutSeconds: 5, failureThreshold: 1}
`)
	s := d.Await(daemon.Verdict{Reason: "AgentUnsupported", Live: true})
	connects, resyncs, runs := s.Agent.Connects, s.Agent.Resyncs, s.Checks[0].Runs
	s = d.Until("more rounds", func(s daemon.Status) error {
		if s.Checks[0].Runs < runs+4 || s.Checks[1].State != "success" || s.Checks[1].Runs < 3 {
			return fmt.Errorf("%d rounds; the ping: %s after %d", s.Checks[0].Runs, s.Checks[1].State, s.Checks[1].Runs)
		}
		return nil
	})
	if s.Agent.Connects != connects || s.Agent.Resyncs != resyncs || s.Check("livenessProbe").Failures != 0 || !s.Live {
		t.Errorf("%d connections and %d resyncs became %d and %d; live %v", connects, resyncs, s.Agent.Connects, s.Agent.Resyncs, s.Live)
	}
	d.Stop()
}
