package bootsvc

import (
	"net/netip"
	"sync"
	"time"
)

// maxRelays bounds what is remembered of relays: they are listed by a person.
const maxRelays = 256

// relays remembers when each listed relay was last heard: what proves that a
// relay relays, and in whose network.
type relays struct {
	mu   sync.Mutex
	last map[netip.Addr]time.Time
}

func (r *relays) note(giaddr netip.Addr, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = map[netip.Addr]time.Time{}
	}
	if _, known := r.last[giaddr]; known || len(r.last) < maxRelays {
		r.last[giaddr] = at
	}
}

// Relayed tells when the last DHCP packet came that the relay with this giaddr
// has relayed; zero: none since this process began.
func (s *Server) Relayed(giaddr netip.Addr) time.Time {
	s.relayed.mu.Lock()
	defer s.relayed.mu.Unlock()
	return s.relayed.last[giaddr]
}
