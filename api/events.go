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

// EventStore holds the events of machines and runs.
type EventStore interface {
	Events(ctx context.Context, f inventory.EventFilter) ([]inventory.Event, error)
	AppendEvents(ctx context.Context, es []inventory.Event) error
}

type events struct {
	store EventStore
	log   *slog.Logger
	now   func() time.Time
}

// list returns a page of the events that f selects, ordered by number.
func (e *events) list(ctx context.Context, f inventory.EventFilter, p httpapi.Page) (httpapi.List[inventory.Event], error) {
	return pageByNumber(p, func(after int64, descending bool, limit int) ([]inventory.Event, error) {
		f.After, f.Descending, f.Limit = after, descending, limit
		return e.store.Events(ctx, f)
	}, func(x inventory.Event) int64 { return x.Seq })
}

// note records an event, and logs a line, about what an operator did to a run. It is called after the operator's action was
// carried out, so it only logs errors.
func (e *events) note(ctx context.Context, w inventory.Workflow, kind, message string, detail any) {
	log := e.log.With(w.LogKeys()...)
	log.Info("an operator has acted on a run", "what", message, "by", httpapi.Actor(ctx))
	raw, err := json.Marshal(detail)
	if err == nil {
		now := e.now()
		err = e.store.AppendEvents(context.WithoutCancel(ctx), []inventory.Event{{
			Machine: w.Machine, Run: w.Run, Epoch: w.Epoch, Kind: kind, At: now, Count: 1,
			Key: "api-" + strconv.FormatInt(now.UnixNano(), 36), Message: message, Detail: raw, By: httpapi.Actor(ctx),
		}})
	}
	if err != nil {
		log.Warn("recording an action of the operator", "error", err)
	}
}
