package bootsvc

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ingotmetal/ingot/internal/guard"
	"github.com/ingotmetal/ingot/inventory"
)

// Bounds of what unauthenticated packets can make us keep and write
// (security S46, S48).
const (
	maxPendingEvents = 4096 // distinct events between two flushes
	maxPendingSeen   = 512  // distinct unknown MACs between two flushes
	maxSeenPerPort   = 256  // distinct unknown MACs per relay or interface and hour
	maxPorts         = 64
	flushEvery       = 500 * time.Millisecond // at the most
	flushSoon        = 20 * time.Millisecond  // after the first event
)

// A recorder takes events from packet handlers without ever making them wait,
// coalesces equal ones and writes them in batches.
type recorder struct {
	journal Journal
	guard   *guard.Guard
	log     *slog.Logger
	now     func() time.Time
	wake    chan struct{}

	mu     sync.Mutex
	events map[eventKey]inventory.Event
	seen   map[string]inventory.Seen
	ports  map[string]*portSeen

	droppedEvents, droppedSeen atomic.Int64
}

type eventKey struct {
	machine, run string
	epoch        int64
	boot         int
	kind         string
}

// portSeen is who was admitted at a port in the hour that began at since.
type portSeen struct {
	since time.Time
	macs  map[string]struct{}
}

func newRecorder(j Journal, g *guard.Guard, log *slog.Logger, now func() time.Time) *recorder {
	return &recorder{
		journal: j, guard: g, log: log, now: now, wake: make(chan struct{}, 1),
		events: map[eventKey]inventory.Event{}, seen: map[string]inventory.Seen{}, ports: map[string]*portSeen{},
	}
}

// event records that d's machine did kind. Equal events become one with a
// count.
func (r *recorder) event(d Decision, kind, message string) {
	k := eventKey{d.Machine, d.Owner.Run, d.Owner.Epoch, d.Boot, kind}
	r.mu.Lock()
	e, ok := r.events[k]
	switch {
	case ok:
		e.Count++
	case len(r.events) >= maxPendingEvents:
		r.mu.Unlock()
		r.droppedEvents.Add(1)
		return
	default:
		e = inventory.Event{Machine: k.machine, Run: k.run, Epoch: k.epoch, Boot: k.boot, Kind: kind, At: r.now(), Count: 1}
	}
	e.Message = message
	r.events[k] = e
	r.mu.Unlock()
	r.signal()
}

// unknown records a MAC that nobody knows, seen at port (the relay's address,
// or the interface).
func (r *recorder) unknown(mac, port, giaddr, class string) {
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.seen[mac]
	if !ok {
		if len(r.seen) >= maxPendingSeen || !r.admit(mac, port, now) {
			r.droppedSeen.Add(1)
			return
		}
		s = inventory.Seen{MAC: mac, First: now}
	}
	s.Last, s.Giaddr, s.Class = now, giaddr, clean(class)
	s.Count++
	r.seen[mac] = s
	r.signal()
}

// admit tells whether port may add mac to what is stored.
func (r *recorder) admit(mac, port string, now time.Time) bool {
	p := r.ports[port]
	if p == nil || now.Sub(p.since) > time.Hour {
		// Relays can be made up, interfaces cannot: the flood of one leaves the
		// other its place.
		if _, err := netip.ParseAddr(port); err == nil && p == nil && len(r.ports) >= maxPorts {
			maps.DeleteFunc(r.ports, func(_ string, p *portSeen) bool { return now.Sub(p.since) > time.Hour })
			if len(r.ports) >= maxPorts {
				return false
			}
		}
		p = &portSeen{since: now, macs: map[string]struct{}{}}
		r.ports[port] = p
	}
	if _, ok := p.macs[mac]; !ok && len(p.macs) >= maxSeenPerPort {
		return false
	}
	p.macs[mac] = struct{}{}
	return true
}

func (r *recorder) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run writes what was recorded until ctx ends, and then once more.
func (r *recorder) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			r.flush(last)
			return nil
		case <-r.wake:
		}
		if !pause(ctx, flushSoon) {
			continue
		}
		r.flush(ctx)
		pause(ctx, flushEvery)
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// flush writes what is pending. What cannot be written is kept, merged with
// what came since, within the same bounds.
func (r *recorder) flush(ctx context.Context) {
	defer r.guard.Recover("events of packets")
	r.mu.Lock()
	events, seen := r.events, r.seen
	r.events, r.seen = map[eventKey]inventory.Event{}, map[string]inventory.Seen{}
	r.mu.Unlock()
	if len(events) > 0 {
		batch := slices.SortedFunc(maps.Values(events), func(a, b inventory.Event) int { return a.At.Compare(b.At) })
		if err := r.journal.AppendEvents(ctx, batch); err != nil {
			r.log.Warn("writing boot events, they are kept for the next try", "error", err, "events", len(batch))
			r.restore(events, nil)
		}
	}
	if len(seen) > 0 {
		batch := slices.SortedFunc(maps.Values(seen), func(a, b inventory.Seen) int { return strings.Compare(a.MAC, b.MAC) })
		if err := r.journal.PutSeen(ctx, batch); err != nil {
			r.log.Warn("writing unknown MACs, they are kept for the next try", "error", err, "macs", len(batch))
			r.restore(nil, seen)
		}
	}
}

func (r *recorder) restore(events map[eventKey]inventory.Event, seen map[string]inventory.Seen) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, old := range events {
		e, ok := r.events[k]
		if !ok {
			if len(r.events) >= maxPendingEvents {
				r.droppedEvents.Add(old.Count)
				continue
			}
			r.events[k] = old
			continue
		}
		e.At, e.Count = old.At, e.Count+old.Count
		r.events[k] = e
	}
	for mac, old := range seen {
		s, ok := r.seen[mac]
		if !ok {
			if len(r.seen) >= maxPendingSeen {
				r.droppedSeen.Add(old.Count)
				continue
			}
			r.seen[mac] = old
			continue
		}
		s.First, s.Count = old.First, s.Count+old.Count
		r.seen[mac] = s
	}
	r.signal()
}

// clean makes text of a packet harmless in a page and a terminal, and short.
func clean(s string) string {
	s = strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return -1
		}
		return c
	}, s)
	return s[:min(len(s), 64)]
}
