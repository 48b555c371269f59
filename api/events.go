package api

import (
	"context"
	"encoding/json"
	"log/slog"
	"strconv"
	"time"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// EventStore holds what machines and runs did.
type EventStore interface {
	Events(ctx context.Context, f inventory.EventFilter) ([]inventory.Event, error)
	AppendEvents(ctx context.Context, es []inventory.Event) error
}

type events struct {
	store EventStore
	log   *slog.Logger
	now   func() time.Time
}

// maxEvents limits the events in one answer.
const maxEvents = 1000

// list returns a page of the events that f selects, by number. The cursor is the number of
// the last event.
func (e *events) list(
	ctx context.Context, f inventory.EventFilter, p httpapi.Page,
) (httpapi.List[inventory.Event], error) {
	var err error
	if f.After, f.Descending, err = cursor(p); err != nil {
		return httpapi.List[inventory.Event]{}, err
	}
	limit := pageLimit(p)
	f.Limit = limit + 1 // one more shows whether the list continues
	found, err := e.store.Events(ctx, f)
	if err != nil {
		return httpapi.List[inventory.Event]{}, err
	}

	return httpapi.Cut(found, limit, func(x inventory.Event) string { return strconv.FormatInt(x.Seq, 10) }), nil
}

// cursor returns the number after which a page of numbered rows begins, and whether the newest come
// first.
func cursor(p httpapi.Page) (after int64, descending bool, err error) {
	if p.After != "" {
		if after, err = strconv.ParseInt(p.After, 10, 64); err != nil || after < 0 {
			return 0, false, inventory.Invalid("after", "the next of the last page", "invalid whole number %q", p.After)
		}
	}
	descending, err = p.Descending("seq", "seq")
	return after, descending, err
}

// pageLimit returns how many events, or lines of syslog, a page has.
func pageLimit(p httpapi.Page) int {
	if p.Limit > 0 {
		return min(p.Limit, maxEvents)
	}
	return maxEvents
}

// note records what an operator did to a run. The action is already done, so an error is
// only logged.
func (e *events) note(ctx context.Context, w inventory.Workflow, kind, message string, detail any) {
	raw, err := json.Marshal(detail)
	if err == nil {
		now := e.now()
		err = e.store.AppendEvents(context.WithoutCancel(ctx), []inventory.Event{{
			Machine: w.Machine, Run: w.Run, Epoch: w.Epoch, Kind: kind, At: now, Count: 1,
			Key: "api-" + strconv.FormatInt(now.UnixNano(), 36), Message: message, Detail: raw, By: httpapi.Actor(ctx),
		}})
	}
	if err != nil {
		e.log.With(w.LogKeys()...).Warn("recording an action of the operator", "error", err)
	}
}
