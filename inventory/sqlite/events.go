package sqlite

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/inventory"
)

// Bounds of what an event may carry, in bytes. Of wire events the rows are
// bounded, too: one per machine, run, epoch, boot and kind.
const (
	maxWireText = 512
	maxMessage  = 16 << 10
	maxDetail   = 256 << 10
)

// wire reports whether any host on the wire can cause events of this kind.
func wire(kind string) bool {
	switch kind {
	case inventory.EventDHCP, inventory.EventLoader, inventory.EventScript, inventory.EventKernel, inventory.EventInitrd,
		inventory.EventRebooted, inventory.EventDisk, inventory.EventOS, inventory.EventMetadata:
		return true
	}
	return false
}

type eventRow struct {
	inventory.Event
	At     int64
	Detail *string
	Live   bool
}

func (r eventRow) value() (inventory.Event, error) {
	e := r.Event
	e.At = moment(r.At)
	if r.Detail != nil {
		e.Detail = json.RawMessage(*r.Detail)
	}
	return e, nil
}

const eventColumns = "seq, machine, run, epoch, boot, kind, key, at, count, message, detail, by"

// event appends e, which keeps the time and count it has or gets now and 1.
func (s *Store) event(ctx context.Context, tx *sqlx.Tx, e inventory.Event) error {
	if e.At.IsZero() {
		e.At = s.now()
	}

	e.Count = max(e.Count, 1)
	s.touch(tx, e.Machine)
	conflict := "ON CONFLICT DO NOTHING"
	e.Message = clip(e.Message, maxMessage)

	if wire(e.Kind) {
		e.Key, e.Message = "", clip(e.Message, maxWireText)
		if len(e.Detail) > maxWireText {
			e.Detail = nil
		}
		conflict = `ON CONFLICT (machine, run, epoch, boot, kind, key) DO UPDATE SET count = count + excluded.count, at = max(at, excluded.at),
			message = excluded.message, detail = excluded.detail`
	}

	var detail *string
	if len(e.Detail) > 0 {
		if len(e.Detail) > maxDetail {
			return fmt.Errorf("appending event %q: its detail has %d bytes: %w", e.Kind, len(e.Detail), inventory.ErrInvalid)
		}
		d := string(e.Detail)
		detail = &d
	}

	signal := inventory.Signals(e.Kind) && e.Run != "" && !strings.HasPrefix(e.Run, personPrefix)
	err := do(ctx, tx, `INSERT INTO event (machine, run, epoch, boot, kind, key, at, count, message, detail, by, signalled)
		VALUES (?,?,?,?,?,?,?,?,?,?,?,?) `+conflict,
		e.Machine, e.Run, e.Epoch, e.Boot, e.Kind, e.Key, nanos(e.At), e.Count, e.Message, detail, e.By, !signal)
	if err == nil && e.Kind == inventory.EventPhoneHome {
		// A system that phones home was delivered whole, whether or not that was
		// recorded: the machine's next start must not boot the installer again.
		err = do(ctx, tx, "UPDATE grant_ SET spent = 1 WHERE "+owns+" AND boot = ?4 AND installer = 1", e.Machine,
			e.Run, e.Epoch, e.Boot)
	}
	return err
}

// operator appends what an operator did.
func (s *Store) operator(ctx context.Context, tx *sqlx.Tx, machine, by, message string) error {
	return s.event(ctx, tx, inventory.Event{
		Machine: machine, Kind: inventory.EventOperator, Key: rand.Text(), By: by, Message: message,
	})
}

// clip cuts text to at most n bytes of valid UTF-8 without NUL.
func clip(text string, n int) string {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\x00", "")
	if len(text) <= n {
		return text
	}

	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// AppendEvents appends events in one transaction. An event that any host on the
// wire can cause is one row per machine, run, epoch, boot and kind, in which counts
// add up. Any other event is stored once per Key, and ignored when it exists.
func (s *Store) AppendEvents(ctx context.Context, events []inventory.Event) error {
	if len(events) == 0 {
		return nil
	}
	return s.write(ctx, "appending events", func(tx *sqlx.Tx) error {
		for _, e := range events {
			if err := s.event(ctx, tx, e); err != nil {
				return err
			}
		}
		return nil
	})
}

// Events returns events by sequence number, the oldest first.
func (s *Store) Events(ctx context.Context, f inventory.EventFilter) ([]inventory.Event, error) {
	q := selection{query: "SELECT " + eventColumns + " FROM event WHERE true"}
	order, beyond, after := "seq", "seq > ?", f.After
	if f.Descending {
		order, beyond, after = "seq DESC", "seq < ?", cmp.Or(f.After, math.MaxInt64)
	}
	q.where(true, beyond, after)
	q.where(f.Machine != "", "machine = ?", f.Machine)
	q.where(f.Run != "", "run = ?", f.Run)
	q.page(order, cmp.Or(max(f.Limit, 0), 1000))
	out, err := list[eventRow](ctx, s.ro, q.query, q.args...)
	return out, wrap(err, "listing events")
}

// LastSeq returns the sequence number of the newest row, 0 when there is none.
func (s *Store) LastSeq(ctx context.Context) (int64, error) {
	n, err := scalar[int64](ctx, s.ro, "SELECT coalesce(max(seq), 0) FROM event")
	return n, wrap(err, "reading the newest event")
}

// NewestEvent returns the greatest time of any event, zero when there is none:
// a clock that stands behind it is wrong.
func (s *Store) NewestEvent(ctx context.Context) (time.Time, error) {
	n, err := scalar[int64](ctx, s.ro, "SELECT coalesce(max(at), 0) FROM event")
	return moment(n), wrap(err, "reading the newest event")
}

// live reports whether the run of an event e holds the grant that the event was of.
const live = "EXISTS (SELECT 1 FROM grant_ g WHERE g.machine = e.machine AND g.run = e.run AND g.epoch = e.epoch)"

// Unsignalled returns the events that runs were not signalled yet, by sequence
// number. Events of runs that no longer hold their grant are marked and left out.
func (s *Store) Unsignalled(ctx context.Context, limit int) ([]inventory.Event, error) {
	out, err := s.unsignalled(ctx, limit)
	return out, wrap(err, "listing unsent signals")
}

func (s *Store) unsignalled(ctx context.Context, limit int) (out []inventory.Event, err error) {
	var rows []eventRow
	look := func() error {
		return s.ro.SelectContext(ctx, &rows, "SELECT "+eventColumns+", "+live+
			" AS live FROM event e WHERE signalled = 0 ORDER BY seq LIMIT ?", limit)
	}
	if err := look(); err != nil {
		return nil, err
	}

	if slices.ContainsFunc(rows, func(r eventRow) bool { return !r.Live }) {
		err := s.writeOne(ctx, "dropping signals of runs that are over",
			"UPDATE event AS e SET signalled = 1 WHERE signalled = 0 AND NOT "+live)
		if err != nil {
			return nil, err
		}
		rows = nil
		if err := look(); err != nil {
			return nil, err
		}
	}

	for _, r := range rows {
		if r.Live {
			e, _ := r.value() // never an error
			out = append(out, e)
		}
	}
	return out, nil
}

// MarkSignalled records that the runs were signalled these events.
func (s *Store) MarkSignalled(ctx context.Context, seqs []int64) error {
	if len(seqs) == 0 {
		return nil
	}
	return s.write(ctx, "marking signals as sent", func(tx *sqlx.Tx) error {
		for _, seq := range seqs {
			if err := do(ctx, tx, "UPDATE event SET signalled = 1 WHERE seq = ?", seq); err != nil {
				return err
			}
		}
		return nil
	})
}

// PendingSignals counts the events that o's run was not signalled yet.
func (s *Store) PendingSignals(ctx context.Context, o inventory.Owner) (int, error) {
	n, err := scalar[int](ctx, s.ro,
		"SELECT count(*) FROM event WHERE signalled = 0 AND machine = ? AND run = ? AND epoch = ?", o.Machine, o.Run, o.Epoch)
	return n, wrap(err, "counting unsent signals of run %q", o.Run)
}
