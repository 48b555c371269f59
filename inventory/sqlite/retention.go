package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A pruning has a statement that finds rows by time and limit, and a statement that deletes one row
// by its number and the time.
type pruning struct{ what, find, remove string }

// prune deletes up to limit rows from before a time, one by one, and returns their number. It reads
// first: if there is nothing to delete, nothing is locked and no subscriber is woken.
func (s *db) prune(ctx context.Context, p pruning, before time.Time, limit int) (int, error) {
	var rows []int64
	if err := s.ro.SelectContext(ctx, &rows, p.find, nanos(before), limit); err != nil {
		return 0, fmt.Errorf("finding old %s: %w", p.what, err)
	}
	err := writeEach(ctx, s, "forgetting old "+p.what, rows, func(tx *transaction, row int64) error {
		return do(ctx, tx, p.remove, row, nanos(before))
	})
	if err != nil {
		return 0, err
	}
	return len(rows), nil
}

// Shrink returns up to pages unused pages of the database to the file system. left is the number of
// pages for further calls, or 0 if this call could not return any.
func (s *Store) Shrink(ctx context.Context, pages int) (left int, err error) {
	before, err := s.countFreePages(ctx)
	if err == nil && before > 0 {
		if err = s.vacuum(ctx, pages); err == nil {
			left, err = s.countFreePages(ctx)
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

func (s *Store) countFreePages(ctx context.Context) (n int, err error) {
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
