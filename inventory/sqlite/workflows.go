package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// Workflows are the records of runs. The type also has a method for reading the logs of their actions.
type Workflows struct{ *db }

type workflowRow struct {
	docRow[inventory.Workflow]
	Started int64
}

func (r workflowRow) value() (inventory.Workflow, error) {
	w, err := r.docRow.value()
	w.Started = moment(r.Started)
	return w, err
}

// PutWorkflow stores the record of a run. It ignores w if the stored record is final and w has another state, or if w is open and has a
// lower Seq than the stored record. The stored start time is kept. If the phase changes, an event is appended. Some changes also store a
// notice.
func (s Workflows) PutWorkflow(ctx context.Context, w inventory.Workflow) error {
	what := fmt.Sprintf("storing the record of run %q", w.Run)
	if w.Run == "" {
		return fmt.Errorf("%s: %w", what, inventory.ErrInvalid)
	}
	if w.Updated.IsZero() {
		w.Updated = s.now()
	}
	return s.writeDoc(ctx, what, w, func(tx *transaction, doc string) error {
		before, err := optional(readDoc[inventory.Workflow](ctx, tx, "SELECT doc FROM workflow WHERE run = ?", w.Run))
		if err != nil {
			return err
		}

		n, err := exec(ctx, tx, `INSERT INTO workflow (run, machine, state, final, started, ended, updated, doc) VALUES (?,?,?,?,?,?,?,?)
			ON CONFLICT (run) DO UPDATE SET machine = excluded.machine, state = excluded.state, final = excluded.final,
				started = iif(workflow.started = 0, excluded.started, workflow.started),
				ended = excluded.ended, updated = excluded.updated, doc = excluded.doc
			WHERE iif(workflow.final, workflow.state = excluded.state,
				excluded.final OR coalesce(json_extract(workflow.doc, '$.seq'), 0) <= coalesce(json_extract(excluded.doc, '$.seq'), 0))`,
			w.Run, w.Machine, w.State, inventory.Final(w.State), nanos(w.Started), nanos(w.Ended), nanos(w.Updated), doc)
		if err != nil || n == 0 {
			return err
		}
		tx.show(w.Machine)
		if err := addNotice(ctx, tx, w.NoticesOf(before)); err != nil || w.Phase == before.Phase || w.Phase == "" {
			return err
		}
		return s.phaseEvent(ctx, tx, w, before.Phase)
	})
}

// phaseEvent appends an event that says that w.Phase has begun and that the phase before has ended.
func (s Workflows) phaseEvent(ctx context.Context, tx *transaction, w inventory.Workflow, before string) error {
	change := inventory.PhaseChange{Phase: w.Phase, Began: w.Updated, Before: before}
	last, err := optional(readDoc[inventory.PhaseChange](ctx, tx,
		"SELECT detail AS doc FROM event WHERE run = ? AND kind = ? ORDER BY seq DESC LIMIT 1", w.Run, inventory.EventPhase))
	if err != nil {
		return err
	}
	if !last.Began.IsZero() {
		change.Seconds = max(w.Updated.Sub(last.Began).Seconds(), 0)
	}

	detail, err := toJSON(change)
	if err != nil {
		return err
	}
	o := inventory.Owner{Machine: w.Machine, Run: w.Run, Epoch: w.Epoch}
	message := strings.TrimSuffix(w.Phase+": "+w.Message, ": ")
	e := o.Event(0, inventory.EventPhase, fmt.Sprintf("%d.%s", w.Seq, w.Phase), message)
	e.Detail = json.RawMessage(detail)
	return addEvent(ctx, tx, e)
}

// Workflow returns the record of a run.
func (s Workflows) Workflow(ctx context.Context, run string) (inventory.Workflow, error) {
	return s.workflowBy(ctx, fmt.Sprintf("reading the record of run %q", run), "run = ?", run)
}

// LatestWorkflow returns the record of the machine's shown run: its open run, or else the latest run that installed or wiped the machine.
// MachineStates shows the same run. If there is none, the error is inventory.ErrNotFound.
func (s Workflows) LatestWorkflow(ctx context.Context, machine string) (inventory.Workflow, error) {
	return s.workflowBy(ctx, fmt.Sprintf("reading the latest workflow of machine %q", machine), "rowid = "+shownRun("?1"), machine)
}

func (s Workflows) workflowBy(ctx context.Context, what, where string, args ...any) (inventory.Workflow, error) {
	w, err := read[workflowRow](ctx, s.ro, "SELECT doc, started FROM workflow WHERE "+where, args...)
	return w, wrap(err, "%s", what)
}

// Workflows returns the records that f selects. The newest comes first, unless f says otherwise.
func (s Workflows) Workflows(ctx context.Context, f inventory.WorkflowFilter) ([]inventory.Workflow, error) {
	q := selection{query: "SELECT doc, started FROM workflow WHERE true"}
	q.where(f.Machine != "", "machine = ?", f.Machine)
	q.whereState("workflow", f.State)
	q.where(f.Open, "final = 0")
	if len(f.Selector) > 0 {
		m := selection{query: "EXISTS (SELECT 1 FROM machine m WHERE m.name = workflow.machine"}
		m.whereLabels(f.Selector)
		q.where(true, m.query+")", m.args...)
	}
	q.pageOfRuns(f.RunPage, f.Limit)
	out, err := list[workflowRow](ctx, s.ro, q.query, q.args...)
	return out, wrap(err, "listing workflows")
}

// PhaseTimes returns how long each phase takes, sorted by the name of the phase. It looks at the newest installations that have succeeded;
// limit is their number.
func (s Workflows) PhaseTimes(ctx context.Context, limit int) (out []inventory.PhaseTime, err error) {
	err = s.ro.SelectContext(ctx, &out, `WITH ended AS (
			SELECT json_extract(e.detail, '$.before') AS phase, coalesce(json_extract(e.detail, '$.seconds'), 0) AS seconds
			FROM (SELECT run FROM workflow WHERE state = ?1 AND json_extract(doc, '$.type') IN (?2, ?3)
				AND coalesce(json_extract(doc, '$.noSystem'), 0) = 0 ORDER BY started DESC LIMIT ?4) AS w
			JOIN event AS e ON e.run = w.run AND e.kind = ?5 AND e.detail IS NOT NULL),
		ranked AS (SELECT phase, seconds, row_number() OVER (PARTITION BY phase ORDER BY seconds) AS nth,
			count(*) OVER (PARTITION BY phase) AS count FROM ended WHERE phase <> '')
		SELECT phase, seconds, count FROM ranked WHERE nth = (count + 1) / 2 ORDER BY phase`,
		inventory.StateSuccess, inventory.TypeProvision, inventory.TypeReprovision, limit, inventory.EventPhase)
	return out, wrap(err, "reading how long phases take")
}

// DeleteWorkflow deletes the record of a run, and everything that forgetRun deletes. If the run has not ended or still holds a grant, the
// error is inventory.ErrConflict.
func (s Workflows) DeleteWorkflow(ctx context.Context, run, by string) error {
	return s.write(ctx, fmt.Sprintf("deleting the record of run %q", run), func(tx *transaction) error {
		machine, err := deleteRecord(ctx, tx, run)
		if errors.Is(err, inventory.ErrNotFound) {
			state, err := scalar[string](ctx, tx, "SELECT state FROM workflow WHERE run = ?", run)
			if err != nil {
				return err
			}
			return fmt.Errorf("the run is %s and has not ended: cancel it first: %w", state, inventory.ErrConflict)
		}
		if err != nil {
			return err
		}
		return addOperatorEvent(ctx, tx, machine, by, "record of run "+run+" deleted")
	})
}

// deleteRecord deletes the record of a run, and everything that forgetRun deletes. It returns the name of the run's machine. If the run has
// not ended or still holds a grant, the error is inventory.ErrNotFound. If the run installed or wiped the machine, the records of the
// machine's earlier runs get the id of the deleted run as SupersededBy.
func deleteRecord(ctx context.Context, tx *transaction, run string) (machine string, err error) {
	var gone struct {
		Machine, Type string
		At, Epoch     int64
	}
	err = get(ctx, tx, &gone, `DELETE FROM workflow WHERE run = ?1 AND final = 1
		AND NOT EXISTS (SELECT 1 FROM grant_ WHERE grant_.run = ?1)
		RETURNING machine, coalesce(json_extract(doc, '$.type'), '') AS type, rowid AS at,
		coalesce(json_extract(doc, '$.epoch'), 0) AS epoch`, run)
	if err != nil {
		return "", err
	}
	if (inventory.Workflow{Type: gone.Type}).IsOrder() && gone.Epoch > 0 {
		err = do(ctx, tx, "UPDATE workflow SET doc = json_set(doc, '$.supersededBy', ?) WHERE machine = ? AND rowid < ?",
			run, gone.Machine, gone.At)
		if err != nil {
			return "", err
		}
	}
	return gone.Machine, forgetRun(ctx, tx, run)
}

// forgetRun deletes the plan, assignments, logs, events and agents of a run. But it keeps the machine's newest agent: it has the newest
// facts about the machine, and it may still be running and ask whether its run has ended.
func forgetRun(ctx context.Context, tx *transaction, run string) error {
	return doAll(ctx, tx,
		stmt("DELETE FROM plan WHERE run = ?", run),
		stmt("DELETE FROM assignment WHERE run = ?", run),
		stmt("DELETE FROM log WHERE run = ?", run),
		stmt("DELETE FROM event WHERE run = ?", run),
		stmt(`DELETE FROM agent WHERE run = ? AND EXISTS (SELECT 1 FROM agent b
			WHERE b.machine = agent.machine AND (b.epoch > agent.epoch OR b.epoch = agent.epoch AND b.boot > agent.boot))`, run),
	)
}

// PruneRuns deletes runs that ended before the given time, but at most limit runs, and returns how many it deleted. Of each run, it deletes
// the record and everything that forgetRun deletes. Of each machine, the newest runs stay; keep is their number. The shown run (see
// shownRun) and runs that still hold a grant stay, too.
func (s Workflows) PruneRuns(ctx context.Context, before time.Time, keep, limit int) (int, error) {
	var runs []string
	err := s.ro.SelectContext(ctx, &runs, `SELECT w.run FROM (
			SELECT rowid AS id, run, machine, final, max(ended, updated) AS over,
			row_number() OVER (PARTITION BY machine ORDER BY started DESC, rowid DESC) AS nth FROM workflow) AS w
		WHERE w.final = 1 AND w.over < ?1 AND w.nth > ?2
		AND NOT EXISTS (SELECT 1 FROM grant_ g WHERE g.run = w.run) AND w.id IS NOT `+shownRun("w.machine")+` LIMIT ?3`,
		nanos(before), keep, limit)
	if err != nil {
		return 0, fmt.Errorf("finding old runs: %w", err)
	}
	if len(runs) == 0 {
		return 0, nil
	}

	gone := 0
	err = s.write(ctx, "forgetting old runs", func(tx *transaction) error {
		gone = 0
		for _, run := range runs {
			// deleteRecord checks again whether the run may be deleted, because it may have got a grant since it was found.
			_, err := deleteRecord(ctx, tx, run)
			if errors.Is(err, inventory.ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			gone++
		}
		return nil
	})

	return gone, err
}

// Resumable returns nil if a new run may continue the plan of this run at the failed step ("retry --from failed-step"). If the plan is not
// stored, or if a later run has written to the machine, the error is inventory.ErrConflict.
func (s Workflows) Resumable(ctx context.Context, run string) error {
	const again = "the run can only be retried from the start"
	what := fmt.Sprintf("resuming run %q", run)
	var found struct {
		Machine, Writer string
		Planned         bool
	}

	// Before a later run writes, it adds its disk to disk_written. Then its first assignment that writes deletes the plan of this run.
	err := get(ctx, s.ro, &found, `SELECT machine, EXISTS (SELECT 1 FROM plan WHERE plan.run = w.run) AS planned,
		coalesce((SELECT d.run FROM disk_written d JOIN workflow later ON later.run = d.run
			WHERE d.machine = w.machine AND later.rowid > w.rowid ORDER BY later.rowid DESC LIMIT 1), '') AS writer
		FROM workflow w WHERE w.run = ?`, run)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", what, err)
	case found.Writer != "":
		return fmt.Errorf("%s: run %q has written to machine %q since, so %s: %w", what, found.Writer, found.Machine, again,
			inventory.ErrConflict)
	case !found.Planned:
		return fmt.Errorf("%s: its plan is not stored (the run ended before it was planned, it was reset in Temporal, "+
			"a later run has written to machine %q, or the server was restored from a backup), so %s: %w",
			what, found.Machine, again, inventory.ErrConflict)
	}
	return nil
}

// Successor returns the newest run that took the grant of the same machine after this run, in order to install or wipe the machine; "" if
// there is none. It finds even a run whose record was deleted. The order of the records decides which run is later. If this run has no
// record, the error is inventory.ErrNotFound.
func (s Workflows) Successor(ctx context.Context, run string) (string, error) {
	later, err := scalar[string](ctx, s.ro, `SELECT coalesce((SELECT run FROM workflow
			WHERE machine = w.machine AND rowid > w.rowid AND `+isOrder+` AND json_extract(doc, '$.epoch') > 0
			ORDER BY rowid DESC LIMIT 1), json_extract(w.doc, '$.supersededBy'), '')
		FROM workflow w WHERE w.run = ?`, run)
	return later, wrap(err, "looking for a run after %q", run)
}
