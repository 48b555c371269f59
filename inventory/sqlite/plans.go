package sqlite

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/inventory"
)

func runBinding(run string) string { return "run=" + run }

// PutPlan stores the plan of a run, sealed. A run keeps its first plan; storing a different one is
// inventory.ErrConflict.
func (s *Store) PutPlan(ctx context.Context, p inventory.Plan) error {
	return s.writeDoc(ctx, fmt.Sprintf("storing the plan of run %q", p.Run), p, func(tx *sqlx.Tx, doc string) error {
		// Seal within the transaction: see Reseal.
		sealed, err := s.seal(sealPlan, runBinding(p.Run), []byte(doc))
		if err != nil {
			return err
		}
		err = do(ctx, tx, "INSERT OR IGNORE INTO plan (run, digest, sealed) VALUES (?, ?, ?)", p.Run, p.Digest, sealed)
		if err != nil {
			return err
		}
		stored, err := scalar[string](ctx, tx, "SELECT digest FROM plan WHERE run = ?", p.Run)
		if err != nil {
			return err
		}
		if stored != p.Digest {
			return fmt.Errorf("its template, its image or its machine was changed while it was planned; start it again: %w",
				inventory.ErrConflict)
		}
		return nil
	})
}

// Plan returns the plan of a run.
func (s *Store) Plan(ctx context.Context, run string) (inventory.Plan, error) {
	var p inventory.Plan
	sealed, err := scalar[[]byte](ctx, s.ro, "SELECT sealed FROM plan WHERE run = ?", run)
	if err == nil {
		err = s.unseal(run, sealed, &p)
	}
	return p, wrap(err, "reading the plan of run %q", run)
}

// forgetOtherPlans deletes the plans of all other runs of o's machine: after o may write to its
// disks, the rest of an earlier run must not be carried out.
func forgetOtherPlans(ctx context.Context, tx *sqlx.Tx, o inventory.Owner) error {
	return do(ctx, tx, "DELETE FROM plan WHERE run <> ?2 AND run IN (SELECT run FROM workflow WHERE machine = ?1)",
		o.Machine, o.Run)
}

// Resumable returns nil if another run may continue the plan of a run ("retry --from failed-step").
// It returns inventory.ErrConflict if the plan is not stored or another run has written to the
// machine since.
func (s *Store) Resumable(ctx context.Context, run string) error {
	const again = "it can only be retried from the start"
	what := fmt.Sprintf("resuming run %q", run)
	var found struct {
		Machine, Writer string
		Planned         bool
	}

	// A later run records its disk before its first write is assigned; that assignment deletes this
	// run's plan.
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
		return fmt.Errorf("%s: its plan is not stored (it ended before it had one or was reset from outside, "+
			"a later run has written to machine %q, or the server was restored from a backup), so %s: %w",
			what, found.Machine, again, inventory.ErrConflict)
	}
	return nil
}

// Successor returns the newest run that has taken the machine of a run after it, to install or to wipe it; "" if there is none.
// The order of the records decides. A successor whose record was deleted counts. A run without a record is
// inventory.ErrNotFound.
func (s *Store) Successor(ctx context.Context, run string) (string, error) {
	later, err := scalar[string](ctx, s.ro, `SELECT coalesce((SELECT run FROM workflow
			WHERE machine = w.machine AND rowid > w.rowid AND `+isOrder+` AND json_extract(doc, '$.epoch') > 0
			ORDER BY rowid DESC LIMIT 1), json_extract(w.doc, '$.supersededBy'), '')
		FROM workflow w WHERE w.run = ?`, run)
	return later, wrap(err, "looking for a run after %q", run)
}

// unseal decodes a sealed value of a run into v.
func (s *Store) unseal(run string, sealed []byte, v any) error {
	plain, err := s.open(sealPlan, runBinding(run), sealed)
	if err != nil {
		return err
	}
	return json.Unmarshal(plain, v)
}
