package sidecar

import (
	"time"

	"github.com/guestprobe/guestprobe/qga"
)

// startSkew is how far two monitors may be apart about when a guest began to boot: one saw it, the other had to go by
// the age of a process or a file.
const startSkew = 10 * time.Second

// instanceNames make two monitors of one VM agree on which run of it is meant. Each has its own name for a run, and its
// own idea of when it began; were these passed on as they are, every change of the monitor would look like a new VM or a
// reset, and all that the probes have found out would be forgotten.
type instanceNames struct {
	last  qga.VMState        // what was passed on last of a run, or of its end
	from  bool               // whose word it was
	known map[string]sighted // by a monitor's own name for the run that is on
}

// A sighted run is one that was known already when a monitor began to speak of it.
type sighted struct {
	name      string    // as it was called by then
	own, told time.Time // its start: as this monitor had it then, and as it is passed on
}

// settle returns vm with the name and the start that its run has had so far. from tells the one monitor from the other.
func (n *instanceNames) settle(from bool, vm qga.VMState) qga.VMState {
	if from != n.from && n.continues(vm) {
		if n.known == nil {
			n.known = make(map[string]sighted)
		}
		run := sighted{name: n.last.Instance, own: vm.StartedAt, told: n.last.StartedAt}
		if vm.StartedAt.After(run.told.Add(startSkew)) {
			run.told = vm.StartedAt // a boot that the other monitor had not seen
		}
		n.known[vm.Instance] = run
	}
	if run, ok := n.known[vm.Instance]; ok {
		vm.Instance = run.name
		if vm.StartedAt.Equal(run.own) { // else the guest has booted anew since
			vm.StartedAt = run.told
		}
	} else if vm.Instance != "" && vm.Instance != n.last.Instance {
		clear(n.known) // of a run that is over
	}
	if vm.Instance != "" || vm.Link == qga.LinkGone { // a monitor that connects knows nothing yet
		n.last, n.from = vm, from
	}
	return vm
}

// continues tells whether vm is the first word of a monitor about the run of which the other one has spoken so far. Under
// a name that is new it has to be up, with the UUID that both know, and nobody may have seen the run end.
func (n *instanceNames) continues(vm qga.VMState) bool {
	switch {
	case vm.Instance == "" || n.last.Instance == "":
		return false
	case vm.Instance == n.last.Instance || n.known[vm.Instance].name == n.last.Instance:
		return true
	}
	return vm.Link == qga.LinkUp && vm.UUID != "" && vm.UUID == n.last.UUID && n.last.Link != qga.LinkGone && n.last.Shutdown == nil
}
