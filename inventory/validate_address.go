package inventory

import (
	"fmt"
	"net"
	"net/netip"
)

// checkAddress checks the address that is reserved for an interface, and the fields that belong to it.
func checkAddress(ps *Problems, field string, i Interface) {
	a := i.Address
	if !a.IsValid() {
		for what, given := range map[string]bool{"netmask": i.Netmask != "", "gateway": i.Gateway.IsValid(), "onLink": i.OnLink} {
			if given {
				ps.Add(field+"."+what, "add address, or leave it out", "is given without an address")
			}
		}
		return
	}

	switch {
	case !a.Is4():
		ps.Add(field+".address", "reserve an IPv4 address", "%s is not IPv4, and only DHCPv4 is served", a)
		return
	case a.IsUnspecified(), a.IsMulticast(), a.IsLoopback(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		ps.Add(field+".address", "reserve an address of the machine's subnet", "%s cannot be a machine's address", a)
	}

	bits, ok := maskBits(i.Netmask)
	if !ok {
		what := fmt.Sprintf("invalid netmask %q", i.Netmask)
		if i.Netmask == "" {
			what = "there is no netmask for the address"
		}
		ps.Add(field+".netmask", "write it as 255.255.255.0", "%s", what)
		return
	}

	subnet := netip.PrefixFrom(a, bits).Masked()
	if bits < 31 && (a == subnet.Addr() || !subnet.Contains(a.Next())) {
		ps.Add(field+".address", "reserve another address of that subnet", "%s is the network or broadcast address of %s", a,
			subnet)
	}

	switch g := i.Gateway; {
	case !g.IsValid():
		if i.OnLink {
			ps.Add(field+".onLink", "add gateway, or leave it out", "is given without a gateway")
		}
	case !g.Is4() || g.IsUnspecified() || g.IsMulticast() || g.IsLoopback():
		ps.Add(field+".gateway", "give an IPv4 address here, and an IPv6 router as a route in network",
			"%s cannot be the router of an IPv4 address", g)
	case g == a:
		ps.Add(field+".gateway", "give the router's address, or leave it out", "%s is the machine's own address", g)
	case !subnet.Contains(g) && !i.RouterOnLink():
		ps.Add(field+".gateway", "give a router in the same subnet, or leave it out; if the machine reaches this router directly, "+
			"set onLink: true or the netmask 255.255.255.255", "%s lies outside %s", g, subnet)
	}
}

// maskBits returns the prefix length of a netmask such as 255.255.255.0. It returns false if the mask is invalid, or if its bits have gaps,
// or if it is 0.0.0.0.
func maskBits(mask string) (int, bool) {
	a, err := netip.ParseAddr(mask)
	if err != nil || !a.Is4() {
		return 0, false
	}

	n, _ := net.IPMask(a.AsSlice()).Size() // 0 if the mask has gaps
	return n, n > 0
}
