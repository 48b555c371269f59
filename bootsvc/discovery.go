package bootsvc

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

// discovery has the unknown machines that boot the agent, which reports their hardware.
type discovery struct {
	cfg      *Config
	machines Machines
	network  *network
	guests   map[string]*guests // by interface or relay
	// probe returns the MAC of a host other than client that answers at an address.
	probe func(a netip.Addr, client string) (mac string, ok bool)
}

// newDiscovery returns the discovery of a configuration, in which no machine is discovered yet.
func newDiscovery(
	cfg *Config, machines Machines, n *network, probe func(a netip.Addr, client string) (mac string, ok bool),
) *discovery {
	v := &discovery{cfg: cfg, machines: machines, network: n, probe: probe, guests: map[string]*guests{}}
	for name, r := range cfg.Discovery {
		v.guests[name] = v.newGuestsOf(name, r)
	}
	for _, name := range cfg.DiscoverBeside {
		v.guests[name] = newGuests(inventory.Range{})
		v.guests[name].earlierUntil = cfg.Now().Add(guestLease)
	}
	return v
}

// leases returns the leases of guests that have not ended.
func (v *discovery) leases() (out []inventory.DHCPLease) {
	for name, g := range v.guests {
		out = append(out, g.leases(name, v.cfg.Now())...)
	}
	return out
}

// Discover implements dhcp.Guests. Only a guest of the interface or relay that the packet came through is answered: an
// address of another network is of no use, and discovery may be off here.
func (v *discovery) Discover(ctx context.Context, r dhcp.Request) (dhcp.Client, bool) {
	name, g := v.guestsOf(r)
	if g == nil {
		return dhcp.Client{}, false
	}
	ask := Request{MAC: r.MAC, Class: r.Class, Arch: r.Arch, Brief: true}
	d, ok := v.decideGuestOf(name, g, ask)
	if ok && v.isReserved(ctx, d.Interface.Address) { // since the guest got it
		g.evict(r.MAC)
		ok = false
	}
	if !ok && v.admitGuest(ctx, r, name, g) {
		d, ok = v.decideGuestOf(name, g, ask)
	}
	if !ok {
		return dhcp.Client{}, false
	}
	g.renew(r.MAC, v.cfg.Now())
	return d.client(), true
}

// Decline implements dhcp.Guests.
func (v *discovery) Decline(r dhcp.Request) {
	if _, g := v.guestsOf(r); g != nil {
		g.probeDeclined(r.MAC, v.cfg.Now())
	}
}

// newGuestsOf returns the guests of an interface or relay of Config.Discovery.
func (v *discovery) newGuestsOf(name string, r inventory.Range) *guests {
	g := newGuests(r)
	g.earlierUntil = v.cfg.Now().Add(guestLease)
	relay, isRelay := inventory.RelayNetwork(name)
	if isRelay {
		g.relay = relay
		return g
	}
	g.probe = func(mac string, a netip.Addr) {
		defer v.cfg.Guard.Recover("a probe of a guest's address")
		other, found := v.probe(a, mac)
		if found {
			v.cfg.Log.Warn("an address for discovery is in use by another host, or by a machine that got it before this server started",
				"address", a.String(), "other", other)
		}
		g.storeProbe(mac, other, v.cfg.Now())
	}
	return g
}

// guestsOf returns the guests that the client of r may be one of, with their name in the configuration, or nil: those of
// its interface or relay. A relay that is listed has the mode of its interface where another DHCP server
// gives the addresses.
func (v *discovery) guestsOf(r dhcp.Request) (name string, g *guests) {
	here := v.guests[r.In.Name]
	if !r.Relay.IsValid() {
		return r.In.Name, here
	}
	for _, network := range []netip.Addr{r.Network, r.Relay} {
		for name, g := range v.guests {
			if g.relay.IsValid() && g.relay.Addr() == network {
				return name, g
			}
		}
	}
	if here != nil && here.Range == (inventory.Range{}) && len(v.cfg.Relays) > 0 {
		return r.In.Name, here
	}
	return "", nil
}

// isReserved reports whether a machine of the inventory has an address (security S32). If the inventory cannot be read, it has none.
func (v *discovery) isReserved(ctx context.Context, a netip.Addr) bool {
	if !a.IsValid() {
		return false
	}
	_, _, err := v.machines.MachineByAddress(ctx, a)
	return err == nil
}

// admitGuest gives an unknown machine that boots from the network an address for its discovery.
// A client without a boot class (a telephone, a system on a disk) gets none. The agent has a class of its own: this
// server may have been started after its loader was admitted.
func (v *discovery) admitGuest(ctx context.Context, r dhcp.Request, name string, g *guests) bool {
	networks := sync.OnceValue(func() []netip.Prefix { return v.networksOf(name, g) })
	taken := func(a netip.Addr) bool {
		if a == v.cfg.Address || a.IsValid() && !isHostOf(networks(), a) {
			return true
		}
		_, _, err := v.machines.MachineByAddress(ctx, a)
		return !errors.Is(err, inventory.ErrNotFound) // also if the inventory cannot be read
	}
	switch kind := r.Packet.MessageType(); {
	case r.MAC == neighbours.CheckMAC:
		return false
	case kind == dhcpv4.MessageTypeRequest:
		return g.readmit(r.MAC, wire.Addr4(r.Packet.ClientIPAddr), v.cfg.Now(), taken)
	case kind != dhcpv4.MessageTypeDiscover, r.Class == wire.ClassNone && r.Packet.ClassIdentifier() != action.VendorClass:
		return false
	}
	ok := g.admit(r.MAC, v.cfg.Now(), taken)
	if !ok {
		r.Log(v.cfg.Log).Warn("an unknown machine is not discovered: no address of this network is left in the range, or too many are new",
			"range", g.String())
	}
	return ok
}

// networksOf returns the addresses, with their lengths, of the relay or the interface of g, which has that
// name in the configuration.
func (v *discovery) networksOf(name string, g *guests) []netip.Prefix {
	if g.relay.IsValid() {
		return []netip.Prefix{g.relay}
	}
	return interfacePrefixes(name)
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
func (v *discovery) decideGuest(r Request, unknown Decision) Decision {
	for name, g := range v.guests {
		if d, ok := v.decideGuestOf(name, g, r); ok {
			return d
		}
	}
	return unknown
}

// decideGuestOf is decideGuest for the guests of one interface or relay, with that name in the
// configuration. ok is false if the client is not one of them.
func (v *discovery) decideGuestOf(name string, g *guests, r Request) (d Decision, ok bool) {
	mac, x, ok := g.find(r.MAC, r.Address, v.cfg.Now())
	if !ok {
		return d, false
	}
	d = Decision{Verdict: Discover, Address: x.address.IsValid(), Interface: inventory.Interface{
		MAC: mac, Address: x.address, LeaseTime: inventory.Lease(guestLease), Loader: v.cfg.Loader,
	}}
	for _, p := range v.networksOf(name, g) {
		if !p.Contains(x.address) {
			continue
		}
		d.Interface.Netmask = net.IP(net.CIDRMask(p.Bits(), 32)).String()
		if g.relay.IsValid() || !p.Contains(v.cfg.Address) {
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

// isGuest reports whether a MAC belongs to an unknown machine which has this address for its
// discovery. Next to another DHCP server it prolongs the discovery, because DHCP of the agent is not seen. For
// guestLease after the server's start, it also admits a machine there whose loader an earlier process has served.
func (v *discovery) isGuest(ctx context.Context, mac string, a netip.Addr) bool {
	for _, g := range v.guests {
		_, x, ok := g.find(mac, netip.Addr{}, v.cfg.Now())
		switch {
		case !ok && g.Range == (inventory.Range{}) && v.cfg.Now().Before(g.earlierUntil) && v.visits(mac, a) == g:
			return v.admitVisitor(ctx, mac, a)
		case !ok:
		case x.address.IsValid() && x.address == a:
			return true
		case !x.address.IsValid() && v.visits(mac, a) == g:
			return g.admit(mac, v.cfg.Now(), func(netip.Addr) bool { return false })
		}
	}
	return false
}

// visits returns the guests of the interface in Config.DiscoverBeside that a client with this MAC and
// source address is on, or nil. On a network of this host, the kernel must know that MAC for the address.
// Behind a router it is not known: there the address must be near a listed relay.
func (v *discovery) visits(mac string, source netip.Addr) *guests {
	for _, name := range v.cfg.Interfaces {
		if !wire.OnNetworks(interfacePrefixes(name), source) {
			continue
		}
		if known, ok := v.network.neighbour(source); !ok || known != mac {
			return nil
		}
		if g := v.guests[name]; g != nil && g.Range == (inventory.Range{}) {
			return g
		}
		return nil
	}
	if len(v.cfg.DiscoverBeside) > 0 && v.cfg.Relays.AreNear(source) {
		return v.guests[v.cfg.DiscoverBeside[0]]
	}
	return nil
}

// admitVisitor admits an unknown machine that fetches its loader or its script, where another DHCP server
// has named that. A machine that is in the inventory, or may be, is never admitted (security S32).
func (v *discovery) admitVisitor(ctx context.Context, mac string, source netip.Addr) bool {
	if len(v.cfg.DiscoverBeside) == 0 || mac == "" || mac == neighbours.CheckMAC {
		return false
	}
	g := v.visits(mac, source)
	if g == nil {
		return false
	}
	if _, _, err := v.machines.MachineByMAC(ctx, mac); !errors.Is(err, inventory.ErrNotFound) {
		return false
	}
	return g.admit(mac, v.cfg.Now(), func(netip.Addr) bool { return false })
}

// client returns what DHCP needs of d.
func (d Decision) client() dhcp.Client {
	return dhcp.Client{
		Owner: d.holder(), Boot: d.Boot, Interface: d.Interface, Address: d.Address, Armed: d.Armed(), Guest: d.Verdict == Discover,
		Script: d.Script, Loader: d.Loader, Event: diskEvent(d),
	}
}
