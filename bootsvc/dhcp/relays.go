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
	// relayAgain is the shortest time between two records of one relay (security S48).
	relayAgain = 5 * time.Second
	// relayRetry is the pause before a failed record is retried. relayWait limits how long a packet waits for the record.
	relayRetry, relayWait = time.Second, 500 * time.Millisecond
)

// relays holds the relays through which packets came.
type relays struct {
	journal Journal
	now     func() time.Time

	mu    sync.Mutex // guards known; not held during a write to the journal
	known map[netip.Addr]*relay
}

// relay is a relay that has forwarded a packet to this server.
type relay struct {
	due     time.Time     // the earliest time of the next record
	writing chan struct{} // closed once the record is written; nil = no write is running
}

// isRecent reports whether x was recorded so recently that no record is due at now. If due is more than relayAgain
// ahead, the clock was set back, and it returns false.
func (x *relay) isRecent(now time.Time) bool {
	return now.Before(x.due) && x.due.Sub(now) <= relayAgain
}

// beginRecord decides what a packet of a relay must do before it is answered. If end is not nil, the caller must
// record the relay and then call end; first reports whether the relay was unknown. If wait is not nil, another packet
// is recording the relay, and the caller must wait. If both are nil, it must do nothing.
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

// has reports whether giaddr is a known relay.
func (r *relays) has(giaddr netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known[giaddr] != nil
}

// room reports whether one more relay can be stored. If there are maxRelays, it first removes the relay that has been
// due longest. It never removes a relay that was recorded recently: otherwise each forged giaddr would cause a write.
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

// record records that a packet came through a relay, which proves that the relay works. It writes the record before
// the packet is answered: after an answer the client does not ask again, and the server may crash at any time. Packets
// of the same relay wait for the record; packets of other relays do not.
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
	defer func() { end(r.now().Add(again)) }() // deferred because other packets wait, even if the journal panics
	if err := r.journal.PutRelay(ctx, giaddr, r.now()); err != nil {
		log().Warn("recording that a packet came through a relay", "error", err)
		return
	}
	again = relayAgain
	if first {
		log().Info("a relay is used")
	}
}
