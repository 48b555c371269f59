package sqlite

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/inventory"
)

// Grants are the grants of machines. A grant says which run owns the machine. It also says until when the machine may boot from the network
// (the netboot window) and until when it gets secrets (the secrets window). A statement that only the owner may run compares its machine,
// run and epoch with those of the grant.
type Grants struct{ *db }

// held is the SQL condition for statements that require an owner to hold the machine's grant. Parameters 1 to 3 are machine, run and epoch
// of the owner. A free grant has run "", and no owner holds it.
const held = "EXISTS (SELECT 1 FROM grant_ WHERE grant_.machine = ?1 AND grant_.run = ?2 AND grant_.epoch = ?3 AND grant_.run <> '')"

// owns is the same condition as held, for statements on the table grant_ itself.
const owns = "machine = ?1 AND run = ?2 AND epoch = ?3 AND run <> ''"

// grantColumns are the columns of a grantRow. joinedGrantColumns are the same columns for a join in which the table grant_ is named g. Both
// are computed only once, because every DHCP packet can cause a query that contains them.
var grantColumns, joinedGrantColumns = listGrantColumns(""), listGrantColumns("g.")

func listGrantColumns(prefix string) string {
	var b strings.Builder
	for _, c := range []string{
		"machine", "run", "epoch", "site_epoch", "workflow", "boot", "boots_left", "spent", "installer", "acting", "address_closed",
		"netboot_until", "secrets_until", "taken",
	} {
		zero := "0"
		if c == "machine" || c == "run" || c == "workflow" {
			zero = "''"
		}
		fmt.Fprintf(&b, `, coalesce(%s%s, %s) AS "%s%s"`, prefix, c, zero, prefix, c)
	}
	return strings.TrimPrefix(b.String(), ", ")
}

type grantRow struct {
	inventory.Grant
	NetbootUntil, SecretsUntil, Taken int64
}

func (r grantRow) value() (inventory.Grant, error) { return r.grant(), nil }

func (r grantRow) grant() inventory.Grant {
	g := r.Grant
	g.NetbootUntil, g.SecretsUntil, g.Taken = moment(r.NetbootUntil), moment(r.SecretsUntil), moment(r.Taken)
	return g
}

// grantOf returns the grant of a machine. If the machine never had a grant, it returns the zero Grant.
func grantOf(ctx context.Context, q sqlx.QueryerContext, machine string) (inventory.Grant, error) {
	return optional(read[grantRow](ctx, q, "SELECT "+grantColumns+" FROM grant_ WHERE machine = ?", machine))
}

// fencedOr is called after a statement that requires o to hold the grant has changed nothing. It returns inventory.ErrFenced if o does not
// hold the grant; otherwise it returns other.
func fencedOr(ctx context.Context, q sqlx.QueryerContext, o inventory.Owner, other error) error {
	g, err := grantOf(ctx, q, o.Machine)
	if err != nil {
		return err
	}
	if o.Run == "" || g.Owner != o {
		return fmt.Errorf("run %q at epoch %d: %w", o.Run, o.Epoch, inventory.ErrFenced)
	}
	return other
}

// Grant returns the grant of a machine. If the machine never had a grant, it returns the zero Grant.
func (s Grants) Grant(ctx context.Context, machine string) (inventory.Grant, error) {
	g, err := grantOf(ctx, s.ro, machine)
	return g, wrap(err, "reading the grant of machine %q", machine)
}

// Grants returns all grants that are not free, sorted by machine.
func (s Grants) Grants(ctx context.Context) ([]inventory.Grant, error) {
	out, err := list[grantRow](ctx, s.ro, "SELECT "+grantColumns+" FROM grant_ WHERE run <> '' ORDER BY machine")
	return out, wrap(err, "listing grants")
}

// take returns the SQL statement that gives a grant to a new owner if condition is true. Its parameters are machine, run, workflow, boot,
// boots left, the current time, and the end of the netboot window. The statement returns the new grant. It returns no row if the machine is
// unknown, if the record of the run is final, or if condition is false for the stored grant.
func take(condition string) string {
	return `INSERT INTO grant_ (machine, run, epoch, site_epoch, workflow, boot, boots_left, spent, netboot_until, secrets_until, taken)
		SELECT name, ?2, 1 + coalesce((SELECT value FROM meta WHERE name = 'epoch_floor'), 0),
			(SELECT value FROM meta WHERE name = 'site_epoch'), ?3, ?4, ?5, 0, ?7, 0, ?6 FROM machine
			WHERE name = ?1 AND NOT EXISTS (SELECT 1 FROM workflow WHERE workflow.run = ?2 AND final = 1)
		ON CONFLICT (machine) DO UPDATE SET run = excluded.run, epoch = grant_.epoch + 1, site_epoch = excluded.site_epoch,
			workflow = excluded.workflow, boot = excluded.boot, boots_left = excluded.boots_left, spent = 0, installer = 0,
			acting = 0, address_closed = 0, container = 0, netboot_until = excluded.netboot_until, secrets_until = 0,
			taken = excluded.taken
		WHERE ` + condition + ` RETURNING ` + grantColumns
}

// TakeGrant makes run the owner of machine and increments the epoch of the grant, in one atomic step. From then on, a statement that
// requires the grant has no effect for an earlier owner.
//
// If run already holds the grant, TakeGrant returns the grant unchanged. If the grant is free or an operator holds it, run gets it. If
// another run of the same workflow holds it, run gets it, too, unless run has held it before: the other run must have ended, because
// Temporal executes only one run of a workflow at a time. In all other cases, force must be set, or the error is inventory.ErrConflict and
// names the holder. For an unknown machine, the error is inventory.ErrNotFound.
//
// An activity may outlive its run. Therefore the error is inventory.ErrConflict, even with force, if the record of run is final, or if run
// began before the run that holds the grant. The order of the records decides which run began first, because clocks can be set.
func (s Grants) TakeGrant(ctx context.Context, machine, run, workflowID string, force bool) (inventory.Grant, error) {
	var g inventory.Grant
	err := s.write(ctx, fmt.Sprintf("taking the grant of machine %q", machine), func(tx *transaction) (err error) {
		g, err = takeGrant(ctx, tx, inventory.Claimant{Machine: machine, Run: run, Workflow: workflowID}, nanos(s.now()), force)
		return err
	})
	return g, err
}

// TakeGrants does for several machines what TakeGrant does for one, in one transaction: either each run gets the grant of its machine, or
// no grant changes. The error then names each machine that could not be taken.
func (s Grants) TakeGrants(ctx context.Context, claimants []inventory.Claimant) error {
	return s.write(ctx, "taking the grants of several machines", func(tx *transaction) error {
		var refused []error
		for _, c := range claimants {
			if _, err := takeGrant(ctx, tx, c, nanos(s.now()), false); err != nil {
				refused = append(refused, fmt.Errorf("machine %q: %w", c.Machine, err))
			}
		}
		return errors.Join(refused...)
	})
}

func takeGrant(ctx context.Context, tx *transaction, c inventory.Claimant, now int64, force bool) (inventory.Grant, error) {
	if c.Run == "" || strings.HasPrefix(c.Run, inventory.OperatorPrefix) {
		return inventory.Grant{}, fmt.Errorf("run %q: %w", c.Run, inventory.ErrInvalid)
	}
	g, err := read[grantRow](ctx, tx, take(`grant_.run <> ?2
		AND NOT EXISTS (SELECT 1 FROM workflow mine, workflow held WHERE mine.run = ?2 AND held.run = grant_.run AND mine.rowid < held.rowid)
		AND (grant_.run = '' OR grant_.run GLOB 'operator:*' OR ?8
		OR (grant_.workflow = ?3 AND ?3 <> '' AND NOT EXISTS (SELECT 1 FROM event WHERE machine = ?1 AND run = ?2 AND kind = 'grant')))`),
		c.Machine, c.Run, c.Workflow, 0, inventory.MaxBoots, now, 0, force)
	if errors.Is(err, inventory.ErrNotFound) {
		if g, err = grantOf(ctx, tx, c.Machine); err != nil || g.Run == c.Run {
			return g, err
		}
		return g, notTaken(ctx, tx, g, c.Run)
	}
	if err != nil {
		return g, err
	}
	if err := revokeEarlier(ctx, tx, g.Owner); err != nil {
		return g, err
	}
	return g, addEvent(ctx, tx, g.Event(0, inventory.EventGrant, "", c.Workflow))
}

// notTaken returns the error that explains why TakeGrant did not give the grant g to run.
func notTaken(ctx context.Context, tx *transaction, g inventory.Grant, run string) error {
	var mine struct {
		State          string
		Final, Earlier bool
	}
	err := get(ctx, tx, &mine, `SELECT state, final,
		EXISTS (SELECT 1 FROM workflow held WHERE held.run = ?2 AND mine.rowid < held.rowid) AS earlier
		FROM workflow mine WHERE run = ?1`, run, g.Run)
	switch {
	case err != nil && !errors.Is(err, inventory.ErrNotFound):
		return err
	case mine.Final:
		return fmt.Errorf("run %q has ended: %s: %w", run, mine.State, inventory.ErrConflict)
	case g.Run == "":
		return inventory.ErrNotFound
	case mine.Earlier:
		return fmt.Errorf("%s, and run %q began earlier: %w", holder(g), run, inventory.ErrConflict)
	}

	return fmt.Errorf("%s: %w", holder(g), inventory.ErrConflict)
}

func holder(g inventory.Grant) string {
	if g.Workflow == "" {
		return fmt.Sprintf("%q owns the machine", g.Run)
	}
	return fmt.Sprintf("run %q of workflow %q owns the machine", g.Run, g.Workflow)
}

// revokeEarlier revokes all agents of o's machine that belong to another owner than o.
func revokeEarlier(ctx context.Context, tx *transaction, o inventory.Owner) error {
	return do(ctx, tx, "UPDATE agent SET revoked = 1 WHERE machine = ? AND revoked = 0 AND (run <> ? OR epoch <> ?)",
		o.Machine, o.Run, o.Epoch)
}

// ArmByHand gives the grant of a machine to an operator, for rescue. The machine may boot from the network any number of times until the
// given time, but gets no assignments and no secrets. Each further call starts a new epoch. If a run holds the grant, the error is
// inventory.ErrConflict. If ctx belongs to a repeated request (one with the Idempotency-Key of an earlier request) and the earlier request
// has armed the machine, nothing changes and the result is the zero Grant.
func (s Grants) ArmByHand(ctx context.Context, machine, by string, until time.Time) (inventory.Grant, error) {
	var g inventory.Grant
	what := fmt.Sprintf("arming machine %q by hand", machine)
	if by == "" {
		return g, fmt.Errorf("%s: the operator's name is missing: %w", what, inventory.ErrInvalid)
	}

	err := s.writeOnce(ctx, what, func(tx *transaction) (err error) {
		g, err = read[grantRow](ctx, tx, take("grant_.run = '' OR grant_.run GLOB 'operator:*'"),
			machine, inventory.OperatorPrefix+by, "", 1, 0, nanos(s.now()), nanos(until))
		if errors.Is(err, inventory.ErrNotFound) {
			g, err := grantOf(ctx, tx, machine)
			if err != nil {
				return err
			}
			if g.Run != "" && !g.ByOperator() {
				return fmt.Errorf("%s: %w", holder(g), inventory.ErrConflict)
			}
			return inventory.ErrNotFound
		}
		if err != nil {
			return err
		}
		if err := revokeEarlier(ctx, tx, g.Owner); err != nil {
			return err
		}
		e := g.Event(g.Boot, inventory.EventArmed, "", "by hand until "+until.UTC().Format(time.RFC3339))
		e.By = by
		return addEvent(ctx, tx, e)
	})
	return g, err
}

// DisarmByHand ends the grant that an operator holds. If the grant is free, it does nothing. If a run holds the grant and force is not set,
// the error is inventory.ErrConflict. With force, it ends the grant of the run; at its next step, the run notices that it has lost the
// machine, and asks an operator.
func (s Grants) DisarmByHand(ctx context.Context, machine, by string, force bool) error {
	return s.writeOnce(ctx, fmt.Sprintf("disarming machine %q by hand", machine), func(tx *transaction) error {
		g, err := grantOf(ctx, tx, machine)
		if err != nil {
			return err
		}
		switch {
		case g.Run == "":
			_, err := scalar[int](ctx, tx, "SELECT 1 FROM machine WHERE name = ?", machine)
			return err
		case !g.ByOperator() && !force:
			return fmt.Errorf("%s: %w", holder(g), inventory.ErrConflict)
		}

		tx.touch(machine)
		if err := end(ctx, tx, g.Owner); err != nil {
			return err
		}
		e := g.Event(g.Boot, inventory.EventDisarmed, rand.Text(), "by hand")
		e.By = by
		return addEvent(ctx, tx, e)
	})
}

// EndGrant closes the netboot window and the secrets window of o's grant, revokes o's agents and frees the grant. The grant keeps its
// epoch. If o does not hold the grant, EndGrant does nothing and returns nil.
func (s Grants) EndGrant(ctx context.Context, o inventory.Owner) error {
	return s.write(ctx, fmt.Sprintf("ending the grant of machine %q", o.Machine), func(tx *transaction) error {
		was, err := read[grantRow](ctx, tx, "SELECT "+grantColumns+" FROM grant_ WHERE "+owns, o.Machine, o.Run, o.Epoch)
		if errors.Is(err, inventory.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		tx.touch(o.Machine)
		if err := end(ctx, tx, o); err != nil {
			return err
		}
		if was.NetbootUntil.IsZero() {
			return nil
		}
		return addEvent(ctx, tx, o.Event(was.Boot, inventory.EventDisarmed, rand.Text(), ""))
	})
}

func end(ctx context.Context, tx *transaction, o inventory.Owner) error {
	n, err := exec(ctx, tx, `UPDATE grant_ SET run = '', workflow = '', acting = 0, address_closed = 0, container = 0, netboot_until = 0,
		secrets_until = 0 WHERE `+owns, o.Machine, o.Run, o.Epoch)
	if err != nil || n == 0 {
		return err
	}
	return do(ctx, tx, "UPDATE agent SET revoked = 1 WHERE machine = ? AND run = ? AND epoch = ?",
		o.Machine, o.Run, o.Epoch)
}
