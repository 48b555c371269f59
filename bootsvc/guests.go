package bootsvc

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	// guestLease is how long a discovered machine keeps its address without renewing it.
	guestLease = 10 * time.Minute
	// maxNewGuests limits how many unknown MACs are admitted per minute on an interface or through a relay (security S7).
	maxNewGuests = 30
	// maxVisitors limits the unknown machines that are discovered at a time on an interface with another DHCP server.
	maxVisitors = 256
)

// guests are the unknown machines of one interface or relay, with their addresses from the range in Config.Discovery.
// They are kept in memory only, so a restarted server has lost who holds which address. For one guestLease after the
// start, it therefore lets a client that renews an address keep it, and probes an address by ARP before offering it.
// Behind a relay it cannot probe.
type guests struct {
	inventory.Range              // zero: another DHCP server assigns the addresses
	relay           netip.Prefix // address and prefix length of the relay; invalid = an interface
	mu              sync.Mutex
	byMAC           map[string]guest
	byAddr          map[netip.Addr]string
	minute          time.Time // start of the minute in which admitted counts
	admitted        int
	earlierUntil    time.Time                      // when the leases of an earlier process have all ended
	probe           func(mac string, a netip.Addr) // probes a guest's address and calls storeProbe; nil = no probes
}

type guest struct {
	address netip.Addr
	until   time.Time
	probing bool // an ARP probe is running, and the address is not offered yet
}

func newGuests(r inventory.Range) *guests {
	return &guests{Range: r, byMAC: map[string]guest{}, byAddr: map[netip.Addr]string{}}
}

// find returns the current guest with this MAC or, if mac is "", with the address a. ok is false if there is none.
func (g *guests) find(mac string, a netip.Addr, now time.Time) (string, guest, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if mac == "" {
		mac = g.byAddr[a]
	}
	x, ok := g.byMAC[mac]
	return mac, x, ok && !x.probing && now.Before(x.until)
}

// leases returns the current leases. name is the interface or relay, as the configuration names it.
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

// storeProbe stores the result of probing the address of the guest mac: the MAC of another host that has the address,
// or "" if none has. Such a host becomes the guest with this address, because an earlier process may have assigned it.
// The guest mac then gets another address when it asks again.
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

// admit gives mac an address, or renews it. taken reports whether a guest may not have an address, for example because
// it is reserved. ok is false if no address is left, or too many guests are new. While a new guest's address is
// probed, admit returns true but find does not return the guest.
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

// renew extends the lease of a current guest.
func (g *guests) renew(mac string, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if x, ok := g.byMAC[mac]; ok && !x.probing && now.Before(x.until) {
		x.until = now.Add(guestLease)
		g.byMAC[mac] = x
	}
}

// evict forgets a guest whose address now belongs to another machine.
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

// readmit makes mac, which renews the address a of the range, a guest if an earlier process may have assigned a to it.
// taken is as in admit.
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

// probeDeclined probes the address that a guest has declined (RFC 2131 §4.3.3). Because a DECLINE can be forged, the
// guest gets another address only if another host answers the probe.
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

// admitVisitor is admit for a machine that gets its address from another DHCP server. It is called with g.mu locked.
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
