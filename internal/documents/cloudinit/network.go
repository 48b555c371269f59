package cloudinit

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// netplan is a network configuration of version 2
// (https://cloudinit.readthedocs.io/en/latest/reference/network-config-format-v2.html).
type netplan struct {
	Version   int                    `json:"version"`
	Ethernets map[string]netplanLink `json:"ethernets"`
	Bonds     map[string]netplanLink `json:"bonds,omitempty"`
	VLANs     map[string]netplanLink `json:"vlans,omitempty"`
}

type netplanLink struct {
	Match       map[string]string   `json:"match,omitempty"`
	SetName     string              `json:"set-name,omitempty"`
	MAC         string              `json:"macaddress,omitempty"`
	Interfaces  []string            `json:"interfaces,omitempty"`
	Parameters  map[string]any      `json:"parameters,omitempty"`
	ID          int                 `json:"id,omitempty"`
	Link        string              `json:"link,omitempty"`
	MTU         int                 `json:"mtu,omitempty"`
	DHCP4       bool                `json:"dhcp4"`
	Addresses   []netip.Prefix      `json:"addresses,omitempty"`
	Routes      []netplanRoute      `json:"routes,omitempty"`
	Nameservers *netplanNameservers `json:"nameservers,omitempty"`
}

type netplanRoute struct {
	To     netip.Prefix `json:"to"`
	Via    netip.Addr   `json:"via"`
	Metric int          `json:"metric,omitempty"`
	OnLink bool         `json:"on-link,omitempty"`
}

type netplanNameservers struct {
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Search    []string     `json:"search,omitempty"`
}

// NetworkConfig returns m's network as cloud-init's network-config, version 2. Each card that a bond or a VLAN
// refers to is renamed to its id: only netplan finds such a card by the id, whereas cloud-init's renderers for
// sysconfig, NetworkManager, systemd-networkd and ifupdown write the id as the name of the interface.
func NetworkConfig(m inventory.Machine) []byte {
	n := networkOf(m)
	rename := func(id string) {
		if e, ok := n.Ethernets[id]; ok {
			e.SetName = id
			n.Ethernets[id] = e
		}
	}
	for _, b := range n.Bonds {
		for _, id := range b.Interfaces {
			rename(id)
		}
	}
	for _, v := range n.VLANs {
		rename(v.Link)
	}
	return encode(n)
}

// Netplan returns the network of m's installed system as a netplan file.
func Netplan(m inventory.Machine) []byte {
	return encode(map[string]any{"network": networkOf(m)})
}

// networkOf returns the network of m's installed system: m.Network, or if that is nil, the result of ofInterfaces.
func networkOf(m inventory.Machine) netplan {
	n := m.Network
	if n == nil {
		return ofInterfaces(m)
	}
	out := netplan{Version: 2, Ethernets: map[string]netplanLink{}, Bonds: map[string]netplanLink{}, VLANs: map[string]netplanLink{}}
	macs := map[string]string{}
	for _, e := range n.Ethernets {
		l := linkOf(e.SystemLink)
		l.Match = map[string]string{"macaddress": e.MAC}
		if e.SetName {
			l.SetName = e.Name
		}
		macs[e.Name], out.Ethernets[e.Name] = e.MAC, l
	}
	for _, b := range n.Bonds {
		l := linkOf(b.SystemLink)
		l.Interfaces, l.Parameters = b.Interfaces, map[string]any{}
		// Set the MAC of the first member, by which DHCP and the metadata server identify the machine. By
		// default the kernel takes the MAC of the member that comes up first.
		if len(b.Interfaces) > 0 {
			l.MAC = macs[b.Interfaces[0]]
		}
		for key, value := range map[string]string{
			"mode": b.Mode, "primary": b.Primary, "lacp-rate": b.LACPRate, "transmit-hash-policy": b.TransmitHashPolicy,
		} {
			if value != "" {
				l.Parameters[key] = value
			}
		}
		if b.MIIMonitor > 0 {
			l.Parameters["mii-monitor-interval"] = b.MIIMonitor
		}
		out.Bonds[b.Name] = l
	}
	for _, v := range n.VLANs {
		l := linkOf(v.SystemLink)
		l.ID, l.Link = v.ID, v.Link
		out.VLANs[v.Name] = l
	}
	return out
}

func linkOf(s inventory.SystemLink) netplanLink {
	l := netplanLink{MTU: s.MTU, DHCP4: s.DHCP4, Addresses: s.Addresses}
	for _, r := range s.Routes {
		l.Routes = append(l.Routes, netplanRoute{r.To, r.Via, r.Metric, s.RouterOnLink(r)})
	}
	if len(s.Nameservers)+len(s.Search) > 0 {
		l.Nameservers = &netplanNameservers{s.Nameservers, s.Search}
	}
	return l
}

// defaultRoute is 0.0.0.0/0.
var defaultRoute = netip.PrefixFrom(netip.IPv4Unspecified(), 0)

// ofInterfaces returns the network that follows from m.Interfaces. The interfaces are matched by MAC and named eth0, eth1 …
// in their order. An interface gets its reserved address. Without a reserved address, it uses DHCP unless DHCP is disabled.
func ofInterfaces(m inventory.Machine) netplan {
	doc := netplan{Version: 2, Ethernets: map[string]netplanLink{}}
	gateway := false
	for n, i := range m.Interfaces {
		name := fmt.Sprintf("eth%d", n)
		eth := netplanLink{Match: map[string]string{"macaddress": i.MAC}, SetName: name}
		on := netplanLink{DHCP4: !i.Address.IsValid() && !i.DisableDHCP}
		if i.Address.IsValid() {
			on.Addresses = []netip.Prefix{Prefix(i)}
			if i.Gateway.IsValid() && !gateway { // only one default route: the first gateway
				on.Routes = []netplanRoute{{To: defaultRoute, Via: i.Gateway, OnLink: i.RouterOnLink()}}
				gateway = true
			}
		}
		if len(i.Nameservers) > 0 || i.Domain != "" {
			on.Nameservers = &netplanNameservers{Addresses: i.Nameservers}
			if i.Domain != "" {
				on.Nameservers.Search = []string{i.Domain}
			}
		}
		if i.VLAN > 0 {
			if doc.VLANs == nil {
				doc.VLANs = map[string]netplanLink{}
			}
			on.ID, on.Link = i.VLAN, name
			doc.VLANs[fmt.Sprintf("%s.%d", name, i.VLAN)] = on
		} else {
			on.Match, on.SetName = eth.Match, eth.SetName
			eth = on
		}
		doc.Ethernets[name] = eth
	}
	return doc
}

// Networkd returns the network of m's installed system as files of systemd-networkd
// (systemd.link(5), systemd.netdev(5), systemd.network(5)), by file name.
func Networkd(m inventory.Machine) map[string]string {
	n := networkOf(m)
	files := map[string]string{}
	bonds, vlans := map[string][]string{}, map[string][]string{} // per card, the lines that add it to its bond; per link, its VLANs
	for name, b := range n.Bonds {
		for _, i := range b.Interfaces {
			bonds[i] = []string{"Bond=" + name}
			if b.Parameters["primary"] == i {
				bonds[i] = append(bonds[i], "PrimarySlave=true")
			}
		}
		files["20-"+name+".netdev"] = bondDevice(name, b)
	}
	for name, v := range n.VLANs {
		vlans[v.Link] = append(vlans[v.Link], name)
		files["20-"+name+".netdev"] = section("NetDev", "Name="+name, "Kind=vlan") + section("VLAN", fmt.Sprintf("Id=%d", v.ID))
	}
	for name, e := range n.Ethernets {
		match := "PermanentMACAddress=" + e.Match["macaddress"] // a bond member's current MAC is the MAC of the bond
		if e.SetName != "" {
			files["10-"+name+".link"] = section("Match", match) + section("Link", "Name="+e.SetName)
		}
		files["30-"+name+".network"] = networkFile(match, e, bonds[name], vlans[name])
	}
	for name, b := range n.Bonds {
		files["30-"+name+".network"] = networkFile("Name="+name, b, nil, vlans[name])
	}
	for name, v := range n.VLANs {
		files["30-"+name+".network"] = networkFile("Name="+name, v, nil, nil)
	}
	return files
}

// section returns a section of a systemd file. It leaves out empty lines, and returns "" if all lines are empty.
func section(name string, lines ...string) string {
	lines = slices.DeleteFunc(lines, func(l string) bool { return l == "" })
	if len(lines) == 0 {
		return ""
	}
	return "[" + name + "]\n" + strings.Join(lines, "\n") + "\n\n"
}

func bondDevice(name string, b netplanLink) string {
	lines := []string{}
	for _, x := range []struct{ key, option, unit string }{
		{"mode", "Mode", ""},
		{"lacp-rate", "LACPTransmitRate", ""},
		{"transmit-hash-policy", "TransmitHashPolicy", ""},
		{"mii-monitor-interval", "MIIMonitorSec", "ms"},
	} {
		if v, ok := b.Parameters[x.key]; ok {
			lines = append(lines, fmt.Sprintf("%s=%v%s", x.option, v, x.unit))
		}
	}
	device := []string{"Name=" + name, "Kind=bond"}
	if b.MAC != "" {
		device = append(device, "MACAddress="+b.MAC)
	}
	return section("NetDev", device...) + section("Bond", lines...)
}

// networkFile returns the .network file of a link. bond holds the lines that make the link a member of a bond; it is
// nil for a link without a bond.
func networkFile(match string, l netplanLink, bond, vlans []string) string {
	var link, network []string
	if l.MTU > 0 {
		link = append(link, fmt.Sprintf("MTUBytes=%d", l.MTU))
	}
	network = append(network, bond...)
	slices.Sort(vlans)
	for _, v := range vlans {
		network = append(network, "VLAN="+v)
	}
	network = append(network, map[bool]string{true: "DHCP=ipv4"}[l.DHCP4])
	for _, a := range l.Addresses {
		network = append(network, "Address="+a.String())
	}
	if l.Nameservers != nil {
		for _, a := range l.Nameservers.Addresses {
			network = append(network, "DNS="+a.String())
		}
		if len(l.Nameservers.Search) > 0 {
			network = append(network, "Domains="+strings.Join(l.Nameservers.Search, " "))
		}
	}
	if bond == nil && !l.DHCP4 && len(l.Addresses)+len(l.Routes) == 0 {
		network = append(network, "LinkLocalAddressing=no") // the link only carries VLANs
	}
	out := section("Match", match) + section("Link", link...) + section("Network", network...)
	for _, r := range l.Routes {
		metric := ""
		if r.Metric > 0 {
			metric = fmt.Sprintf("Metric=%d", r.Metric)
		}
		onLink := map[bool]string{true: "GatewayOnLink=true"}[r.OnLink]
		out += section("Route", "Destination="+r.To.String(), "Gateway="+r.Via.String(), metric, onLink)
	}
	return strings.TrimSuffix(cmp.Or(out, "\n"), "\n")
}
