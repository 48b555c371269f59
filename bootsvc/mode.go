package bootsvc

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

// mode returns the mode of an interface.
func (c *Config) mode(iface string) inventory.DHCPMode {
	if m := c.Modes[iface]; m != "" {
		return m
	}
	return inventory.DHCPReservation
}

// givesAddresses returns the interfaces on which this server gives the addresses.
func (c *Config) givesAddresses() []string {
	return slices.DeleteFunc(slices.Clone(c.Interfaces), func(name string) bool { return c.mode(name) != inventory.DHCPReservation })
}

// checkModes checks Modes.
func (c *Config) checkModes(p *inventory.Problems) {
	for _, name := range slices.Sorted(maps.Keys(c.Modes)) {
		if m := c.Modes[name]; !slices.Contains(inventory.DHCPModes(), string(m)) {
			p.Add("modes."+name, "one of "+strings.Join(inventory.DHCPModes(), ", "), "invalid DHCP mode %q", m)
		}
		if !slices.Contains(c.Interfaces, name) {
			p.Add("modes."+name, "name one of the interfaces", "%q is not an interface on which machines are answered", name)
		}
	}
}

// modeOf returns the mode that the interface of a machine meets: that of the interface whose
// subnet has its address. Without such an interface it is inventory.DHCPReservation, which also
// serves relays, unless all interfaces have one mode.
func (s *Server) modeOf(i inventory.Interface) inventory.DHCPMode {
	var all []inventory.DHCPMode
	for _, name := range s.cfg.Interfaces {
		m := s.cfg.mode(name)
		if i.Address.Is4() && wire.OnNetworks(s.prefixes(name), i.Address) {
			return m
		}
		all = append(all, m)
	}
	for _, m := range all {
		if m != all[0] {
			return inventory.DHCPReservation
		}
	}
	if len(all) == 0 {
		return inventory.DHCPReservation
	}
	return all[0]
}

// givenByAnother reports whether another DHCP server may have given an address to its client: the
// address is on no interface in mode reservation, and there is an interface in another mode. Such an
// address may be in no document, or in the document of another machine.
func (s *Server) givenByAnother(a netip.Addr) bool {
	if !slices.ContainsFunc(s.cfg.Interfaces, func(name string) bool { return s.cfg.mode(name) != inventory.DHCPReservation }) {
		return false
	}
	return !slices.ContainsFunc(s.cfg.Interfaces, func(name string) bool {
		return s.cfg.mode(name) == inventory.DHCPReservation && wire.OnNetworks(s.prefixes(name), a)
	})
}

// alwaysNamesLoader reports whether another DHCP server names a loader on some interface, to armed and
// other machines alike.
func (s *Server) alwaysNamesLoader() bool {
	return slices.Contains(slices.Collect(maps.Values(s.cfg.Modes)), inventory.DHCPOff)
}

// identify returns r with the MAC of its source address, if another DHCP server may have given the
// address and the client is on a network of this host. The kernel knows the MAC from the ARP
// exchange before the client's first packet. Like the address, a MAC can be forged: it
// opens nothing that /ipxe/script/<mac>/auto.ipxe does not open.
//
// An unknown MAC is not looked up by its address: the other server may have given an address that
// is in the document of a machine to another machine, which would then be installed.
func (s *Server) identify(r Request) Request {
	if r.MAC == "" && r.Address.IsValid() {
		r.MAC = s.neighbourOf(r.Address)
	}
	return r
}

// neighbourOf returns the MAC that the kernel knows for an address which another DHCP server may
// have given, or "".
func (s *Server) neighbourOf(a netip.Addr) (mac string) {
	if s.givenByAnother(a) {
		mac, _ = s.neighbour(a)
	}
	return mac
}

// anonymous reports whether the client of r cannot be told from its address, which another DHCP
// server gave to it. It gets a loader and a script that asks by MAC; both open nothing.
func (s *Server) anonymous(r Request) bool { return r.MAC == "" && s.givenByAnother(r.Address) }

// prefixes returns the IPv4 addresses of an interface with their lengths.
func (s *Server) prefixes(iface string) []netip.Prefix {
	i, err := net.InterfaceByName(iface)
	if err != nil {
		return nil
	}
	return wire.Prefixes(i)
}

// chainScript returns the script for a client whose machine is not known from its address. iPXE
// knows its MAC and asks for the script of that machine.
func (s *Server) chainScript() string {
	return "#!ipxe\n" + autoexecLines +
		"chain --replace --autofree " + s.Base() + "/ipxe/script/${mac:hexhyp}/" + scriptName + " ||\n" + exitLines
}
