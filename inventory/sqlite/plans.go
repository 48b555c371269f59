package sqlite

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// Plans are the plans of runs, stored encrypted. The type also has the methods for the boots and reports of installers.
type Plans struct{ *db }

func runBinding(run string) string { return "run=" + run }

// PutPlan stores the plan of a run, encrypted. If the run has a plan already, the stored plan is kept; if p has another digest, the error
// is inventory.ErrConflict.
func (s Plans) PutPlan(ctx context.Context, p inventory.Plan) error {
	return s.writeDoc(ctx, fmt.Sprintf("storing the plan of run %q", p.Run), p, func(tx *transaction, doc string) error {
		// This must happen within the transaction; Reseal relies on it.
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

// forgetOtherPlans deletes the plans of all other runs of o's machine. It is called when o's run may begin to write to the machine's disks,
// because no other run can be continued after that.
func forgetOtherPlans(ctx context.Context, tx *transaction, o inventory.Owner) error {
	return do(ctx, tx, "DELETE FROM plan WHERE run <> ?2 AND run IN (SELECT run FROM workflow WHERE machine = ?1)",
		o.Machine, o.Run)
}

// unseal decrypts a value that is stored for a run, and decodes its JSON into v.
func (s *db) unseal(run string, sealed []byte, v any) error {
	plain, err := s.open(sealPlan, runBinding(run), sealed)
	if err != nil {
		return err
	}
	return json.Unmarshal(plain, v)
}
