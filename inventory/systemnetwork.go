package inventory

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
)

// SystemNetwork is the network of a machine's installed system, in the terms of netplan
// (https://netplan.readthedocs.io/en/stable/netplan-yaml/). If a machine has no SystemNetwork, the network of its system is derived from
// its interfaces.
type SystemNetwork struct {
	Ethernets []Ethernet `json:"ethernets,omitempty"` // network cards
	Bonds     []Bond     `json:"bonds,omitempty"`     // several cards as one link
	VLANs     []VLAN     `json:"vlans,omitempty"`     // tagged networks on cards and bonds
}

// SystemLink has the fields that cards, bonds and VLANs of a SystemNetwork have in common.
type SystemLink struct {
	// Name is the name of the network interface. A card keeps the kernel's name unless setName is true; then Name is only for references from
	// bonds and VLANs.
	Name        string         `json:"name"`
	MTU         int            `json:"mtu,omitempty"`         // bytes; default: the driver's
	DHCP4       bool           `json:"dhcp4,omitempty"`       // whether to get an IPv4 address by DHCP
	Addresses   []netip.Prefix `json:"addresses,omitempty"`   // such as 10.0.0.11/24
	Routes      []SystemRoute  `json:"routes,omitempty"`      // a route to 0.0.0.0/0 is the default route
	Nameservers []netip.Addr   `json:"nameservers,omitempty"` // DNS servers
	Search      []string       `json:"search,omitempty"`      // domains in which names are looked up
}

// SystemRoute is a static route of the installed system.
type SystemRoute struct {
	To     netip.Prefix `json:"to"`               // destination; 0.0.0.0/0 is the default route
	Via    netip.Addr   `json:"via"`              // address of the router
	Metric int          `json:"metric,omitempty"` // of two routes, the one with the lower metric is used
	// OnLink: the machine reaches the router directly, although no address of the link is in the router's network. OnLink is not needed if the
	// router's address is link-local, such as fe80::1, or if the link has only addresses of single hosts, such as 192.0.2.77/32.
	OnLink bool `json:"onLink,omitempty"`
}

// RouterOnLink reports whether the machine reaches the router of r directly, even if no address of the link is in the router's network. r
// is a route of the link l.
func (l SystemLink) RouterOnLink(r SystemRoute) bool {
	if r.OnLink || r.Via.IsLinkLocalUnicast() {
		return true
	}
	hosts := 0
	for _, a := range l.Addresses {
		switch {
		case a.Addr().Is4() != r.Via.Is4():
		case !a.IsSingleIP():
			return false
		default:
			hosts++
		}
	}
	return hosts > 0 && (!l.DHCP4 || !r.Via.Is4()) // by DHCP, the link also gets a network
}

// Ethernet is a network card.
type Ethernet struct {
	SystemLink
	MAC     string `json:"mac"`               // identifies the card
	SetName bool   `json:"setName,omitempty"` // rename the card to name
}

// Bond joins several cards to one link.
type Bond struct {
	SystemLink
	Interfaces []string `json:"interfaces"` // names of ethernets
	// Mode is active-backup (default), 802.3ad, balance-rr, balance-xor, broadcast, balance-tlb or
	// balance-alb.
	Mode string `json:"mode,omitempty"`
	// Primary is the preferred member, for the modes active-backup, balance-tlb and balance-alb.
	Primary string `json:"primary,omitempty"`
	// LACPRate is how often LACP packets are requested, for the mode 802.3ad: slow (default) or fast.
	LACPRate string `json:"lacpRate,omitempty"`
	// TransmitHashPolicy says how a member is chosen for each packet, for the modes 802.3ad and balance-xor: layer2 (default), layer2+3,
	// layer3+4, encap2+3 or encap3+4.
	TransmitHashPolicy string `json:"transmitHashPolicy,omitempty"`
	// MIIMonitor is how often the links of the members are checked, in milliseconds; default 100.
	MIIMonitor int `json:"miiMonitor,omitempty"`
}

// VLAN is a tagged network (IEEE 802.1Q) on a card or a bond.
type VLAN struct {
	SystemLink
	ID   int    `json:"id"`   // 1–4094
	Link string `json:"link"` // name of the ethernet or bond
}

// The values of Bond.
var (
	bondModes = []string{
		"active-backup", "802.3ad", "balance-rr", "balance-xor", "broadcast", "balance-tlb", "balance-alb",
	}
	primaryModes = []string{"active-backup", "balance-tlb", "balance-alb"}
	hashPolicies = []string{"layer2", "layer2+3", "layer3+4", "encap2+3", "encap3+4"}
)

// BondModes returns the values that Bond.Mode may have. The first is the default.
func BondModes() []string { return slices.Clone(bondModes) }

// linkName matches names of network interfaces that Linux accepts: at most 15 characters (IFNAMSIZ). It allows no character that has a
// meaning in netplan or in a shell.
var linkName = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_.-]{0,14}$`)

// minMTU is the minimum that IPv4 requires (RFC 791), defaultMTU is the value for Ethernet, and maxMTU allows jumbo frames.
const minMTU, defaultMTU, maxMTU = 68, 1500, 9216

// canonicalNetwork returns n with its MACs and domains in the form in which the inventory stores them.
func canonicalNetwork(n SystemNetwork) SystemNetwork {
	n.Ethernets, n.Bonds = slices.Clone(n.Ethernets), slices.Clone(n.Bonds)
	for i := range n.Ethernets {
		if mac, err := ParseMAC(n.Ethernets[i].MAC); err == nil {
			n.Ethernets[i].MAC = mac
		}
	}
	for i := range n.Bonds {
		n.Bonds[i].Mode = cmp.Or(n.Bonds[i].Mode, bondModes[0])
		n.Bonds[i].MIIMonitor = cmp.Or(n.Bonds[i].MIIMonitor, 100)
	}
	return n
}

// networkCheck checks a SystemNetwork and collects its problems.
type networkCheck struct {
	*Problems
	fields map[string]string // link name → field
	mtu    map[string]int    // link name → MTU
	member map[string]string // name of an ethernet → name of its bond
	used   map[string]string // kind and value of what must be unique → field with this value
}

// checkNetwork adds the problems of m.Network to ps.
func checkNetwork(ps *Problems, m Machine) {
	n := *m.Network
	c := networkCheck{ps, map[string]string{}, map[string]int{}, map[string]string{}, map[string]string{}}
	if len(n.Ethernets) == 0 {
		c.Add("network.ethernets", "list the machine's network cards, or leave network out", "there is no network card")
	}
	for i, e := range n.Ethernets {
		field := fmt.Sprintf("network.ethernets[%d]", i)
		c.link(field, e.SystemLink)
		if mac, err := ParseMAC(e.MAC); err != nil || groupMAC(mac) {
			c.Add(field+".mac", macRemedy(e.MAC), "invalid MAC address %q, or the address of a group", e.MAC)
		}
		c.unique(field+".mac", "MAC address", e.MAC)
	}
	for i, b := range n.Bonds {
		field := fmt.Sprintf("network.bonds[%d]", i)
		c.link(field, b.SystemLink)
		c.bond(field, b, n)
	}
	for i, v := range n.VLANs {
		field := fmt.Sprintf("network.vlans[%d]", i)
		c.link(field, v.SystemLink)
		c.vlan(field, v, n)
	}
	c.checkBootCard(m)
}

// checkBootCard adds a problem if the card from which the machine boots is not part of the network.
func (c networkCheck) checkBootCard(m Machine) {
	nic, ok := m.Netboot()
	if ok && !slices.ContainsFunc(m.Network.Ethernets, func(e Ethernet) bool { return e.MAC == nic.MAC }) {
		c.Add("network.ethernets", "add it, even without an address",
			"the card %s, from which the machine boots, is missing: the installed system could not report", nic.MAC)
	}
}

// unique adds a problem if another field of the same kind, such as "MAC address", has the same value.
func (c networkCheck) unique(field, kind, value string) {
	if other, ok := c.used[kind+value]; ok && value != "" {
		c.Add(field, "change one of the two", "the %s %s is given at %s already", kind, value, other)
		return
	}
	c.used[kind+value] = field
}

// link checks the fields that cards, bonds and VLANs have in common.
func (c networkCheck) link(field string, l SystemLink) {
	if !linkName.MatchString(l.Name) {
		c.Add(field+".name", "use up to 15 letters, digits, - _ and ., beginning with a letter", "invalid name of an interface %q", l.Name)
	}
	c.unique(field+".name", "name", l.Name)
	c.fields[l.Name], c.mtu[l.Name] = field, l.MTU
	if l.MTU != 0 && (l.MTU < minMTU || l.MTU > maxMTU) {
		c.Add(field+".mtu", fmt.Sprintf("use %d–%d, or leave it out", minMTU, maxMTU), "invalid MTU %d", l.MTU)
	}
	for i, a := range l.Addresses {
		at := fmt.Sprintf("%s.addresses[%d]", field, i)
		if !a.IsValid() || a.Addr().IsUnspecified() || a.Addr().IsMulticast() {
			c.Add(at, "write it as 10.0.0.11/24", "invalid address %s", a)
			continue
		}
		c.unique(at, "address", a.Addr().String())
	}
	for i, r := range l.Routes {
		c.route(fmt.Sprintf("%s.routes[%d]", field, i), l, r)
	}
	for i, a := range l.Nameservers {
		if !a.IsValid() {
			c.Add(fmt.Sprintf("%s.nameservers[%d]", field, i), "write it as 10.0.0.1", "invalid address")
		}
	}
	for i, d := range l.Search {
		if !hostName(d) {
			c.Add(fmt.Sprintf("%s.search[%d]", field, i), "write a domain such as example.com", "invalid domain %q", d)
		}
	}
}

// route checks r, a route of the link l.
func (c networkCheck) route(field string, l SystemLink, r SystemRoute) {
	near := func(p netip.Prefix) bool { return p.Contains(r.Via) }
	itself := func(p netip.Prefix) bool { return p.Addr() == r.Via }
	switch {
	case !r.To.IsValid() || r.To != r.To.Masked():
		c.Add(field+".to", "write the network as 10.1.0.0/16, and the default route as 0.0.0.0/0 or ::/0", "invalid network %s", r.To)
	case !r.Via.IsValid() || r.Via.Is4() != r.To.Addr().Is4():
		c.Add(field+".via", "give a router with an address of the same family", "invalid router of the route to %s", r.To)
	case r.Via.Zone() != "" || r.Via.IsUnspecified() || r.Via.IsMulticast() || r.Via.IsLoopback():
		c.Add(field+".via", "write the router's address alone, such as 10.0.0.1 or fe80::1", "invalid router %s of the route to %s", r.Via, r.To)
	case slices.ContainsFunc(l.Addresses, itself):
		c.Add(field+".via", "give the router's address", "%s is an address of %s itself", r.Via, l.Name)
	case l.RouterOnLink(r) || l.DHCP4 && r.Via.Is4() || slices.ContainsFunc(l.Addresses, near):
	default:
		c.Add(field+".via", "give a router in a network of this link, or give the link an address in the router's network; or set onLink: true "+
			"if the machine reaches the router directly", "the router %s is not in a network of %s", r.Via, l.Name)
	}
	if r.Metric < 0 {
		c.Add(field+".metric", "use 0 or more", "invalid metric %d", r.Metric)
	}
	c.unique(field+".to", "route", fmt.Sprintf("to %s with metric %d", r.To, r.Metric))
}

// plainMember adds a problem if a card that is a member of a bond has settings that contradict those of the bond.
func (c networkCheck) plainMember(field string, e Ethernet, b Bond) {
	if e.DHCP4 || len(e.Addresses)+len(e.Routes)+len(e.Nameservers)+len(e.Search) > 0 {
		c.Add(field, "give addresses and routes to "+b.Name,
			"%s is a member of %s and cannot have its own addresses, routes or name servers", e.Name, b.Name)
	}
	if mtu := cmp.Or(b.MTU, defaultMTU); e.MTU > 0 && e.MTU < mtu {
		c.Add(field+".mtu", fmt.Sprintf("leave it out, or lower the MTU of %s", b.Name), "MTU %d is less than the bond's %d", e.MTU, mtu)
	}
}

func (c networkCheck) bond(field string, b Bond, n SystemNetwork) {
	if len(b.Interfaces) == 0 {
		c.Add(field+".interfaces", "name the ethernets", "a bond needs a member")
	}
	for i, name := range b.Interfaces {
		at := fmt.Sprintf("%s.interfaces[%d]", field, i)
		e := slices.IndexFunc(n.Ethernets, func(e Ethernet) bool { return e.Name == name })
		switch other := c.member[name]; {
		case e < 0:
			c.Add(at, "name one of network.ethernets", "there is no card %q", name)
			continue
		case other != "":
			c.Add(at, "remove it from one of the two", "%s is a member of %s already", name, other)
			continue
		}
		c.member[name] = b.Name
		c.plainMember(fmt.Sprintf("network.ethernets[%d]", e), n.Ethernets[e], b)
	}
	for _, x := range []struct {
		field, value string
		allowed      []string
	}{
		{"mode", b.Mode, bondModes},
		{"lacpRate", b.LACPRate, []string{"", "slow", "fast"}},
		{"transmitHashPolicy", b.TransmitHashPolicy, append([]string{""}, hashPolicies...)},
		{"primary", b.Primary, append([]string{""}, b.Interfaces...)},
	} {
		if !slices.Contains(x.allowed, x.value) {
			c.Add(field+"."+x.field, fmt.Sprintf("use one of %v", slices.DeleteFunc(x.allowed, func(a string) bool { return a == "" })),
				"invalid value %q", x.value)
		}
	}
	mode := cmp.Or(b.Mode, bondModes[0])
	if b.Primary != "" && slices.Contains(bondModes, mode) && !slices.Contains(primaryModes, mode) {
		c.Add(field+".primary", "leave it out", "only the modes %v use this field", primaryModes)
	}
	if b.LACPRate != "" && b.Mode != "802.3ad" {
		c.Add(field+".lacpRate", "leave it out", "only mode 802.3ad uses this field")
	}
	if b.MIIMonitor < 0 {
		c.Add(field+".miiMonitor", "give milliseconds, 0 or more", "invalid interval %d", b.MIIMonitor)
	}
}

func (c networkCheck) vlan(field string, v VLAN, n SystemNetwork) {
	if v.ID < 1 || v.ID > 4094 {
		c.Add(field+".id", "use 1–4094", "invalid VLAN %d", v.ID)
	}
	if bond := c.member[v.Link]; bond != "" {
		c.Add(field+".link", "put the VLAN on "+bond, "%s is a member of %s", v.Link, bond)
	}
	if !slices.ContainsFunc(n.Ethernets, func(e Ethernet) bool { return e.Name == v.Link }) &&
		!slices.ContainsFunc(n.Bonds, func(b Bond) bool { return b.Name == v.Link }) {
		c.Add(field+".link", "name one of network.ethernets or network.bonds", "there is no link %q", v.Link)
	}
	c.unique(field+".id", "VLAN", fmt.Sprintf("%d on %s", v.ID, v.Link))
	if below := cmp.Or(c.mtu[v.Link], defaultMTU); v.MTU > below {
		c.Add(field+".mtu", fmt.Sprintf("use at most %d, or raise the MTU of %s", below, v.Link),
			"MTU %d is more than the link's %d", v.MTU, below)
	}
}
