package bootsvc

import (
	"cmp"
	"net/netip"
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

const (
	// conflictPause is how long an address is not offered after another host was found there.
	conflictPause = 5 * time.Minute
	// probeAgain limits how often a DECLINE, which can be forged, causes a probe.
	probeAgain = 30 * time.Second
)

// probeDeclined checks whether another host has the address of a lease that its machine has
// declined (RFC 2131 §4.3.3). A DECLINE can be forged: only a host that answers makes a conflict.
// Through a relay nothing can be checked.
func (s *Server) probeDeclined(x inventory.DHCPLease) {
	if !s.leases.mayProbe(x.MAC, x.At) {
		return
	}
	go func() {
		defer s.guard.Recover("a probe of a declined address")
		other, found := s.probe(x.Address, x.MAC)
		if !found || !s.leases.setConflict(x, other) {
			return
		}
		s.log.Error("the reserved address is used by another host: not offered for 5 minutes",
			"machine", x.Machine, "mac", x.MAC, "address", x.Address.String(), "other", other)
	}()
}

// mayProbe reports whether a DECLINE of a MAC may cause a probe at now.
func (l *leases) mayProbe(mac string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.probed == nil {
		l.probed = map[string]time.Time{}
	}
	last, known := l.probed[mac]
	if known && now.Sub(last) < probeAgain || !known && len(l.probed) >= maxLeases {
		return false
	}
	l.probed[mac] = now
	return true
}

// setConflict stores that another host has the address of a declined lease, unless the machine has
// taken or released that address since, or has another one.
func (l *leases) setConflict(declined inventory.DHCPLease, other string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	x, ok := l.byMAC[declined.MAC]
	if !ok || x.Machine != declined.Machine || x.Address != declined.Address ||
		x.State != inventory.LeaseDeclined && x.State != inventory.LeaseOffered {
		return false
	}
	declined.State, declined.Other = inventory.LeaseConflict, other
	l.byMAC[declined.MAC] = lease{declined, x.where}
	return true
}

// conflict returns the lease of a machine whose address was found at another host a short time ago.
func (s *Server) conflict(mac string, a netip.Addr) (x inventory.DHCPLease, ok bool) {
	x, ok = s.leases.get(mac)
	return x, ok && x.State == inventory.LeaseConflict && x.Address == a && s.now().Sub(x.At) < conflictPause
}
