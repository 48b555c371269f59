package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/inventory"
)

// Notices lie in an outbox: a row is written by the very transaction that
// stores the record which it tells of, and goes when somebody else has it.

// WithNotices makes the store write notices of these events (all of
// inventory.NoticeEvents when there are none). Without it there is nobody to
// tell, and none is written.
func WithNotices(events ...string) Option {
	return func(s *Store) {
		if s.notices = events; len(events) == 0 {
			s.notices = inventory.NoticeEvents()
		}
	}
}

// What the outbox keeps: how many notices may wait, and how many of those that
// do not any more are remembered, so that none is written twice.
const (
	maxNotices  = 1000
	keepNotices = 2000
)

// tell writes the first of the notices that somebody asked for.
func (s *Store) tell(ctx context.Context, tx *sqlx.Tx, ways []inventory.Notice) error {
	i := slices.IndexFunc(ways, func(n inventory.Notice) bool { return slices.Contains(s.notices, n.Event) })
	if i < 0 {
		return nil
	}
	doc, err := toJSON(ways[i])
	if err != nil {
		return err
	}
	n, err := exec(ctx, tx, "INSERT INTO notice (id, state, at, due, attempts, error, doc) VALUES (?, 'open', ?, 0, 0, '', ?) ON CONFLICT (id) DO NOTHING",
		ways[i].ID, nanos(s.now()), doc)
	if err != nil || n == 0 {
		return err
	}
	if _, err := exec(ctx, tx, `UPDATE notice SET state = 'dropped', error = 'too many others waited' WHERE state = 'open' AND seq <=
		(SELECT seq FROM notice WHERE state = 'open' ORDER BY seq DESC LIMIT 1 OFFSET ?)`, maxNotices); err != nil {
		return err
	}
	_, err = exec(ctx, tx, "DELETE FROM notice WHERE state <> 'open' AND seq <= (SELECT max(seq) FROM notice) - ?", keepNotices)
	return err
}

// workflowBefore returns the record that stands, zero when there is none or
// nobody is to be told of changes.
func (s *Store) workflowBefore(ctx context.Context, tx *sqlx.Tx, run string) (w inventory.Workflow, err error) {
	if len(s.notices) == 0 {
		return w, nil
	}
	var doc string
	err = get(ctx, tx, &doc, "SELECT doc FROM workflow WHERE run = ?", run)
	if errors.Is(err, inventory.ErrNotFound) {
		return w, nil
	}
	if err == nil {
		err = json.Unmarshal([]byte(doc), &w)
	}
	return w, err
}

// operationBefore is that of an operation.
func (s *Store) operationBefore(ctx context.Context, tx *sqlx.Tx, run string) (o inventory.Operation, err error) {
	if len(s.notices) == 0 {
		return o, nil
	}
	var doc string
	err = get(ctx, tx, &doc, "SELECT doc FROM operation WHERE run = ?", run)
	if errors.Is(err, inventory.ErrNotFound) {
		return o, nil
	}
	if err == nil {
		err = json.Unmarshal([]byte(doc), &o)
	}
	return o, err
}

// maxNoticeWait is longer than any pause between two attempts: a notice that is
// due later than that was written before the clock was set back.
const maxNoticeWait = time.Hour

type noticeRow struct {
	Doc      string `db:"doc"`
	Attempts int    `db:"attempts"`
}

// NextNotice returns the notice that is due, the one that waits longest first;
// inventory.ErrNotFound when there is none.
func (s *Store) NextNotice(ctx context.Context) (inventory.OpenNotice, error) {
	var r noticeRow
	now := s.now()
	err := get(ctx, s.ro, &r, "SELECT doc, attempts FROM notice WHERE state = 'open' AND (due <= ? OR due > ?) ORDER BY due, seq LIMIT 1",
		nanos(now), nanos(now.Add(maxNoticeWait)))
	n := inventory.OpenNotice{Attempts: r.Attempts}
	if err == nil {
		err = json.Unmarshal([]byte(r.Doc), &n.Notice)
	}
	if err != nil {
		return inventory.OpenNotice{}, fmt.Errorf("looking for a notice: %w", err)
	}
	return n, nil
}

// NoticeSent notes that a notice was delivered.
func (s *Store) NoticeSent(ctx context.Context, id string) error {
	return s.write(ctx, "noting that a notice was sent", func(tx *sqlx.Tx) error {
		_, err := exec(ctx, tx, "UPDATE notice SET state = 'sent', at = ?, attempts = attempts + 1, error = '' WHERE id = ?", nanos(s.now()), id)
		return err
	})
}

// NoticeFailed notes that an attempt failed, and why, and when the next one is
// due; zero: none, the notice is given up.
func (s *Store) NoticeFailed(ctx context.Context, id, why string, due time.Time) error {
	return s.write(ctx, "noting that a notice was not sent", func(tx *sqlx.Tx) error {
		_, err := exec(ctx, tx, "UPDATE notice SET state = iif(?1 = 0, 'dropped', state), due = ?1, attempts = attempts + 1, error = ?2 WHERE id = ?3 AND state = 'open'",
			nanos(due), why, id)
		return err
	})
}

// CloseNotices gives up the notices that wait, because there is nobody to tell
// any more, and leaves an event of each where its machine or operation is. It
// returns how many.
func (s *Store) CloseNotices(ctx context.Context, why string) (int, error) {
	closed := 0
	err := s.write(ctx, "closing notices", func(tx *sqlx.Tx) error {
		var docs []string
		if err := tx.SelectContext(ctx, &docs, "SELECT doc FROM notice WHERE state = 'open' ORDER BY seq"); err != nil {
			return err
		}
		closed = len(docs)
		for _, doc := range docs {
			var n inventory.Notice
			if err := json.Unmarshal([]byte(doc), &n); err != nil {
				return err
			}
			e := inventory.Event{
				Machine: n.Machine, Run: n.Run, Kind: inventory.EventOperator, Key: "notice " + n.ID, By: "ingot",
				Message: fmt.Sprintf("nobody was told of %s (%s): %s", n.Event, why, n.Text),
			}
			if err := s.event(ctx, tx, e); err != nil {
				return err
			}
		}
		_, err := exec(ctx, tx, "UPDATE notice SET state = 'dropped', error = ? WHERE state = 'open'", why)
		return err
	})
	return closed, err
}

// Notices says how it stands with the outbox.
func (s *Store) Notices(ctx context.Context) (inventory.NoticeCounts, error) {
	var r struct {
		Waiting int    `db:"waiting"`
		Oldest  int64  `db:"oldest"`
		Sent    int64  `db:"sent"`
		Dropped int    `db:"dropped"`
		Error   string `db:"error"`
	}
	err := get(ctx, s.ro, &r, `SELECT count(*) FILTER (WHERE state = 'open') AS waiting, coalesce(min(at) FILTER (WHERE state = 'open'), 0) AS oldest,
		coalesce(max(at) FILTER (WHERE state = 'sent'), 0) AS sent, count(*) FILTER (WHERE state = 'dropped') AS dropped,
		coalesce((SELECT error FROM notice WHERE state = 'open' AND error <> '' ORDER BY due DESC LIMIT 1), '') AS error FROM notice`)
	if err != nil {
		return inventory.NoticeCounts{}, fmt.Errorf("counting notices: %w", err)
	}
	return inventory.NoticeCounts{Waiting: r.Waiting, Oldest: moment(r.Oldest), Sent: moment(r.Sent), Error: r.Error, Dropped: r.Dropped}, nil
}
