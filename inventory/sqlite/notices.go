package sqlite

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// Notices are the notices to operators that have to be sent. A notice is stored in the same transaction as the record that it is about, and
// waits in the database until it is sent. Its row is deleted some time after that.
type Notices struct{ *db }

// WithNotices makes the store write notices for these events. If no events are given, it writes notices for those of
// inventory.UrgentNoticeEvents. Without this option, the store writes no notices.
func WithNotices(events ...string) Option {
	return func(s *db) {
		if s.notices = events; len(events) == 0 {
			s.notices = inventory.UrgentNoticeEvents()
		}
	}
}

// maxNotices is how many notices may wait to be sent. keepNotices is the number of newest rows that are never deleted, even if their
// notices were sent or dropped, so that no notice is stored twice.
const (
	maxNotices  = 1000
	keepNotices = 2000
)

// addNotice stores only one of the given notices: the first whose event is enabled (see WithNotices). If this notice is stored already,
// nothing changes.
func addNotice(ctx context.Context, tx *transaction, notices []inventory.Notice) error {
	i := slices.IndexFunc(notices, func(n inventory.Notice) bool { return slices.Contains(tx.db.notices, n.Event) })
	if i < 0 {
		return nil
	}
	doc, err := toJSON(notices[i])
	if err != nil {
		return err
	}

	n, err := exec(ctx, tx, `INSERT INTO notice (id, state, at, due, attempts, error, doc) VALUES (?, 'open', ?, 0, 0, '', ?)
		ON CONFLICT (id) DO NOTHING`,
		notices[i].ID, nanos(tx.db.now()), doc)
	if err != nil || n == 0 {
		return err
	}
	return doAll(ctx, tx,
		stmt(`UPDATE notice SET state = 'dropped', error = 'too many others waited' WHERE state = 'open' AND seq <=
			(SELECT seq FROM notice WHERE state = 'open' ORDER BY seq DESC LIMIT 1 OFFSET ?)`, maxNotices),
		stmt("DELETE FROM notice WHERE state <> 'open' AND seq <= (SELECT max(seq) FROM notice) - ?", keepNotices),
	)
}

// maxNoticeWait is longer than any pause between two attempts to send a notice. If a notice is due even later, the clock was set back after
// the notice was stored; the notice then counts as due now.
const maxNoticeWait = time.Hour

type noticeRow struct {
	docRow[inventory.Notice]
	Attempts int
}

func (r noticeRow) value() (inventory.OpenNotice, error) {
	n, err := r.docRow.value()
	return inventory.OpenNotice{Notice: n, Attempts: r.Attempts}, err
}

// NextNotice returns the notice whose time to be sent came first, or inventory.ErrNotFound if no notice has to be sent now.
func (s Notices) NextNotice(ctx context.Context) (inventory.OpenNotice, error) {
	now := s.now()
	n, err := read[noticeRow](ctx, s.ro,
		"SELECT doc, attempts FROM notice WHERE state = 'open' AND (due <= ? OR due > ?) ORDER BY due, seq LIMIT 1",
		nanos(now), nanos(now.Add(maxNoticeWait)))
	return n, wrap(err, "looking for a notice")
}

// NoticeSent records that a notice was delivered.
func (s Notices) NoticeSent(ctx context.Context, id string) error {
	return s.writeOne(ctx, "recording that a notice was sent",
		"UPDATE notice SET state = 'sent', at = ?, attempts = attempts + 1, error = '' WHERE id = ?", nanos(s.now()), id)
}

// NoticeFailed records that an attempt to send a notice failed. why is the reason, and due is the time of the next attempt. If due is zero,
// the notice is dropped.
func (s Notices) NoticeFailed(ctx context.Context, id, why string, due time.Time) error {
	return s.writeOne(ctx, "recording that a notice was not sent",
		`UPDATE notice SET state = iif(?1 = 0, 'dropped', state), due = ?1, attempts = attempts + 1, error = ?2
			WHERE id = ?3 AND state = 'open'`, nanos(due), why, id)
}

// CloseNotices drops all waiting notices, because no receiver is configured any more, and returns how many there were. For each of them, it
// appends an event to the machine and run that the notice was about.
func (s Notices) CloseNotices(ctx context.Context, why string) (int, error) {
	closed := 0
	err := s.write(ctx, "closing notices", func(tx *transaction) error {
		open, err := listDocs[inventory.Notice](ctx, tx, "SELECT doc FROM notice WHERE state = 'open' ORDER BY seq")
		if err != nil {
			return err
		}
		closed = len(open)
		for _, n := range open {
			e := inventory.Event{
				Machine: n.Machine, Run: n.Run, Kind: inventory.EventOperator, Key: "notice " + n.ID, By: "ingot",
				Message: fmt.Sprintf("no notice of %s was sent (%s): %s", n.Event, why, n.Text),
			}
			if err := addEvent(ctx, tx, e); err != nil {
				return err
			}
		}

		return do(ctx, tx, "UPDATE notice SET state = 'dropped', error = ? WHERE state = 'open'", why)
	})
	return closed, err
}

// Notices returns how many notices wait and how many were dropped, and related values.
func (s Notices) Notices(ctx context.Context) (inventory.NoticeCounts, error) {
	var r struct {
		inventory.NoticeCounts
		Oldest, Sent int64
	}

	err := get(ctx, s.ro, &r, `SELECT count(*) FILTER (WHERE state = 'open') AS waiting,
		coalesce(min(at) FILTER (WHERE state = 'open'), 0) AS oldest,
		coalesce(max(at) FILTER (WHERE state = 'sent'), 0) AS sent, count(*) FILTER (WHERE state = 'dropped') AS dropped,
		coalesce((SELECT error FROM notice WHERE state = 'open' AND error <> '' ORDER BY due DESC LIMIT 1), '') AS error FROM notice`)
	r.NoticeCounts.Oldest, r.NoticeCounts.Sent = moment(r.Oldest), moment(r.Sent)
	return r.NoticeCounts, wrap(err, "counting notices")
}
