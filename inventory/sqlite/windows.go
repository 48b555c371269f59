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

// AllowBoot opens the netboot window until the given time for a boot of o's run, in which the machine boots the agent.
//
// If boot follows the current boot, it takes one of the remaining boots; if none is left, the error is inventory.ErrConflict. If
// boot is the current boot, only its window is renewed: a spent boot stays spent. Any other number is inventory.ErrConflict.
// Agents of earlier boots stay valid until the claim of the new boot is redeemed.
func (s Grants) AllowBoot(ctx context.Context, o inventory.Owner, boot int, until time.Time) (inventory.Grant, error) {
	return s.allow(ctx, bootWindow{Owner: o, boot: boot, until: until})
}

// AllowInstaller is AllowBoot for a boot in which the machine boots the plan's installer. It also opens the secrets window, for
// the documents that the installer reads.
func (s Grants) AllowInstaller(ctx context.Context, o inventory.Owner, boot int, until time.Time) (inventory.Grant,
	error,
) {
	return s.allow(ctx, bootWindow{Owner: o, boot: boot, installer: true, until: until})
}

// AllowBootAfterReset is AllowBoot or, with installer, AllowInstaller for a machine that was reset because it did not report
// after the previous boot. If the previous boot is spent by now, the error is inventory.ErrClaimed and nothing changes: the
// machine has restarted while the window of that boot was still open, and its agent is running.
func (s Grants) AllowBootAfterReset(ctx context.Context, o inventory.Owner, boot int, until time.Time, installer bool) error {
	_, err := s.allow(ctx, bootWindow{Owner: o, boot: boot, installer: installer, until: until, unclaimed: true})
	return err
}

// A bootWindow is the netboot window of one boot.
type bootWindow struct {
	inventory.Owner
	boot      int
	installer bool // the machine boots the plan's installer instead of the agent
	until     time.Time
	unclaimed bool // allow the boot only if the previous boot is not spent
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
		netboot_until = ?5, installer = ?6, acting = acting AND NOT ?6, secrets_until = iif(?6, ?5, secrets_until)
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
		// A machine is in service again when the installer writes to it.
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

// explainRefusal returns the error that says why allowIn changed nothing.
func explainRefusal(ctx context.Context, tx *transaction, w bootWindow) error {
	g, err := grantOf(ctx, tx, w.Machine)
	switch {
	case err != nil:
		return err
	case g.Boot == w.boot-1 && w.unclaimed && g.Spent:
		return fencedOr(ctx, tx, w.Owner, inventory.ErrClaimed)
	case g.Boot == w.boot-1:
		return fencedOr(ctx, tx, w.Owner, fmt.Errorf("all boots of the run are used: %w", inventory.ErrConflict))
	}
	return fencedOr(ctx, tx, w.Owner, fmt.Errorf("the current boot is %d: %w", g.Boot, inventory.ErrConflict))
}

// MoreBoots raises the remaining boots of o's run to n, unless more remain. It is called after a decision of an operator.
func (s Grants) MoreBoots(ctx context.Context, o inventory.Owner, n int) error {
	return s.own(ctx, grantChange{what: "allowing more boots", set: "boots_left = max(boots_left, ?4)", value: n}, o)
}

// RenewNetboot changes the end of o's netboot window; it also opens a closed window again. Before the first AllowBoot, the error
// is inventory.ErrConflict.
func (s Grants) RenewNetboot(ctx context.Context, o inventory.Owner, until time.Time) error {
	return s.own(ctx, grantChange{
		what: "renewing the netboot window", set: "netboot_until = ?4", value: nanos(until),
		condition: " AND boot > 0", otherwise: fmt.Errorf("no boot was allowed yet: %w", inventory.ErrConflict),
	}, o)
}

// CloseNetboot closes o's netboot window. If it is closed, nothing changes.
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

// OpenSecrets opens o's secrets window until the given time.
func (s Grants) OpenSecrets(ctx context.Context, o inventory.Owner, until time.Time) error {
	return s.own(ctx, grantChange{what: "opening the secrets window", set: "secrets_until = ?4", value: nanos(until)}, o)
}

// CloseSecrets closes o's secrets window. If it is closed, nothing changes.
func (s Grants) CloseSecrets(ctx context.Context, o inventory.Owner) error {
	return s.own(ctx, grantChange{what: "closing the secrets window", set: "secrets_until = ?4", value: 0}, o)
}

// A grantChange sets a column of a grant to a value, which is parameter 4.
type grantChange struct {
	what, set string
	value     any
	condition string // further condition; "" for none
	otherwise error  // the error if the condition is false
}

// own makes the change c to o's grant. If o does not hold the grant, the error is inventory.ErrFenced.
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

// ShiftWindows adjusts the open windows of all grants after the clock has stepped, so that they keep their remaining duration. It
// returns the number of grants with a window that was open before or after the step.
//
// After a step forward, it moves the windows that the step closed; a window that is still open was opened or renewed at the new
// time, or soon will be. After a step backward, it moves all windows that were open, and closes expired windows that would
// otherwise be open again.
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
