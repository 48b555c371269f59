package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A pruning describes how old rows are deleted. find is a query for the numbers of rows, with a time and a limit as parameters.
// remove is a statement that deletes one row, with its number and the time as parameters. what names the rows in errors.
type pruning struct{ what, find, remove string }

// prune deletes up to limit rows that are older than before, and returns how many. It first looks for such rows: if there are none,
// it starts no write transaction and wakes no subscriber.
func (s *db) prune(ctx context.Context, p pruning, before time.Time, limit int) (int, error) {
	var rows []int64
	if err := s.ro.SelectContext(ctx, &rows, p.find, nanos(before), limit); err != nil {
		return 0, fmt.Errorf("finding old %s: %w", p.what, err)
	}
	err := writeEach(ctx, s, "deleting old "+p.what, rows, func(tx *transaction, row int64) error {
		return do(ctx, tx, p.remove, row, nanos(before))
	})
	if err != nil {
		return 0, err
	}
	return len(rows), nil
}

// Shrink returns up to pages unused pages of the database to the file system. left is how many unused pages remain, or 0 if this
// call could not return any page: then another call would not help.
func (s *Store) Shrink(ctx context.Context, pages int) (left int, err error) {
	before, err := s.countFreePages(ctx)
	if err == nil && before > 0 {
		if err = s.vacuum(ctx, pages); err == nil {
			left, err = s.countFreePages(ctx)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("returning unused pages of the database to the file system: %w", s.noRoom(err))
	}

	if left >= before {
		return 0, nil
	}
	return left, nil
}

func (s *Store) countFreePages(ctx context.Context) (n int, err error) {
	err = s.rw.GetContext(ctx, &n, "PRAGMA freelist_count")
	return n, err
}

// vacuum returns up to that many unused pages to the file system. SQLite frees one page for each row that is read.
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
