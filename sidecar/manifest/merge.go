package manifest

import (
	"cmp"
	"maps"
	"slices"
)

// Merge returns base with what extra says over it; neither is changed. A check of extra takes the place of the one of
// that name in base, further checks are added, and the policy's fields that extra sets win. Named ports of extra are
// looked up among base's; the error is an [ErrorList] of those that are not there.
func Merge(base, extra *Manifest) (*Manifest, error) {
	m := *base
	m.Checks = slices.Clone(base.Checks)
	m.Warnings = slices.Clone(base.Warnings)
	m.policySet = slices.Clone(base.policySet)
	m.ports = maps.Clone(base.ports)
	m.unresolved = nil

	missing := &collector{}
	for _, c := range extra.Checks {
		c = c.clone()
		for _, e := range extra.unresolved {
			if e.Field == join(c.Path, c.Handler.name())+".port" && !c.Handler.resolve(base.ports) {
				missing.add(e)
			}
		}
		i := slices.IndexFunc(m.Checks, func(b Check) bool { return b.Name == c.Name })
		if i < 0 {
			m.Checks = append(m.Checks, c)
			continue
		}
		m.Checks[i] = c
	}
	if err := missing.err(); err != nil {
		return nil, err
	}
	slices.SortStableFunc(m.Checks, func(a, b Check) int { return cmp.Compare(rank(a.Name), rank(b.Name)) })
	for _, key := range extra.policySet {
		switch key {
		case "freezeHoldSeconds":
			m.Policy.FreezeHold = extra.Policy.FreezeHold
		case "agentPing":
			m.Policy.AgentPing = extra.Policy.AgentPing
		case "guestPanicked":
			m.Policy.GuestPanicked = extra.Policy.GuestPanicked
		case "runCounters":
			m.Policy.RunCounters = extra.Policy.RunCounters
		case "httpBodyErrors":
			m.Policy.HTTPBodyErrors = extra.Policy.HTTPBodyErrors
		}
		if !slices.Contains(m.policySet, key) {
			m.policySet = append(m.policySet, key)
		}
	}
	for _, w := range extra.Warnings {
		if !slices.Contains(m.Warnings, w) {
			m.Warnings = append(m.Warnings, w)
		}
	}
	return &m, nil
}

// rank puts the probe stanzas before the named checks.
func rank(name string) int {
	i := slices.IndexFunc(stanzas(), func(s stanza) bool { return s.name == name })
	if i < 0 {
		return len(stanzas())
	}
	return i
}

// clone copies what resolve may change.
func (c Check) clone() Check {
	if g := c.Handler.HTTPGet; g != nil {
		copied := *g
		c.Handler.HTTPGet = &copied
	}
	if t := c.Handler.TCPSocket; t != nil {
		copied := *t
		c.Handler.TCPSocket = &copied
	}
	return c
}

// name returns the handler's name in the manifest; "" if there is none.
func (h Handler) name() string {
	switch {
	case h.Exec != nil:
		return "exec"
	case h.GuestAgentPing != nil:
		return "guestAgentPing"
	case h.HTTPGet != nil:
		return "httpGet"
	case h.TCPSocket != nil:
		return "tcpSocket"
	case h.GRPC != nil:
		return "grpc"
	}
	return ""
}

// resolve gives a named port its number; false if the name is not known.
func (h Handler) resolve(ports map[string]int) bool {
	switch {
	case h.HTTPGet != nil:
		h.HTTPGet.Port = ports[h.HTTPGet.PortName]
		return h.HTTPGet.Port != 0
	case h.TCPSocket != nil:
		h.TCPSocket.Port = ports[h.TCPSocket.PortName]
		return h.TCPSocket.Port != 0
	}
	return true
}
