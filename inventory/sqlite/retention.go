package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/inventory"
)

// PruneRuns deletes up to limit runs that ended before a time, with their plans, assignments, logs
// and events, except the newest keep of each machine and the one that makes its state. It keeps the facts of each machine's newest
// agent, and runs that still hold a grant. It returns the number of deleted runs.
func (s *Store) PruneRuns(ctx context.Context, before time.Time, keep, limit int) (int, error) {
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
	err = s.write(ctx, "forgetting old runs", func(tx *sqlx.Tx) error {
		gone = 0
		for _, run := range runs {
			// A finished run cannot become open again, but its grant may have been given again by
			// hand.
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

// PruneEvents deletes up to limit events from before a time that belong neither to a run with a
// record nor to one that holds a grant: commands of operators, and events of machines between their
// runs. It keeps the newest event, which is used to detect a clock that is behind.
func (s *Store) PruneEvents(ctx context.Context, before time.Time, limit int) (int, error) {
	return s.prune(ctx, pruning{
		what: "events", find: `SELECT seq FROM event e WHERE at < ?1 AND at < (SELECT max(at) FROM event)
		AND NOT EXISTS (SELECT 1 FROM workflow w WHERE w.run = e.run)
		AND NOT EXISTS (SELECT 1 FROM grant_ g WHERE g.run = e.run AND g.run <> '') ORDER BY at LIMIT ?2`,
		remove: "DELETE FROM event WHERE seq = ?1 AND at < ?2",
	}, before, limit)
}

// PruneBMCJobs deletes up to limit jobs that began before a time and belong neither to a run with a
// record nor to one that holds a grant.
func (s *Store) PruneBMCJobs(ctx context.Context, before time.Time, limit int) (int, error) {
	return s.prune(ctx, pruning{
		what: "BMC jobs", find: `SELECT j.rowid FROM bmc_job j WHERE j.started < ?1
		AND NOT EXISTS (SELECT 1 FROM workflow w WHERE w.run = json_extract(j.doc, '$.run'))
		AND NOT EXISTS (SELECT 1 FROM grant_ g WHERE g.run = json_extract(j.doc, '$.run') AND g.run <> '') LIMIT ?2`,
		remove: "DELETE FROM bmc_job WHERE rowid = ?1 AND started < ?2",
	}, before, limit)
}

// A pruning has a statement that finds rows by time and limit, and a statement that deletes one row
// by its number and the time.
type pruning struct{ what, find, remove string }

// prune deletes up to limit rows from before a time, one by one, and returns their number. It reads
// first: if there is nothing to delete, nothing is locked and no subscriber is woken.
func (s *Store) prune(ctx context.Context, p pruning, before time.Time, limit int) (int, error) {
	var rows []int64
	if err := s.ro.SelectContext(ctx, &rows, p.find, nanos(before), limit); err != nil {
		return 0, fmt.Errorf("finding old %s: %w", p.what, err)
	}
	if len(rows) == 0 {
		return 0, nil
	}

	err := s.write(ctx, "forgetting old "+p.what, func(tx *sqlx.Tx) error {
		for _, row := range rows {
			if err := do(ctx, tx, p.remove, row, nanos(before)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(rows), nil
}

// Shrink returns up to pages unused pages of the database to the file system. left is the number of
// pages for further calls, or 0 if this call could not return any.
func (s *Store) Shrink(ctx context.Context, pages int) (left int, err error) {
	before, err := s.unused(ctx)
	if err == nil && before > 0 {
		if err = s.vacuum(ctx, pages); err == nil {
			left, err = s.unused(ctx)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("returning unused pages: %w", s.noRoom(err))
	}

	// If no page could be returned, another call would not help either.
	if left >= before {
		return 0, nil
	}
	return left, nil
}

func (s *Store) unused(ctx context.Context) (n int, err error) {
	err = s.rw.GetContext(ctx, &n, "PRAGMA freelist_count")
	return n, err
}

// vacuum returns pages, one with each row that it reads.
func (s *Store) vacuum(ctx context.Context, pages int) (err error) {
	rows, err := s.rw.QueryContext(ctx, fmt.Sprintf("PRAGMA incremental_vacuum(%d)", pages))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		continue
	}
	return rows.Err()
}
