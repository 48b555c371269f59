package bootsvc

import (
	"net"
	"net/netip"
	"slices"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

// network identifies clients of other DHCP servers by the networks of this host.
type network struct {
	cfg *Config
	// neighbour returns the MAC for an address in the kernel's ARP table; ok is false if the table has none.
	neighbour func(netip.Addr) (mac string, ok bool)
}

// modeOf returns the DHCP mode that applies to the interface i of a machine: the mode of the server's interface whose
// subnet contains i.Address. If no subnet contains it, modeOf returns the mode that all interfaces share or, if they
// differ, inventory.DHCPReservation, which also serves relays.
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

// givenByAnother reports whether another DHCP server may have assigned the address a: no interface in mode reservation
// has a subnet with a, and at least one interface is in another mode. The inventory may not contain a, or may have
// reserved it for a different machine.
func (n *network) givenByAnother(a netip.Addr) bool {
	if !slices.ContainsFunc(n.cfg.Interfaces, func(name string) bool { return n.cfg.modeOn(name) != inventory.DHCPReservation }) {
		return false
	}
	return !slices.ContainsFunc(n.cfg.Interfaces, func(name string) bool {
		return n.cfg.modeOn(name) == inventory.DHCPReservation && wire.OnNetworks(interfacePrefixes(name), a)
	})
}

// identify adds the client's MAC to r if r has none, another DHCP server may have assigned the source address, and the
// client is on a network of this host. The kernel knows the MAC from the ARP exchange before the client's first
// packet. The MAC can be forged, as the address can, but it gives access to nothing more than
// /ipxe/script/<mac>/auto.ipxe does.
//
// If the MAC is unknown, the machine is not looked up by its address: the other server may have assigned to this
// machine the reserved address of another one, and Ingot would install the wrong machine.
func (n *network) identify(r Request) Request {
	if r.MAC == "" && r.Address.IsValid() {
		r.MAC = n.neighbourOf(r.Address)
	}
	return r
}

// neighbourOf returns the MAC for the address a in the kernel's ARP table. It returns "" if the table has none, or if
// this server itself assigns a.
func (n *network) neighbourOf(a netip.Addr) (mac string) {
	if n.givenByAnother(a) {
		mac, _ = n.neighbour(a)
	}
	return mac
}

// isAnonymous reports whether the client of r cannot be identified, because another DHCP server assigned its address
// and its MAC is not known. Such a client gets a loader, and a script that asks again by MAC; neither gives access to
// anything.
func (n *network) isAnonymous(r Request) bool { return r.MAC == "" && n.givenByAnother(r.Address) }

// interfacePrefixes returns the IPv4 addresses of an interface with their prefix lengths, or nil if there is no such
// interface.
func interfacePrefixes(iface string) []netip.Prefix {
	i, err := net.InterfaceByName(iface)
	if err != nil {
		return nil
	}
	return wire.Prefixes(i)
}
