package verdict

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/sidecar/probe"
)

// film feeds a damper and keeps its transitions.
type film struct {
	t       *testing.T
	now     time.Time
	damper  Damper
	tracker Tracker
	last    Verdict
	wait    time.Duration
	told    []string // reasons of the transitions
	at      []time.Duration
	began   time.Time
}

func newFilm(t *testing.T) *film {
	began := time.Unix(1000, 0)
	return &film{t: t, now: began, began: began}
}

// show holds raw for d, calling the damper again when it wants.
func (f *film) show(raw Verdict, d time.Duration) {
	f.t.Helper()
	for end := f.now.Add(d); ; {
		f.last, f.wait = f.damper.Update(f.now, raw)
		if f.last.Live != raw.Live || f.last.Started != raw.Started || f.last.Held != raw.Held {
			f.t.Errorf("damped more than readiness: %+v of %+v", f.last, raw)
		}
		if f.last.Ready && !raw.Ready {
			f.t.Error("ready while the facts are not")
		}
		if f.wait < 0 || f.wait > Settle {
			f.t.Errorf("wait %v", f.wait)
		}
		sound(f.t, f.last)
		if tr, ok := f.tracker.Observe(f.now, f.last); ok {
			f.told = append(f.told, string(tr.To.Reason))
			f.at = append(f.at, f.now.Sub(f.began))
		}
		if f.wait == 0 || f.now.Add(f.wait).After(end) {
			f.now = end
			return
		}
		f.now = f.now.Add(f.wait)
	}
}

func (f *film) want(reasons string) {
	f.t.Helper()
	if got := strings.Join(f.told, " "); got != reasons {
		f.t.Errorf("told %q, want %q", got, reasons)
	}
}

func running() Verdict { return Decide(well()) }

func status(s string) Verdict {
	in := well()
	in.Status = s
	return Decide(in)
}

func failing() Verdict {
	in := well()
	in.Checks[1] = check("r- web", ProbeFailed, "refused")
	return Decide(in)
}

func booting() Verdict {
	in := well()
	in.Checks[1].State = probe.StateFailure
	return Decide(in)
}

func TestDamperFastSwaps(t *testing.T) {
	const cycle = 50 * time.Millisecond
	for _, other := range []Verdict{running(), failing()} { // checks may fail meanwhile
		f := newFilm(t)
		f.show(running(), 10*time.Second)
		f.want("Ready")
		for range 200 { // 20 Hz for 10 s
			f.show(status("io-error"), cycle/2)
			f.show(other, cycle/2)
		}
		f.want("Ready StorageIOError")
		f.show(running(), 10*time.Second)
		f.want("Ready StorageIOError Ready")
		// The last swap is half a cycle before the end of the 20 Hz.
		if got, want := f.at[2], 20*time.Second-cycle/2+Settle; got != want {
			t.Errorf("ready again after %v, want %v", got, want)
		}
		if f.at[1] != 10*time.Second {
			t.Errorf("bad news after %v", f.at[1])
		}
	}
}

func TestDamperAlternatingStates(t *testing.T) {
	f := newFilm(t)
	f.show(running(), time.Second)
	for range 100 {
		f.show(status("paused"), 25*time.Millisecond)
		f.show(status("io-error"), 25*time.Millisecond)
	}
	if n := len(f.told); n < 3 || n > 3+6 {
		t.Errorf("%d transitions in 5 s: %v", n, f.told)
	}
}

func TestDamperDelays(t *testing.T) {
	tests := []struct {
		name string
		from Verdict
		to   Verdict
		wait time.Duration
	}{
		{"first ever", Verdict{}, running(), 0},
		{"boot", status("prelaunch"), booting(), 0},
		{"boot, nothing slow", status("prelaunch"), running(), 0},
		{"migrated in", status("inmigrate"), running(), 0},
		{"checks have thresholds of their own", failing(), running(), 0},
		{"probe to probe", booting(), failing(), 0},
		{"bad news", running(), status("paused"), 0},
		{"bad news of a probe", running(), failing(), 0},
		{"worse news", status("paused"), status("guest-panicked"), 0},
		{"resumed", status("paused"), running(), Settle},
		{"resumed with a failing check", status("paused"), failing(), Settle},
		{"migration called off", status("finish-migrate"), running(), Settle},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var d Damper
			now := time.Unix(1000, 0)
			if tt.from.Reason != "" {
				d.Update(now, tt.from)
				now = now.Add(time.Hour)
			}
			out, wait := d.Update(now, tt.to)
			if wait != tt.wait {
				t.Errorf("wait %v, want %v", wait, tt.wait)
			}
			if wait == 0 && out.Reason != tt.to.Reason || wait > 0 && (out.Reason != tt.from.Reason || !strings.Contains(out.Detail, "stay so for 1s")) {
				t.Errorf("out %s: %s", out.Reason, out.Detail)
			}
			if out, wait = d.Update(now.Add(tt.wait), tt.to); out.Reason != tt.to.Reason || wait != 0 {
				t.Errorf("then %s, wait %v", out.Reason, wait)
			}
		})
	}
}

func TestDamperTerminating(t *testing.T) {
	in := well()
	in.Terminating = true
	f := newFilm(t)
	f.show(running(), time.Second)
	f.show(status("paused"), time.Millisecond)
	f.show(Decide(in), time.Millisecond)
	f.want("Ready Paused Terminating")
}

// TestDamperRandom: whatever happens, bad news passes at once, and after a second of
// the same facts the damper says just these.
func TestDamperRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		f := newFilm(t)
		for range 50 {
			data := make([]byte, 40)
			for i := range data {
				data[i] = byte(rng.Uint32())
			}
			d := dice{data}
			raw := Decide(d.input("word"))
			f.show(raw, time.Duration(rng.IntN(3000))*time.Millisecond)
			f.show(raw, Settle)
			f.show(raw, 0)
			if f.last.Standing() != raw.Standing() || f.wait != 0 {
				t.Fatalf("settled at %+v, the facts say %+v", f.last.Standing(), raw.Standing())
			}
		}
	}
}

func TestTracker(t *testing.T) {
	var tr Tracker
	now := time.Unix(1000, 0)
	steps := []struct {
		v     Verdict
		after time.Duration
		want  string // "" for no transition
		worse bool
	}{
		{status("prelaunch"), 0, `Starting: QEMU reports "prelaunch": the VM has not been started`, false},
		{status("prelaunch"), time.Second, "", false},
		{running(), 2 * time.Second, "Starting -> Ready (after 3s)", false},
		{running(), time.Hour, "", false},
		{failing(), 1500 * time.Millisecond, "Ready -> ProbeFailed: web: refused (after 1h0m1.5s)", true},
		{status("guest-panicked"), time.Second, "ProbeFailed -> GuestPanicked, not live: the guest's kernel has panicked (after 1s)", true},
	}
	for i, s := range steps {
		now = now.Add(s.after)
		got, ok := tr.Observe(now, s.v)
		if ok != (s.want != "") || ok && got.String() != s.want {
			t.Errorf("step %d: %v %q, want %q", i, ok, got, s.want)
		}
		if ok && (got.Worse() != s.worse || got.First() != (i == 0) || !got.At.Equal(now)) {
			t.Errorf("step %d: %+v", i, got)
		}
	}
	if s, since := tr.Current(); s != steps[5].v.Standing() || !since.Equal(now) {
		t.Errorf("current %+v since %v", s, since)
	}
	// Liveness lost while readiness is none the wiser: the record says of what.
	in := well()
	in.Checks[2] = check("l- agent", AgentTimeout, "mute")
	tr.Observe(now, running())
	got, _ := tr.Observe(now.Add(time.Second), Decide(in))
	if want := "Ready -> Ready, not live: AgentTimeout: agent: mute (after 1s)"; got.String() != want {
		t.Errorf("%q, want %q", got, want)
	}
}
