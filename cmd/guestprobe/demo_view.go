package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/sidecar"
)

// A demoView shows the demo: on a terminal as a live table, in a pipe as plain lines.
type demoView struct {
	out    io.Writer
	tty    *os.File // nil: a pipe, or a file
	url    string
	status func() sidecar.Status
	start  time.Time

	mu     sync.Mutex
	events []string // the last ones, for the table
	told   time.Time
	states map[string]string // of the checks that only warn: no transition tells of them
}

const (
	viewInterval = 100 * time.Millisecond
	viewEvents   = 14
	ansiHome     = "\x1b[H"
	ansiClear    = "\x1b[2J"
	ansiEOL      = "\x1b[K"
	ansiBelow    = "\x1b[J"
	ansiHide     = "\x1b[?25l"
	ansiShow     = "\x1b[?25h"
)

func newDemoView(out io.Writer, url string, status func() sidecar.Status) *demoView {
	v := &demoView{out: out, url: url, status: status, start: time.Now(), states: make(map[string]string)}
	if f, ok := out.(*os.File); ok {
		if _, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			v.tty = f
		}
	}
	if v.tty != nil {
		fmt.Fprint(out, ansiHide+ansiClear)
	} else {
		fmt.Fprintf(out, "A simulated VM, watched over real sockets. Ask it yourself: curl '%s/readyz?verbose'\n\n", url)
	}
	return v
}

func (v *demoView) close() {
	if v.tty != nil {
		v.draw()
		fmt.Fprint(v.out, ansiShow+"\n")
	}
}

// run shows what changes until ctx is done.
func (v *demoView) run(ctx context.Context) error {
	ticker := time.NewTicker(viewInterval)
	defer ticker.Stop()
	for {
		v.transitions()
		if v.tty != nil {
			v.draw()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// scene shows what is done to the VM.
func (v *demoView) scene(title string) {
	v.transitions()
	v.event("» " + title)
}

// transitions shows what the sidecar made of it.
func (v *demoView) transitions() {
	st := v.status()
	for _, c := range st.Checks {
		v.mu.Lock()
		was := v.states[c.Name]
		v.states[c.Name] = c.State
		v.mu.Unlock()
		if c.Severity == "warn" && was != "" && was != c.State {
			v.event(fmt.Sprintf("    check %q, which only warns: %s%s", c.Name, c.State, detailed(c.Error)))
		}
	}
	for _, t := range st.Transitions {
		v.mu.Lock()
		fresh := t.At.After(v.told)
		if fresh {
			v.told = t.At
		}
		v.mu.Unlock()
		if fresh {
			v.event(fmt.Sprintf("    %-14s readyz %s  livez %s%s%s", t.To, code(t.Ready), code(t.Live), after(t), detailed(t.Detail)))
		}
	}
}

func after(t sidecar.TransitionStatus) string {
	if t.From == "" {
		return ""
	}
	return fmt.Sprintf("  after %.1f s of %s", t.LastedSeconds, t.From)
}

func detailed(detail string) string {
	if detail == "" {
		return ""
	}
	return ": " + detail
}

func (v *demoView) event(text string) {
	line := fmt.Sprintf("%5.1fs %s", time.Since(v.start).Seconds(), text)
	if v.tty == nil {
		fmt.Fprintln(v.out, line)
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.events = append(v.events, line)
	if drop := len(v.events) - viewEvents; drop > 0 {
		v.events = v.events[drop:]
	}
}

// size is the terminal's now: people drag windows.
func (v *demoView) size() (columns, rows int) {
	size, err := unix.IoctlGetWinsize(int(v.tty.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 || size.Row == 0 {
		return 80, 24
	}
	return int(size.Col), int(size.Row)
}

// draw paints the whole picture over the last one. It never has more lines than the terminal, which would scroll.
func (v *demoView) draw() {
	columns, rows := v.size()
	lines := v.picture()
	v.mu.Lock()
	room := max(rows-1-len(lines), 0)
	lines = append(lines, v.events[max(len(v.events)-room, 0):]...)
	v.mu.Unlock()
	lines = lines[:min(len(lines), max(rows-1, 1))]

	var b strings.Builder
	b.WriteString(ansiHome)
	for i, line := range lines {
		line = cut(line, columns)
		if i == headline {
			line = color(v.status().Ready, line)
		}
		b.WriteString(line + ansiEOL + "\n")
	}
	b.WriteString(ansiBelow)
	fmt.Fprint(v.out, b.String())
}

// headline is the line of the picture that has the verdict.
const headline = 2

// picture returns the lines above the events.
func (v *demoView) picture() []string {
	st := v.status()
	vm := ""
	if st.VM != nil && st.Agent != nil {
		vm = fmt.Sprintf("VM %-15s monitor %-12s agent port %-8s last agent round trip %.1f ms", st.VM.Status, st.VM.Link, st.VM.AgentPort, st.Agent.RoundTripSeconds*1000)
	}
	lines := []string{
		fmt.Sprintf("Guestprobe demo: a simulated VM over real sockets.  %s/   Ctrl-C ends.", v.url),
		"",
		fmt.Sprintf("%-14s  readyz %s   livez %s   startupz %s", st.Reason, code(st.Ready), code(st.Live), code(st.Started)),
		st.Detail,
		"",
		vm,
		"",
		fmt.Sprintf("%-16s %-10s %-9s %-10s %5s  %s", "CHECK", "KIND", "STATE", "LAST", "RUNS", "ERROR"),
	}
	for _, c := range st.Checks {
		lines = append(lines, fmt.Sprintf("%-16s %-10s %-9s %-10s %5d  %s", c.Name, c.Kind, c.State, c.Outcome, c.Runs, c.Error))
	}
	return append(lines, "")
}

func color(ok bool, text string) string {
	if ok {
		return "\x1b[1;32m" + text + "\x1b[0m"
	}
	return "\x1b[1;31m" + text + "\x1b[0m"
}

// cut shortens text to width runes, so that no line of the picture wraps.
func cut(text string, width int) string {
	if runes := []rune(text); len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return text
}
