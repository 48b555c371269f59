package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A pruning describes how old rows are deleted. find is a query for the rowids of old rows; its parameters are a time and a limit. remove
// is a statement that deletes one row; its parameters are the rowid and the same time. Errors contain the text what as the name of the
// rows.
type pruning struct{ what, find, remove string }

// prune deletes rows that are older than before, but at most limit rows, and returns how many it deleted. If there are no such rows, it
// starts no write transaction, and so wakes no subscriber.
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

// Shrink returns unused pages of the database to the file system; pages is their maximum number. left is how many unused pages remain. It
// is 0 if this call could not return any page, because calling Shrink again would not help.
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

// vacuum returns unused pages to the file system; pages is their maximum number. SQLite returns one page each time rows.Next is called.
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
