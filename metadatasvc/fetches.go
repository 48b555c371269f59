package metadatasvc

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	// recordEvery is the shortest time between two records of the same fetch.
	recordEvery = time.Minute
	// maxFetches is how many fetches are known in each half of fetches.
	maxFetches = 1 << 16
	// maxPendingFetches is how many records may wait to be written; more are dropped.
	maxPendingFetches = 1 << 16
	// writeSoon is the pause before waiting records are written, so that they share a transaction.
	writeSoon = 100 * time.Millisecond
	writeWait = 2 * time.Second
)

// fetch identifies fetches of metadata that are recorded only once per recordEvery.
type fetch struct {
	machine, run string
	epoch        int64
	document     string
}

// fetches are the fetches that were recorded last, and the records that are not written yet.
type fetches struct {
	journal Journal
	log     *slog.Logger
	now     func() time.Time

	mu sync.Mutex
	// A full half replaces the older one, so that memory is bounded and few fetches are forgotten.
	recent, older map[fetch]time.Time
	pending       []inventory.Event
	wake          chan struct{}
}

func newFetches(j Journal, log *slog.Logger, now func() time.Time) *fetches {
	return &fetches{journal: j, log: log, now: now, recent: map[fetch]time.Time{}, wake: make(chan struct{}, 1)}
}

// due reports whether a fetch must be recorded now, and remembers it.
func (f *fetches) due(k fetch, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	last, ok := f.recent[k]
	if !ok {
		last, ok = f.older[k]
	}
	if ok && now.Sub(last) < recordEvery {
		return false
	}
	if len(f.recent) >= maxFetches {
		f.recent, f.older = map[fetch]time.Time{}, f.recent
	}
	f.recent[k] = now
	return true
}

// forget makes the next fetch due.
func (f *fetches) forget(k fetch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.recent, k)
	delete(f.older, k)
}

// record stores that p's machine fetches metadata, and is called before the answer. No client waits for
// it: the record is for display alone. The record of a run's document is written at once, also if the
// client has disconnected, because a run proceeds by it. record returns false if that failed.
func (f *fetches) record(ctx context.Context, p profile) bool {
	k := fetch{p.machine.Name, p.grant.Run, p.grant.Epoch, p.document}
	now := f.now()
	if !f.due(k, now) {
		return true
	}
	e := inventory.Event{
		Machine: k.machine, Run: k.run, Epoch: k.epoch, Boot: boot(p.grant),
		Kind: inventory.EventMetadata, At: now, Count: 1,
	}
	if p.document != "" {
		e.Kind, e.Key = inventory.EventDocument, p.document
		if !f.write(context.WithoutCancel(ctx), []inventory.Event{e}) {
			f.forget(k)
			return false
		}
		return true
	}
	if p.secret {
		e.Message = "with its secrets"
	}
	f.mu.Lock()
	if len(f.pending) < maxPendingFetches {
		f.pending = append(f.pending, e)
	}
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
	return true
}

// write reports whether events were written.
func (f *fetches) write(ctx context.Context, events []inventory.Event) bool {
	ctx, cancel := context.WithTimeout(ctx, writeWait)
	defer cancel()
	err := f.journal.AppendEvents(ctx, events)
	if err != nil {
		f.log.Warn("writing metadata events", "count", len(events), "machine", events[0].Machine, "error", err)
	}
	return err == nil
}

// run writes records in batches until ctx ends, and then what is left.
func (f *fetches) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-f.wake:
			select {
			case <-ctx.Done():
			case <-time.After(writeSoon):
			}
		}
		f.flush(context.WithoutCancel(ctx))
	}
	f.flush(context.WithoutCancel(ctx)) // what was added during the last one
}

// flush writes the records that wait. Those that cannot be written are due again.
func (f *fetches) flush(ctx context.Context) {
	f.mu.Lock()
	events := f.pending
	f.pending = nil
	f.mu.Unlock()
	if len(events) == 0 || f.write(ctx, events) {
		return
	}
	for _, e := range events {
		f.forget(fetch{e.Machine, e.Run, e.Epoch, ""})
	}
}
