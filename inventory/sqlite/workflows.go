package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/inventory"
)

type workflowRow struct {
	Doc     string `db:"doc"`
	Started int64  `db:"started"`
}

func (r workflowRow) workflow() (inventory.Workflow, error) {
	var w inventory.Workflow
	err := json.Unmarshal([]byte(r.Doc), &w)
	w.Started = moment(r.Started)
	return w, err
}

// PutWorkflow stores the record of a run. A record that is final stays in that
// state: whoever comes late with another is ignored, and so is an open one whose
// Seq is below that of the one that stands. Its start stays the first that was
// given. With a change of phase goes an event, and with some of them a notice.
func (s *Store) PutWorkflow(ctx context.Context, w inventory.Workflow) error {
	what := fmt.Sprintf("storing the record of run %q", w.Run)
	if w.Run == "" {
		return fmt.Errorf("%s: %w", what, inventory.ErrInvalid)
	}
	if w.Updated.IsZero() {
		w.Updated = s.now()
	}
	doc, err := toJSON(w)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return s.write(ctx, what, func(tx *sqlx.Tx) error {
		var before string
		err := get(ctx, tx, &before, "SELECT coalesce(json_extract(doc, '$.phase'), '') FROM workflow WHERE run = ?", w.Run)
		if err != nil && !errors.Is(err, inventory.ErrNotFound) {
			return err
		}
		was, err := s.workflowBefore(ctx, tx, w.Run)
		if err != nil {
			return err
		}
		n, err := exec(ctx, tx, `INSERT INTO workflow (run, machine, state, final, started, ended, updated, doc) VALUES (?,?,?,?,?,?,?,?)
			ON CONFLICT (run) DO UPDATE SET machine = excluded.machine, state = excluded.state, final = excluded.final,
				started = iif(workflow.started = 0, excluded.started, workflow.started), ended = excluded.ended, updated = excluded.updated, doc = excluded.doc
			WHERE iif(workflow.final, workflow.state = excluded.state,
				excluded.final OR coalesce(json_extract(workflow.doc, '$.seq'), 0) <= coalesce(json_extract(excluded.doc, '$.seq'), 0))`,
			w.Run, w.Machine, w.State, inventory.Final(w.State), nanos(w.Started), nanos(w.Ended), nanos(w.Updated), doc)
		if err != nil || n == 0 {
			return err
		}
		s.show(tx, w.Machine)
		if err := s.tell(ctx, tx, w.NoticesOf(was)); err != nil || w.Phase == before || w.Phase == "" {
			return err
		}
		return s.phase(ctx, tx, w, before)
	})
}

// phase appends the event of a phase that has begun.
func (s *Store) phase(ctx context.Context, tx *sqlx.Tx, w inventory.Workflow, before string) error {
	change := inventory.PhaseChange{Phase: w.Phase, Began: w.Updated, Before: before}
	var doc string
	err := get(ctx, tx, &doc, "SELECT detail FROM event WHERE run = ? AND kind = ? ORDER BY seq DESC LIMIT 1", w.Run, inventory.EventPhase)
	switch {
	case err == nil:
		var last inventory.PhaseChange
		if err := json.Unmarshal([]byte(doc), &last); err != nil {
			return err
		}
		change.Seconds = max(w.Updated.Sub(last.Began).Seconds(), 0)
	case !errors.Is(err, inventory.ErrNotFound):
		return err
	}
	detail, err := toJSON(change)
	if err != nil {
		return err
	}
	return s.event(ctx, tx, inventory.Event{
		Machine: w.Machine, Run: w.Run, Epoch: w.Epoch, Kind: inventory.EventPhase, Key: fmt.Sprintf("%d.%s", w.Seq, w.Phase),
		Message: strings.TrimSuffix(w.Phase+": "+w.Message, ": "), Detail: json.RawMessage(detail),
	})
}

// Workflow returns the record of a run.
func (s *Store) Workflow(ctx context.Context, run string) (inventory.Workflow, error) {
	return s.workflowBy(ctx, fmt.Sprintf("reading the record of run %q", run), "run = ?", run)
}

// LatestWorkflow returns the record of the machine's run that started last.
func (s *Store) LatestWorkflow(ctx context.Context, machine string) (inventory.Workflow, error) {
	return s.workflowBy(ctx, fmt.Sprintf("reading the latest workflow of machine %q", machine), "machine = ? ORDER BY started DESC, rowid DESC LIMIT 1", machine)
}

func (s *Store) workflowBy(ctx context.Context, what, where string, args ...any) (inventory.Workflow, error) {
	var r workflowRow
	err := get(ctx, s.ro, &r, "SELECT doc, started FROM workflow WHERE "+where, args...)
	var w inventory.Workflow
	if err == nil {
		w, err = r.workflow()
	}
	if err != nil {
		return inventory.Workflow{}, fmt.Errorf("%s: %w", what, err)
	}
	return w, nil
}

// Workflows returns records, the newest first.
func (s *Store) Workflows(ctx context.Context, f inventory.WorkflowFilter) ([]inventory.Workflow, error) {
	limit := f.Limit
	if limit <= 0 {
		limit = 100
	}
	// Conditions that are not asked for are left out: an index serves no condition
	// that a parameter switches off.
	query, args := "SELECT doc, started FROM workflow WHERE true", []any{}
	if f.Machine != "" {
		query, args = query+" AND machine = ?", append(args, f.Machine)
	}
	if f.State != "" {
		query, args = query+" AND state = ?", append(args, f.State)
	}
	if f.Open {
		query += " AND final = 0"
	}
	var rows []workflowRow
	err := s.ro.SelectContext(ctx, &rows, query+" ORDER BY started DESC, rowid DESC LIMIT ?", append(args, limit)...)
	if err != nil {
		return nil, fmt.Errorf("listing workflows: %w", err)
	}
	out := make([]inventory.Workflow, len(rows))
	for i, r := range rows {
		if out[i], err = r.workflow(); err != nil {
			return nil, fmt.Errorf("listing workflows: %w", err)
		}
	}
	return out, nil
}

// DeleteWorkflow removes the record of a run that is over, with its plan,
// assignments, logs and events. One that is not, or that still holds a grant,
// is inventory.ErrConflict.
func (s *Store) DeleteWorkflow(ctx context.Context, run, by string) error {
	return s.write(ctx, fmt.Sprintf("deleting the record of run %q", run), func(tx *sqlx.Tx) error {
		var machine string
		err := get(ctx, tx, &machine, "DELETE FROM workflow WHERE run = ?1 AND final = 1 AND NOT EXISTS (SELECT 1 FROM grant_ WHERE grant_.run = ?1) RETURNING machine", run)
		if errors.Is(err, inventory.ErrNotFound) {
			var state string
			if err := get(ctx, tx, &state, "SELECT state FROM workflow WHERE run = ?", run); err != nil {
				return err
			}
			return fmt.Errorf("it is %s and not over: cancel it first: %w", state, inventory.ErrConflict)
		}
		if err != nil {
			return err
		}
		for _, table := range []string{"plan", "assignment", "log", "event"} {
			if _, err := exec(ctx, tx, "DELETE FROM "+table+" WHERE run = ?", run); err != nil {
				return err
			}
		}
		// The machine's newest agent stays known: it may still be up, and is to
		// hear that its run is over.
		if _, err := exec(ctx, tx, `DELETE FROM agent WHERE run = ? AND EXISTS (SELECT 1 FROM agent b
			WHERE b.machine = agent.machine AND (b.epoch > agent.epoch OR b.epoch = agent.epoch AND b.boot > agent.boot))`, run); err != nil {
			return err
		}
		return s.operator(ctx, tx, machine, by, "record of run "+run+" deleted")
	})
}
