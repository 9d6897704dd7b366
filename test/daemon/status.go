package daemon

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Status is what tests read of /status.
type Status struct {
	Ready, Live, Started, Held bool
	Reason, Detail             string
	VM                         struct {
		Link, Status, Instance, AgentPort, IOError, Panic string
		Fallback                                          bool
		StartedAt                                         time.Time
		Incoming                                          bool
		Resets, Panics, IOErrors                          int
	}
	Agent struct {
		Connected, Fallback             bool
		Connects, Resyncs, StaleReplies int
	}
	Checks      []Check
	Transitions []Transition
}

// A Check is one check of /status.
type Check struct {
	Name, Kind, State, Step, Outcome, Error string
	Runs, Failures                          int
	History                                 []Round
}

// A Round is one round of a check, which began at At, and the state published after it.
type Round struct {
	At                    time.Time
	DurationSeconds       float64
	Outcome, State, Error string
}

// End is when the round had its outcome.
func (r Round) End() time.Time {
	return r.At.Add(time.Duration(r.DurationSeconds * float64(time.Second)))
}

// A Transition is one change of the verdict.
type Transition struct {
	At               time.Time
	From, To, Detail string
	Ready, Live      bool
}

// Check returns the check of that name; the zero Check if there is none.
func (s Status) Check(name string) Check {
	for _, c := range s.Checks {
		if c.Name == name {
			return c
		}
	}
	return Check{}
}

// Since returns the transitions after a moment.
func (s Status) Since(t time.Time) []Transition {
	for i, transition := range s.Transitions {
		if transition.At.After(t) {
			return s.Transitions[i:]
		}
	}
	return nil
}

// Reasons are the reasons that transitions led to, one for several in a row.
func Reasons(transitions []Transition) []string {
	var all []string
	for _, t := range transitions {
		if len(all) == 0 || all[len(all)-1] != t.To {
			all = append(all, t.To)
		}
	}
	return all
}

// Status asks for /status.
func (d *Daemon) Status() (s Status, err error) {
	code, body, err := d.Get("/status")
	if err != nil {
		return s, err
	}
	if code != http.StatusOK {
		return s, fmt.Errorf("/status answers %d", code)
	}
	return s, json.Unmarshal([]byte(body), &s)
}

// MustStatus is Status whose failure fails the test.
func (d *Daemon) MustStatus() Status {
	d.t.Helper()
	s, err := d.Status()
	if err != nil {
		d.t.Fatalf("%s: %v", d.name, err)
	}
	return s
}

// A Verdict is what a test expects /status, /readyz and /livez to agree on.
type Verdict struct {
	Reason      string
	Ready, Live bool
	Detail      string // a part of the detail
}

// Await waits until the daemon has that verdict.
func (d *Daemon) Await(want Verdict) Status {
	d.t.Helper()
	began := time.Now()
	s := d.Until(want.Reason, func(s Status) error {
		if s.Reason != want.Reason || s.Ready != want.Ready || s.Live != want.Live {
			return fmt.Errorf("/status says %s, ready %v, live %v (%s)", s.Reason, s.Ready, s.Live, s.Detail)
		}
		if !strings.Contains(s.Detail, want.Detail) {
			return fmt.Errorf("the detail is %q and does not mention %q", s.Detail, want.Detail)
		}
		return d.agree(want)
	})
	d.t.Logf("%s, after %.2fs: %s (ready %v, live %v) %s", d.name, time.Since(began).Seconds(), s.Reason, s.Ready, s.Live, s.Detail)
	return s
}

// Until waits until /status satisfies a condition, which returns what is still missing.
func (d *Daemon) Until(what string, missing func(Status) error) (s Status) {
	d.t.Helper()
	d.until(what, func() (err error) {
		if s, err = d.Status(); err != nil {
			return err
		}
		return missing(s)
	})
	return s
}
