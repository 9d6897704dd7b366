package sidecar

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/sidecar/manifest"
	"github.com/guestprobe/guestprobe/sidecar/probe"
	"github.com/guestprobe/guestprobe/sidecar/verdict"
)

// A check is one probe of the manifest and the worker that runs it. Its state is state's, and needs state's lock.
type check struct {
	manifest.Check
	worker  *probe.Worker
	command *command // nil: it runs none
	target  probe.Target
	// settled: in this boot the check has had a result that counts. Until then a guest that fails it is starting.
	settled bool
	// failure is the last failure of this boot, which explains the state until enough successes have ended it.
	failure error
	// warnedAt is when a check that only warns began to fail; zero: it does not.
	warnedAt time.Time
}

// retarget tells the worker what there is to probe.
func (c *check) retarget(t probe.Target) {
	if t == c.target {
		return
	}
	if t.Instance != c.target.Instance || !t.StartedAt.Equal(c.target.StartedAt) {
		c.settled, c.failure = false, nil
	}
	c.target = t
	c.worker.SetTarget(t)
}

// asksAgent reports whether the check's handler goes through the guest agent.
func (c *check) asksAgent() bool { return c.Handler.GuestAgentPing != nil || c.Handler.Exec != nil }

// input is the check as the verdict sees it.
func (c *check) input() verdict.Check {
	s := c.worker.Snapshot()
	in := verdict.Check{Name: c.Name, Kind: c.Kind, Warn: c.Warn, Agent: c.asksAgent(), State: s.State}
	if s.Outcome == probe.OutcomeFailure {
		c.failure = s.Err
	}
	if s.State == probe.StateSuccess || s.Outcome == probe.OutcomeFailure && s.Run >= c.FailureThreshold {
		c.settled = true
	}
	switch {
	case s.State == probe.StateFailure && c.Kind == probe.Readiness && !c.settled:
		in.Reason, in.Detail = verdict.Starting, c.starting(s)
	case s.State == probe.StateFailure && s.Outcome == probe.OutcomeSuccess && c.failure != nil:
		in.Reason = reasonOf(c.failure)
		in.Detail = fmt.Sprintf("%s; since then %d of %d successes", printable(c.failure.Error()), s.Run, c.SuccessThreshold)
	case s.Err != nil:
		in.Reason, in.Detail = reasonOf(s.Err), printable(s.Err.Error())
	}
	return in
}

// starting says how far a readiness check is that has no result yet.
func (c *check) starting(s probe.Snapshot) string {
	switch {
	case s.Outcome == probe.OutcomeNone && s.Step == probe.StepDelay:
		return fmt.Sprintf("not probed yet: the initial delay is %v", c.InitialDelay)
	case s.Outcome == probe.OutcomeNone && s.Step == probe.StepGate:
		return "not probed yet: waiting for the startup probe"
	case s.Outcome == probe.OutcomeNone:
		return "not probed yet"
	case s.Err != nil:
		return printable(s.Err.Error())
	}
	return fmt.Sprintf("%d of %d successes", s.Run, c.SuccessThreshold)
}

// describe says in one line what the check does, as its manifest would.
func (c *check) describe(guestHost string) string {
	h := c.Handler
	switch {
	case h.GuestAgentPing != nil:
		return "guestAgentPing"
	case h.Exec != nil:
		return "exec " + printable(strings.Join(h.Exec.Command, " "))
	case h.HTTPGet != nil:
		host := hostPort(orElse(h.HTTPGet.Host, guestHost), h.HTTPGet.Port)
		return "httpGet " + strings.ToLower(h.HTTPGet.Scheme) + "://" + host + "/" + strings.TrimPrefix(h.HTTPGet.Path, "/")
	case h.TCPSocket != nil:
		return "tcpSocket " + hostPort(orElse(h.TCPSocket.Host, guestHost), h.TCPSocket.Port)
	case h.GRPC != nil:
		return "grpc " + strings.TrimSpace(hostPort(guestHost, h.GRPC.Port)+" "+h.GRPC.Service)
	}
	return ""
}

// hostPort joins a probe's host, or the first of the guest's addresses, and a port.
func hostPort(host string, port int) string {
	return net.JoinHostPort(guestHosts(host)[0], strconv.Itoa(port))
}

// maxDetail bounds what a guest can put into our answers and logs.
const maxDetail = 512

// printable makes text of the guest's fit for a log line and an answer: no control characters, no invalid UTF-8, not too long.
func printable(s string) string {
	cut := ""
	if len(s) > maxDetail {
		s, cut = s[:maxDetail], "…"
	}
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case !strconv.IsPrint(r):
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	return s + cut
}
