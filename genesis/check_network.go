package genesis

import (
	"fmt"
	"net/netip"
)

func (f *file) checkSeed() {
	l := f.lab
	if a := l.Seed.Address; !a.Is4() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() {
		f.add("seed.address", "give the address at which machines reach the server: netboot.address of the server's configuration",
			"%s cannot be a server's address", text(a))
	} else {
		f.claim("seed.address", "address", a.String())
	}
	if p := l.Seed.Segment; !p.IsValid() || !p.Addr().Is4() {
		f.add("seed.segment", "write the server's own network as 192.168.1.0/24", "an IPv4 network is missing")
	} else {
		l.Seed.Segment = p.Masked()
		if l.Seed.Address.Is4() && !p.Contains(l.Seed.Address) {
			f.add("seed.segment", "give the network that the server is in", "%s does not contain %s", p.Masked(), l.Seed.Address)
		}
	}
}

func (f *file) checkNetwork() {
	l := f.lab
	p := l.Network.Prefix
	if !p.IsValid() || !p.Addr().Is4() {
		f.add("network.prefix", "write it as 10.10.20.0/24", "an IPv4 network is missing")
		return
	}
	p = p.Masked()
	l.Network.Prefix = p
	if l.Router != nil && l.Seed.Segment.IsValid() && p.Overlaps(l.Seed.Segment) {
		f.add("network.prefix", "leave out router if the server itself is in network.prefix",
			"%s overlaps the server's own network %s", p, l.Seed.Segment)
	}
	if g := l.Network.Gateway; !p.Contains(g) {
		f.add("network.gateway", "give the router's address in network.prefix, which relayed packets carry",
			"%s does not lie in %s", text(g), p)
	} else {
		f.claim("network.gateway", "address", g.String())
	}
	if v := l.Network.VLAN; v < 0 || v > 4094 {
		f.add("network.vlan", "use 1–4094, or leave vlan out for an untagged network", "invalid VLAN %d", v)
	}
	if r := l.Network.Range; r != nil && (!p.Contains(r.From) || !p.Contains(r.To) || r.To.Less(r.From)) {
		f.add("network.range", "give from and to inside the network, the lower one first",
			"%s–%s is not a range of %s", text(r.From), text(r.To), p)
		l.Network.Range = nil // so that later checks skip the range
	}
}

// checkRange checks that the fixed addresses of the lab file are outside of the DHCP range.
func (f *file) checkRange() {
	l := f.lab
	r := l.Network.Range
	claim := func(field, what string, a netip.Addr) {
		if r.Contains(a) {
			f.add(field, "take an address outside "+r.From.String()+"–"+r.To.String()+", or make the range smaller",
				"%s %s lies in the DHCP range", what, a)
		}
	}
	claim("network.gateway", "the gateway", l.Network.Gateway)
	for n, m := range l.Machines {
		for k, i := range m.Interfaces {
			claim(fmt.Sprintf("machines[%d].interfaces[%d].address", n, k), "the reservation", i.Address)
		}
	}
	if l.Cluster != nil {
		claim("cluster.vip", "the VIP", l.Cluster.VIP)
	}
	if l.Migrate != nil && l.Platform != nil {
		if m, ok := l.Machine(l.Platform.Machine); ok && m.Address() != l.Migrate.Address {
			claim("migrate.address", "the new server's address", l.Migrate.Address)
		}
	}
}

// text formats an address for messages; an invalid one becomes "".
func text(a netip.Addr) string {
	if !a.IsValid() {
		return `""`
	}
	return a.String()
}
