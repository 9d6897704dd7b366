package sidecar

import (
	"github.com/guestprobe/guestprobe/qga"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

// input is all that is known, in the verdict's own terms. It needs the lock.
func (s *state) input() verdict.Input {
	vm := s.vm
	in := verdict.Input{
		Link:             verdict.LinkNone,
		Status:           vm.Status,
		PauseReason:      vm.PauseReason,
		CrashDumping:     vm.CrashDumping,
		AgentPort:        portOf(vm.AgentPort),
		AgentEverOpen:    vm.AgentEverOpen,
		Checks:           s.checkInputs(),
		Policy:           s.policy,
		Hold:             s.hold,
		Freeze:           s.freeze,
		ListenerShadowed: s.shadowed,
		Terminating:      s.terminating,
	}
	if s.watching {
		in.Link = linkOf(vm.Link)
	}
	if vm.LinkErr != nil {
		in.LinkDetail = printable(vm.LinkErr.Error())
	}
	if e := vm.IOError; e != nil {
		in.IOError = &verdict.IOError{Device: printable(e.Device), NoSpace: e.NoSpace, Text: printable(e.Reason)}
	}
	if p := vm.Panic; p != nil {
		in.Panic = &verdict.Panic{Type: printable(p.Type), Detail: printable(p.Detail)}
	}
	if d := vm.Shutdown; d != nil {
		in.Shutdown = &verdict.Shutdown{Guest: d.Guest, Reason: printable(d.Reason)}
	}
	return in
}

func (s *state) checkInputs() []verdict.Check {
	checks := make([]verdict.Check, 0, len(s.checks))
	for _, c := range s.checks {
		checks = append(checks, c.input())
	}
	return checks
}

func linkOf(l qga.Link) verdict.Link {
	switch l {
	case qga.LinkUp:
		return verdict.LinkUp
	case qga.LinkBusy:
		return verdict.LinkBusy
	case qga.LinkStuck:
		return verdict.LinkStuck
	case qga.LinkUnreachable:
		return verdict.LinkUnreachable
	case qga.LinkGone:
		return verdict.LinkGone
	default:
		return verdict.LinkConnecting
	}
}

func portOf(p qga.Port) verdict.Port {
	switch p {
	case qga.PortOpen:
		return verdict.PortOpen
	case qga.PortClosed:
		return verdict.PortClosed
	default:
		return verdict.PortUnknown
	}
}
