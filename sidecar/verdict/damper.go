package verdict

import "time"

// Settle is how long a VM must have been well before a bad state of it is forgotten.
const Settle = time.Second

// A Damper keeps a VM that swaps states fast from swapping its verdict as fast. Bad
// news passes at once. A bad state of the VM is forgotten only when it has been away
// for Settle; the first start and the arrival by migration are not waited for, as they
// happen once, and neither are checks, which have thresholds of their own. Two bad
// states that alternate change the reason once per Settle.
//
// What is damped is readiness and its reason. Live, Started and Held are passed on as
// they are: probing has to follow the VM. The zero value is ready to use.
type Damper struct {
	out       Verdict
	some      bool      // there is an out
	wellSince time.Time // since when the state that out tells has been away
	former    Reason    // out's reason before this one
	left      time.Time // when that was
}

// Update takes the verdict of the facts as they are at now, and returns the one to be
// told. If wait is not 0, Update should be called again after it, with what are then
// the facts: good news may be due.
func (d *Damper) Update(now time.Time, raw Verdict) (out Verdict, wait time.Duration) {
	wait = max(0, d.wait(now, raw))
	if wait == 0 {
		if raw.Reason != d.out.Reason {
			d.former, d.left = d.out.Reason, now
		}
		d.out, d.some = raw, true
		return raw, 0
	}
	out = raw
	out.Ready, out.Reason, out.FromVM, out.Readyz = false, d.out.Reason, d.out.FromVM, d.out.Readyz
	out.Detail = line(d.out.Detail + "; this is over and has to stay so for " + Settle.String())
	out.Readyz.Detail = out.Detail
	return out, wait
}

func (d *Damper) wait(now time.Time, raw Verdict) time.Duration {
	switch {
	case !d.some || d.out.Ready || !d.out.FromVM:
		d.wellSince = time.Time{}
		return 0
	case raw.FromVM:
		d.wellSince = time.Time{}
		if raw.Reason != d.out.Reason && raw.Reason == d.former && raw.Reason != Terminating {
			return Settle - now.Sub(d.left)
		}
		return 0
	case d.out.Reason == Starting || d.out.Reason == MigratingIn:
		return 0
	}
	if d.wellSince.IsZero() {
		d.wellSince = now
	}
	return Settle - now.Sub(d.wellSince)
}
