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

// discovery manages the discovery of unknown machines: they boot the agent, which reports their hardware.
type discovery struct {
	cfg      *Config
	machines Machines
	network  *network
	guests   map[string]*guests // by interface or relay, as the configuration names it
	// probe returns the MAC of a host that answers ARP for the address a and is not client. ok is false if there is no
	// such host.
	probe func(a netip.Addr, client string) (mac string, ok bool)
}

// newDiscovery returns a discovery without guests.
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

// leases returns the current leases of all guests, the machines in discovery.
func (v *discovery) leases() (out []inventory.DHCPLease) {
	for name, g := range v.guests {
		out = append(out, g.leases(name, v.cfg.Now())...)
	}
	return out
}

// Discover implements dhcp.Guests. It returns only guests of the interface or relay through which r came. The address
// of any other guest would not work there, and discovery may be off there.
func (v *discovery) Discover(ctx context.Context, r dhcp.Request) (dhcp.Client, bool) {
	name, g := v.guestsOf(r)
	if g == nil {
		return dhcp.Client{}, false
	}
	ask := Request{MAC: r.MAC, Class: r.Class, Arch: r.Arch, Brief: true}
	d, ok := v.decideGuestOf(name, g, ask)
	if ok && v.isReserved(ctx, d.Interface.Address) { // after the guest got the address, the address was reserved for a machine
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

// newGuestsOf returns an empty guests for an entry of Config.Discovery. name is the interface or relay, and r is its
// range of addresses.
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

// guestsOf returns the guests of the interface or relay through which r came, and the name of that interface or relay
// in the configuration. It returns nil if discovery is off there. If r came through a listed relay that has no range of
// its own, it returns the guests of the interface on which r arrived, but only if another DHCP server assigns the
// addresses there.
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

// isReserved reports whether the inventory reserves the address a for a machine (security S32). If the inventory cannot
// be read, it returns false.
func (v *discovery) isReserved(ctx context.Context, a netip.Addr) bool {
	if !a.IsValid() {
		return false
	}
	_, _, err := v.machines.MachineByAddress(ctx, a)
	return err == nil
}

// admitGuest gives an address to an unknown machine that boots from the network, so that it can be discovered. A client
// that does not boot from the network (a telephone, an installed system) gets no address. The exception is the agent,
// which admitGuest recognizes by its vendor class: the server may have restarted after it admitted the agent's loader.
func (v *discovery) admitGuest(ctx context.Context, r dhcp.Request, name string, g *guests) bool {
	networks := sync.OnceValue(func() []netip.Prefix { return v.networksOf(name, g) })
	taken := func(a netip.Addr) bool {
		if a == v.cfg.Address || a.IsValid() && !isHostOf(networks(), a) {
			return true
		}
		_, _, err := v.machines.MachineByAddress(ctx, a)
		return !errors.Is(err, inventory.ErrNotFound) // if the inventory cannot be read, the address counts as taken
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
		r.Log(v.cfg.Log).Warn("an unknown machine is not discovered: the range has no free address of this network, "+
			"or too many machines are new",
			"range", g.String())
	}
	return ok
}

// networksOf returns the addresses, with prefix lengths, of the relay or interface to which g belongs. name is how the
// configuration names it.
func (v *discovery) networksOf(name string, g *guests) []netip.Prefix {
	if g.relay.IsValid() {
		return []netip.Prefix{g.relay}
	}
	return interfacePrefixes(name)
}

// isHostOf reports whether a can be the address of a machine in one of the networks. It cannot be if it is the address
// of the router or of this server, or a network or broadcast address. If networks is empty, isHostOf returns true,
// because nothing is known about the network.
func isHostOf(networks []netip.Prefix, a netip.Addr) (is bool) {
	for _, p := range networks {
		if a == p.Addr() {
			return false
		}
		is = is || p.Contains(a) && (p.Bits() > 30 || p.Contains(a.Prev()) && p.Contains(a.Next()))
	}
	return is || len(networks) == 0
}

// decideGuest decides for a client that is not in the inventory. If the client is a guest, it boots the agent, which
// only reports the hardware. Any other client gets the decision unknown. decideGuest looks for the client behind all
// interfaces and relays, because the boot files are the same for every guest.
func (v *discovery) decideGuest(r Request, unknown Decision) Decision {
	for name, g := range v.guests {
		if d, ok := v.decideGuestOf(name, g, r); ok {
			return d
		}
	}
	return unknown
}

// decideGuestOf decides for a client that is one of the guests g. name is the interface or relay to which g belongs. ok
// is false if the client is not one of these guests.
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
			d.Interface.Gateway = p.Addr() // the guest needs a route to this server, because the server's address is on another network
		}
		break
	}
	// This owner is no real run. It is needed only to compute the token in the URLs of the guest's boot files.
	d.Owner = inventory.Owner{Machine: mac, Run: "discovery"}
	d.because("no machine of the inventory has this MAC; discovery is on, so the machine boots the agent, which only reports the hardware")
	d.chooseBootFile(r)
	return d, true
}

// isGuest reports whether mac belongs to an unknown machine that has the address a for its discovery. If another DHCP
// server assigned the address, isGuest also extends the discovery, because this server does not see the agent's DHCP
// requests. Until guestLease after the start of the server, isGuest also admits machines behind such a DHCP server,
// because an earlier process may have served their loaders.
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

// visits returns the guests to which a client with this MAC and source address can belong, on an interface that
// Config.DiscoverBeside lists. It returns nil if there are none. If the address is on a network of this host, the
// kernel's ARP table must map it to the MAC. Clients behind a router are not in that table: their address must be near
// a listed relay.
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

// admitVisitor admits an unknown machine that fetches a loader or script after another DHCP server has named it. It
// admits no machine that is in the inventory, and no machine at all while the inventory cannot be read (security S32).
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

// client returns the part of d that DHCP needs.
func (d Decision) client() dhcp.Client {
	return dhcp.Client{
		Owner: d.holder(), Boot: d.Boot, Interface: d.Interface, Address: d.Address, Armed: d.Armed(), Guest: d.Verdict == Discover,
		Script: d.Script, Loader: d.Loader, Event: diskEvent(d),
	}
}
