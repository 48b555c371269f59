package bootsvc

import (
	"cmp"
	"slices"
	"sync"
	"time"
	"unique"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/inventory"
)

const maxLeases = 1 << 17

// A lease keeps one copy of Where for all leases that have the same: each garbage collection visits them.
type lease struct {
	inventory.DHCPLease
	where unique.Handle[string]
}

// leases are the leases since the start of the server, by MAC.
type leases struct {
	mu     sync.Mutex
	byMAC  map[string]lease
	probed map[string]time.Time // when a DECLINE of a MAC has last caused a probe
}

// put stores a lease. Only machines of the inventory have leases, so their number is bounded. Machines that
// were removed from it stay until maxLeases: then a further one is not stored.
func (l *leases) put(x inventory.DHCPLease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byMAC == nil {
		l.byMAC = map[string]lease{}
	}
	if _, known := l.byMAC[x.MAC]; known || len(l.byMAC) < maxLeases {
		where := unique.Make(x.Where)
		x.Where = where.Value()
		l.byMAC[x.MAC] = lease{x, where}
	}
}

func (l *leases) get(mac string) (inventory.DHCPLease, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	x, ok := l.byMAC[mac]
	return x.DHCPLease, ok
}

// Leases returns the leases of reservations since the start of the server, and those of discovery that have not
// ended, by address.
func (s *Server) Leases() []inventory.DHCPLease {
	s.leases.mu.Lock()
	out := make([]inventory.DHCPLease, 0, len(s.leases.byMAC))
	for _, x := range s.leases.byMAC {
		out = append(out, x.DHCPLease)
	}
	s.leases.mu.Unlock()
	for name, g := range s.guests {
		out = append(out, g.leases(name, s.now())...)
	}
	slices.SortFunc(out, func(a, b inventory.DHCPLease) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.MAC, b.MAC))
	})
	return out
}

// noteLease stores the result of an exchange with a machine that has a reservation. Guests have none:
// their MACs are not bounded by the inventory (security S48).
func (s *Server) noteLease(e *exchange, r reply) {
	if e.decision.Verdict == Discover {
		return
	}
	x := inventory.DHCPLease{
		MAC: e.decision.Interface.MAC, Machine: e.machine.Name, Address: e.decision.Interface.Address, At: s.now(), Where: e.where(),
	}
	switch kind := e.packet.MessageType(); {
	case kind == dhcpv4.MessageTypeDecline:
		if _, known := s.conflict(x.MAC, x.Address); known || !s.declinesReservation(e) {
			return
		}
		x.State = inventory.LeaseDeclined
		s.leases.put(x)
		s.probeDeclined(x)
		return
	case kind == dhcpv4.MessageTypeRelease && !s.isFor(e.packet):
		return
	case kind == dhcpv4.MessageTypeRelease:
		x.State = inventory.LeaseReleased
	case r.route == routeNone:
		return
	case r.packet.MessageType() == dhcpv4.MessageTypeOffer:
		if before, ok := s.leases.get(x.MAC); ok && before.State == inventory.LeaseBound && before.Address == x.Address {
			return // it may choose another server, and keeps what it has
		}
		x.State = inventory.LeaseOffered
	case r.packet.MessageType() == dhcpv4.MessageTypeAck && kind == dhcpv4.MessageTypeRequest:
		x.State = inventory.LeaseBound
		x.Expires = x.At.Add(r.packet.IPAddressLeaseTime(0))
	default:
		return
	}
	s.leases.put(x)
}

// where returns the relay or the interface that e came through.
func (e *exchange) where() string {
	if e.relay.IsValid() {
		return "relay " + e.relay.String()
	}
	return e.in.name
}
