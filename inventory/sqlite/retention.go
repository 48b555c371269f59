package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"
)

// PruneRuns forgets up to limit runs that ended before a time, with their
// plans, assignments, logs and events, but for the newest keep of each machine.
// What the newest agent of a machine said of its hardware stays, and so does a
// run that still holds a grant. It returns how many runs are gone.
func (s *Store) PruneRuns(ctx context.Context, before time.Time, keep, limit int) (int, error) {
	var runs []string
	err := s.ro.SelectContext(ctx, &runs, `SELECT w.run FROM (
			SELECT run, final, max(ended, updated) AS over,
			row_number() OVER (PARTITION BY machine ORDER BY started DESC, rowid DESC) AS nth FROM workflow) AS w
		WHERE w.final = 1 AND w.over < ?1 AND w.nth > ?2
		AND NOT EXISTS (SELECT 1 FROM grant_ g WHERE g.run = w.run) LIMIT ?3`,
		nanos(before), keep, limit)
	if err != nil {
		return 0, fmt.Errorf("looking for old runs: %w", err)
	}
	if len(runs) == 0 {
		return 0, nil
	}

	gone := 0
	err = s.write(ctx, "forgetting old runs", func(tx *sqlx.Tx) error {
		gone = 0
		for _, run := range runs {
			// Nothing makes a run that is over an open one, but its grant may have been given again by hand.
			n, err := exec(ctx, tx, `DELETE FROM workflow WHERE run = ?1 AND final = 1
				AND NOT EXISTS (SELECT 1 FROM grant_ g WHERE g.run = ?1)`, run)
			if err != nil {
				return err
			}
			if n == 0 {
				continue
			}
			gone++
			if err := forgetRun(ctx, tx, run); err != nil {
				return err
			}
		}
		return nil
	})

	return gone, err
}

// PruneEvents forgets up to limit events from before a time that belong neither to
// a run whose record is kept nor to one that holds a grant: what operators did, and
// what was seen of machines between their runs. The newest event stays: it shows a
// clock that is behind.
func (s *Store) PruneEvents(ctx context.Context, before time.Time, limit int) (int, error) {
	return s.prune(ctx, pruning{
		what: "events", find: `SELECT seq FROM event e WHERE at < ?1 AND at < (SELECT max(at) FROM event)
		AND NOT EXISTS (SELECT 1 FROM workflow w WHERE w.run = e.run)
		AND NOT EXISTS (SELECT 1 FROM grant_ g WHERE g.run = e.run AND g.run <> '') ORDER BY at LIMIT ?2`,
		remove: "DELETE FROM event WHERE seq = ?1 AND at < ?2",
	}, before, limit)
}

// PruneBMCJobs forgets up to limit jobs that began before a time and belong
// neither to a run whose record is kept nor to one that holds a grant.
func (s *Store) PruneBMCJobs(ctx context.Context, before time.Time, limit int) (int, error) {
	return s.prune(ctx, pruning{
		what: "BMC jobs", find: `SELECT j.rowid FROM bmc_job j WHERE j.started < ?1
		AND NOT EXISTS (SELECT 1 FROM workflow w WHERE w.run = json_extract(j.doc, '$.run'))
		AND NOT EXISTS (SELECT 1 FROM grant_ g WHERE g.run = json_extract(j.doc, '$.run') AND g.run <> '') LIMIT ?2`,
		remove: "DELETE FROM bmc_job WHERE rowid = ?1 AND started < ?2",
	}, before, limit)
}

// A pruning says which rows are found, by time and limit, and how one is removed, by
// its number and the time.
type pruning struct{ what, find, remove string }

// prune deletes up to limit rows from before a time, one by one, and returns how
// many. It reads first, so that nothing is locked, and no subscriber woken, when
// there is nothing to delete.
func (s *Store) prune(ctx context.Context, p pruning, before time.Time, limit int) (int, error) {
	var rows []int64
	if err := s.ro.SelectContext(ctx, &rows, p.find, nanos(before), limit); err != nil {
		return 0, fmt.Errorf("looking for old %s: %w", p.what, err)
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

// Shrink gives up to pages unused pages of the database back to the file
// system and returns how many are left for another call: none when this one
// could give nothing back.
func (s *Store) Shrink(ctx context.Context, pages int) (left int, err error) {
	before, err := s.unused(ctx)
	if err == nil && before > 0 {
		if err = s.vacuum(ctx, pages); err == nil {
			left, err = s.unused(ctx)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("giving unused pages back: %w", s.noRoom(err))
	}

	// Nothing was given back, so another call would give nothing back either.
	if left >= before {
		return 0, nil
	}
	return left, nil
}

func (s *Store) unused(ctx context.Context) (n int, err error) {
	err = s.rw.GetContext(ctx, &n, "PRAGMA freelist_count")
	return n, err
}

// vacuum gives pages back, one with each row that is read.
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
