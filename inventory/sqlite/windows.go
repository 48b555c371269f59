package sqlite

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// AllowBoot lets o's machine boot the agent from the network until the given time: it opens the netboot window for the boot that has the
// number boot.
//
// If boot is the number after the current boot, a new boot begins, which uses up one of the run's remaining boots. If none remains, the
// error is inventory.ErrConflict. If boot is the current boot, only its window is renewed: if the boot is spent, it stays spent. For any
// other number, the error is inventory.ErrConflict. Agents of earlier boots stay valid until the agent of the new boot has redeemed its
// claim.
func (s Grants) AllowBoot(ctx context.Context, o inventory.Owner, boot int, until time.Time) (inventory.Grant, error) {
	return s.allow(ctx, bootWindow{Owner: o, boot: boot, until: until})
}

// AllowInstaller is like AllowBoot, but the machine boots the plan's installer instead of the agent. It also opens the secrets window until
// the same time, so that the installer can read its documents.
func (s Grants) AllowInstaller(ctx context.Context, o inventory.Owner, boot int, until time.Time) (inventory.Grant,
	error,
) {
	return s.allow(ctx, bootWindow{Owner: o, boot: boot, installer: true, until: until})
}

// AllowBootAfterReset is called for a machine that was reset because it did not report after the previous boot was allowed. It is like
// AllowBoot or, if installer is true, AllowInstaller. But if the previous boot is spent by now, it changes nothing and the error is
// inventory.ErrClaimed: the machine did boot while that boot was allowed, and its agent is running.
func (s Grants) AllowBootAfterReset(ctx context.Context, o inventory.Owner, boot int, until time.Time, installer bool) error {
	_, err := s.allow(ctx, bootWindow{Owner: o, boot: boot, installer: installer, until: until, unclaimed: true})
	return err
}

// A bootWindow is the time during which a machine may boot from the network, with one boot of the run.
type bootWindow struct {
	inventory.Owner
	boot      int
	installer bool // the machine boots the plan's installer instead of the agent
	until     time.Time
	unclaimed bool // refuse if the previous boot is spent
}

func (s Grants) allow(ctx context.Context, w bootWindow) (g inventory.Grant, err error) {
	what := fmt.Sprintf("allowing boot %d of machine %q", w.boot, w.Machine)
	err = s.write(ctx, what, func(tx *transaction) error {
		g, err = allowIn(ctx, tx, w)
		return err
	})
	return g, err
}

func allowIn(ctx context.Context, tx *transaction, w bootWindow) (inventory.Grant, error) {
	if w.boot < 1 {
		return inventory.Grant{}, inventory.ErrInvalid
	}

	g, err := read[grantRow](ctx, tx, `UPDATE grant_ SET boots_left = boots_left - (boot <> ?4), spent = spent AND boot = ?4, boot = ?4,
		netboot_until = ?5, installer = ?6, acting = acting AND NOT ?6,
		address_closed = address_closed AND NOT ?6, container = container AND NOT ?6, secrets_until = iif(?6, ?5, secrets_until)
		WHERE `+owns+` AND (boot = ?4 OR (boot = ?4 - 1 AND boots_left > 0 AND NOT (?7 AND spent))) RETURNING `+grantColumns,
		w.Machine, w.Run, w.Epoch, w.boot, nanos(w.until), w.installer, w.unclaimed)
	if errors.Is(err, inventory.ErrNotFound) {
		return inventory.Grant{}, explainRefusal(ctx, tx, w)
	}
	if err != nil {
		return inventory.Grant{}, err
	}

	e := w.Event(w.boot, inventory.EventArmed, "", "")
	if w.installer {
		e.Message = inventory.ArmedForInstaller
		// When an installer writes to an available machine, the machine is in service again.
		err := do(ctx, tx, "DELETE FROM standing WHERE machine = ? AND state = ?", w.Machine, inventory.StandingAvailable)
		if err == nil {
			err = forgetOtherPlans(ctx, tx, w.Owner)
		}
		if err != nil {
			return inventory.Grant{}, err
		}
	}
	return g, addEvent(ctx, tx, e)
}

// explainRefusal returns the error that says why allowIn did not allow the boot.
func explainRefusal(ctx context.Context, tx *transaction, w bootWindow) error {
	g, err := grantOf(ctx, tx, w.Machine)
	switch {
	case err != nil:
		return err
	case g.Boot == w.boot-1 && w.unclaimed && g.Spent:
		return fencedOr(ctx, tx, w.Owner, inventory.ErrClaimed)
	case g.Boot == w.boot-1:
		return fencedOr(ctx, tx, w.Owner, fmt.Errorf("the run has no boots left: %w", inventory.ErrConflict))
	}
	return fencedOr(ctx, tx, w.Owner, fmt.Errorf("the current boot is %d: %w", g.Boot, inventory.ErrConflict))
}

// MoreBoots sets the number of remaining boots of o's run to n, if it is lower than n. It is called after an operator has decided that the
// run may go on.
func (s Grants) MoreBoots(ctx context.Context, o inventory.Owner, n int) error {
	return s.own(ctx, grantChange{what: "allowing more boots", set: "boots_left = max(boots_left, ?4)", value: n}, o)
}

// RenewNetboot makes o's netboot window end at the given time. If the window is closed, this opens it again. If no boot was allowed yet,
// the error is inventory.ErrConflict.
func (s Grants) RenewNetboot(ctx context.Context, o inventory.Owner, until time.Time) error {
	return s.own(ctx, grantChange{
		what: "renewing the netboot window", set: "netboot_until = ?4", value: nanos(until),
		condition: " AND boot > 0", otherwise: fmt.Errorf("no boot was allowed yet: %w", inventory.ErrConflict),
	}, o)
}

// CloseNetboot closes o's netboot window. If the window is closed already, nothing changes.
func (s Grants) CloseNetboot(ctx context.Context, o inventory.Owner) error {
	return s.write(ctx, fmt.Sprintf("closing the netboot window of machine %q", o.Machine), func(tx *transaction) error {
		boot, err := scalar[int](ctx, tx, "UPDATE grant_ SET netboot_until = 0 WHERE "+owns+
			" AND netboot_until <> 0 RETURNING boot", o.Machine, o.Run, o.Epoch)
		if errors.Is(err, inventory.ErrNotFound) {
			return fencedOr(ctx, tx, o, nil)
		}
		if err != nil {
			return err
		}
		return addEvent(ctx, tx, o.Event(boot, inventory.EventDisarmed, rand.Text(), ""))
	})
}

// OpenSecrets opens o's secrets window until the given time. Until then, the machine of o's run can get the run's secrets.
func (s Grants) OpenSecrets(ctx context.Context, o inventory.Owner, until time.Time) error {
	return s.own(ctx, grantChange{what: "opening the secrets window", set: "secrets_until = ?4", value: nanos(until)}, o)
}

// CloseSecrets closes o's secrets window. If the window is closed already, nothing changes.
func (s Grants) CloseSecrets(ctx context.Context, o inventory.Owner) error {
	return s.own(ctx, grantChange{what: "closing the secrets window", set: "secrets_until = ?4", value: 0}, o)
}

// A grantChange is an update of a grant. set is the SET clause, in which ?4 means value.
type grantChange struct {
	what, set string
	value     any
	condition string // SQL that follows WHERE …, beginning with AND; "" = no further condition
	otherwise error  // the error if condition is false
}

// own makes the change c to the grant that o holds. If o does not hold it, the error is inventory.ErrFenced.
func (s Grants) own(ctx context.Context, c grantChange, o inventory.Owner) error {
	return s.write(ctx, fmt.Sprintf("%s of machine %q", c.what, o.Machine), func(tx *transaction) error {
		tx.show(o.Machine)
		n, err := exec(ctx, tx, "UPDATE grant_ SET "+c.set+" WHERE "+owns+c.condition, o.Machine, o.Run, o.Epoch, c.value)
		if err == nil && n == 0 {
			err = fencedOr(ctx, tx, o, cmp.Or(c.otherwise, errors.New("nothing was changed")))
		}
		return err
	})
}

// ShiftWindows is called after the clock was set from one time to another. It moves the ends of netboot windows and secrets windows so that
// each open window stays open as long as before. It returns the number of grants with a window that was open before or after the clock was
// set.
//
// If the clock was set forward, ShiftWindows moves only windows that would be closed otherwise: a window that is still open was opened or
// renewed at the new time, or soon will be. If the clock was set back, it moves all windows that were open, and closes windows that had
// expired and would be open again otherwise.
func (s Grants) ShiftWindows(ctx context.Context, from, to time.Time) (int, error) {
	var machines []string
	err := s.write(ctx, "adjusting windows after a step of the clock", func(tx *transaction) error {
		set := func(column string) string {
			return fmt.Sprintf(`%[1]s = CASE WHEN %[1]s > ?1 AND (%[1]s <= ?2 OR ?2 < ?1) THEN %[1]s + ?2 - ?1
				WHEN %[1]s > ?2 AND ?2 < ?1 THEN ?2 ELSE %[1]s END`, column)
		}
		err := tx.SelectContext(ctx, &machines,
			"UPDATE grant_ SET "+set("netboot_until")+", "+set("secrets_until")+` WHERE run <> '' AND max(netboot_until, secrets_until) > min(?1, ?2)
			RETURNING machine`, nanos(from), nanos(to))
		for _, m := range machines {
			tx.show(m)
		}
		return err
	})
	return len(machines), err
}
