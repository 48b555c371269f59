package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// Traces are those events of runs that are sent to a collector as spans of a trace. The store also has the sequence number of the last
// event that was sent.
type Traces struct{ *db }

// maxTracedAtOnce is how many events one call of TracedEvents looks at.
const maxTracedAtOnce = 1000

type tracedRow struct {
	eventRow
	Since       int64
	PhaseEpoch  int64
	PhaseKey    string
	PhaseAt     int64
	PhaseDetail string
}

func (r tracedRow) value() (inventory.TracedEvent, error) {
	e, err := r.eventRow.value()
	out := inventory.TracedEvent{Event: e, Since: moment(r.Since)}
	if r.PhaseKey != "" {
		out.Phase = inventory.Event{
			Machine: e.Machine, Run: e.Run, Epoch: r.PhaseEpoch, Kind: inventory.EventPhase, Key: r.PhaseKey, At: moment(r.PhaseAt),
			Detail: json.RawMessage(r.PhaseDetail),
		}
	}
	return out, err
}

// TracedEvents looks at the next maxTracedAtOnce events whose sequence numbers are greater than after. It returns those that belong to a
// run and whose kind is one of inventory.TracedKinds. It also returns the last sequence number that it has looked at: the next call
// continues there.
func (s Traces) TracedEvents(ctx context.Context, after int64) ([]inventory.TracedEvent, int64, error) {
	last, err := lastSeq(ctx, s.ro)
	if err != nil {
		return nil, after, err
	}
	last = max(min(last, after+maxTracedAtOnce), after)

	kinds, err := toJSON(inventory.TracedKinds())
	if err != nil {
		return nil, after, fmt.Errorf("reading the events of traces: %w", err)
	}
	out, err := list[tracedRow](
		ctx,
		s.ro,
		`SELECT e.seq, e.machine, e.run, e.epoch, e.boot, e.kind, e.key, e.at, e.count, e.message, e.detail, e.by,
			coalesce(s.at, 0) AS since, coalesce(p.epoch, 0) AS phase_epoch, coalesce(p.key, '') AS phase_key, coalesce(p.at, 0) AS phase_at,
			coalesce(p.detail, '') AS phase_detail
		FROM event e
		LEFT JOIN event p ON p.seq = (SELECT seq FROM event WHERE run = e.run AND seq < e.seq AND kind = ? ORDER BY seq DESC LIMIT 1)
		LEFT JOIN event s ON e.kind = ? AND s.machine = e.machine AND s.run = e.run AND s.epoch = e.epoch AND s.boot = e.boot
			AND s.kind = ? AND s.key = substr(e.key, 1, instr(e.key, ' ') - 1)
		WHERE e.seq > ? AND e.seq <= ? AND e.run <> '' AND e.kind IN (SELECT value FROM json_each(?)) ORDER BY e.seq`,
		inventory.EventPhase,
		inventory.EventActionDone,
		inventory.EventActionStarted,
		after,
		last,
		kinds,
	)
	if err != nil {
		return nil, after, fmt.Errorf("reading the events of traces: %w", err)
	}
	return out, last, nil
}

// TracesSent returns the sequence number of the last event that was sent to the collector as a span. The first call stores and returns the
// sequence number of the newest event, so that earlier events are never sent.
func (s Traces) TracesSent(ctx context.Context) (int64, error) {
	const what = "reading up to which event traces were sent"
	seq, err := scalar[int64](ctx, s.ro, "SELECT value FROM meta WHERE name = 'traces_sent'")
	if !errors.Is(err, inventory.ErrNotFound) {
		return seq, wrap(err, what)
	}
	if seq, err = lastSeq(ctx, s.ro); err == nil {
		err = s.SetTracesSent(ctx, seq)
	}
	return seq, wrap(err, what)
}

// SetTracesSent stores the sequence number of the last event that was sent to the collector as a span.
func (s Traces) SetTracesSent(ctx context.Context, seq int64) error {
	return s.writeOne(ctx, "storing up to which event traces were sent",
		"INSERT INTO meta (name, value) VALUES ('traces_sent', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", seq)
}
