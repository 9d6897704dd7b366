package states_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/test/daemon"
)

// agent starts an agent on the spare port, with more of qemu-ga's options, or sends its agent a signal ("stop",
// "cont", "kill").
func (m *machine) agent(what string, options ...string) {
	if what != "start" {
		m.vm.Run("agent " + what + " " + sparePort)
		return
	}
	m.vm.Run(strings.ReplaceAll("mkdir -p /run/agent/PORT && qemu-ga -d -m virtio-serial -p /dev/virtio-ports/PORT -t /run/agent/PORT -f /run/agent/PORT.pid ",
		"PORT", sparePort) + strings.Join(options, " "))
}

// verbose asks that a line of /readyz?verbose begins in this way.
func verbose(t *testing.T, d *daemon.Daemon, begin string) {
	t.Helper()
	_, body, err := d.Get("/readyz?verbose")
	if err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, begin) {
			return
		}
	}
	t.Errorf("no line begins with %q:\n%s", begin, body)
}

func agentConditions(t *testing.T, m *machine) {
	ready := daemon.Verdict{Reason: "Ready", Ready: true, Live: true}
	d := m.extra(t, "the spare agent", `
  readinessProbe: {guestAgentPing: {}, periodSeconds: 1, failureThreshold: 2}
  checks:
  - {name: command, kind: readiness, exec: {command: [/bin/true]}, periodSeconds: 1, failureThreshold: 2}
`)
	for _, c := range []struct {
		name  string
		bring func()
		want  daemon.Verdict
		lines []string
	}{
		{"never connected", func() {},
			daemon.Verdict{Reason: "AgentNotConnected", Live: true, Detail: "no guest agent has connected since"}, nil},
		{"it starts", func() { m.agent("start") }, ready, []string{"[+]readinessProbe ok", "[+]command ok"}},
		{"port closed", func() { m.agent("kill") },
			daemon.Verdict{Reason: "AgentNotConnected", Live: true, Detail: "closed its channel"}, nil},
		{"it starts again", func() { m.agent("start") }, ready, nil},
		{"silent", func() { m.agent("stop") }, daemon.Verdict{Reason: "AgentTimeout", Live: true}, nil},
		{"it goes on", func() { m.agent("cont") }, ready, nil},
		{"said no: guest-ping is blocked", func() { m.agent("kill"); m.agent("start", "-b guest-ping") }, ready,
			[]string{"[+]readinessProbe warning: AgentUnsupported", "[+]command ok"}},
		{"command disabled: guest-exec is blocked", func() { m.agent("kill"); m.agent("start", "-b guest-exec") },
			daemon.Verdict{Reason: "AgentUnsupported", Live: true, Detail: "command: /bin/true: "},
			[]string{"[+]readinessProbe ok", "[-]command failed: AgentUnsupported"}},
		{"nothing is blocked", func() { m.agent("kill"); m.agent("start") }, ready, []string{"[+]readinessProbe ok", "[+]command ok"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m.use(t)
			d.Use(t)
			before := d.MustStatus()
			c.bring()
			if c.want.Ready && len(c.lines) > 0 { // a new agent may be there before the old one's end was noticed
				d.Until("two rounds", func(s daemon.Status) error {
					for i, check := range s.Checks {
						if check.Runs < before.Checks[i].Runs+2 {
							return fmt.Errorf("%s has had %d rounds", check.Name, check.Runs)
						}
					}
					return nil
				})
			}
			s := d.Await(c.want)
			for _, begin := range c.lines {
				verbose(t, d, begin)
			}
			if s.Agent.Connects != 1 {
				t.Errorf("%d connections to one socket", s.Agent.Connects)
			}
		})
	}
	d.Stop()
	m.agent("kill")
}

func execHandler(t *testing.T, m *machine) {
	m.agent("start")
	const hang = "sleep 7777"
	arguments := []string{`say "hi"`, `it's`, `C:\dir\n`, `ünï ✓ 日本`, "$HOME `id` ; & | <", ``, `{"execute":"guest-ping"}`}
	d := m.extra(t, "commands", fmt.Sprintf(`
  checks:
  - {name: zero, kind: readiness, exec: {command: [/bin/true]}, periodSeconds: 1}
  - {name: path, kind: readiness, exec: {command: [arguments, %s]}, periodSeconds: 1}
  - {name: three, kind: readiness, severity: warn, exec: {command: [/bin/sh, -c, "echo out; echo bad >&2; exit 3"]}, periodSeconds: 1, failureThreshold: 1}
  - {name: killed, kind: readiness, severity: warn, exec: {command: [/bin/sh, -c, "kill -9 $$$$"]}, periodSeconds: 1, failureThreshold: 1}
  - {name: missing, kind: readiness, severity: warn, exec: {command: [/no/such/file]}, periodSeconds: 1, failureThreshold: 1}
  - {name: hangs, kind: readiness, severity: warn, exec: {command: [%s]}, periodSeconds: 1, failureThreshold: 1}
`, quoted(arguments), quoted(strings.Fields(hang))))
	rounds := func(n int) daemon.Status {
		t.Helper()
		return d.Until("more rounds", func(s daemon.Status) error {
			for _, c := range s.Checks {
				if c.Runs < n {
					return fmt.Errorf("%s has had %d rounds", c.Name, c.Runs)
				}
			}
			return nil
		})
	}
	rounds(4)
	s := d.Await(daemon.Verdict{Reason: "Ready", Ready: true, Live: true})
	for _, c := range []struct{ check, outcome, text string }{
		{"zero", "success", ""},
		{"path", "success", ""},
		{"three", "failure", "exit code 3: out bad"},
		{"killed", "failure", "signal 9"},
		{"missing", "failure", "/no/such/file"},
		{"hangs", "failure", "still runs"},
	} {
		got := s.Check(c.check)
		if got.Outcome != c.outcome || !strings.Contains(got.Error, c.text) {
			t.Errorf("%s: %s, %q; want %s, %q", c.check, got.Outcome, got.Error, c.outcome, c.text)
		}
		t.Logf("%s: %s %s", c.check, got.Outcome, got.Error)
	}
	want := "<" + strings.Join(arguments, ">\n<") + ">"
	if got := m.vm.Run("cat /run/arguments"); got != want {
		t.Errorf("the guest's command was given\n%s\nwant\n%s", got, want)
	}
	// One process, however often the period has come round; once it has ended, there is one again.
	const count = "n=0; for p in /proc/[0-9]*/cmdline; do [ \"$(tr '\\0' ' ' <$p 2>/dev/null)\" = '" + hang + " ' ] && n=$((n+1)); done; echo $n"
	if got := m.vm.Run(count); got != "1" {
		t.Errorf("%s commands hang in the guest after %d rounds, want 1", got, s.Check("hangs").Runs)
	}
	m.vm.Run("killall -9 sleep")
	rounds(s.Check("hangs").Runs + 3)
	if got := m.vm.Run(count); got != "1" {
		t.Errorf("%s commands hang in the guest after the first was killed, want 1", got)
	}
	d.Stop()
	m.agent("kill")
	m.vm.Run("killall -9 sleep")
}

// quoted is a part of a YAML list.
func quoted(all []string) string {
	var list []string
	for _, s := range all {
		list = append(list, "'"+strings.ReplaceAll(s, "'", "''")+"'")
	}
	return strings.Join(list, ", ")
}

func networkHandlers(t *testing.T, m *machine) {
	d := m.extra(t, "ports", `
  readinessProbe: {grpc: {port: WEB}, periodSeconds: 1}
  checks:
  - {name: banner, kind: readiness, tcpSocket: {port: SSH}, expect: "^SSH-2.0-guestd", periodSeconds: 1}
  - {name: other, kind: readiness, severity: warn, tcpSocket: {port: SSH}, expect: "^220 ", periodSeconds: 1, failureThreshold: 1}
  - {name: service, kind: readiness, severity: warn, grpc: {port: WEB, service: other}, periodSeconds: 1, failureThreshold: 1}
`)
	d.Await(daemon.Verdict{Reason: "Ready", Ready: true, Live: true})
	s := d.Until("all to be probed", func(s daemon.Status) error {
		for _, c := range s.Checks {
			if c.Runs == 0 {
				return fmt.Errorf("%s has not", c.Name)
			}
		}
		return nil
	})
	for check, text := range map[string]string{"other": "SSH-2.0-guestd", "service": "NotFound"} {
		if c := s.Check(check); c.Outcome != "failure" || !strings.Contains(c.Error, text) {
			t.Errorf("%s: %s, %q", check, c.Outcome, c.Error)
		}
	}
	d.Stop()
}

// frozen lets the agent come up as after a freeze, which freezes nothing: its state file says so.
func frozen(t *testing.T, m *machine) {
	const hold = 4 * time.Second
	const mark = "/run/agent/" + sparePort + "/qga.state.isfrozen"
	d := m.extra(t, "a guest with a snapshot", `
  readinessProbe: {httpGet: {port: WEB, path: /healthz}, periodSeconds: 1, failureThreshold: 2}
  livenessProbe: {httpGet: {port: WEB, path: /healthz}, periodSeconds: 1, failureThreshold: 2}
  checks:
  - {name: agent, kind: readiness, severity: warn, guestAgentPing: {}, periodSeconds: 1}
  policy: {freezeHoldSeconds: 4}
`)
	d.Await(daemon.Verdict{Reason: "Ready", Ready: true, Live: true})
	m.vm.Run("mkdir -p /run/agent/" + sparePort + " && touch " + mark)
	m.agent("start")
	d.Until("the frozen agent", func(s daemon.Status) error {
		if c := s.Check("agent"); c.Outcome != "success" || s.VM.AgentPort != "open" {
			return fmt.Errorf("port %s, ping: %s %s", s.VM.AgentPort, c.Outcome, c.Error)
		}
		return nil
	})
	m.vm.SetCode(503) // an application that cannot write
	s := d.Await(daemon.Verdict{Reason: "FilesystemFrozen", Ready: true, Live: true})
	if !s.Held {
		t.Error("the probes are not held")
	}
	s = d.Await(daemon.Verdict{Reason: "ProbeFailed", Live: false, Detail: "503"})
	var began, ended time.Time
	for _, x := range s.Transitions {
		switch {
		case x.To == "FilesystemFrozen" && began.IsZero():
			began = x.At
		case x.From == "FilesystemFrozen":
			ended = x.At
		}
	}
	t.Logf("held for %.2f s, and then the truth", ended.Sub(began).Seconds())
	if held := ended.Sub(began); held < hold-100*time.Millisecond || held > hold+2*time.Second {
		t.Errorf("held for %v, and freezeHoldSeconds is %v", held, hold)
	}
	verbose(t, d, "[+]filesystems warning: FilesystemFrozen: frozen for longer")

	m.vm.SetCode(200)
	// A frozen agent has no pid file, and ignores SIGTERM.
	m.vm.Run("for p in $(pidof qemu-ga); do tr '\\0' ' ' </proc/$p/cmdline | grep -q " + sparePort + " && kill -KILL $p; done; rm " + mark)
	m.agent("start")
	d.Until("the thaw", func(s daemon.Status) error {
		if _, body, err := d.Get("/readyz?verbose"); err != nil || strings.Contains(body, "[+]filesystems") {
			return fmt.Errorf("%v: %s", err, body)
		}
		return nil
	})
	if s := d.MustStatus(); !s.Ready {
		d.Await(daemon.Verdict{Reason: "Ready", Ready: true, Live: s.Live})
	}
	d.Stop()
	m.agent("kill")
	m.ready(t) // the main daemon has seen the 503, too
}
