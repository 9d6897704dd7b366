package probe

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// goldenCase is a sequence of the kubelet's rounds, see testdata/kubelet-cases.json.
type goldenCase struct {
	Name             string       `json:"name"`
	Source           string       `json:"source"`
	ProbeType        string       `json:"probe_type"`
	SuccessThreshold int          `json:"success_threshold"`
	FailureThreshold int          `json:"failure_threshold"`
	InitialDelay     int32        `json:"initial_delay_seconds"`
	Steps            []goldenStep `json:"steps"`
}

type goldenStep struct {
	Raw         string          `json:"raw"`
	CID         json.RawMessage `json:"cid"`
	State       string          `json:"state"`
	Started     *bool           `json:"started"`
	Age         *int32          `json:"age"`
	Phase       string          `json:"phase"`
	Status      *bool           `json:"status"`
	Restartable bool            `json:"restartable"`
	Deleting    bool            `json:"deleting"`
	Expect      struct {
		Executed  bool    `json:"executed"`
		Published *string `json:"published"`
		ResultRun int     `json:"result_run"`
		OnHold    bool    `json:"on_hold"`
		Continue  bool    `json:"continue"`
	} `json:"expect"`
}

type mappingCase struct {
	Raw       string  `json:"raw"`
	RawError  bool    `json:"raw_error"`
	Result    string  `json:"result"`
	Discarded bool    `json:"discarded"`
	Counter   *string `json:"counter"`
	Attempts  int     `json:"attempts"`
}

type goldenFile struct {
	Worker  []goldenCase  `json:"worker"`
	Mapping []mappingCase `json:"prober_mapping"`
}

// golden reads our copy, and the complete collection where it lies beside the tree.
func golden(t *testing.T) map[string]goldenFile {
	t.Helper()
	files := map[string]goldenFile{}
	for _, path := range []string{"testdata/kubelet-cases.json", "../../../shared/cases/kubelet-cases.json"} {
		data, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) && !strings.HasPrefix(path, "testdata/") {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var f goldenFile
		if err := json.Unmarshal(data, &f); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if len(f.Worker) == 0 || len(f.Mapping) == 0 {
			t.Fatalf("%s: no cases", path)
		}
		files[path] = f
	}
	return files
}

func kindOf(t *testing.T, name string) Kind {
	t.Helper()
	for _, k := range []Kind{Readiness, Liveness, Startup} {
		if k.String() == name {
			return k
		}
	}
	t.Fatalf("no kind %q", name)
	return 0
}

// facts says in our words what the kubelet knows in the step.
func (s goldenStep) facts(k Kind) Facts {
	f := Facts{Life: Running, Instance: "c1", Age: 1000, Started: k != Startup}
	if s.Started != nil {
		f.Started = *s.Started
	}
	if s.Age != nil {
		f.Age = *s.Age
	}
	if len(s.CID) > 0 {
		f.Instance = strings.Trim(strings.ReplaceAll(string(s.CID), "null", ""), `"`)
	}
	if s.Status != nil && !*s.Status {
		f.Instance = ""
	}
	switch {
	case s.Phase == "Failed" || s.Phase == "Succeeded":
		f.Life = Ended
	case f.Instance == "":
		f.Life = Absent
	case s.State == "terminated" && !s.Restartable:
		f.Life = Over
	case s.State == "waiting" || s.State == "terminated":
		f.Life = Stopped
	case s.Deleting:
		f.Life = Leaving
	}
	return f
}

func rawError(t *testing.T, raw string) error {
	t.Helper()
	switch raw {
	case "success":
		return nil
	case "warning":
		return &Warning{errors.New(raw)}
	case "failure", "unknown": // the kubelet counts "unknown" without an error as a failure
		return errors.New(raw)
	case "error":
		return &Indeterminate{errors.New(raw)}
	}
	t.Fatalf("no raw result %q", raw)
	return nil
}

func TestMachineKubelet(t *testing.T) {
	for path, file := range golden(t) {
		for _, c := range file.Worker {
			t.Run(path+"/"+c.Name+"/"+c.ProbeType, func(t *testing.T) {
				kind := kindOf(t, c.ProbeType)
				m := NewMachine(Rules{
					Kind: kind, SuccessThreshold: c.SuccessThreshold, FailureThreshold: c.FailureThreshold,
					Delay: c.InitialDelay, KeepRuns: true,
				})
				for i, s := range c.Steps {
					step := m.Round(s.facts(kind))
					if step == StepProbe {
						m.Observe(Classify(rawError(t, s.Raw)))
					}
					want := s.Expect
					if got := step == StepProbe; got != want.Executed {
						t.Errorf("step %d: executed = %v (%v), want %v", i, got, step, want.Executed)
					}
					if got := step != StepEnd; got != want.Continue {
						t.Errorf("step %d: continue = %v (%v), want %v", i, got, step, want.Continue)
					}
					switch {
					case want.Published == nil && m.instance != "":
						t.Errorf("step %d: published %v, want nothing", i, m.State())
					case want.Published != nil && strings.ToLower(*want.Published) != m.State().String():
						t.Errorf("step %d: published %v, want %s", i, m.State(), *want.Published)
					}
					if m.Run() != want.ResultRun || m.OnHold() != want.OnHold {
						t.Errorf("step %d: run %d, hold %v; want %d, %v", i, m.Run(), m.OnHold(), want.ResultRun, want.OnHold)
					}
				}
			})
		}
	}
}

// TestMachine has what the kubelet does not: holds, reboots, forgotten runs. A word of
// the script is a round: S, F, E are outcomes after the facts in force; the others
// change facts. After "=" stand published state, run and step of the last round.
func TestMachine(t *testing.T) {
	readiness := Rules{Kind: Readiness, SuccessThreshold: 2, FailureThreshold: 3}
	liveness := Rules{Kind: Liveness, SuccessThreshold: 1, FailureThreshold: 3, Delay: 10}
	startup := Rules{Kind: Startup, SuccessThreshold: 1, FailureThreshold: 2}
	keep := readiness
	keep.KeepRuns = true
	tests := []struct {
		name   string
		rules  Rules
		script string
		state  State
		run    int
		step   Step
	}{
		{"held: nothing runs, nothing moves", readiness, "S S F held F F F F", StateSuccess, 1, StepHeld},
		{"held, then on: counting goes on", readiness, "S S F held F go F F", StateFailure, 3, StepProbe},
		{"absent moves nothing", readiness, "S S F absent F F", StateSuccess, 1, StepAbsent},
		{"new instance forgets runs", readiness, "S S F F new F", StateFailure, 1, StepProbe},
		{"new instance needs its own successes", readiness, "S S new S", StateFailure, 1, StepProbe},
		{"kubelet parity keeps runs", keep, "S S new S", StateSuccess, 3, StepProbe},
		{"new instance while held starts anew", readiness, "S S held new .", StateFailure, 0, StepHeld},
		{"the first name is no new instance", readiness, "anon S S name F", StateSuccess, 1, StepProbe},
		{"an unknown name is no new instance", readiness, "S S anon S", StateSuccess, 3, StepProbe},
		{"reboot: readiness claims nothing", readiness, "S S S reboot .", StateFailure, 0, StepProbe},
		{"reboot forgets runs in spite of parity", keep, "S S S reboot S", StateFailure, 1, StepProbe},
		{"reboot: no liveness failure from before", liveness, "old F F reboot old F", StateSuccess, 1, StepProbe},
		{"reboot re-arms the delay", liveness, "old F F reboot F F F", StateSuccess, 0, StepDelay},
		{"reboot ends a liveness hold", liveness, "old F F F reboot .", StateSuccess, 0, StepDelay},
		{"liveness hold", liveness, "old F F F S S", StateFailure, 0, StepDone},
		{"new instance ends a liveness hold", liveness, "old F F F new old S", StateSuccess, 1, StepProbe},
		{"migrated in: no delay", liveness, "booted F F", StateSuccess, 2, StepProbe},
		{"migrated in, then rebooted: delay", liveness, "booted F F reboot .", StateSuccess, 0, StepDelay},
		{"migrated in again: no delay", liveness, "booted reboot . new F", StateSuccess, 1, StepProbe},
		{"startup: errors use nothing up", startup, "idle E E E E F E", StateUnknown, 1, StepProbe},
		{"startup fails for good", startup, "idle F F S", StateFailure, 0, StepDone},
		{"reboot runs startup again", startup, "idle S reboot F", StateUnknown, 1, StepProbe},
		{"reboot while held", readiness, "S S held reboot .", StateFailure, 0, StepHeld},
		{"threshold 0 is 1", Rules{Kind: Readiness}, "S", StateSuccess, 1, StepProbe},
		{"gate", readiness, "idle S S", StateFailure, 0, StepGate},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := NewMachine(tt.rules)
			f := Facts{Life: Running, Instance: "a", Started: true}
			var step Step
			for word := range strings.FieldsSeq(tt.script) {
				outcome := OutcomeNone
				switch word {
				case "S":
					outcome = OutcomeSuccess
				case "F":
					outcome = OutcomeFailure
				case "E":
					outcome = OutcomeError
				case ".":
				case "held":
					f.Held = true
				case "go":
					f.Held = false
				case "absent":
					f.Life = Absent
				case "new":
					f.Instance += "'"
					f.Age = 0
				case "anon":
					f.Instance = ""
				case "name":
					f.Instance = "b"
				case "reboot":
					f.Boot++
					f.Age = 0
				case "old":
					f.Age = 10
				case "booted":
					f.Booted = true
				case "idle":
					f.Started = false
				default:
					t.Fatalf("bad word %q", word)
				}
				if word == "." || outcome != OutcomeNone {
					if step = m.Round(f); step == StepProbe {
						m.Observe(outcome)
					}
				}
			}
			if m.State() != tt.state || m.Run() != tt.run || step != tt.step {
				t.Errorf("got %v, run %d, step %v; want %v, %d, %v", m.State(), m.Run(), step, tt.state, tt.run, tt.step)
			}
		})
	}
}

// model is a second, plainer telling of the rules: it keeps every counted result and
// works the rest out of the list each time.
type model struct {
	rules    Rules
	results  []bool // failed? since they were last forgotten
	state    State
	done     bool
	instance string
	boot     uint64
	rebooted bool
}

func (m *model) mayProbe(f Facts) bool {
	if f.Life == Ended {
		return false
	}
	other := f.Instance != "" && m.instance != "" && f.Instance != m.instance
	if f.Instance != "" {
		m.instance = f.Instance
	}
	again := !other && f.Boot != m.boot
	m.boot = f.Boot
	if other || again {
		m.state, m.done, m.rebooted = Initial(m.rules.Kind), false, again
		if again || !m.rules.KeepRuns {
			m.results = nil
		}
	}
	if f.Held || f.Life == Absent || m.done {
		return false
	}
	switch f.Life {
	case Over, Stopped:
		m.state = StateFailure
		return false
	case Leaving:
		if m.rules.Kind != Readiness {
			m.state = StateSuccess
			return false
		}
	}
	waits := f.Age < m.rules.Delay && !(f.Booted && !m.rebooted)
	if m.rules.Kind == Startup {
		return !waits && !f.Started
	}
	return !waits && f.Started
}

func (m *model) run() (n int) {
	for i := len(m.results) - 1; i >= 0 && m.results[i] == m.results[len(m.results)-1]; i-- {
		n++
	}
	return n
}

func (m *model) observe(o Outcome) {
	switch o {
	case OutcomeSuccess, OutcomeWarning:
		m.results = append(m.results, false)
		if m.run() >= m.rules.SuccessThreshold {
			m.state = StateSuccess
			m.done = m.rules.Kind == Startup
		}
	case OutcomeFailure:
		m.results = append(m.results, true)
		if m.run() >= m.rules.FailureThreshold {
			m.state = StateFailure
			m.done = m.rules.Kind != Readiness
		}
	}
	if m.done {
		m.results = nil
	}
}

func FuzzMachine(f *testing.F) {
	f.Add([]byte{0, 1, 3, 0, 8, 8, 8, 8, 16, 8, 32, 8})
	f.Add([]byte{1, 2, 3, 5, 16, 16, 16, 64, 16, 128, 16, 255, 7, 8})
	f.Add([]byte{2, 1, 2, 1, 17, 33, 65, 129, 200, 100, 50, 25})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 5 {
			return
		}
		rules := Rules{
			Kind: Kind(data[0] % 3), KeepRuns: data[0]&8 != 0, Delay: int32(data[3] % 4),
			SuccessThreshold: int(data[1] % 4), FailureThreshold: int(data[2] % 4),
		}
		m := NewMachine(rules)
		ref := &model{rules: rules, state: Initial(rules.Kind)}
		facts := Facts{Life: Running, Age: 5, Started: rules.Kind != Startup}
		for i, b := range data[4:] {
			switch b % 16 {
			case 0:
				facts.Held = !facts.Held
			case 1:
				facts.Instance = []string{"", "a", "b"}[b/16%3]
			case 2:
				facts.Boot++
			case 3:
				facts.Life = Life(b / 16 % 6)
			case 4:
				facts.Age = int32(b / 16 % 6)
			case 5:
				facts.Booted = !facts.Booted
			case 6:
				facts.Started = !facts.Started
			}
			before, runBefore := m.State(), m.Run()
			step := m.Round(facts)
			if got, want := step == StepProbe, ref.mayProbe(facts); got != want {
				t.Fatalf("op %d: step %v, model says probe=%v for %+v", i, step, want, facts)
			}
			if again := m.Round(facts); again != step {
				t.Fatalf("op %d: asking twice moved it from %v to %v", i, step, again)
			}
			if step == StepProbe {
				o := Outcome(b / 16 % 5)
				m.Observe(o)
				ref.observe(o)
			}
			if facts.Held && step == StepHeld && m.Begun() == 0 && (m.State() != before || m.Run() != runBefore) {
				t.Fatalf("op %d: moved while held", i)
			}
			if m.State() != ref.state || m.OnHold() != ref.done || m.Run() != ref.run() {
				t.Fatalf("op %d: got %v run %d hold %v, model %v run %d hold %v", i,
					m.State(), m.Run(), m.OnHold(), ref.state, ref.run(), ref.done)
			}
		}
	})
}

func TestMachineImportsNothing(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "machine.go", nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Imports) > 0 {
		t.Errorf("machine.go imports %s", f.Imports[0].Path.Value)
	}
}

// TestNoHold: a liveness check that nobody acts on recovers by its thresholds; the kubelet's does not.
func TestNoHold(t *testing.T) {
	for _, noHold := range []bool{false, true} {
		m := NewMachine(Rules{Kind: Liveness, FailureThreshold: 2, SuccessThreshold: 1, NoHold: noHold})
		f := Facts{Life: Running, Instance: "a", Started: true}
		for range 2 {
			m.Round(f)
			m.Observe(OutcomeFailure)
		}
		if m.State() != StateFailure || m.OnHold() == noHold || (m.Round(f) == StepProbe) != noHold {
			t.Errorf("NoHold %v: %v, on hold %v", noHold, m.State(), m.OnHold())
		}
		if m.Observe(OutcomeSuccess); noHold && m.State() != StateSuccess {
			t.Errorf("NoHold: %v after a success", m.State())
		}
	}
}
