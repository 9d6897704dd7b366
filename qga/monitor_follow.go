package qga

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A follower follows one connection from its greeting to its end. All of it
// runs in Watch's goroutine.
type follower struct {
	w      *watcher
	c      *qmpConn
	inbox  *qmpInbox
	socket socketFile // as it was dialed

	// asked holds the commands that wait for a reply, one of each name.
	asked map[string]*asked
	// The first round of answers: what is still missing, and all that came
	// since the negotiation, in order, to be taken in when it is complete.
	attached bool
	missing  map[string]bool
	early    []inboxItem
	id       identity

	pollAt   time.Time // the next question without a cause
	statusAt time.Time // a status to be asked for again; zero: none
	stuck    stuckness
}

// An asked command waits for its reply.
type asked struct {
	due   time.Time // when its reply is late
	again bool      // something happened since it was sent: ask once more
}

// stuckness is what is known about a peer that is late.
type stuckness struct {
	late     string    // the command whose reply is late; "": none
	oobSent  bool      // a query-yank is out
	oobDue   time.Time // when that one is late too
	nextLook time.Time // when to try again, and to look at the path
}

func newFollower(w *watcher, c *qmpConn, inbox *qmpInbox, socket socketFile) *follower {
	return &follower{
		w: w, c: c, inbox: inbox, socket: socket,
		asked:   map[string]*asked{},
		missing: map[string]bool{},
		id:      identify(c.nc, w.m.addr.Path),
	}
}

// passingPoll is the poll interval in states that pass.
const passingPoll = 250 * time.Millisecond

// firstRound is what is asked before events are trusted.
func firstRound() []string {
	return []string{"query-status", "query-name", "query-uuid", "query-cpus-fast", "query-chardev"}
}

// follow negotiates and then serves the connection until it ends.
func (f *follower) follow(ctx context.Context) error {
	f.pollAt = time.Now().Add(f.w.m.cfg.PollInterval)
	if err := f.send(f.c.capabilities()); err != nil {
		return err
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.inbox.ready:
			if err := f.drain(); err != nil {
				return err
			}
		case <-f.c.done:
			if err := f.drain(); err != nil { // SHUTDOWN comes right before the end
				return err
			}
			return f.c.err
		case <-timer.C:
			if err := f.tick(time.Now()); err != nil {
				return err
			}
		}
		timer.Reset(time.Until(f.nextTick()))
	}
}

// drain takes in all that has come, the last words of a connection that has
// ended included. It returns the first error.
func (f *follower) drain() error {
	var first error
	items, lost := f.inbox.take()
	for _, it := range items {
		if it.err != nil {
			continue // the connection has ended, which follow sees by itself
		}
		if err := f.take(it); err != nil && first == nil {
			first = err
		}
	}
	if first == nil && lost && f.attached {
		return f.askAll(needStatus | needChardev)
	}
	return first
}

// take takes one event or reply in.
func (f *follower) take(it inboxItem) error {
	if it.command != "" {
		if done, err := f.replied(it); done || err != nil {
			return err
		}
	}
	if !f.attached {
		return f.takeEarly(it)
	}
	err := f.apply(it)
	f.w.publish()
	return err
}

// replied keeps the books of a reply, and reports whether that was all.
func (f *follower) replied(it inboxItem) (done bool, err error) {
	if it.command == "query-yank" {
		f.stuck.oobSent = false
		if f.stuck.late != "" {
			f.reportStuck(true)
		}
		return true, nil
	}
	a := f.asked[it.command]
	delete(f.asked, it.command)
	if f.stuck.late != "" {
		f.recovered()
	}
	if it.command == "qmp_capabilities" {
		if it.msg.err != nil {
			return true, fmt.Errorf("%w: negotiation refused: %w", ErrProtocol, it.msg.err)
		}
		for _, command := range firstRound() {
			f.missing[command] = true
			if err := f.ask(command); err != nil {
				return true, err
			}
		}
		return true, nil
	}
	if a != nil && a.again {
		return false, f.ask(it.command)
	}
	return false, nil
}

// takeEarly collects the first round.
func (f *follower) takeEarly(it inboxItem) error {
	switch it.command {
	case "query-name":
		f.id.readName(it.msg.result)
	case "query-uuid":
		f.id.readUUID(it.msg.result)
	case "query-cpus-fast":
		f.id.readVCPU(it.msg.result)
	case "query-chardev":
		list, err := decodeChardevs(it.msg.result)
		if err == nil && ownedByLibvirt(list, f.w.m.addr.Path) {
			return errLibvirtsMonitor
		}
		f.early = append(f.early, it)
	default:
		if len(f.early) < maxInboxItems {
			f.early = append(f.early, it)
		}
	}
	delete(f.missing, it.command)
	if len(f.missing) > 0 || len(f.asked) > 0 && f.asked["qmp_capabilities"] != nil {
		return nil
	}
	return f.attach()
}

// attach begins to trust what comes: the state is known.
func (f *follower) attach() error {
	f.attached = true
	f.w.tracker.attach(f.id, f.c.greeting.version, f.id.started())
	early := f.early
	f.early = nil
	var errs []error
	for _, it := range early {
		errs = append(errs, f.apply(it))
	}
	f.w.m.setConn(f.c, nil)
	f.w.publish()
	return errors.Join(errs...)
}

// apply takes an event or a reply into the state, and asks for what follows.
func (f *follower) apply(it inboxItem) error {
	now := time.Now()
	t := &f.w.tracker
	var n needs
	switch {
	case it.command == "":
		n = t.event(it.msg.event, now)
	case it.msg.err != nil: // QEMU lacks the command: so be it
		f.w.m.cfg.Logger.Debug("monitor refuses a query", "command", it.command, "err", it.msg.err)
	case it.command == "query-status":
		var err error
		if n, f.statusAt, err = t.status(it.msg.result, now); err != nil {
			return err
		}
		f.pollSoon(now)
	case it.command == "query-chardev":
		list, err := decodeChardevs(it.msg.result)
		if err != nil {
			return err
		}
		t.chardevs(list)
	case it.command == "query-block":
		t.blocks(it.msg.result)
	}
	return f.askAll(n)
}

// pollSoon asks again soon in a state that ends without an event.
func (f *follower) pollSoon(now time.Time) {
	switch f.w.tracker.s.Status {
	case "inmigrate", "finish-migrate", "save-vm", "restore-vm":
		if soon := now.Add(passingPoll); soon.Before(f.pollAt) {
			f.pollAt = soon
		}
	}
}

func (f *follower) askAll(n needs) error {
	var errs []error
	for _, q := range []struct {
		need    needs
		command string
	}{{needStatus, "query-status"}, {needChardev, "query-chardev"}, {needBlock, "query-block"}} {
		if n&q.need != 0 {
			errs = append(errs, f.ask(q.command))
		}
	}
	return errors.Join(errs...)
}

// ask sends a query, or remembers to send it again if one is under way.
func (f *follower) ask(command string) error {
	if a := f.asked[command]; a != nil {
		a.again = true
		return nil
	}
	return f.send(qmpCommand{Execute: command})
}

func (f *follower) send(cmd qmpCommand) error {
	due := time.Now().Add(f.w.m.cfg.CommandTimeout)
	name := cmd.name()
	if cmd.ExecOOB == "" {
		f.asked[name] = &asked{due: due}
	}
	_, err := f.c.start(cmd, due, func(msg qmpMessage, err error) {
		f.inbox.put(inboxItem{command: name, msg: msg, err: err})
	})
	if errors.Is(err, ErrConnectionLost) || errors.Is(err, ErrProtocol) {
		// The peer may have said something before it hung up: the reader gets
		// to that, and then ends this connection.
		return nil
	}
	return err
}
