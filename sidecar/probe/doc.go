// Package probe turns the answers of one check into a published state, by the
// kubelet's rules.
//
// Machine is the rule book: pure, without time, network or imports. It splits
// the kubelet's worker round into "may this round probe?" (Round) and "what does
// this answer change?" (Observe). Worker is the loop around it: when to probe, one
// attempt at a time, each with its own deadline.
//
// The package does not know what a check does, what a VM is, or what a state
// means for the VM: a Func is given, a State comes out. Upstream of the rules is
// k8s v1.37.2 pkg/kubelet/prober (worker.go, prober.go).
//
// # Where the loop differs from the kubelet's, and why
//
//   - The ticker's phase starts when the target becomes probeable (a new instance,
//     a hold lifted, the initial delay over, the startup gate opened), and a probe
//     runs at that moment. The kubelet's ticker hangs on the start of its worker;
//     its manual trigger for readiness has roughly the same effect. The kubelet
//     also probes an unready container at each sync of the pod; we keep to the
//     period.
//   - A held target (paused, migrating, frozen, in maintenance) is not probed at
//     all. The kubelet knows no such thing.
//   - A new instance resets the runs, unless Spec.KeepRuns asks for parity: two
//     failures of a VM that is gone should not count against the next one.
//   - A reboot inside the instance (a RESET) is a new boot, see Facts.Boot.
//   - The initial delay is never cut short. The kubelet counts from a start time
//     rounded down to a second and may probe up to a second early.
//   - A handler that ignores its deadline does not block the worker, see Worker.
package probe
