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

// Workflows are the records of runs, and the logs of their actions.
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

// PutWorkflow stores the record of a run. If the stored record is final, a record with another state is ignored. An open record
// with a lower Seq than the stored one is ignored, too. The first start time is kept. A change of phase appends an event, and
// some changes write a notice.
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

// phaseEvent appends the event that w.Phase began and the phase before ended.
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

// LatestWorkflow returns the record of the machine's shown run, as MachineStates does: its open run, or else the latest run that
// installed or wiped it. If there is none, the error is inventory.ErrNotFound.
func (s Workflows) LatestWorkflow(ctx context.Context, machine string) (inventory.Workflow, error) {
	return s.workflowBy(ctx, fmt.Sprintf("reading the latest workflow of machine %q", machine), "rowid = "+shownRun("?1"), machine)
}

func (s Workflows) workflowBy(ctx context.Context, what, where string, args ...any) (inventory.Workflow, error) {
	w, err := read[workflowRow](ctx, s.ro, "SELECT doc, started FROM workflow WHERE "+where, args...)
	return w, wrap(err, "%s", what)
}

// Workflows returns records, by default the newest first.
func (s Workflows) Workflows(ctx context.Context, f inventory.WorkflowFilter) ([]inventory.Workflow, error) {
	q := selection{query: "SELECT doc, started FROM workflow WHERE true"}
	q.where(f.Machine != "", "machine = ?", f.Machine)
	q.whereState("workflow", f.State)
	q.where(f.Open, "final = 0")
	for k, v := range f.Labels {
		q.where(true, "EXISTS (SELECT 1 FROM machine m WHERE m.name = workflow.machine AND "+hasLabel+")", k, v)
	}
	q.pageOfRuns(f.RunPage, f.Limit)
	out, err := list[workflowRow](ctx, s.ro, q.query, q.args...)
	return out, wrap(err, "listing workflows")
}

// DeleteWorkflow removes the record of a run, with everything that forgetRun deletes. If the run has not ended, or still holds a grant,
// the error is inventory.ErrConflict.
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

// deleteRecord deletes the record of a run, with everything that forgetRun deletes, and returns the run's machine. If the run has
// not ended or holds a grant, the error is inventory.ErrNotFound. If the run installed or wiped the machine, the records of
// earlier runs get its id as SupersededBy.
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

// forgetRun deletes the plan, assignments, logs, events and agents of a run. It keeps the machine's newest agent, which has the
// newest facts, and which may still be running and must learn that its run has ended.
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

// PruneRuns deletes up to limit runs that ended before a time, with everything that forgetRun deletes. For each machine, it keeps
// the newest runs, as many as keep says, and the shown run (see shownRun). It also keeps runs that still hold a grant. It
// returns the number of deleted runs.
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
			// deleteRecord checks the run again: since it was found, it may have got a grant or its record may be gone.
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

// Resumable returns nil if a new run may continue the plan of the given run ("retry --from failed-step"). It returns
// inventory.ErrConflict if the plan is not stored, or if a later run has written to the machine.
func (s Workflows) Resumable(ctx context.Context, run string) error {
	const again = "the run can only be retried from the start"
	what := fmt.Sprintf("resuming run %q", run)
	var found struct {
		Machine, Writer string
		Planned         bool
	}

	// Before its first write, a later run records its disk in disk_written, and then gets an assignment that deletes the plan of
	// this run.
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

// Successor returns the newest later run that has taken the grant of the given run's machine to install or wipe it; "" if there
// is none. The order of the records decides which run is later. A run whose record was deleted counts. If the given run has no
// record, the error is inventory.ErrNotFound.
func (s Workflows) Successor(ctx context.Context, run string) (string, error) {
	later, err := scalar[string](ctx, s.ro, `SELECT coalesce((SELECT run FROM workflow
			WHERE machine = w.machine AND rowid > w.rowid AND `+isOrder+` AND json_extract(doc, '$.epoch') > 0
			ORDER BY rowid DESC LIMIT 1), json_extract(w.doc, '$.supersededBy'), '')
		FROM workflow w WHERE w.run = ?`, run)
	return later, wrap(err, "looking for a run after %q", run)
}
