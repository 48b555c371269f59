package metadatasvc

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	// recordEvery is the minimum time between two recorded fetches with the same key (see fetch).
	recordEvery = time.Minute
	// maxFetches is the maximum size of each of the maps fetches.recent and fetches.older.
	maxFetches = 1 << 16
	// maxPendingFetches is how many events may wait to be written. If so many wait, further events are dropped.
	maxPendingFetches = 1 << 16
	// writeSoon is how long the first waiting event waits, so that later ones can be written in the same transaction.
	writeSoon = 100 * time.Millisecond
	writeWait = 2 * time.Second
)

// fetch is the key of a fetch. Fetches with the same key are recorded only once per recordEvery.
type fetch struct {
	machine, run string
	epoch        int64
	document     string
}

// fetches records which machines fetch metadata. It remembers when recent fetches were recorded, and holds the events that are not written
// yet.
type fetches struct {
	journal Journal
	log     *slog.Logger
	now     func() time.Time

	mu sync.Mutex
	// When recent is full, it becomes older, and the previous older is dropped. This limits the memory, and the oldest fetches are forgotten
	// first.
	recent, older map[fetch]time.Time
	pending       []inventory.Event
	wake          chan struct{}
}

func newFetches(j Journal, log *slog.Logger, now func() time.Time) *fetches {
	return &fetches{journal: j, log: log, now: now, recent: map[fetch]time.Time{}, wake: make(chan struct{}, 1)}
}

// due reports whether the fetch k has to be recorded at the time now: it was not recorded within the last recordEvery. If so, due remembers
// that k was recorded now.
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

// forget makes due return true for the next fetch k.
func (f *fetches) forget(k fetch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.recent, k)
	delete(f.older, k)
}

// record records that the machine of p fetches metadata. It is called before the answer is sent. If the machine fetches a document of its
// run's plan, record writes the event at once, even if the client has disconnected, because the run waits for this event; it returns false
// if writing fails. Events for other metadata are only displayed, and are written later.
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

// write writes events to the journal, and returns whether they were written.
func (f *fetches) write(ctx context.Context, events []inventory.Event) bool {
	ctx, cancel := context.WithTimeout(ctx, writeWait)
	defer cancel()
	err := f.journal.AppendEvents(ctx, events)
	if err != nil {
		f.log.Warn("writing metadata events", "count", len(events), "machine", events[0].Machine, "error", err)
	}
	return err == nil
}

// run writes waiting events in batches until ctx ends. Then it writes the events that are still waiting.
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
	f.flush(context.WithoutCancel(ctx)) // for events that were added during the last flush
}

// flush writes the waiting events. If writing fails, it drops them and forgets their fetches, so that the next fetches are recorded.
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
