package sqlite

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// Assignments stores the attempts at actions that agents carry out, with their results.
type Assignments struct{ *db }

// keyed is the SQL condition for one assignment. Parameters 1 to 3 are its owner, 4 and 5 are action and attempt.
const keyed = "machine = ?1 AND run = ?2 AND epoch = ?3 AND action = ?4 AND attempt = ?5"

type assignmentRow struct {
	inventory.Owner
	Action, Attempt, Boot int
	Sealed                []byte
	State                 action.State
	StopAt, Delivered     int64
}

const assignmentColumns = "machine, run, epoch, action, attempt, boot, sealed, state, stop_at, delivered"

func (s Assignments) assignment(r assignmentRow) (inventory.Assignment, error) {
	a := inventory.Assignment{
		Owner: r.Owner, Boot: r.Boot, Key: action.Key{Epoch: r.Epoch, Action: r.Action, Attempt: r.Attempt},
		State: r.State, StopAt: moment(r.StopAt), Delivered: moment(r.Delivered),
	}
	return a, s.unseal(r.Run, r.Sealed, &a.Payload)
}

// nameAttempt returns a text for errors: what, followed by the attempt and its machine.
func nameAttempt(what string, o inventory.Owner, k action.Key) string {
	return fmt.Sprintf("%s attempt %s of machine %q", what, k, o.Machine)
}

// Assign stores an attempt, which the agent of a.Boot will fetch; boot 0 means the current boot. If the attempt is already stored for the
// same boot, or has a result, Assign changes nothing and returns nil.
//
// If the attempt has no result and was assigned to another boot, the error is inventory.ErrConflict: the agent of that boot may have begun,
// so the caller must use another attempt. If no agent has redeemed the claim of the boot, the error is also inventory.ErrConflict: a
// machine gets no work before its boot was allowed and its agent said hello (security S8). For an operator's grant, the error is
// inventory.ErrInvalid: it never gets work.
func (s Assignments) Assign(ctx context.Context, a inventory.Assignment) error {
	what := nameAttempt("assigning", a.Owner, a.Key)
	if a.Key.Epoch != a.Epoch || a.Key.Action < 0 || a.Key.Attempt < 1 || strings.HasPrefix(a.Run, inventory.OperatorPrefix) {
		return fmt.Errorf("%s at epoch %d: %w", what, a.Epoch, inventory.ErrInvalid)
	}
	return s.writeDoc(ctx, what, a.Payload, func(tx *transaction, doc string) error {
		// Encrypt within the transaction; Reseal says why.
		sealed, err := s.seal(sealPlan, runBinding(a.Run), []byte(doc))
		if err != nil {
			return err
		}

		boot, err := scalar[int](ctx, tx, `INSERT INTO assignment
			(machine, run, epoch, action, attempt, boot, sealed, state, next_until) SELECT ?1, ?2, ?3, ?4, ?5, boot, ?7, ?8, ?9
			FROM grant_ WHERE `+owns+` AND boot > 0 AND spent = 1 AND (?6 = 0 OR boot = ?6)
			ON CONFLICT DO NOTHING RETURNING boot`,
			a.Machine, a.Run, a.Epoch, a.Key.Action, a.Key.Attempt, a.Boot, sealed, action.Pending, nanos(a.NextUntil))
		if errors.Is(err, inventory.ErrNotFound) {
			return fencedOr(ctx, tx, a.Owner, assignedBefore(ctx, tx, a))
		}
		if err == nil {
			err = recordActing(ctx, tx, a, boot)
		}
		if err != nil {
			return err
		}

		x := a.Payload.Action
		if x.WritesAny() {
			if err := forgetOtherPlans(ctx, tx, a.Owner); err != nil {
				return err
			}
		}
		return addEvent(ctx, tx, a.Event(boot, inventory.EventAssigned, a.Key.String(), x.Name))
	})
}

// recordActing records that the agent of a boot may now carry out the action of a. The grant is marked as Acting, unless the action ends
// the agent's work. A container closes the user data by address; an action that is to read this user data opens it. If a.Writes is set,
// this boot is also recorded as the machine's installation.
func recordActing(ctx context.Context, tx *transaction, a inventory.Assignment, boot int) error {
	x := a.Payload.Action
	reads := x.Environment[action.HegelVariable] != ""
	err := do(ctx, tx, "UPDATE grant_ SET acting = ?4, container = (container OR ?5) AND ?4, "+
		"address_closed = (container OR ?5) AND ?4 AND NOT ?6 WHERE "+owns,
		a.Machine, a.Run, a.Epoch, !a.Payload.Leaving, x.Container != nil, reads)
	if err != nil || !a.Writes {
		return err
	}
	if x.MayInstall() { // an available machine is in service again
		tx.show(a.Machine)
		if err := do(ctx, tx, "DELETE FROM standing WHERE machine = ? AND state = ?", a.Machine, inventory.StandingAvailable); err != nil {
			return err
		}
	}
	return do(ctx, tx, `INSERT INTO installation (machine, run, epoch, boot) VALUES (?,?,?,?)
		ON CONFLICT (machine) DO UPDATE SET run = excluded.run, epoch = excluded.epoch, boot = excluded.boot`,
		a.Machine, a.Run, a.Epoch, boot)
}

// assignedBefore finds out why Assign could not store a. It returns nil if the attempt is already stored for the same boot or has its
// result, and otherwise inventory.ErrConflict.
func assignedBefore(ctx context.Context, tx *transaction, a inventory.Assignment) error {
	g, err := grantOf(ctx, tx, a.Machine)
	if err != nil {
		return err
	}
	want := cmp.Or(a.Boot, g.Boot)

	var have struct {
		Boot int
		Done bool
	}
	err = get(ctx, tx, &have, "SELECT boot, result IS NOT NULL AS done FROM assignment WHERE "+keyed, a.Machine, a.Run,
		a.Epoch, a.Key.Action, a.Key.Attempt)
	switch {
	case errors.Is(err, inventory.ErrNotFound) && (g.Boot == 0 || g.Boot == want && !g.Spent):
		return fmt.Errorf("no agent has redeemed the claim of boot %d yet: %w", g.Boot, inventory.ErrConflict)
	case errors.Is(err, inventory.ErrNotFound):
		return fmt.Errorf("the current boot is %d, not %d: %w", g.Boot, want, inventory.ErrConflict)
	case err != nil:
		return err
	case !have.Done && have.Boot != want:
		return fmt.Errorf("the attempt was assigned to boot %d already: %w", have.Boot, inventory.ErrConflict)
	}

	return nil
}

// NextAssignment returns the oldest attempt for o's current boot that has no result and no order to stop. If there is none, the error is
// inventory.ErrNotFound.
func (s Assignments) NextAssignment(ctx context.Context, o inventory.Owner) (inventory.Assignment, error) {
	return s.readAssignment(ctx, "finding the next assignment", o, `SELECT `+assignmentColumns+` FROM assignment
		WHERE machine = ?1 AND run = ?2 AND epoch = ?3 AND result IS NULL AND stop_at = 0
		AND boot = (SELECT boot FROM grant_ WHERE `+owns+`) ORDER BY rowid LIMIT 1`, o.Machine, o.Run, o.Epoch)
}

// Assignment returns one attempt of o's run, or inventory.ErrNotFound. If o does not hold the grant, the error is
// inventory.ErrFenced.
func (s Assignments) Assignment(ctx context.Context, o inventory.Owner, k action.Key) (inventory.Assignment, error) {
	return s.readAssignment(ctx, nameAttempt("reading", o, k), o,
		`SELECT `+assignmentColumns+` FROM assignment WHERE `+keyed+` AND epoch = ?6 AND `+held,
		o.Machine, o.Run, o.Epoch, k.Action, k.Attempt, k.Epoch)
}

func (s Assignments) readAssignment(ctx context.Context, what string, o inventory.Owner, query string,
	args ...any,
) (inventory.Assignment, error) {
	var r assignmentRow
	err := get(ctx, s.ro, &r, query, args...)
	if errors.Is(err, inventory.ErrNotFound) {
		err = fencedOr(ctx, s.ro, o, err)
	}
	var a inventory.Assignment
	if err == nil {
		a, err = s.assignment(r)
	}
	if err != nil {
		return inventory.Assignment{}, fmt.Errorf("%s: %w", what, err)
	}
	return a, nil
}

// Delivered records that the agent has fetched an attempt. The first call sets the attempt to Running; later calls change nothing.
func (s Assignments) Delivered(ctx context.Context, o inventory.Owner, k action.Key) error {
	return s.changeAttempt(ctx, o, k, attemptChange{
		what: "delivering", event: inventory.EventActionStarted,
		set: "state = ?7, delivered = ?6", at: s.now(), args: []any{action.Running}, once: "delivered = 0",
	})
}

// An attemptChange is a change to an attempt. It is made at most once, and only before the attempt has a result.
type attemptChange struct {
	what, event string
	set         string    // SQL; parameter 6 is at, and the parameters after it are args
	once        string    // SQL condition that is true until the change was made
	at          time.Time // of the change
	args        []any
}

// changeAttempt makes the change c to an attempt of o's run and appends its event. If the change was made before, or if the attempt already
// has a result, changeAttempt changes nothing and returns nil.
func (s Assignments) changeAttempt(ctx context.Context, o inventory.Owner, k action.Key, c attemptChange) error {
	return s.write(ctx, nameAttempt(c.what, o, k), func(tx *transaction) error {
		if k.Epoch != o.Epoch {
			return inventory.ErrFenced
		}
		attempt := []any{o.Machine, o.Run, o.Epoch, k.Action, k.Attempt}
		boot, err := scalar[int](ctx, tx, "UPDATE assignment SET "+c.set+" WHERE "+keyed+" AND "+held+" AND "+c.once+
			" AND result IS NULL RETURNING boot", append(append(attempt, nanos(c.at)), c.args...)...)
		if errors.Is(err, inventory.ErrNotFound) {
			_, err = scalar[int](ctx, tx, "SELECT boot FROM assignment WHERE "+keyed, attempt...)
			return fencedOr(ctx, tx, o, err)
		}
		if err != nil {
			return err
		}
		return addEvent(ctx, tx, o.Event(boot, c.event, k.String(), ""))
	})
}

// StopAssignment stores the order to stop an attempt. It stores nothing if there is such an order already, or if the attempt has a result.
func (s Assignments) StopAssignment(ctx context.Context, o inventory.Owner, k action.Key, at time.Time) error {
	return s.changeAttempt(ctx, o, k, attemptChange{
		what: "stopping", event: inventory.EventStop, set: "stop_at = ?6", at: at, once: "stop_at = 0",
	})
}

// Stops returns the attempts of o's run that have an order to stop and no result yet.
func (s Assignments) Stops(ctx context.Context, o inventory.Owner) ([]action.Key, error) {
	keys := []action.Key{}
	err := s.ro.SelectContext(ctx, &keys, `SELECT epoch, action, attempt FROM assignment
		WHERE machine = ? AND run = ? AND epoch = ? AND stop_at <> 0 AND result IS NULL ORDER BY rowid`, o.Machine, o.Run, o.Epoch)
	return keys, wrap(err, "listing stops of machine %q", o.Machine)
}

// Report stores the result r of an attempt, which the agent of o's boot reports. Only the first result of an attempt is stored; fresh
// reports whether r is the first. r.Log is added to the attempt's log, and the event "action-completed" contains the rest of r. If the
// state is not final, the error is inventory.ErrInvalid; if the attempt is unknown, inventory.ErrNotFound; if the agent was revoked,
// inventory.ErrConflict.
func (s Assignments) Report(ctx context.Context, o inventory.Owner, boot int, r action.Result) (fresh bool, err error) {
	what := nameAttempt("reporting", o, r.Key)
	switch r.State {
	case action.Success, action.Failed, action.Timeout, action.Stopped:
	default:
		return false, fmt.Errorf("%s: state %q is not final: %w", what, r.State, inventory.ErrInvalid)
	}

	text := r.Log
	r.Log, r.Message = "", clip(r.Message, maxMessage)
	doc, err := toJSON(r)
	if err != nil {
		return false, fmt.Errorf("%s: %w", what, err)
	}
	if len(doc) > maxDetail {
		return false, fmt.Errorf("%s: the result is too large, %d bytes: %w", what, len(doc), inventory.ErrInvalid)
	}

	err = s.write(ctx, what, func(tx *transaction) error {
		if r.Key.Epoch != o.Epoch {
			return inventory.ErrFenced
		}

		n, err := exec(ctx, tx, "UPDATE assignment SET state = ?6, result = ?7 WHERE "+keyed+" AND result IS NULL AND "+held+`
			AND NOT EXISTS (SELECT 1 FROM agent WHERE agent.machine = ?1 AND agent.run = ?2 AND agent.epoch = ?3
			AND agent.boot = ?8 AND agent.revoked = 1)`,
			o.Machine, o.Run, o.Epoch, r.Key.Action, r.Key.Attempt, r.State, doc, boot)
		if err != nil {
			return err
		}

		if n == 0 {
			done, err := scalar[bool](ctx, tx, "SELECT result IS NOT NULL FROM assignment WHERE "+keyed, o.Machine, o.Run,
				o.Epoch, r.Key.Action, r.Key.Attempt)
			if err == nil && !done {
				err = fmt.Errorf("the agent of boot %d was revoked: %w", boot, inventory.ErrConflict)
			}
			return fencedOr(ctx, tx, o, err)
		}

		fresh = true
		if err := mergeLog(ctx, tx, o.Run, r.Key, text); err != nil {
			return err
		}
		if r.State == action.Success {
			if err := s.next(ctx, tx, o, r.Key); err != nil {
				return err
			}
		}
		e := o.Event(boot, inventory.EventActionDone, r.Key.String()+" "+clip(r.ID, 128), string(r.State))
		e.Detail = json.RawMessage(doc)
		return addEvent(ctx, tx, e)
	})

	return fresh && err == nil, err
}

// next allows the installer's boot that follows the success of an attempt with NextUntil. If no boots remain, next returns nil, because the
// run will get that error when it requests the boot itself.
func (s Assignments) next(ctx context.Context, tx *transaction, o inventory.Owner, k action.Key) error {
	var row struct {
		Boot      int
		NextUntil int64
	}
	if err := get(ctx, tx, &row, "SELECT boot, next_until FROM assignment WHERE "+keyed, o.Machine, o.Run, o.Epoch,
		k.Action, k.Attempt); err != nil || row.NextUntil == 0 {
		return err
	}
	_, err := allowIn(ctx, tx, bootWindow{Owner: o, boot: row.Boot + 1, installer: true, until: moment(row.NextUntil)})
	if errors.Is(err, inventory.ErrConflict) {
		return nil
	}
	return err
}

// Result returns the result of an attempt, without its log. If there is none yet, the error is inventory.ErrNotFound.
func (s Assignments) Result(ctx context.Context, run string, k action.Key) (action.Result, error) {
	r, err := readDoc[action.Result](ctx, s.ro, `SELECT result AS doc FROM assignment
		WHERE run = ? AND epoch = ? AND action = ? AND attempt = ? AND result IS NOT NULL`, run, k.Epoch, k.Action, k.Attempt)
	return r, wrap(err, "reading the result of attempt %s of run %q", k, run)
}
