package dhcp

import (
	"log/slog"
	"net/netip"
	"sync"
	"time"
	"unique"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
)

const maxLeases = 1 << 17

// A lease shares its text Where with all other leases from the same place. With fewer copies of the text, a garbage
// collection has less to visit.
type lease struct {
	inventory.DHCPLease
	where unique.Handle[string]
}

// leases holds the latest lease of each MAC since the start of the server.
type leases struct {
	probe func(a netip.Addr, client string) (mac string, ok bool) // see Config
	guard *guard.Guard
	log   *slog.Logger
	now   func() time.Time

	mu     sync.Mutex
	byMAC  map[string]lease
	probed map[string]time.Time // by MAC: when a DECLINE last caused a probe
}

// put stores a lease. Only machines of the inventory have leases, but the leases of machines that were removed from the
// inventory stay. Once maxLeases leases are stored, put stores no leases of further MACs.
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

// all returns all leases, in no order.
func (l *leases) all() []inventory.DHCPLease {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]inventory.DHCPLease, 0, len(l.byMAC))
	for _, x := range l.byMAC {
		out = append(out, x.DHCPLease)
	}
	return out
}

// note stores the result of an exchange with a machine that has a reservation. It ignores guests, because any number of
// MACs can become guests (security S48).
func (l *leases) note(e *exchange, r Reply) {
	if e.client.Guest {
		return
	}
	x := inventory.DHCPLease{
		MAC: e.client.Interface.MAC, Machine: e.client.Owner.Machine, Address: e.client.Interface.Address, At: l.now(), Where: e.where(),
	}
	switch kind := e.Packet.MessageType(); {
	case kind == dhcpv4.MessageTypeDecline:
		if _, known := l.conflict(x.MAC, x.Address); known || !e.declinesReservation() {
			return
		}
		x.State = inventory.LeaseDeclined
		l.put(x)
		l.probeDeclined(x)
		return
	case kind == dhcpv4.MessageTypeRelease && !e.toUs:
		return
	case kind == dhcpv4.MessageTypeRelease:
		x.State = inventory.LeaseReleased
	case r.Route == RouteNone:
		return
	case r.Packet.MessageType() == dhcpv4.MessageTypeOffer:
		if before, ok := l.get(x.MAC); ok && before.State == inventory.LeaseBound && before.Address == x.Address {
			return // keep the bound lease, because the machine may choose the offer of another server
		}
		x.State = inventory.LeaseOffered
	case r.Packet.MessageType() == dhcpv4.MessageTypeAck && kind == dhcpv4.MessageTypeRequest:
		x.State = inventory.LeaseBound
		x.Expires = x.At.Add(r.Packet.IPAddressLeaseTime(0))
	default:
		return
	}
	l.put(x)
}

const (
	// conflictPause is for how long Ingot does not offer a reserved address after it has found that another host uses
	// the address.
	conflictPause = 5 * time.Minute
	// probeAgain is the shortest time between two probes because of DECLINEs from one MAC, which can be forged.
	probeAgain = 30 * time.Second
)

// probeDeclined checks whether another host has the address that a machine has declined (RFC 2131 §4.3.3). A DECLINE
// can be forged, so a conflict is stored only if another host answers. Behind a relay, the probe finds no host.
func (l *leases) probeDeclined(x inventory.DHCPLease) {
	if !l.mayProbe(x.MAC, x.At) {
		return
	}
	go func() {
		defer l.guard.Recover("a probe of a declined address")
		other, found := l.probe(x.Address, x.MAC)
		if !found || !l.setConflict(x, other) {
			return
		}
		l.log.Error("another host uses the reserved address, so Ingot does not offer it for 5 minutes",
			"machine", x.Machine, "mac", x.MAC, "address", x.Address.String(), "other", other)
	}()
}

// mayProbe reports whether a DECLINE from this MAC may cause another probe at the time now. If so, it stores now as the
// time of the last probe.
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

// setConflict stores that the host other uses the address of the declined lease, and returns true. It stores nothing
// and returns false if the machine has taken or released the address since then, or now has another address.
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

// conflict returns the lease of a machine if another host was found to use the machine's address a, less than
// conflictPause ago.
func (l *leases) conflict(mac string, a netip.Addr) (x inventory.DHCPLease, ok bool) {
	x, ok = l.get(mac)
	return x, ok && x.State == inventory.LeaseConflict && x.Address == a && l.now().Sub(x.At) < conflictPause
}
