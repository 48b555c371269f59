package bootsvc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

const (
	// guestLease is how long a discovered machine keeps its address without asking again.
	guestLease = 10 * time.Minute
	// maxNewGuests is how many unknown MACs are admitted on an interface, or through a relay, in a minute
	// (security S7).
	maxNewGuests = 30
	// maxVisitors is how many unknown machines are discovered at a time beside another DHCP server.
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
	probe           func(mac string, a netip.Addr) // probes the address of a guest and calls probed; nil: none is probed
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

// leases returns the addresses that guests have. name is that of the interface or relay in the configuration.
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

// probed stores that the host with the MAC other has the address of a guest, or that no host has it if
// other is "". The host keeps its address as a guest, because an earlier process may have given it, and the
// guest gets another address when it asks again.
func (g *guests) probed(mac, other string, now time.Time) {
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

// declined probes the address of a guest that has declined it (RFC 2131 §4.3.3). A DECLINE can be forged:
// the guest gets another address only if another host answers.
func (g *guests) declined(mac string, now time.Time) {
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

// newGuestsOf returns the guests of an interface or relay of Config.Discovery.
func (s *Server) newGuestsOf(name string, r inventory.Range) *guests {
	g := newGuests(r)
	g.earlierUntil = s.now().Add(guestLease)
	relay, isRelay := inventory.RelayNetwork(name)
	if isRelay {
		g.relay = relay
		return g
	}
	g.probe = func(mac string, a netip.Addr) {
		defer s.guard.Recover("a probe of a guest's address")
		other, found := s.probe(a, mac)
		if found {
			s.log.Warn("an address for discovery is in use by another host, or by a machine that got it before this server started",
				"address", a.String(), "other", other)
		}
		g.probed(mac, other, s.now())
	}
	return g
}

// guestsOf returns the guests that the client of r may be one of, with their name in the configuration, or nil: those of
// its interface or relay. A relay that is listed has the mode of its interface where another DHCP server
// gives the addresses.
func (s *Server) guestsOf(r dhcp.Request) (name string, g *guests) {
	here := s.guests[r.In.Name]
	if !r.Relay.IsValid() {
		return r.In.Name, here
	}
	for _, network := range []netip.Addr{r.Network, r.Relay} {
		for name, g := range s.guests {
			if g.relay.IsValid() && g.relay.Addr() == network {
				return name, g
			}
		}
	}
	if here != nil && here.Range == (inventory.Range{}) && len(s.cfg.Relays) > 0 {
		return r.In.Name, here
	}
	return "", nil
}

// isReserved reports whether a machine of the inventory has an address (security S32). If the inventory cannot be read, it has none.
func (s *Server) isReserved(ctx context.Context, a netip.Addr) bool {
	if !a.IsValid() {
		return false
	}
	_, _, err := s.machines.MachineByAddress(ctx, a)
	return err == nil
}

// admitGuest gives an unknown machine that boots from the network an address for its discovery.
// A client without a boot class (a telephone, a system on a disk) gets none. The agent has a class of its own: this
// server may have been started after its loader was admitted.
func (s *Server) admitGuest(ctx context.Context, r dhcp.Request, name string, g *guests) bool {
	networks := sync.OnceValue(func() []netip.Prefix { return s.networksOf(name, g) })
	taken := func(a netip.Addr) bool {
		if a == s.cfg.Address || a.IsValid() && !isHostOf(networks(), a) {
			return true
		}
		_, _, err := s.machines.MachineByAddress(ctx, a)
		return !errors.Is(err, inventory.ErrNotFound) // also if the inventory cannot be read
	}
	switch kind := r.Packet.MessageType(); {
	case r.MAC == neighbours.CheckMAC:
		return false
	case kind == dhcpv4.MessageTypeRequest:
		return g.readmit(r.MAC, wire.Addr4(r.Packet.ClientIPAddr), s.now(), taken)
	case kind != dhcpv4.MessageTypeDiscover, r.Class == wire.ClassNone && r.Packet.ClassIdentifier() != action.VendorClass:
		return false
	}
	ok := g.admit(r.MAC, s.now(), taken)
	if !ok {
		r.Log(s.log).Warn("an unknown machine is not discovered: no address of this network is left in the range, or too many are new",
			"range", g.String())
	}
	return ok
}

// networksOf returns the addresses, with their lengths, of the relay or the interface of g, which has that
// name in the configuration.
func (s *Server) networksOf(name string, g *guests) []netip.Prefix {
	if g.relay.IsValid() {
		return []netip.Prefix{g.relay}
	}
	return s.prefixes(name)
}

// isHostOf reports whether another host may have the address a in one of these networks: it is not the address of a
// router or of this server, of the network, or of its broadcasts. Without networks it is not known, and true.
func isHostOf(networks []netip.Prefix, a netip.Addr) (is bool) {
	for _, p := range networks {
		if a == p.Addr() {
			return false
		}
		is = is || p.Contains(a) && (p.Bits() > 30 || p.Contains(a.Prev()) && p.Contains(a.Next()))
	}
	return is || len(networks) == 0
}

// decideGuest decides for a client that is not in the inventory: a guest boots the agent, which
// reports the hardware and does nothing else. A file is served to it wherever it asks from, because the
// files are the same for every guest.
func (s *Server) decideGuest(r Request, unknown Decision) Decision {
	for name, g := range s.guests {
		if d, ok := s.decideGuestOf(name, g, r); ok {
			return d
		}
	}
	return unknown
}

// decideGuestOf is decideGuest for the guests of one interface or relay, with that name in the
// configuration. ok is false if the client is not one of them.
func (s *Server) decideGuestOf(name string, g *guests, r Request) (d Decision, ok bool) {
	mac, x, ok := g.find(r.MAC, r.Address, s.now())
	if !ok {
		return d, false
	}
	d = Decision{Verdict: Discover, Address: x.address.IsValid(), Interface: inventory.Interface{
		MAC: mac, Address: x.address, LeaseTime: inventory.Lease(guestLease), Loader: s.cfg.Loader,
	}}
	for _, p := range s.networksOf(name, g) {
		if !p.Contains(x.address) {
			continue
		}
		d.Interface.Netmask = net.IP(net.CIDRMask(p.Bits(), 32)).String()
		if g.relay.IsValid() || !p.Contains(s.cfg.Address) {
			d.Interface.Gateway = p.Addr() // the way to this server's address on another network
		}
		break
	}
	// The owner is only part of the token in the URLs of this machine's boot files.
	d.Owner = inventory.Owner{Machine: mac, Run: "discovery"}
	d.because("no machine of the inventory has this MAC: discovery is on, it boots the agent, which only reports the hardware")
	d.chooseBootFile(r)
	return d, true
}

// Guest reports whether a MAC is that of an unknown machine which has this address for its
// discovery. Beside another DHCP server it prolongs the discovery, because DHCP of the agent is not seen. For
// guestLease after the server's start, it also admits a machine there whose loader an earlier process has served.
func (s *Server) Guest(ctx context.Context, mac string, a netip.Addr) bool {
	for _, g := range s.guests {
		_, x, ok := g.find(mac, netip.Addr{}, s.now())
		switch {
		case !ok && g.Range == (inventory.Range{}) && s.now().Before(g.earlierUntil) && s.visits(mac, a) == g:
			return s.admitVisitor(ctx, mac, a)
		case !ok:
		case x.address.IsValid() && x.address == a:
			return true
		case !x.address.IsValid() && s.visits(mac, a) == g:
			return g.admit(mac, s.now(), func(netip.Addr) bool { return false })
		}
	}
	return false
}

// visits returns the guests of the interface in Config.DiscoverBeside that a client with this MAC and
// source address is on, or nil. On a network of this host, the kernel must know that MAC for the address.
// Behind a router it is not known: there the address must be near a listed relay.
func (s *Server) visits(mac string, source netip.Addr) *guests {
	for _, name := range s.cfg.Interfaces {
		if !wire.OnNetworks(s.prefixes(name), source) {
			continue
		}
		if known, ok := s.neighbour(source); !ok || known != mac {
			return nil
		}
		if g := s.guests[name]; g != nil && g.Range == (inventory.Range{}) {
			return g
		}
		return nil
	}
	if len(s.cfg.DiscoverBeside) > 0 && s.cfg.Relays.AreNear(source) {
		return s.guests[s.cfg.DiscoverBeside[0]]
	}
	return nil
}

// admitVisitor admits an unknown machine that fetches its loader or its script, where another DHCP server
// has named that. A machine that is in the inventory, or may be, is never admitted (security S32).
func (s *Server) admitVisitor(ctx context.Context, mac string, source netip.Addr) bool {
	if len(s.cfg.DiscoverBeside) == 0 || mac == "" || mac == neighbours.CheckMAC {
		return false
	}
	g := s.visits(mac, source)
	if g == nil {
		return false
	}
	if _, _, err := s.machines.MachineByMAC(ctx, mac); !errors.Is(err, inventory.ErrNotFound) {
		return false
	}
	return g.admit(mac, s.now(), func(netip.Addr) bool { return false })
}

// discoveryLine returns the command line of the agent that only reports its hardware.
func (s *Server) discoveryLine(d Decision) string {
	return fmt.Sprintf("initrd=initramfs rdinit=/init ingot.server=%s ingot.pin=%s ingot.mac=%s ingot.discover=1 "+
		"console=tty0 console=ttyS0,115200 panic=30", s.cfg.AgentURL, s.cfg.AgentPin, d.Interface.MAC)
}

// checkDiscovery checks Discovery.
func (c *Config) checkDiscovery(p *inventory.Problems) {
	for name, r := range c.Discovery {
		field := "discovery." + name
		relay, isRelay := inventory.RelayNetwork(name)
		switch {
		case isRelay && !slices.ContainsFunc(c.Relays, func(listed netip.Prefix) bool { return listed.Contains(relay.Addr()) }):
			p.Add(field, "list the relay under relays, too", "%s is not a listed relay", relay.Addr())
		case isRelay && (!relay.Contains(r.From) || !relay.Contains(r.To)):
			p.Add(field, "write the relay's address with the length of its network", "%s is not in %s", r, relay.Masked())
		case !isRelay && c.mode(name) != inventory.DHCPReservation:
			p.Add(field, "leave it out", "in mode %s another server gives the addresses", c.mode(name))
		}
		if err := r.Check(); err != nil {
			p.Add(field, "write for example 10.0.20.200-10.0.20.230", "%v", err)
		}
	}
	for _, name := range c.DiscoverBeside {
		if c.mode(name) == inventory.DHCPReservation || !slices.Contains(c.Interfaces, name) {
			p.Add("discoverBeside", "name interfaces in mode proxy or off", "%q is not such an interface", name)
		}
	}
}
