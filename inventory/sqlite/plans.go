package sqlite

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// Plans are the sealed plans of runs, and the boots and reports of their installers.
type Plans struct{ *db }

func runBinding(run string) string { return "run=" + run }

// PutPlan stores the plan of a run, sealed. A run keeps its first plan; storing a plan with another digest is
// inventory.ErrConflict.
func (s Plans) PutPlan(ctx context.Context, p inventory.Plan) error {
	return s.writeDoc(ctx, fmt.Sprintf("storing the plan of run %q", p.Run), p, func(tx *transaction, doc string) error {
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
			return fmt.Errorf("the template, the image or the machine was changed during planning; start the run again: %w",
				inventory.ErrConflict)
		}
		return nil
	})
}

// Plan returns the plan of a run, or inventory.ErrNotFound if none is stored.
func (s Plans) Plan(ctx context.Context, run string) (inventory.Plan, error) {
	var p inventory.Plan
	sealed, err := scalar[[]byte](ctx, s.ro, "SELECT sealed FROM plan WHERE run = ?", run)
	if err == nil {
		err = s.unseal(run, sealed, &p)
	}
	return p, wrap(err, "reading the plan of run %q", run)
}

// forgetOtherPlans deletes the plans of all other runs of o's machine. Once o's run may write to the machine's disks, no other run
// may be continued.
func forgetOtherPlans(ctx context.Context, tx *transaction, o inventory.Owner) error {
	return do(ctx, tx, "DELETE FROM plan WHERE run <> ?2 AND run IN (SELECT run FROM workflow WHERE machine = ?1)",
		o.Machine, o.Run)
}

// unseal decodes a sealed value of a run into v.
func (s *db) unseal(run string, sealed []byte, v any) error {
	plain, err := s.open(sealPlan, runBinding(run), sealed)
	if err != nil {
		return err
	}
	return json.Unmarshal(plain, v)
}
