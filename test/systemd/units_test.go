package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/test/guest"
)

// A block is a fenced block of docs/systemd.md.
type block struct {
	from string // the file of this repository it is a copy of, or ""
	path string // the file on the host that its first line names, or ""
	lang string
	text string
}

func readDocs(t *testing.T) []block {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(guest.Root(t), "docs", "systemd.md"))
	if err != nil {
		t.Fatal(err)
	}
	var blocks []block
	fence := regexp.MustCompile("(?ms)(?:^<!-- (\\S+) -->\n)?^```(\\w*)\n(.*?)^```$")
	host := regexp.MustCompile(`^# (/etc/\S+?):?[ \n]`)
	for _, m := range fence.FindAllStringSubmatch(string(data), -1) {
		b := block{from: m[1], lang: m[2], text: m[3]}
		if path := host.FindStringSubmatch(b.text); path != nil {
			b.path = path[1]
		}
		blocks = append(blocks, b)
	}
	return blocks
}

// shipped returns the files of dist/systemd by their names.
func shipped(t *testing.T) map[string]string {
	t.Helper()
	dir := filepath.Join(guest.Root(t), "dist", "systemd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(data)
	}
	return files
}

func TestDocsShowWhatIsShipped(t *testing.T) {
	t.Parallel()
	files := shipped(t)
	shown := make(map[string]bool)
	for _, b := range readDocs(t) {
		name, ok := strings.CutPrefix(b.from, "dist/systemd/")
		if !ok {
			continue
		}
		shown[name] = true
		if b.text != files[name] {
			t.Errorf("docs/systemd.md shows another %s than is shipped", b.from)
		}
	}
	for name := range files {
		if !shown[name] {
			t.Errorf("docs/systemd.md does not show dist/systemd/%s", name)
		}
	}
}

// unitDir writes the shipped units and those of the docs, drop-ins included, as they would lie on a host. Programs
// stand for themselves only as far as systemd-analyze looks: they have to be there.
func unitDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		text = regexp.MustCompile(`/usr/bin/(guestprobe|qemu-system-x86_64|true)\b`).ReplaceAllString(text, built)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range readDocs(t) {
		if name, ok := strings.CutPrefix(b.path, "/etc/systemd/system/"); ok {
			write(name, b.text)
		}
	}
	files := shipped(t)
	for _, kind := range []string{"service", "socket"} {
		write("guestprobe@."+kind, files["guestprobe@."+kind])
		write("guestprobe@fedora."+kind, files["guestprobe@."+kind])
	}
	return dir
}

func TestUnitsAreValid(t *testing.T) {
	t.Parallel()
	analyze := find(t, "systemd-analyze")
	verify := func(dir, unit string) string {
		t.Helper()
		cmd := exec.Command(analyze, "verify", "--man=no", filepath.Join(dir, unit))
		cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":", "SYSTEMD_LOG_COLOR=0")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return string(out) + err.Error()
		}
		return string(out)
	}
	dir := unitDir(t)
	for _, unit := range []string{"guestprobe@fedora.service", "guestprobe@fedora.socket", "backup.service", "vm-fedora.service"} {
		if out := verify(dir, unit); out != "" {
			t.Errorf("%s:\n%s", unit, out)
		}
	}
	// The test would notice a mistake in a drop-in, too.
	dropIn := filepath.Join(dir, "guestprobe@fedora.service.d", "vm.conf")
	if err := os.WriteFile(dropIn, []byte("[Service]\nMemoryMaxx=1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := verify(dir, "guestprobe@fedora.service"); !strings.Contains(out, "MemoryMaxx") {
		t.Errorf("a misspelt setting passed: %q", out)
	}
}

// 2.0 of 10 is what systemd calls OK; what is left is the network, other users' sockets and QEMU's /proc.
func TestUnitIsConfined(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(find(t, "systemd-analyze"), "security", "--no-pager", "--offline=true", "--threshold=20", filepath.Join(unitDir(t), "guestprobe@fedora.service"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The unit allows two sets of system calls of systemd's. What the daemon uses in a life with a VM has to be in them.
func TestUnitAllowsTheSystemCallsInUse(t *testing.T) {
	t.Parallel()
	analyze := find(t, "systemd-analyze")
	strace, err := exec.LookPath("strace")
	if err != nil {
		guest.Unavailable(t, "%v (Debian: strace)", err)
	}
	filter := func(set string) map[string]bool {
		t.Helper()
		calls := make(map[string]bool)
		for todo := []string{set}; len(todo) > 0; todo = todo[1:] {
			out, err := exec.Command(analyze, "syscall-filter", todo[0]).Output()
			if err != nil {
				t.Fatalf("systemd-analyze syscall-filter %s: %v", todo[0], err)
			}
			for line := range strings.Lines(string(out)) {
				switch word := strings.TrimSpace(line); {
				case word == "" || word[0] == '#' || word == todo[0]:
				case word[0] == '@':
					todo = append(todo, word)
				default:
					calls[word] = true
				}
			}
		}
		return calls
	}
	allowed := filter("@system-service")
	for _, set := range []string{"@privileged", "@resources"} {
		for call := range filter(set) {
			delete(allowed, call)
		}
	}
	vm := newPeer(t, webProbe+agentProbe)
	socket := filepath.Join(shortDir(t), "s")
	trace := filepath.Join(t.TempDir(), "trace")
	// With -D strace is the grandchild, and the daemon gets our signals. Its end is not that of the trace.
	p := start(t, nil, nil, strace, append([]string{"-D", "-f", "-o", trace, built}, vm.args("--listen", "127.0.0.1:0", "--listen-unix", socket)...)...)
	vm.Boot()
	p.eventually("the VM is ready", func() bool { status, _ := ask("unix", socket, "/readyz"); return status == 200 })
	p.signal(os.Interrupt)
	if err := p.wait(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	used := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^\d+ +(\w+)\(`).FindAllStringSubmatch(string(data), -1) {
		used[m[1]] = true
	}
	if !used["connect"] || !used["accept4"] {
		t.Fatalf("the trace is not that of a daemon: %v", used)
	}
	delete(used, "prlimit64") // Go raises its own limit of files where it may
	for call := range used {
		if !allowed[call] {
			t.Errorf("the unit forbids %s", call)
		}
	}
}

func TestExamplesOfTheDocs(t *testing.T) {
	t.Parallel()
	files := shipped(t)
	guestprobe := func(args ...string) string {
		out, err := exec.Command(built, args...).CombinedOutput()
		if err != nil {
			t.Errorf("guestprobe %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	dir := t.TempDir()
	manifest := filepath.Join(dir, "fedora.yaml")
	if err := os.WriteFile(manifest, []byte(files["fedora.yaml"]), 0o644); err != nil {
		t.Fatal(err)
	}
	guestprobe("validate", manifest)

	// Every variable, of the unit or of the settings, commented out or not, is a flag of run.
	flags := guestprobe("run", "--help")
	variables := regexp.MustCompile(`(?m)(?:^#?|Environment=)GUESTPROBE_(\w+)=`)
	for _, name := range []string{"fedora.env", "guestprobe@.service"} {
		found := variables.FindAllStringSubmatch(files[name], -1)
		if len(found) < 2 {
			t.Errorf("%s: no variables found", name)
		}
		for _, m := range found {
			flag := "-" + strings.ToLower(strings.ReplaceAll(m[1], "_", "-"))
			if !regexp.MustCompile(`(?m)^ +` + flag + `\b`).MatchString(flags) {
				t.Errorf("%s sets GUESTPROBE_%s, and run has no %s", name, m[1], flag)
			}
		}
	}

	// Every command line is one that the binary knows.
	commands := 0
	for _, b := range readDocs(t) {
		text := strings.ReplaceAll(b.text, "\\\n", "")
		for _, m := range regexp.MustCompile(`(?m)^(?:\$ (?:sudo )?|.*=/usr/bin/)guestprobe (\w+)(.*)$`).FindAllStringSubmatch(text, -1) {
			commands++
			help := guestprobe(m[1], "--help")
			for _, f := range regexp.MustCompile(` -(-[a-z-]+)`).FindAllStringSubmatch(m[2], -1) {
				if !regexp.MustCompile(`(?m)^ +` + f[1] + `\b`).MatchString(help) {
					t.Errorf("guestprobe %s has no flag -%s", m[1], f[1])
				}
			}
		}
	}
	if commands < 5 {
		t.Errorf("%d commands found in the docs", commands)
	}
}

// Whatever the docs install has to be there to be installed.
func TestDocsInstallFilesThatExist(t *testing.T) {
	t.Parallel()
	for _, b := range readDocs(t) {
		for _, path := range regexp.MustCompile(`\bdist/\S+`).FindAllString(b.text, -1) {
			if _, err := os.Stat(filepath.Join(guest.Root(t), path)); err != nil {
				t.Error(err)
			}
		}
	}
}
