package bootsvc

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	// guestLease is how long a discovered machine keeps its address without asking again.
	guestLease = 10 * time.Minute
	// maxNewGuests is how many unknown MACs are admitted on an interface, or through a relay, in a minute
	// (security S7).
	maxNewGuests = 30
	// maxVisitors is how many unknown machines are discovered at a time next to another DHCP server.
	maxVisitors = 256
)

// guests are the unknown machines of one interface or relay, with their addresses from the range of
// Config.Discovery. They are kept in memory, so a server that was restarted does not know who has an address
// of the range. Until the last of these leases has ended, a client that renews one keeps it, and an address
// is probed by ARP before it is offered. Behind a relay ARP is not possible.
type guests struct {
	inventory.Range              // zero: another DHCP server gives the addresses
	relay           netip.Prefix // address of a relay on its network; invalid = an interface
	mu              sync.Mutex
	byMAC           map[string]guest
	byAddr          map[netip.Addr]string
	minute          time.Time // when admitted was reset
	admitted        int
	earlierUntil    time.Time                      // end of the leases of an earlier process
	probe           func(mac string, a netip.Addr) // probes the address of a guest and calls storeProbe; nil: none is probed
}

type guest struct {
	address netip.Addr
	until   time.Time
	probing bool // whether another host has the address: it is not offered yet
}

func newGuests(r inventory.Range) *guests {
	return &guests{Range: r, byMAC: map[string]guest{}, byAddr: map[netip.Addr]string{}}
}

// find returns the guest with that MAC or, if mac is "", with that address.
func (g *guests) find(mac string, a netip.Addr, now time.Time) (string, guest, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if mac == "" {
		mac = g.byAddr[a]
	}
	x, ok := g.byMAC[mac]
	return mac, x, ok && !x.probing && now.Before(x.until)
}

// leases returns the addresses that guests have. name is the interface or relay, as the configuration names it.
func (g *guests) leases(name string, now time.Time) (out []inventory.DHCPLease) {
	where := name
	if g.relay.IsValid() {
		where = "relay " + g.relay.Addr().String()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for mac, x := range g.byMAC {
		if x.address.IsValid() && !x.probing && now.Before(x.until) {
			out = append(out, inventory.DHCPLease{
				MAC: mac, Address: x.address, State: inventory.LeaseDiscovery,
				At: x.until.Add(-guestLease), Expires: x.until, Where: where,
			})
		}
	}
	return out
}

// storeProbe stores that the host with the MAC other has the address of a guest, or that no host has it if
// other is "". The host keeps its address as a guest, because an earlier process may have given it, and the
// guest gets another address when it asks again.
func (g *guests) storeProbe(mac, other string, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	x := g.byMAC[mac]
	x.probing = false
	if other != "" {
		delete(g.byMAC, mac)
		x.until, mac = now.Add(guestLease), other
		g.byAddr[x.address] = other
	}
	g.byMAC[mac] = x
}

// admit gives an address to a MAC, or renews it. taken reports whether an address belongs to a
// machine of the inventory. ok is false if no address is left, or too many are new. A new guest that is still
// being probed is admitted, and find does not find it.
func (g *guests) admit(mac string, now time.Time, taken func(netip.Addr) bool) (ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if x, known := g.byMAC[mac]; known && (x.probing || !taken(x.address)) {
		x.until = now.Add(guestLease)
		g.byMAC[mac] = x
		return true
	}
	if g.tooMany(now) {
		return false
	}
	if g.Range == (inventory.Range{}) {
		return g.admitVisitor(mac, now)
	}
	for a := g.From; a.Compare(g.To) <= 0; a = a.Next() {
		if other, used := g.byAddr[a]; used {
			if now.Before(g.byMAC[other].until) {
				continue
			}
			delete(g.byMAC, other)
		}
		if taken(a) {
			continue
		}
		g.admitted++
		x := guest{address: a, until: now.Add(guestLease), probing: g.probe != nil && now.Before(g.earlierUntil)}
		g.byMAC[mac], g.byAddr[a] = x, mac
		if x.probing {
			go g.probe(mac, a)
		}
		return true
	}
	return false
}

// renew renews the address of a guest.
func (g *guests) renew(mac string, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if x, ok := g.byMAC[mac]; ok && !x.probing && now.Before(x.until) {
		x.until = now.Add(guestLease)
		g.byMAC[mac] = x
	}
}

// evict forgets a guest, whose address is of another machine now.
func (g *guests) evict(mac string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.byAddr, g.byMAC[mac].address)
	delete(g.byMAC, mac)
}

// tooMany reports whether no more guests may be admitted in this minute. It is called with g.mu locked.
func (g *guests) tooMany(now time.Time) bool {
	if now.Sub(g.minute) >= time.Minute || now.Before(g.minute) {
		g.minute, g.admitted = now, 0
	}
	return g.admitted >= maxNewGuests
}

// readmit makes a MAC that renews an address of the range a guest, if an earlier process can have given it
// that address. taken is as in admit.
func (g *guests) readmit(mac string, a netip.Addr, now time.Time, taken func(netip.Addr) bool) (ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	inRange := a.IsValid() && g.From.Compare(a) <= 0 && a.Compare(g.To) <= 0
	other, used := g.byAddr[a]
	used = used && now.Before(g.byMAC[other].until)
	if !inRange || used || !now.Before(g.earlierUntil) || g.byMAC[mac].probing || taken(a) || g.tooMany(now) {
		return false
	}
	g.admitted++
	delete(g.byMAC, other)
	g.byMAC[mac], g.byAddr[a] = guest{address: a, until: now.Add(guestLease)}, mac
	return true
}

// probeDeclined probes the address of a guest that has declined it (RFC 2131 §4.3.3). A DECLINE can be forged:
// the guest gets another address only if another host answers.
func (g *guests) probeDeclined(mac string, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	x, ok := g.byMAC[mac]
	if !ok || x.probing || g.probe == nil || g.tooMany(now) {
		return
	}
	g.admitted++
	x.probing = true
	g.byMAC[mac] = x
	go g.probe(mac, x.address)
}

// admitVisitor is admit for a machine that another server gives an address. It is called with g.mu
// locked.
func (g *guests) admitVisitor(mac string, now time.Time) bool {
	if len(g.byMAC) >= maxVisitors {
		maps.DeleteFunc(g.byMAC, func(_ string, x guest) bool { return !now.Before(x.until) })
	}
	if len(g.byMAC) >= maxVisitors {
		return false
	}
	g.admitted++
	g.byMAC[mac] = guest{until: now.Add(guestLease)}
	return true
}
