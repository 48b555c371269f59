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

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/inventory"
)

// Events are the events of machines, runs and operators.
type Events struct{ *db }

// Size limits of an event, in bytes. maxWireText is for events that any host on the network can cause. The number of these events in the
// database is limited, too: there is only one for each machine, run, epoch, boot and kind, and it has a count.
const (
	maxWireText = 512
	maxMessage  = 16 << 10
	maxDetail   = 256 << 10
)

// wire reports whether any host on the network can cause events of this kind.
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

// addEvent appends e. If e has no time, it gets the current time. If e has no count, it gets the count 1.
func addEvent(ctx context.Context, tx *transaction, e inventory.Event) error {
	if e.At.IsZero() {
		e.At = tx.db.now()
	}

	e.Count = max(e.Count, 1)
	tx.touch(e.Machine)
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
			return fmt.Errorf("appending event %q: its detail is too large, %d bytes: %w", e.Kind, len(e.Detail), inventory.ErrInvalid)
		}
		d := string(e.Detail)
		detail = &d
	}

	signal := inventory.Signals(e.Kind) && e.Run != "" && !strings.HasPrefix(e.Run, inventory.OperatorPrefix)
	err := do(ctx, tx, `INSERT INTO event (machine, run, epoch, boot, kind, key, at, count, message, detail, by, signalled)
		VALUES (?,?,?,?,?,?,?,?,?,?,?,?) `+conflict,
		e.Machine, e.Run, e.Epoch, e.Boot, e.Kind, e.Key, nanos(e.At), e.Count, e.Message, detail, e.By, !signal)
	if err == nil && e.Kind == inventory.EventPhoneHome {
		// The phone-home shows that the installer has installed a system. So the machine must not boot the installer again, even if SpendBoot was
		// not called.
		err = do(ctx, tx, "UPDATE grant_ SET spent = 1 WHERE "+owns+" AND boot = ?4 AND installer = 1", e.Machine,
			e.Run, e.Epoch, e.Boot)
	}
	return err
}

// addOperatorEvent appends an event that records a command of an operator. by is the name of the operator.
func addOperatorEvent(ctx context.Context, tx *transaction, machine, by, message string) error {
	return addEvent(ctx, tx, inventory.Event{
		Machine: machine, Kind: inventory.EventOperator, Key: rand.Text(), By: by, Message: message,
	})
}

// clip returns text as valid UTF-8 without NUL, cut to at most n bytes.
func clip(text string, n int) string {
	return plaintext.Head(strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\x00", ""), n)
}

// AppendEvents appends events in one transaction. Some kinds of events can be caused by any host on the network. Of these, only one is
// stored for each machine, run, epoch, boot and kind, with the sum of the counts. An event of another kind is ignored if all these values
// and its Key are equal to those of a stored event.
func (s Events) AppendEvents(ctx context.Context, events []inventory.Event) error {
	return writeEach(ctx, s.db, "appending events", events, func(tx *transaction, e inventory.Event) error {
		return addEvent(ctx, tx, e)
	})
}

// Events returns the events that f selects, in the order of their sequence numbers.
func (s Events) Events(ctx context.Context, f inventory.EventFilter) ([]inventory.Event, error) {
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

// LastSeq returns the sequence number of the newest event, or 0 if there is none.
func (s Events) LastSeq(ctx context.Context) (int64, error) { return lastSeq(ctx, s.ro) }

func lastSeq(ctx context.Context, q sqlx.QueryerContext) (int64, error) {
	n, err := scalar[int64](ctx, q, "SELECT coalesce(max(seq), 0) FROM event")
	return n, wrap(err, "reading the newest event")
}

// NewestEvent returns the latest time of all events, or the zero time if there are no events. If the clock shows an earlier time than this,
// the clock is wrong.
func (s Events) NewestEvent(ctx context.Context) (time.Time, error) {
	n, err := scalar[int64](ctx, s.ro, "SELECT coalesce(max(at), 0) FROM event")
	return moment(n), wrap(err, "reading the newest event")
}

// live is an SQL condition. It is true if the run of event e still holds the grant with the epoch that e has.
const live = "EXISTS (SELECT 1 FROM grant_ g WHERE g.machine = e.machine AND g.run = e.run AND g.epoch = e.epoch)"

// Unsignalled returns events that have not been sent to their runs as signals yet and whose sequence numbers are greater than after, but at
// most limit events. It leaves out events whose run no longer holds the grant, and marks them as sent.
func (s Events) Unsignalled(ctx context.Context, after int64, limit int) ([]inventory.Event, error) {
	out, err := s.unsignalled(ctx, after, limit)
	return out, wrap(err, "listing unsent signals")
}

func (s Events) unsignalled(ctx context.Context, after int64, limit int) (out []inventory.Event, err error) {
	var rows []eventRow
	look := func() error {
		return s.ro.SelectContext(ctx, &rows, "SELECT "+eventColumns+", "+live+
			" AS live FROM event e WHERE signalled = 0 AND seq > ? ORDER BY seq LIMIT ?", after, limit)
	}
	if err := look(); err != nil {
		return nil, err
	}

	if slices.ContainsFunc(rows, func(r eventRow) bool { return !r.Live }) {
		err := s.writeOne(ctx, "dropping signals of runs that have ended",
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

// MarkSignalled records that the events with the sequence numbers seqs have been sent to their runs as signals.
func (s Events) MarkSignalled(ctx context.Context, seqs []int64) error {
	return writeEach(ctx, s.db, "marking signals as sent", seqs, func(tx *transaction, seq int64) error {
		return do(ctx, tx, "UPDATE event SET signalled = 1 WHERE seq = ?", seq)
	})
}

// PendingSignals counts the events of o's run that have not been sent to the run as signals yet.
func (s Events) PendingSignals(ctx context.Context, o inventory.Owner) (int, error) {
	n, err := scalar[int](ctx, s.ro,
		"SELECT count(*) FROM event WHERE signalled = 0 AND machine = ? AND run = ? AND epoch = ?", o.Machine, o.Run, o.Epoch)
	return n, wrap(err, "counting unsent signals of run %q", o.Run)
}

// PruneEvents deletes events from before the given time, but at most limit events, and returns the number of deleted events. It keeps
// events of runs that still have a record or a grant. It deletes events without a run: commands of operators, and events of machines that
// no run owned. It always keeps the newest event, because its time shows whether the clock is behind (see NewestEvent).
func (s Events) PruneEvents(ctx context.Context, before time.Time, limit int) (int, error) {
	return s.prune(ctx, pruning{
		what: "events", find: `SELECT seq FROM event e WHERE at < ?1 AND at < (SELECT max(at) FROM event)
		AND NOT EXISTS (SELECT 1 FROM workflow w WHERE w.run = e.run)
		AND NOT EXISTS (SELECT 1 FROM grant_ g WHERE g.run = e.run AND g.run <> '') ORDER BY at LIMIT ?2`,
		remove: "DELETE FROM event WHERE seq = ?1 AND at < ?2",
	}, before, limit)
}
