package bootsvc

import (
	"net"
	"net/netip"
	"slices"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

// network is what this host's network says of the clients of other DHCP servers.
type network struct {
	cfg *Config
	// neighbour returns the MAC that the kernel knows for an address.
	neighbour func(netip.Addr) (mac string, ok bool)
}

// modeOf returns the mode that the interface of a machine meets: the mode of the interface whose
// subnet has its address. Without such an interface it is inventory.DHCPReservation, which also
// serves relays, unless all interfaces have one mode.
func (n *network) modeOf(i inventory.Interface) inventory.DHCPMode {
	var all []inventory.DHCPMode
	for _, name := range n.cfg.Interfaces {
		m := n.cfg.modeOn(name)
		if i.Address.Is4() && wire.OnNetworks(interfacePrefixes(name), i.Address) {
			return m
		}
		all = append(all, m)
	}
	if all = slices.Compact(all); len(all) != 1 {
		return inventory.DHCPReservation
	}
	return all[0]
}

// givenByAnother reports whether another DHCP server may have given an address to its client: the
// address is on no interface in mode reservation, and there is an interface in another mode. Such an
// address may be in no document, or in the document of another machine.
func (n *network) givenByAnother(a netip.Addr) bool {
	if !slices.ContainsFunc(n.cfg.Interfaces, func(name string) bool { return n.cfg.modeOn(name) != inventory.DHCPReservation }) {
		return false
	}
	return !slices.ContainsFunc(n.cfg.Interfaces, func(name string) bool {
		return n.cfg.modeOn(name) == inventory.DHCPReservation && wire.OnNetworks(interfacePrefixes(name), a)
	})
}

// identify returns r with the MAC of its source address, if another DHCP server may have given the
// address and the client is on a network of this host. The kernel knows the MAC from the ARP
// exchange before the client's first packet. Like the address, a MAC can be forged: it
// opens nothing that /ipxe/script/<mac>/auto.ipxe does not open.
//
// An unknown MAC is not looked up by its address: the other server may have given an address that
// is in the document of a machine to another machine, which would then be installed.
func (n *network) identify(r Request) Request {
	if r.MAC == "" && r.Address.IsValid() {
		r.MAC = n.neighbourOf(r.Address)
	}
	return r
}

// neighbourOf returns the MAC that the kernel knows for an address which another DHCP server may
// have given, or "".
func (n *network) neighbourOf(a netip.Addr) (mac string) {
	if n.givenByAnother(a) {
		mac, _ = n.neighbour(a)
	}
	return mac
}

// isAnonymous reports whether the client of r cannot be identified by its address, which another DHCP
// server gave to it. It gets a loader and a script that asks by MAC; both open nothing.
func (n *network) isAnonymous(r Request) bool { return r.MAC == "" && n.givenByAnother(r.Address) }

// interfacePrefixes returns the IPv4 addresses of an interface with their lengths.
func interfacePrefixes(iface string) []netip.Prefix {
	i, err := net.InterfaceByName(iface)
	if err != nil {
		return nil
	}
	return wire.Prefixes(i)
}
