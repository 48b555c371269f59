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
	// relayAgain is the shortest time between two records of the same relay (security S48).
	relayAgain = 5 * time.Second
	// relayRetry is how long to wait until a record that failed is tried again. relayWait limits how long a packet
	// waits until its relay is recorded.
	relayRetry, relayWait = time.Second, 500 * time.Millisecond
)

// relays holds the relays through which packets came.
type relays struct {
	journal Journal
	now     func() time.Time

	mu    sync.Mutex // guards known, but is not held while the journal writes
	known map[netip.Addr]*relay
}

// relay is a relay that has forwarded a packet to this server.
type relay struct {
	due     time.Time     // when the next record is due
	writing chan struct{} // closed when the journal has written the record; nil = nothing is being written
}

// isRecent reports whether the relay x was recorded so recently that it need not be recorded now. It returns false if
// x.due is more than relayAgain ahead, because the clock was then set back.
func (x *relay) isRecent(now time.Time) bool {
	return now.Before(x.due) && x.due.Sub(now) <= relayAgain
}

// beginRecord decides what must happen before a packet from the relay giaddr is answered. If end is not nil, the caller
// must record the relay and then call end; first reports whether the relay was unknown before. If wait is not nil, the
// relay is being recorded for another packet, and the caller must wait until wait is closed. If both are nil, the
// packet can be answered at once.
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

// room reports whether one more relay can be stored. If maxRelays relays are stored, it first removes the one whose
// next record has been due for the longest time. It never removes a relay that was recorded recently: otherwise each
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

// record records that a packet came through a relay, which proves that the relay works. The record is written before
// the packet is answered: after an answer, the client does not ask again, and the server may crash at any time. Packets
// of the same relay wait for the record; packets of other relays do not wait.
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
	defer func() { end(r.now().Add(again)) }() // deferred, so that waiting packets go on even if the journal panics
	if err := r.journal.PutRelay(ctx, giaddr, r.now()); err != nil {
		log().Warn("recording that a packet came through a relay", "error", err)
		return
	}
	again = relayAgain
	if first {
		log().Info("a relay is used")
	}
}
