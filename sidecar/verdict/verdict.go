package verdict

// A Component is one line of an answer.
type Component struct {
	Name string
	// OK: it does not fail the answer. With a Reason it is a warning. An answer is OK
	// exactly if all its components are.
	OK     bool
	Reason Reason
	Detail string
}

// An Answer is what one endpoint says.
type Answer struct {
	OK         bool // 200, else 503
	Reason     Reason
	Detail     string
	Components []Component
}

// A Verdict is all that may be said about the VM at one moment.
type Verdict struct {
	Ready, Live, Started bool
	// Reason and Detail are those of readiness, the VM's headline. Reason is Ready
	// only if the VM is; a VM held by FilesystemFrozen or Maintenance may be ready too.
	Reason Reason
	Detail string
	// Held: no probe may run now.
	Held bool
	// FromVM: Reason comes from the VM's own state (or our own end), not from results
	// of checks.
	FromVM bool
	// Failing are the checks whose published state fails or withholds something, those
	// of severity warn left aside.
	Failing []Check
	// NothingChecked: no readiness check is configured; readiness follows the VM's
	// state alone.
	NothingChecked bool
	// Readyz, Livez and Startupz are the same for each endpoint.
	Readyz, Livez, Startupz Answer
}
