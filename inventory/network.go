package inventory

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// A DHCPMode says how DHCP is served on an interface of the server.
type DHCPMode string

// Modes of DHCP.
const (
	DHCPReservation DHCPMode = "reservation" // Ingot gives address and boot file; the default
	DHCPProxy       DHCPMode = "proxy"       // another server gives the address, and Ingot the boot file (PXE 2.1 §2.2.3, ProxyDHCP)
	DHCPOff         DHCPMode = "off"         // another server gives both; Ingot does not answer DHCP
)

// DHCPModes returns all modes of DHCP.
func DHCPModes() []string {
	return []string{string(DHCPReservation), string(DHCPProxy), string(DHCPOff)}
}

// States of a DHCPLease.
const (
	LeaseOffered   = "offered"
	LeaseBound     = "bound"
	LeaseReleased  = "released"
	LeaseDeclined  = "declined"  // the machine reports that another host uses the address
	LeaseConflict  = "conflict"  // another host answers at the address; the address is not offered for 5 minutes
	LeaseDiscovery = "discovery" // a short lease for an unknown machine during its discovery; the lease has no name
)

// A DHCPLease is the lease that DHCP last gave or offered to a machine. The machine's reservation itself is in the inventory.
type DHCPLease struct {
	MAC     string     `json:"mac"`
	Machine string     `json:"machine"` // name of the machine; "" = an unknown machine, with LeaseDiscovery
	Address netip.Addr `json:"address"`
	State   string     `json:"state"`
	At      time.Time  `json:"at"`
	Expires time.Time  `json:"expires,omitzero"` // when the lease ends; only with LeaseBound and LeaseDiscovery
	Where   string     `json:"where"`            // interface or relay
	// Other is the MAC of the host that answers at the address, with LeaseConflict.
	Other string `json:"other,omitempty"`
}

// A Network is what this server knows of the provisioning network: the addresses
// that no machine may use, and the subnets where DHCP is answered.
type Network struct {
	Own      []netip.Addr   // this server's addresses
	Gateways []netip.Addr   // this server's routers
	Subnets  []netip.Prefix // subnets of the interfaces on which DHCP is answered
	Relays   []netip.Prefix // networks of netboot.relays
	On       bool           // DHCP is answered at all
	Guests   []Range        // addresses for unknown machines during their discovery
}

// Taken returns what the address a is used for, or "" if a machine may use it.
func (n Network) Taken(a netip.Addr) string {
	switch {
	case slices.Contains(n.Own, a):
		return "this server's own address"
	case slices.Contains(n.Gateways, a):
		return "this server's gateway"
	case slices.ContainsFunc(n.Guests, func(r Range) bool { return r.Contains(a) }):
		return "in a range for unknown machines (netboot.discovery)"
	}
	return ""
}

// Unserved returns the subnet of i's reservation, and true if no DHCP request from this subnet can arrive here, because neither an
// interface of this server nor a listed relay is in the subnet.
func (n Network) Unserved(i Interface) (netip.Prefix, bool) {
	bits, ok := maskBits(i.Netmask)
	if !n.On || !ok || !i.Address.Is4() || i.DisableDHCP {
		return netip.Prefix{}, false
	}
	subnet := netip.PrefixFrom(i.Address, bits).Masked()
	served := slices.ContainsFunc(n.Subnets, func(p netip.Prefix) bool { return p.Contains(i.Address) }) ||
		slices.ContainsFunc(n.Relays, func(p netip.Prefix) bool { return p.Overlaps(subnet) || p.Contains(i.Gateway) })
	return subnet, !served
}

// Reason returns a text for a subnet that Unserved returned: why machines in the subnet get no answer, or on what an answer depends.
func (n Network) Reason(subnet netip.Prefix) string {
	text := fmt.Sprintf("no interface of this server is in %s", subnet)
	if len(n.Relays) > 0 {
		return text + ", nor is any relay of netboot.relays: DHCP is not answered there"
	}
	return text + ": DHCP is answered there only through a relay with an address in it"
}

// Warnings returns one line for each subnet of the machines ms that is not served.
func (n Network) Warnings(ms []Machine) []string {
	type group struct {
		subnet netip.Prefix
		names  []string
	}
	var groups []group
	for _, m := range ms {
		for _, i := range m.Interfaces {
			subnet, unserved := n.Unserved(i)
			if !unserved {
				continue
			}

			at := slices.IndexFunc(groups, func(g group) bool { return g.subnet == subnet })
			if at < 0 {
				at, groups = len(groups), append(groups, group{subnet: subnet})
			}
			if names := groups[at].names; len(names) == 0 || names[len(names)-1] != m.Name {
				groups[at].names = append(groups[at].names, m.Name)
			}
		}
	}

	var out []string
	for _, g := range groups {
		out = append(out, someNames(g.names)+": "+n.Reason(g.subnet))
	}
	return out
}

// GatewayWarnings returns one line for each reservation in ms whose address is already used as the gateway of a machine in all.
func GatewayWarnings(ms, all []Machine) []string {
	users := map[netip.Addr][]string{}
	for _, m := range all {
		for _, i := range m.Interfaces {
			if i.Gateway.IsValid() {
				users[i.Gateway] = append(users[i.Gateway], m.Name)
			}
		}
	}

	var out []string
	for _, m := range ms {
		for _, i := range m.Interfaces {
			if names := users[i.Address]; len(names) > 0 {
				out = append(out, fmt.Sprintf("%s: %s is the gateway of %s: give it another address, unless it is their router", m.Name,
					i.Address, someNames(names)))
			}
		}
	}
	return out
}

// someNames returns a text with the first three names and the number of the other names.
func someNames(names []string) string {
	const most = 3
	text := strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
