package bootsvc

import (
	"cmp"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	// guestLease is for how long a guest keeps its address if it does not renew it.
	guestLease = 10 * time.Minute
	// maxNewGuests limits how many unknown MACs per minute are admitted on one interface or through one relay (security
	// S7).
	maxNewGuests = 30
	// maxVisitors limits how many unknown machines are in discovery at once on an interface with another DHCP server.
	maxVisitors = 256
)

// guests are the unknown machines behind one interface or relay, with the addresses that they got from the range in
// Config.Discovery. They are kept in memory only, so after a restart the server does not know who has which address.
// Therefore, for one guestLease after its start, the server lets each client keep the address that it renews, and
// probes each address by ARP before it offers the address. Behind a relay, the server cannot probe.
type guests struct {
	inventory.Range              // range of the addresses; zero: another DHCP server assigns them
	relay           netip.Prefix // the relay's address and prefix length; invalid: guests of an interface
	mu              sync.Mutex
	byMAC           map[string]guest
	byAddr          map[netip.Addr]string
	minute          time.Time // start of the minute for which admitted counts new guests
	admitted        int
	earlierUntil    time.Time                      // when all leases that an earlier process has given have ended
	probe           func(mac string, a netip.Addr) // probes the address of a guest, and then calls storeProbe; nil = do not probe
}

type guest struct {
	address netip.Addr
	until   time.Time
	probing bool // the address is being probed by ARP, and is not offered yet
}

func newGuests(r inventory.Range) *guests {
	return &guests{Range: r, byMAC: map[string]guest{}, byAddr: map[netip.Addr]string{}}
}

// find returns the current guest with this MAC or, if mac is "", the current guest with the address a. ok is false if
// there is no such guest.
func (g *guests) find(mac string, a netip.Addr, now time.Time) (string, guest, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	mac = cmp.Or(mac, g.byAddr[a])
	x, ok := g.byMAC[mac]
	return mac, x, ok && !x.probing && now.Before(x.until)
}

// leases returns the current leases of the guests. name is how the configuration names their interface or relay.
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

// storeProbe stores the result of the probe of the address of the guest mac. other is the MAC of another host that has
// the address, or "" if none has. The other host then becomes the guest with this address, because an earlier process
// may have assigned the address to it, and the guest mac gets another address when it asks again.
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

// admit gives an address to mac, or extends the lease of mac. taken reports whether an address must not be given to a
// guest, for example because it is reserved. ok is false if no address is free, or if too many guests are new. While
// the address of a new guest is being probed, admit returns true, but find does not return the guest yet.
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

// renew extends the lease of a guest whose lease has not ended.
func (g *guests) renew(mac string, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if x, ok := g.byMAC[mac]; ok && !x.probing && now.Before(x.until) {
		x.until = now.Add(guestLease)
		g.byMAC[mac] = x
	}
}

// evict removes a guest whose address was reserved for another machine.
func (g *guests) evict(mac string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.byAddr, g.byMAC[mac].address)
	delete(g.byMAC, mac)
}

// tooMany reports whether no more guests may be admitted in this minute. The caller must hold g.mu.
func (g *guests) tooMany(now time.Time) bool {
	if now.Sub(g.minute) >= time.Minute || now.Before(g.minute) {
		g.minute, g.admitted = now, 0
	}
	return g.admitted >= maxNewGuests
}

// readmit makes mac a guest again if mac renews the address a, and an earlier process may have assigned a to mac. taken
// has the same meaning as for admit.
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

// probeDeclined probes the address that a guest has declined (RFC 2131 §4.3.3). A DECLINE can be forged, so the guest
// gets another address only if another host answers the probe.
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

// admitVisitor does what admit does, for a machine that gets its address from another DHCP server. The caller must hold
// g.mu.
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
