package verdict

import (
	"testing"

	"github.com/guestprobe/guestprobe/sidecar/probe"
)

// dice makes an Input of bytes; where they end, of zeros.
type dice struct{ data []byte }

func (d *dice) roll(n int) int {
	if len(d.data) == 0 {
		return 0
	}
	b := d.data[0]
	d.data = d.data[1:]
	return int(b) % n
}

func (d *dice) yes() bool { return d.roll(2) == 1 }

func (d *dice) input(word string) Input {
	words := []string{"running", "running", "", "prelaunch", "inmigrate", "paused", "suspended", "save-vm", "restore-vm", "finish-migrate",
		"postmigrate", "io-error", "guest-panicked", "internal-error", "shutdown", "colo", "debug", "watchdog", word}
	pauses := []string{"", "user", "migration", "ioerror", "crashed", "starting-up", "shutting-down", word}
	in := Input{
		Link: Link(d.roll(8)), LinkDetail: word, Status: words[d.roll(len(words))], PauseReason: pauses[d.roll(len(pauses))],
		CrashDumping: d.roll(4) == 1, AgentPort: Port(d.roll(4)), AgentEverOpen: d.yes(), Freeze: Freeze(d.roll(4)),
		Policy: Policy{HoldOnPanic: d.yes()}, Terminating: d.roll(4) == 1, ListenerShadowed: d.roll(4) == 1,
	}
	if d.yes() {
		in.IOError = &IOError{Device: word, NoSpace: d.yes(), Text: word}
	}
	if d.roll(4) == 1 {
		in.Panic = &Panic{Type: word, Detail: word}
	}
	if d.yes() {
		in.Shutdown = &Shutdown{Guest: d.yes(), Reason: word}
	}
	if d.roll(4) == 1 {
		in.Hold = &Hold{Source: word}
	}
	reasons := append(Reasons(), "", "", "", Reason(word))
	for range d.roll(5) {
		in.Checks = append(in.Checks, Check{
			Name: "check", Kind: probe.Kind(d.roll(4)), Warn: d.yes(), Agent: d.yes(), State: probe.State(d.roll(4)),
			Reason: reasons[d.roll(len(reasons))], Detail: word,
		})
	}
	return in
}

func FuzzDecide(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 24}, "word")
	f.Add([]byte{2, 12, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 2, 24}, "\x00\n\xff")
	f.Add([]byte{6, 18, 7, 1, 2, 1, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 2, 0, 1, 2, 3}, "")
	f.Fuzz(func(t *testing.T, data []byte, word string) {
		d := dice{data}
		in := d.input(word)
		v := Decide(in)
		sound(t, v)
		if t.Failed() {
			t.Fatalf("for %+v", in)
		}

		known := in.status()
		runs := in.Link != LinkGone && (known == "running" || known == "")
		if v.Ready && !runs {
			t.Errorf("ready with link %v, status %q", in.Link, in.Status)
		}
		if v.Ready && in.Terminating {
			t.Error("ready though it is about to end")
		}
		if in.Link != LinkGone && !v.Held && known != "" && known != "running" {
			t.Errorf("probing in status %q", known)
		}
		sick := false
		for _, c := range in.Checks {
			judges := c.Kind == probe.Liveness || c.Kind == probe.Startup
			sick = sick || judges && !c.Warn && c.State == probe.StateFailure
		}
		dead := known == "guest-panicked" || known == "internal-error" || known == "paused" && in.PauseReason == "crashed"
		if !v.Live && !sick && !dead {
			t.Errorf("not live without a positive verdict: %+v", in)
		}
		if v.Live && sick {
			t.Error("a published failure does not count")
		}
		// The monitor's trouble alone changes neither liveness nor what checks decide.
		if known == "" && in.Link != LinkGone && len(in.Checks) > 0 && !v.NothingChecked {
			alone := in
			alone.Link = LinkNone
			if a := Decide(alone); a.Ready != v.Ready || a.Live != v.Live || a.Held != v.Held || a.Reason != v.Reason {
				t.Errorf("the monitor's trouble (%v) changes %s to %s", in.Link, a.Reason, v.Reason)
			}
		}
		// A warning fails nothing: without it the verdict is the same.
		var strict []Check
		for _, c := range in.Checks {
			if !c.Warn {
				strict = append(strict, c)
			}
		}
		without := in
		without.Checks = strict
		if a := Decide(without); a.Standing() != v.Standing() || a.Held != v.Held {
			t.Errorf("a warning changes %+v to %+v", a.Standing(), v.Standing())
		}
	})
}

func BenchmarkDecide(b *testing.B) {
	in := well()
	b.ReportAllocs()
	for b.Loop() {
		Decide(in)
	}
}
