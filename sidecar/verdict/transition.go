package verdict

import (
	"fmt"
	"time"
)

// A Standing is the part of a Verdict whose changes are transitions. Details come and
// go without one.
type Standing struct {
	Ready, Live, Started bool
	Reason               Reason
}

// Standing returns v's.
func (v Verdict) Standing() Standing {
	return Standing{v.Ready, v.Live, v.Started, v.Reason}
}

// A Transition is a change that deserves a record.
type Transition struct {
	At       time.Time
	From, To Standing
	// Detail is the new verdict's, or that of what ended the VM's liveness.
	Detail string
	// Lasted is how long From had stood; 0 for the first.
	Lasted time.Duration
}

// First reports whether there was nothing before.
func (t Transition) First() bool { return t.From == Standing{} }

// Worse reports whether something was lost: readiness or liveness.
func (t Transition) Worse() bool {
	return t.From.Ready && !t.To.Ready || t.From.Live && !t.To.Live
}

// String returns the transition as one line for people.
func (t Transition) String() string {
	s := fmt.Sprintf("%s -> %s", t.From.word(), t.To.word())
	if t.First() {
		s = t.To.word()
	}
	if t.Detail != "" {
		s += ": " + t.Detail
	}
	if !t.First() {
		s += fmt.Sprintf(" (after %v)", t.Lasted.Round(time.Millisecond))
	}
	return s
}

func (s Standing) word() string {
	w := string(s.Reason)
	if s.Ready && s.Reason != Ready {
		w += ", ready"
	}
	if !s.Live && s.Reason != "" {
		w += ", not live"
	}
	return w
}

// A Tracker finds the transitions in a row of verdicts. The zero value is ready to use.
type Tracker struct {
	current Standing
	since   time.Time
}

// Observe takes the verdict that holds from now on, and returns the transition it is,
// if it is one. The first verdict is one.
func (t *Tracker) Observe(now time.Time, v Verdict) (Transition, bool) {
	to := v.Standing()
	if to == t.current {
		return Transition{}, false
	}
	out := Transition{At: now, From: t.current, To: to, Detail: v.Detail}
	if t.current.Live && !v.Live {
		out.Detail = v.Livez.Detail
		if v.Livez.Reason != to.Reason {
			// Two checks, two causes: neither may pass for the other's.
			out.Detail = line(string(v.Livez.Reason) + ": " + v.Livez.Detail)
		}
	}
	if !out.First() {
		out.Lasted = now.Sub(t.since)
	}
	t.current, t.since = to, now
	return out, true
}

// Current returns the last verdict's standing and since when it holds; the zero time
// before the first.
func (t *Tracker) Current() (Standing, time.Time) { return t.current, t.since }
