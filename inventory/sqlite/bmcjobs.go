package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// BMCJobs are the records of BMC jobs. A BMC job is a list of tasks for the BMC of one machine.
type BMCJobs struct{ *db }

// PutBMCJob stores a job. If a job with the same machine and name is stored, the new job replaces it.
func (s BMCJobs) PutBMCJob(ctx context.Context, j inventory.BMCJob) error {
	what := fmt.Sprintf("storing BMC job %q of machine %q", j.Name, j.Machine)
	if j.Name == "" || j.Machine == "" {
		return fmt.Errorf("%s: %w", what, inventory.ErrInvalid)
	}
	return s.writeDoc(ctx, what, j, func(tx *transaction, doc string) error {
		return do(ctx, tx, `INSERT INTO bmc_job (machine, name, started, doc) VALUES (?,?,?,?)
			ON CONFLICT (machine, name) DO UPDATE SET started = excluded.started, doc = excluded.doc`,
			j.Machine, j.Name, nanos(j.Started), doc)
	})
}

// BMCJobs returns the 200 newest jobs of a machine, or of all machines if machine is "". The newest job comes first.
func (s BMCJobs) BMCJobs(ctx context.Context, machine string) ([]inventory.BMCJob, error) {
	q := selection{query: "SELECT doc FROM bmc_job WHERE true"}
	q.where(machine != "", "machine = ?", machine)
	q.page("started DESC, rowid DESC", 200)
	jobs, err := listDocs[inventory.BMCJob](ctx, s.ro, q.query, q.args...)
	return jobs, wrap(err, "listing BMC jobs")
}

// BMCJob returns the job of this machine with this name, or inventory.ErrNotFound.
func (s BMCJobs) BMCJob(ctx context.Context, machine, name string) (inventory.BMCJob, error) {
	j, err := readDoc[inventory.BMCJob](ctx, s.ro, "SELECT doc FROM bmc_job WHERE machine = ? AND name = ?", machine, name)
	return j, wrap(err, "reading BMC job %q of machine %q", name, machine)
}

// PruneBMCJobs deletes jobs that began before the given time and whose run has neither a record nor a grant, but at most limit jobs. It
// returns the number of deleted jobs.
func (s BMCJobs) PruneBMCJobs(ctx context.Context, before time.Time, limit int) (int, error) {
	return s.prune(ctx, pruning{
		what: "BMC jobs", find: `SELECT j.rowid FROM bmc_job j WHERE j.started < ?1
		AND NOT EXISTS (SELECT 1 FROM workflow w WHERE w.run = json_extract(j.doc, '$.run'))
		AND NOT EXISTS (SELECT 1 FROM grant_ g WHERE g.run = json_extract(j.doc, '$.run') AND g.run <> '') LIMIT ?2`,
		remove: "DELETE FROM bmc_job WHERE rowid = ?1 AND started < ?2",
	}, before, limit)
}
