package bootsvc

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	// maxRelays bounds how many relays are remembered. An operator lists them.
	maxRelays = 256
	// hearAgain is for how long a relay that was heard need not be recorded again
	// (security S48): one write for all packets of its clients in that time.
	hearAgain = 5 * time.Second
	// hearTry is when a record that could not be written is tried again, and
	// hearWait for how long a packet waits for it.
	hearTry, hearWait = time.Second, 500 * time.Millisecond
)

// relays remembers the relays that were heard.
type relays struct {
	mu    sync.Mutex // of the map only, never held during a write
	known map[netip.Addr]*relay
}

// A relay is one that has relayed a packet to this server.
type relay struct {
	due     time.Time     // until then it need not be recorded again
	writing chan struct{} // closed when it is recorded; nil: it is not being recorded
}

// rests reports whether x need not be recorded at now. A time further ahead than
// any that is ever set is of a clock that was set back.
func (x *relay) rests(now time.Time) bool {
	return now.Before(x.due) && x.due.Sub(now) <= hearAgain
}

// begin says what a packet of a relay has to do before it is answered: record
// the relay, and call end; wait for another packet that does; nothing.
func (r *relays) begin(giaddr netip.Addr, now time.Time) (end func(due time.Time), wait <-chan struct{}, first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x, known := r.known[giaddr]
	switch {
	case known && x.writing != nil:
		return nil, x.writing, false
	case known && x.rests(now), !known && !r.room(now):
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

// room makes room for one more relay: the one that has been due for the longest
// time is forgotten. None that rests is, or every forged giaddr would be a write.
func (r *relays) room(now time.Time) bool {
	if r.known == nil {
		r.known = map[netip.Addr]*relay{}
	}
	if len(r.known) < maxRelays {
		return true
	}
	var oldest netip.Addr
	for a, x := range r.known {
		if x.writing == nil && !x.rests(now) && (!oldest.IsValid() || x.due.Before(r.known[oldest].due)) {
			oldest = a
		}
	}
	delete(r.known, oldest)
	return oldest.IsValid()
}

// hear records that a relay was heard, which proves that it relays. The record is
// written before the packet is answered: a client that has its answer does not ask
// again, and the server may die at any moment. Packets of the relay wait while it
// is recorded; those of others do not.
func (s *Server) hear(ctx context.Context, giaddr netip.Addr, log *slog.Logger) {
	end, wait, first := s.relayed.begin(giaddr, s.now())
	if end == nil && wait == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, hearWait)
	defer cancel()
	if end == nil {
		select {
		case <-wait:
		case <-ctx.Done():
		}
		return
	}
	again := hearTry
	defer func() { end(s.now().Add(again)) }() // also when the journal panics: others wait
	if err := s.rec.journal.PutRelay(ctx, giaddr, s.now()); err != nil {
		log.Warn("recording that a relay was heard", "error", err)
		return
	}
	again = hearAgain
	if first {
		log.Info("relay heard")
	}
}

// networks are those of the reservations, as they were read last.
type networks struct {
	mu   sync.Mutex
	read time.Time
	of   map[netip.Prefix]struct{}
}

// reserved reports whether an address lies in the network of a reservation. The
// inventory is read at most once in hearAgain, because any host on the network can
// cause the call.
func (s *Server) reserved(ctx context.Context, a netip.Addr, log *slog.Logger) bool {
	n := &s.networks
	n.mu.Lock()
	defer n.mu.Unlock()
	if now := s.now(); n.read.IsZero() || now.Before(n.read) || now.Sub(n.read) >= hearAgain {
		ms, err := s.machines.Machines(ctx)
		if err != nil {
			log.Error("reading the networks of the reservations", "error", err)
		} else {
			n.of = networksOf(ms)
		}
		n.read = now
	}
	for p := range n.of {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

func networksOf(ms []inventory.Machine) map[netip.Prefix]struct{} {
	out := map[netip.Prefix]struct{}{}
	for _, m := range ms {
		for _, i := range m.Interfaces {
			if i.Address.Is4() {
				out[reservationPrefix(i, link{}).Masked()] = struct{}{}
			}
		}
	}
	return out
}
