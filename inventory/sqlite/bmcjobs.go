package sqlite

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/inventory"
)

// PutBMCJob stores a job under its machine and name, replacing what was there.
func (s *Store) PutBMCJob(ctx context.Context, j inventory.BMCJob) error {
	what := fmt.Sprintf("storing BMC job %q of machine %q", j.Name, j.Machine)
	if j.Name == "" || j.Machine == "" {
		return fmt.Errorf("%s: %w", what, inventory.ErrInvalid)
	}
	doc, err := toJSON(j)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return s.write(ctx, what, func(tx *sqlx.Tx) error {
		_, err := exec(ctx, tx, `INSERT INTO bmc_job (machine, name, started, doc) VALUES (?,?,?,?)
			ON CONFLICT (machine, name) DO UPDATE SET started = excluded.started, doc = excluded.doc`, j.Machine, j.Name, nanos(j.Started), doc)
		return err
	})
}

// BMCJobs returns the newest 200 jobs of a machine, or of all when machine is
// "", the newest first.
func (s *Store) BMCJobs(ctx context.Context, machine string) ([]inventory.BMCJob, error) {
	query, args := "SELECT doc FROM bmc_job", []any{}
	if machine != "" {
		query, args = query+" WHERE machine = ?", append(args, machine)
	}
	var docs []string
	err := s.ro.SelectContext(ctx, &docs, query+" ORDER BY started DESC, rowid DESC LIMIT 200", args...)
	if err != nil {
		return nil, fmt.Errorf("listing BMC jobs: %w", err)
	}
	out := make([]inventory.BMCJob, len(docs))
	for i, doc := range docs {
		if err := json.Unmarshal([]byte(doc), &out[i]); err != nil {
			return nil, fmt.Errorf("listing BMC jobs: %w", err)
		}
	}
	return out, nil
}

// BMCJob returns the job of that name of a machine.
func (s *Store) BMCJob(ctx context.Context, machine, name string) (inventory.BMCJob, error) {
	var j inventory.BMCJob
	var doc string
	err := get(ctx, s.ro, &doc, "SELECT doc FROM bmc_job WHERE machine = ? AND name = ?", machine, name)
	if err == nil {
		err = json.Unmarshal([]byte(doc), &j)
	}
	if err != nil {
		return inventory.BMCJob{}, fmt.Errorf("reading BMC job %q of machine %q: %w", name, machine, err)
	}
	return j, nil
}
