package bootsvc

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"
)

const (
	// maxRelays bounds what is remembered of relays: they are listed by a person.
	maxRelays = 256
	// hearAgain is for how long a relay that was heard need not be recorded again
	// (security S48): one write for all that its clients ask meanwhile.
	hearAgain = 5 * time.Second
	// hearTry is when a record that could not be written is tried again, and
	// hearWait for how long a packet waits for it.
	hearTry, hearWait = time.Second, 500 * time.Millisecond
)

// relays remembers until when each relay need not be recorded again.
type relays struct {
	mu  sync.Mutex
	due map[netip.Addr]time.Time
}

// hear records that a relay was heard: what proves that it relays, and in whose
// network. That is written before the packet is answered, because nobody asks
// again who has got an answer, and the server may die at any moment.
func (s *Server) hear(ctx context.Context, giaddr netip.Addr, log *slog.Logger) {
	r := &s.relayed
	r.mu.Lock() // while it is written, too: no other packet of it is answered before
	defer r.mu.Unlock()
	now := s.now()
	due, known := r.due[giaddr]
	if known && now.Before(due) && due.Sub(now) <= hearAgain || !known && len(r.due) >= maxRelays {
		return
	}
	if r.due == nil {
		r.due = map[netip.Addr]time.Time{}
	}
	ctx, cancel := context.WithTimeout(ctx, hearWait)
	defer cancel()
	if err := s.rec.journal.PutRelay(ctx, giaddr, now); err != nil {
		r.due[giaddr] = now.Add(hearTry)
		log.Warn("recording that a relay was heard", "error", err)
		return
	}
	r.due[giaddr] = now.Add(hearAgain)
	if !known {
		log.Info("relay heard")
	}
}
