package dhcp

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"
)

const (
	// maxRelays limits how many relays are remembered.
	maxRelays = 256
	// relayAgain is how long a recorded relay is not recorded again (security S48).
	relayAgain = 5 * time.Second
	// relayRetry is the pause before a failed record is retried. relayWait is how long a
	// packet waits for the record.
	relayRetry, relayWait = time.Second, 500 * time.Millisecond
)

// relays are the relays that packets came through.
type relays struct {
	journal Journal
	now     func() time.Time

	mu    sync.Mutex // protects the map; not held during a write
	known map[netip.Addr]*relay
}

// relay is one that has relayed a packet to this server.
type relay struct {
	due     time.Time     // when it must be recorded again
	writing chan struct{} // closed when it is recorded; nil = no record is being written
}

// isRecent reports whether x was recorded a short time ago, and need not be recorded at now. If due is
// further ahead than relayAgain, the clock was set back, and x is due.
func (x *relay) isRecent(now time.Time) bool {
	return now.Before(x.due) && x.due.Sub(now) <= relayAgain
}

// beginRecord returns what a relay's packet must do before it is answered. If end is not
// nil, record the relay and call end; first means that it was not known. If wait is
// not nil, wait for another packet to record it. Otherwise, do nothing.
func (r *relays) beginRecord(giaddr netip.Addr, now time.Time) (end func(due time.Time), wait <-chan struct{}, first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x, known := r.known[giaddr]
	switch {
	case known && x.writing != nil:
		return nil, x.writing, false
	case known && x.isRecent(now), !known && !r.room(now):
		return nil, nil, false
	case !known:
		x = &relay{}
		r.known[giaddr] = x
	}
	x.writing = make(chan struct{})
	return func(due time.Time) {
		r.mu.Lock()
		defer r.mu.Unlock()
		close(x.writing)
		x.due, x.writing = due, nil
	}, nil, !known
}

// has reports whether a relay is remembered.
func (r *relays) has(giaddr netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known[giaddr] != nil
}

// room makes room for one more relay and reports whether there is room. It forgets the
// relay that has been due longest, but none that was recorded a short time ago: otherwise each
// forged giaddr would cause a write.
func (r *relays) room(now time.Time) bool {
	if r.known == nil {
		r.known = map[netip.Addr]*relay{}
	}
	if len(r.known) < maxRelays {
		return true
	}
	var oldest netip.Addr
	for a, x := range r.known {
		if x.writing == nil && !x.isRecent(now) && (!oldest.IsValid() || x.due.Before(r.known[oldest].due)) {
			oldest = a
		}
	}
	delete(r.known, oldest)
	return oldest.IsValid()
}

// record records that a packet came through a relay, which proves that it relays. It writes the
// record before the packet is answered: a client with an answer does not ask again,
// and the server may crash at any time. Packets of the same relay wait for the
// record; packets of other relays do not.
func (r *relays) record(ctx context.Context, giaddr netip.Addr, log func() *slog.Logger) {
	end, wait, first := r.beginRecord(giaddr, r.now())
	if end == nil && wait == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, relayWait)
	defer cancel()
	if end == nil {
		select {
		case <-wait:
		case <-ctx.Done():
		}
		return
	}
	again := relayRetry
	defer func() { end(r.now().Add(again)) }() // also if the journal panics, because other packets wait
	if err := r.journal.PutRelay(ctx, giaddr, r.now()); err != nil {
		log().Warn("recording that a packet came through a relay", "error", err)
		return
	}
	again = relayAgain
	if first {
		log().Info("a relay is used")
	}
}
