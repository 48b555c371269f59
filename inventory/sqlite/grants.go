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

// held is the comparison that fences a statement: its parameters 1 to 3 are
// machine, run and epoch of who causes the effect. A free grant is nobody's.
const held = "EXISTS (SELECT 1 FROM grant_ WHERE grant_.machine = ?1 AND grant_.run = ?2 AND grant_.epoch = ?3 AND grant_.run <> '')"

// owns is held for statements on grant_ itself.
const owns = "machine = ?1 AND run = ?2 AND epoch = ?3 AND run <> ''"

// personPrefix begins the run of a person's grant.
const personPrefix = "person:"

// grantColumns returns the columns of table alias grant_ or g, named for a
// grantRow; in joins with a prefix.
func grantColumns(prefix string) string {
	var b strings.Builder
	for i, c := range []string{"machine", "run", "epoch", "site_epoch", "workflow", "boot", "boots_left", "spent", "installer", "acting", "netboot_until", "secrets_until", "taken"} {
		zero := "0"
		if c == "machine" || c == "run" || c == "workflow" {
			zero = "''"
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, `coalesce(%s%s, %s) AS "%s%s"`, prefix, c, zero, prefix, c)
	}
	return b.String()
}

type grantRow struct {
	Machine      string `db:"machine"`
	Run          string `db:"run"`
	Epoch        int64  `db:"epoch"`
	SiteEpoch    int64  `db:"site_epoch"`
	Workflow     string `db:"workflow"`
	Boot         int    `db:"boot"`
	BootsLeft    int    `db:"boots_left"`
	Spent        bool   `db:"spent"`
	Installer    bool   `db:"installer"`
	Acting       bool   `db:"acting"`
	NetbootUntil int64  `db:"netboot_until"`
	SecretsUntil int64  `db:"secrets_until"`
	Taken        int64  `db:"taken"`
}

func (r grantRow) grant() inventory.Grant {
	return inventory.Grant{
		Owner:     inventory.Owner{Machine: r.Machine, Run: r.Run, Epoch: r.Epoch},
		SiteEpoch: r.SiteEpoch, Workflow: r.Workflow, Boot: r.Boot, BootsLeft: r.BootsLeft, Spent: r.Spent, Installer: r.Installer, Acting: r.Acting,
		NetbootUntil: moment(r.NetbootUntil), SecretsUntil: moment(r.SecretsUntil), Taken: moment(r.Taken),
	}
}

// grantOf returns the zero Grant when the machine was never granted.
func grantOf(ctx context.Context, q sqlx.QueryerContext, machine string) (inventory.Grant, error) {
	var r grantRow
	err := get(ctx, q, &r, "SELECT "+grantColumns("")+" FROM grant_ WHERE machine = ?", machine)
	if errors.Is(err, inventory.ErrNotFound) {
		return inventory.Grant{}, nil
	}
	return r.grant(), err
}

// fencedOr explains why a fenced statement changed nothing: inventory.ErrFenced
// unless o holds the grant, otherwise other.
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

// Grant returns the grant of a machine; the zero Grant when it never had one.
func (s *Store) Grant(ctx context.Context, machine string) (inventory.Grant, error) {
	g, err := grantOf(ctx, s.ro, machine)
	if err != nil {
		return g, fmt.Errorf("reading the grant of machine %q: %w", machine, err)
	}
	return g, nil
}

// Grants returns the grants that somebody holds, by machine.
func (s *Store) Grants(ctx context.Context) ([]inventory.Grant, error) {
	var rows []grantRow
	if err := s.ro.SelectContext(ctx, &rows, "SELECT "+grantColumns("")+" FROM grant_ WHERE run <> '' ORDER BY machine"); err != nil {
		return nil, fmt.Errorf("listing grants: %w", err)
	}
	out := make([]inventory.Grant, len(rows))
	for i, r := range rows {
		out[i] = r.grant()
	}
	return out, nil
}

// take is the compare-and-set by which a grant changes hands. Parameters:
// machine, run, workflow, boot, boots left, now, netboot until. It returns no
// row when the machine is unknown, the run is over by its record, or the
// condition does not hold.
func take(condition string) string {
	return `INSERT INTO grant_ (machine, run, epoch, site_epoch, workflow, boot, boots_left, spent, netboot_until, secrets_until, taken)
		SELECT name, ?2, 1 + coalesce((SELECT value FROM meta WHERE name = 'epoch_floor'), 0), (SELECT value FROM meta WHERE name = 'site_epoch'), ?3, ?4, ?5, 0, ?7, 0, ?6 FROM machine
			WHERE name = ?1 AND NOT EXISTS (SELECT 1 FROM workflow WHERE workflow.run = ?2 AND final = 1)
		ON CONFLICT (machine) DO UPDATE SET run = excluded.run, epoch = grant_.epoch + 1, site_epoch = excluded.site_epoch, workflow = excluded.workflow,
			boot = excluded.boot, boots_left = excluded.boots_left, spent = 0, installer = 0, acting = 0, netboot_until = excluded.netboot_until, secrets_until = 0, taken = excluded.taken
		WHERE ` + condition + ` RETURNING ` + grantColumns("")
}

// TakeGrant makes run the owner of machine: one compare-and-set that adds 1 to
// the epoch, after which nothing of an earlier owner takes effect.
//
// A run that holds the grant already gets it back as it is. Otherwise it must
// be free, or a person's, or held by another run of the same workflow (which
// is dead then, as Temporal allows one; a run that had lost the grant cannot
// take it back this way), or force be given. If not: inventory.ErrConflict,
// naming the holder. An unknown machine is inventory.ErrNotFound.
//
// An activity outlives its run. A run that is over by its record takes nothing,
// and one that began before the run that holds the grant does not take it from
// that run, not even by force: both are inventory.ErrConflict. The order of
// their records tells which began first, because clocks are set.
func (s *Store) TakeGrant(ctx context.Context, machine, run, workflowID string, force bool) (inventory.Grant, error) {
	var g inventory.Grant
	what := fmt.Sprintf("taking the grant of machine %q", machine)
	if run == "" || strings.HasPrefix(run, personPrefix) {
		return g, fmt.Errorf("%s: run %q: %w", what, run, inventory.ErrInvalid)
	}
	err := s.write(ctx, what, func(tx *sqlx.Tx) error {
		var r grantRow
		err := get(ctx, tx, &r, take(`grant_.run <> ?2
			AND NOT EXISTS (SELECT 1 FROM workflow mine, workflow held WHERE mine.run = ?2 AND held.run = grant_.run AND mine.rowid < held.rowid)
			AND (grant_.run = '' OR substr(grant_.run, 1, 7) = 'person:' OR ?8
			OR (grant_.workflow = ?3 AND ?3 <> '' AND NOT EXISTS (SELECT 1 FROM event WHERE machine = ?1 AND run = ?2 AND kind = 'grant')))`),
			machine, run, workflowID, 0, inventory.MaxBoots, nanos(s.now()), 0, force)
		if errors.Is(err, inventory.ErrNotFound) {
			if g, err = grantOf(ctx, tx, machine); err != nil || g.Run == run {
				return err
			}
			return notTaken(ctx, tx, g, run)
		}
		if err != nil {
			return err
		}
		g = r.grant()
		if err := revokeEarlier(ctx, tx, g.Owner); err != nil {
			return err
		}
		return s.event(ctx, tx, inventory.Event{Machine: machine, Run: run, Epoch: g.Epoch, Kind: inventory.EventGrant, Message: workflowID})
	})
	if err != nil {
		return inventory.Grant{}, err
	}
	return g, nil
}

// notTaken explains why run did not get the grant g of a machine.
func notTaken(ctx context.Context, tx *sqlx.Tx, g inventory.Grant, run string) error {
	var mine struct {
		State   string `db:"state"`
		Final   bool   `db:"final"`
		Earlier bool   `db:"earlier"`
	}
	err := get(ctx, tx, &mine, `SELECT state, final, EXISTS (SELECT 1 FROM workflow held WHERE held.run = ?2 AND mine.rowid < held.rowid) AS earlier
		FROM workflow mine WHERE run = ?1`, run, g.Run)
	switch {
	case err != nil && !errors.Is(err, inventory.ErrNotFound):
		return err
	case mine.Final:
		return fmt.Errorf("run %q is over: %s: %w", run, mine.State, inventory.ErrConflict)
	case g.Run == "":
		return inventory.ErrNotFound
	case mine.Earlier:
		return fmt.Errorf("%s, and run %q began before it: %w", holder(g), run, inventory.ErrConflict)
	}
	return fmt.Errorf("%s: %w", holder(g), inventory.ErrConflict)
}

func holder(g inventory.Grant) string {
	if g.Workflow == "" {
		return fmt.Sprintf("%q owns it", g.Run)
	}
	return fmt.Sprintf("run %q of workflow %q owns it", g.Run, g.Workflow)
}

// revokeEarlier kills the agents of all earlier owners.
func revokeEarlier(ctx context.Context, tx *sqlx.Tx, o inventory.Owner) error {
	_, err := exec(ctx, tx, "UPDATE agent SET revoked = 1 WHERE machine = ? AND revoked = 0 AND (run <> ? OR epoch <> ?)", o.Machine, o.Run, o.Epoch)
	return err
}

// ArmByHand takes the grant of a machine for a person, for rescue: any number
// of boots until the window closes at until, without assignments or secrets.
// Arming again begins a new epoch. While a run holds it: inventory.ErrConflict.
func (s *Store) ArmByHand(ctx context.Context, machine, by string, until time.Time) (inventory.Grant, error) {
	var g inventory.Grant
	what := fmt.Sprintf("arming machine %q by hand", machine)
	if by == "" {
		return g, fmt.Errorf("%s: nobody is named: %w", what, inventory.ErrInvalid)
	}
	err := s.write(ctx, what, func(tx *sqlx.Tx) error {
		var r grantRow
		err := get(ctx, tx, &r, take("grant_.run = '' OR substr(grant_.run, 1, 7) = 'person:'"),
			machine, personPrefix+by, "", 1, 0, nanos(s.now()), nanos(until))
		if errors.Is(err, inventory.ErrNotFound) {
			g, err := grantOf(ctx, tx, machine)
			if err != nil {
				return err
			}
			if g.Run != "" && !g.Person() {
				return fmt.Errorf("%s: %w", holder(g), inventory.ErrConflict)
			}
			return inventory.ErrNotFound
		}
		if err != nil {
			return err
		}
		g = r.grant()
		if err := revokeEarlier(ctx, tx, g.Owner); err != nil {
			return err
		}
		return s.event(ctx, tx, inventory.Event{
			Machine: machine, Run: g.Run, Epoch: g.Epoch, Boot: g.Boot, Kind: inventory.EventArmed, By: by,
			Message: "by hand until " + until.UTC().Format(time.RFC3339),
		})
	})
	if err != nil {
		return inventory.Grant{}, err
	}
	return g, nil
}

// DisarmByHand ends a person's grant, whoever that was; without any it does
// nothing. While a run holds the grant it is inventory.ErrConflict, unless
// force: then the run loses the machine, and asks a person at its next step.
func (s *Store) DisarmByHand(ctx context.Context, machine, by string, force bool) error {
	return s.write(ctx, fmt.Sprintf("disarming machine %q by hand", machine), func(tx *sqlx.Tx) error {
		g, err := grantOf(ctx, tx, machine)
		if err != nil {
			return err
		}
		e := inventory.Event{Machine: machine, Run: g.Run, Epoch: g.Epoch, Boot: g.Boot, Kind: inventory.EventDisarmed, Key: rand.Text(), By: by, Message: "by hand"}
		switch {
		case g.Run == "":
			var n int
			return get(ctx, tx, &n, "SELECT 1 FROM machine WHERE name = ?", machine)
		case !g.Person() && !force:
			return fmt.Errorf("%s: %w", holder(g), inventory.ErrConflict)
		}
		s.touch(tx, machine)
		if err := end(ctx, tx, g.Owner); err != nil {
			return err
		}
		return s.event(ctx, tx, e)
	})
}

// AllowBoot opens the netboot window for o's next boot until the given time:
// the machine boots the agent.
//
// A boot one above the present one is counted; none left is
// inventory.ErrConflict. The present boot again renews its window and changes
// nothing else, so a boot that is spent stays spent. Any other is
// inventory.ErrConflict. Agents of earlier boots live until the new boot's
// claim is redeemed.
func (s *Store) AllowBoot(ctx context.Context, o inventory.Owner, boot int, until time.Time) (inventory.Grant, error) {
	return s.allow(ctx, o, boot, false, until)
}

// AllowInstaller is AllowBoot for a boot of the plan's installer. It opens the
// secrets window as well, for the documents that the installer reads.
func (s *Store) AllowInstaller(ctx context.Context, o inventory.Owner, boot int, until time.Time) (inventory.Grant, error) {
	return s.allow(ctx, o, boot, true, until)
}

func (s *Store) allow(ctx context.Context, o inventory.Owner, boot int, installer bool, until time.Time) (inventory.Grant, error) {
	var g inventory.Grant
	err := s.write(ctx, fmt.Sprintf("allowing boot %d of machine %q", boot, o.Machine), func(tx *sqlx.Tx) (err error) {
		g, err = s.allowIn(ctx, tx, o, boot, installer, until)
		return err
	})
	if err != nil {
		return inventory.Grant{}, err
	}
	return g, nil
}

func (s *Store) allowIn(ctx context.Context, tx *sqlx.Tx, o inventory.Owner, boot int, installer bool, until time.Time) (inventory.Grant, error) {
	if boot < 1 {
		return inventory.Grant{}, inventory.ErrInvalid
	}
	var r grantRow
	err := get(ctx, tx, &r, `UPDATE grant_ SET boots_left = boots_left - (boot <> ?4), spent = spent AND boot = ?4, boot = ?4, netboot_until = ?5,
		installer = ?6, acting = acting AND NOT ?6, secrets_until = iif(?6, ?5, secrets_until)
		WHERE `+owns+` AND (boot = ?4 OR (boot = ?4 - 1 AND boots_left > 0)) RETURNING `+grantColumns(""),
		o.Machine, o.Run, o.Epoch, boot, nanos(until), installer)
	if errors.Is(err, inventory.ErrNotFound) {
		g, err := grantOf(ctx, tx, o.Machine)
		if err != nil {
			return inventory.Grant{}, err
		}
		if g.Boot == boot-1 {
			return inventory.Grant{}, fencedOr(ctx, tx, o, fmt.Errorf("boots used up: %w", inventory.ErrConflict))
		}
		return inventory.Grant{}, fencedOr(ctx, tx, o, fmt.Errorf("the present boot is %d: %w", g.Boot, inventory.ErrConflict))
	}
	if err != nil {
		return inventory.Grant{}, err
	}
	e := inventory.Event{Machine: o.Machine, Run: o.Run, Epoch: o.Epoch, Boot: boot, Kind: inventory.EventArmed}
	if installer {
		e.Message = inventory.ArmedForInstaller
		// What it holds afterwards is no longer nothing.
		if _, err := exec(ctx, tx, "DELETE FROM standing WHERE machine = ? AND state = ?", o.Machine, inventory.StandingAvailable); err != nil {
			return inventory.Grant{}, err
		}
		if err := forgetOtherPlans(ctx, tx, o); err != nil {
			return inventory.Grant{}, err
		}
	}
	return r.grant(), s.event(ctx, tx, e)
}

// MoreBoots leaves o's run at least n boots, after a person said so.
func (s *Store) MoreBoots(ctx context.Context, o inventory.Owner, n int) error {
	return s.own(ctx, "allowing more boots", o, "boots_left = max(boots_left, ?4)", n)
}

// RenewNetboot moves the end of o's netboot window; one that was closed opens
// again. Before the first AllowBoot it is inventory.ErrConflict.
func (s *Store) RenewNetboot(ctx context.Context, o inventory.Owner, until time.Time) error {
	return s.write(ctx, fmt.Sprintf("renewing the netboot window of machine %q", o.Machine), func(tx *sqlx.Tx) error {
		s.show(tx, o.Machine)
		n, err := exec(ctx, tx, "UPDATE grant_ SET netboot_until = ?4 WHERE "+owns+" AND boot > 0", o.Machine, o.Run, o.Epoch, nanos(until))
		if err == nil && n == 0 {
			err = fencedOr(ctx, tx, o, fmt.Errorf("no boot was allowed yet: %w", inventory.ErrConflict))
		}
		return err
	})
}

// CloseNetboot closes o's netboot window; a closed one stays closed.
func (s *Store) CloseNetboot(ctx context.Context, o inventory.Owner) error {
	return s.write(ctx, fmt.Sprintf("closing the netboot window of machine %q", o.Machine), func(tx *sqlx.Tx) error {
		var boot int
		err := get(ctx, tx, &boot, "UPDATE grant_ SET netboot_until = 0 WHERE "+owns+" AND netboot_until <> 0 RETURNING boot", o.Machine, o.Run, o.Epoch)
		if errors.Is(err, inventory.ErrNotFound) {
			return fencedOr(ctx, tx, o, nil)
		}
		if err != nil {
			return err
		}
		return s.event(ctx, tx, inventory.Event{Machine: o.Machine, Run: o.Run, Epoch: o.Epoch, Boot: boot, Kind: inventory.EventDisarmed, Key: rand.Text()})
	})
}

// OpenSecrets opens o's secrets window until the given time.
func (s *Store) OpenSecrets(ctx context.Context, o inventory.Owner, until time.Time) error {
	return s.own(ctx, "opening the secrets window", o, "secrets_until = ?4", nanos(until))
}

// CloseSecrets closes o's secrets window; a closed one stays closed.
func (s *Store) CloseSecrets(ctx context.Context, o inventory.Owner) error {
	return s.own(ctx, "closing the secrets window", o, "secrets_until = ?4", 0)
}

// own sets a column of o's grant to v, parameter 4.
func (s *Store) own(ctx context.Context, what string, o inventory.Owner, set string, v any) error {
	return s.write(ctx, fmt.Sprintf("%s of machine %q", what, o.Machine), func(tx *sqlx.Tx) error {
		s.show(tx, o.Machine)
		n, err := exec(ctx, tx, "UPDATE grant_ SET "+set+" WHERE "+owns, o.Machine, o.Run, o.Epoch, v)
		if err == nil && n == 0 {
			err = fencedOr(ctx, tx, o, errors.New("nothing was changed"))
		}
		return err
	})
}

// ShiftWindows moves the open windows of all grants with a clock that showed
// from and then to, so that they last as long as they were meant to, and returns
// how many grants it changed.
//
// Forward it moves those that the step has closed: what is open yet was opened
// or renewed with the new time, or is so soon. Backward it moves all that were
// open, and closes for good what had expired and would be open again.
func (s *Store) ShiftWindows(ctx context.Context, from, to time.Time) (int, error) {
	var machines []string
	err := s.write(ctx, "moving windows with the clock", func(tx *sqlx.Tx) error {
		set := func(column string) string {
			return fmt.Sprintf(`%[1]s = CASE WHEN %[1]s > ?1 AND (%[1]s <= ?2 OR ?2 < ?1) THEN %[1]s + ?2 - ?1
				WHEN %[1]s > ?2 AND ?2 < ?1 THEN ?2 ELSE %[1]s END`, column)
		}
		err := tx.SelectContext(ctx, &machines, "UPDATE grant_ SET "+set("netboot_until")+", "+set("secrets_until")+` WHERE run <> '' AND max(netboot_until, secrets_until) > min(?1, ?2)
			RETURNING machine`, nanos(from), nanos(to))
		for _, m := range machines {
			s.show(tx, m)
		}
		return err
	})
	return len(machines), err
}

// EndGrant closes both windows, revokes o's agents and leaves the grant free;
// its epoch stays. A grant that o holds no more is left alone, without error.
func (s *Store) EndGrant(ctx context.Context, o inventory.Owner) error {
	return s.write(ctx, fmt.Sprintf("ending the grant of machine %q", o.Machine), func(tx *sqlx.Tx) error {
		var was grantRow
		err := get(ctx, tx, &was, "SELECT "+grantColumns("")+" FROM grant_ WHERE "+owns, o.Machine, o.Run, o.Epoch)
		if errors.Is(err, inventory.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		s.touch(tx, o.Machine)
		if err := end(ctx, tx, o); err != nil {
			return err
		}
		if was.NetbootUntil == 0 {
			return nil
		}
		return s.event(ctx, tx, inventory.Event{Machine: o.Machine, Run: o.Run, Epoch: o.Epoch, Boot: was.Boot, Kind: inventory.EventDisarmed, Key: rand.Text()})
	})
}

func end(ctx context.Context, tx *sqlx.Tx, o inventory.Owner) error {
	n, err := exec(ctx, tx, "UPDATE grant_ SET run = '', workflow = '', acting = 0, netboot_until = 0, secrets_until = 0 WHERE "+owns, o.Machine, o.Run, o.Epoch)
	if err != nil || n == 0 {
		return err
	}
	_, err = exec(ctx, tx, "UPDATE agent SET revoked = 1 WHERE machine = ? AND run = ? AND epoch = ?", o.Machine, o.Run, o.Epoch)
	return err
}
