package inventory

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSystemNetworkReportsAllAtOnce: each mistake in a network is named by its field.
func TestSystemNetworkReportsAllAtOnce(t *testing.T) {
	at := netip.MustParsePrefix
	m := Machine{
		Name: "n", Interfaces: []Interface{{MAC: "02:00:00:00:00:01"}},
		Network: &SystemNetwork{
			Ethernets: []Ethernet{
				{SystemLink: SystemLink{Name: "a", Addresses: []netip.Prefix{at("10.0.0.1/24")}}, MAC: "02:00:00:00:00:02"},
				{SystemLink: SystemLink{Name: "a", MTU: 10000}, MAC: "02:00:00:00:00:02"},
				{SystemLink: SystemLink{Name: "much-too-long-a-name"}, MAC: "x"},
				{SystemLink: SystemLink{Name: "d", MTU: 1500, Addresses: []netip.Prefix{at("10.0.0.1/24"), {}}, Routes: []SystemRoute{
					{To: at("10.1.2.3/16"), Via: netip.MustParseAddr("10.0.0.9")},
					{To: at("0.0.0.0/0"), Via: netip.MustParseAddr("10.9.0.9")},
					{To: at("10.2.0.0/16"), Metric: -1},
				}, Search: []string{"-"}}, MAC: "02:00:00:00:00:04"},
			},
			Bonds: []Bond{
				{SystemLink: SystemLink{Name: "bond0"}, Interfaces: []string{"a", "nobody"}, Mode: "round", LACPRate: "fast", Primary: "z"},
				{SystemLink: SystemLink{Name: "bond1"}, Interfaces: []string{"a"}},
				{SystemLink: SystemLink{Name: "bond2"}, TransmitHashPolicy: "l2", MIIMonitor: -1},
			},
			VLANs: []VLAN{
				{SystemLink: SystemLink{Name: "v1", MTU: 9000}, ID: 5, Link: "d"},
				{SystemLink: SystemLink{Name: "v2"}, ID: 5, Link: "d"},
				{SystemLink: SystemLink{Name: "v3"}, ID: 4095, Link: "nobody"},
				{SystemLink: SystemLink{Name: "v4"}, ID: 6, Link: "a"},
			},
		},
	}
	var fields []string
	for _, p := range Validate(m) {
		fields = append(fields, p.Field)
		require.NotEmpty(t, p.What, p.Field)
	}
	require.ElementsMatch(t, []string{
		"network.ethernets", "network.ethernets[0]", "network.ethernets[1].name", "network.ethernets[1].mac", "network.ethernets[1].mtu",
		"network.ethernets[2].name", "network.ethernets[2].mac", "network.ethernets[3].addresses[0]", "network.ethernets[3].addresses[1]",
		"network.ethernets[3].routes[0].to", "network.ethernets[3].routes[1].via", "network.ethernets[3].routes[2].via",
		"network.ethernets[3].routes[2].metric", "network.ethernets[3].search[0]",
		"network.bonds[0].interfaces[1]", "network.bonds[0].mode", "network.bonds[0].lacpRate", "network.bonds[0].primary",
		"network.bonds[1].interfaces[0]", "network.bonds[2].interfaces", "network.bonds[2].transmitHashPolicy", "network.bonds[2].miiMonitor",
		"network.vlans[0].mtu", "network.vlans[1].id", "network.vlans[2].id", "network.vlans[2].link", "network.vlans[3].link",
	}, fields)
}

// TestRoutersOnLink: a router outside of all networks of a link is valid where it is on the link, and only there.
func TestRoutersOnLink(t *testing.T) {
	const remedy = "onLink: true"
	for _, x := range []struct {
		name, address, netmask, gateway string
		said, valid, onLink             bool
	}{
		{"in the subnet", "192.0.2.77", "255.255.255.0", "192.0.2.65", false, true, false},
		{"a host address", "192.0.2.77", "255.255.255.255", "192.0.2.65", false, true, true},
		{"another subnet", "192.0.2.77", "255.255.255.248", "192.0.2.65", false, false, false},
		{"another subnet, said", "192.0.2.77", "255.255.255.248", "192.0.2.65", true, true, true},
		{"link-local", "192.0.2.77", "255.255.255.0", "169.254.0.1", false, true, true},
	} {
		i := Interface{
			MAC: "02:00:00:00:03:01", Address: netip.MustParseAddr(x.address), Netmask: x.netmask,
			Gateway: netip.MustParseAddr(x.gateway), OnLink: x.said,
		}
		ps := Validate(Machine{Name: "n", Interfaces: []Interface{i}})
		require.Equal(t, x.valid, len(ps) == 0, "%s: %v", x.name, ps)
		require.Equal(t, x.onLink, i.RouterOnLink(), x.name)
		if !x.valid {
			require.Contains(t, ps[0].Remedy, remedy, x.name)
		}
	}

	type list = []string
	for _, x := range []struct {
		name                       string
		addresses                  list
		to, via                    string
		dhcp4, said, valid, onLink bool
	}{
		{"in the network", list{"192.0.2.77/24"}, "0.0.0.0/0", "192.0.2.65", false, false, true, false},
		{"by DHCP", nil, "0.0.0.0/0", "192.0.2.65", true, false, true, false},
		{"a host address", list{"192.0.2.78/32"}, "0.0.0.0/0", "192.0.2.65", false, false, true, true},
		{"host addresses of both kinds", list{"2001:db8::1/128", "192.0.2.78/32"}, "::/0", "2001:db8:f::1", false, false, true, true},
		{"a host address and a network", list{"192.0.2.78/32", "10.0.0.1/24"}, "0.0.0.0/0", "192.0.2.65", false, false, false, false},
		{"a host address and a network, said", list{"192.0.2.78/32", "10.0.0.1/24"}, "0.0.0.0/0", "192.0.2.65", false, true, true, true},
		{"a host address of the other family", list{"2001:db8::1/128"}, "0.0.0.0/0", "192.0.2.65", false, false, false, false},
		{"link-local", list{"2001:db8:7::2/64"}, "::/0", "fe80::1", false, false, true, true},
		{"link-local with announced addresses", nil, "::/0", "fe80::1", true, false, true, true},
		{"link-local of IPv4", list{"192.0.2.78/24"}, "0.0.0.0/0", "169.254.0.1", false, false, true, true},
		{"DHCP of IPv4 gives no network of IPv6", nil, "::/0", "2001:db8::1", true, false, false, false},
		{"a zone", list{"2001:db8:7::2/64"}, "::/0", "fe80::1%eno1", false, false, false, true},
		{"another family", list{"192.0.2.78/32"}, "0.0.0.0/0", "fe80::1", false, true, false, true},
		{"the link's own address", list{"192.0.2.78/32"}, "0.0.0.0/0", "192.0.2.78", false, true, false, true},
		{"no address", list{"192.0.2.78/32"}, "0.0.0.0/0", "0.0.0.0", false, true, false, true},
	} {
		l := SystemLink{Name: "eno1", DHCP4: x.dhcp4}
		for _, a := range x.addresses {
			l.Addresses = append(l.Addresses, netip.MustParsePrefix(a))
		}
		l.Routes = []SystemRoute{{To: netip.MustParsePrefix(x.to), Via: netip.MustParseAddr(x.via), OnLink: x.said}}
		const mac = "02:00:00:00:03:02"
		ps := Validate(Machine{
			Name: "n", Interfaces: []Interface{{MAC: mac}},
			Network: &SystemNetwork{Ethernets: []Ethernet{{SystemLink: l, MAC: mac}}},
		})
		require.Equal(t, x.valid, len(ps) == 0, "%s: %v", x.name, ps)
		require.Equal(t, x.onLink, l.RouterOnLink(l.Routes[0]), x.name)
		if !x.valid {
			require.Equal(t, "network.ethernets[0].routes[0].via", ps[0].Field, x.name)
		}
	}
}

// TestBondLimits: only some modes have a primary member, and the frames of a bond must fit through its members.
func TestBondLimits(t *testing.T) {
	for mode, ok := range map[string]bool{
		"": true, "active-backup": true, "balance-tlb": true, "balance-alb": true, "802.3ad": false, "balance-rr": false,
		"balance-xor": false, "broadcast": false,
	} {
		fields := bondProblems(Bond{Mode: mode, Primary: "a"}, 0)
		require.Equal(t, ok, len(fields) == 0, "%q: %v", mode, fields)
	}
	for _, x := range []struct{ bond, member int }{{0, 0}, {9000, 0}, {9000, 9000}, {0, 1500}, {1400, 1500}} {
		require.Empty(t, bondProblems(Bond{SystemLink: SystemLink{MTU: x.bond}}, x.member), x)
	}
	for _, x := range []struct{ bond, member int }{{9000, 1500}, {0, 1400}} {
		require.Equal(t, []string{"network.ethernets[0].mtu"}, bondProblems(Bond{SystemLink: SystemLink{MTU: x.bond}}, x.member), x)
	}
}

// bondProblems returns the invalid fields of a machine with a bond whose only member has an MTU.
func bondProblems(b Bond, mtu int) (fields []string) {
	b.Name, b.Interfaces = "bond0", []string{"a"}
	m := Machine{
		Name: "n", Interfaces: []Interface{{MAC: "02:00:00:00:00:01"}},
		Network: &SystemNetwork{
			Ethernets: []Ethernet{{SystemLink: SystemLink{Name: "a", MTU: mtu}, MAC: "02:00:00:00:00:01"}}, Bonds: []Bond{b},
		},
	}
	for _, p := range Validate(m) {
		fields = append(fields, p.Field)
	}
	return fields
}
