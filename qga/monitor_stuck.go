package qga

import (
	"context"
	"fmt"
	"time"
)

// stuckLook is how often a silent connection is looked at again.
const stuckLook = time.Second

// oobGrace is how long query-yank may take: it is answered by the monitor's
// own thread, which does nothing else.
const oobGrace = 500 * time.Millisecond

// tick does what is due.
func (f *follower) tick(now time.Time) error {
	if f.stuck.late == "" {
		for command, a := range f.asked {
			if !now.Before(a.due) {
				return f.late(command, now)
			}
		}
	} else if err := f.lookAgain(now); err != nil {
		return err
	}
	if !f.attached || f.stuck.late != "" {
		return nil
	}
	if !f.statusAt.IsZero() && !now.Before(f.statusAt) {
		f.statusAt = time.Time{}
		return f.ask("query-status")
	}
	if !now.Before(f.pollAt) {
		f.pollAt = now.Add(f.w.m.cfg.PollInterval)
		return f.askAll(needStatus | needChardev)
	}
	return nil
}

// nextTick returns when something is due.
func (f *follower) nextTick() time.Time {
	next := time.Now().Add(time.Hour)
	earlier := func(t time.Time) {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	switch {
	case f.stuck.late != "":
		earlier(f.stuck.nextLook)
		if f.stuck.oobSent {
			earlier(f.stuck.oobDue)
		}
		return next
	case f.attached:
		earlier(f.pollAt)
		earlier(f.statusAt)
	}
	for _, a := range f.asked {
		earlier(a.due)
	}
	return next
}

// late begins to find out why a reply does not come. The command stays
// awaited: its late reply is the recovery.
func (f *follower) late(command string, now time.Time) error {
	f.stuck.late = command
	f.stuck.nextLook = now.Add(stuckLook)
	if !f.canProbe(command) {
		f.reportStuck(false)
		return nil
	}
	return f.probe(now)
}

// canProbe reports whether the peer takes commands out of band: once that is
// negotiated.
func (f *follower) canProbe(late string) bool {
	return f.c.greeting.oob && late != "qmp_capabilities"
}

// probe asks out of band, one question at a time.
func (f *follower) probe(now time.Time) error {
	f.stuck.oobSent = true
	f.stuck.oobDue = now.Add(oobGrace)
	return f.send(qmpCommand{ExecOOB: "query-yank"})
}

// lookAgain follows a peer that is late.
func (f *follower) lookAgain(now time.Time) error {
	if f.stuck.oobSent && !now.Before(f.stuck.oobDue) {
		f.stuck.oobDue = now.Add(time.Hour) // its answer still counts
		f.reportStuck(false)
	}
	if now.Before(f.stuck.nextLook) {
		return nil
	}
	f.stuck.nextLook = now.Add(stuckLook)
	if s := statSocket(f.w.m.addr.Path); s.inode != 0 && s != f.socket {
		return errReplaced
	}
	if f.canProbe(f.stuck.late) && !f.stuck.oobSent {
		return f.probe(now)
	}
	return nil
}

// reportStuck publishes what silence means, as far as can be told.
func (f *follower) reportStuck(oobAnswers bool) {
	what := fmt.Sprintf("no reply to %s within %v", f.stuck.late, f.w.m.cfg.CommandTimeout)
	p := peerProcess(f.c.nc)
	var err error
	switch {
	case p.stopped:
		err = fmt.Errorf("%s, process %d is stopped: %w", what, p.pid, context.DeadlineExceeded)
	case oobAnswers:
		err = fmt.Errorf("%s, but out of band it answers: QEMU's main loop is stuck: %w", what, context.DeadlineExceeded)
	case f.canProbe(f.stuck.late):
		err = fmt.Errorf("%s, nor to query-yank out of band: process stopped or starved: %w", what, context.DeadlineExceeded)
	default:
		err = fmt.Errorf("%s: %w", what, context.DeadlineExceeded)
	}
	f.w.setLink(LinkStuck, err)
}

// recovered ends the lateness.
func (f *follower) recovered() {
	f.stuck.late = ""
	now := time.Now()
	for _, a := range f.asked { // they queued behind the late one
		a.due = now.Add(f.w.m.cfg.CommandTimeout)
		a.again = true
	}
	f.pollAt = now
	if f.attached {
		f.w.tracker.s.Link, f.w.tracker.s.LinkErr = LinkUp, nil
	}
}
