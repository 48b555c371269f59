package cloudinit

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// Bottlerocket returns the network of m's installed system for Bottlerocket: net.toml of version 3, which names cards by their MAC, and
// the TOML for the user data, which holds the name servers; "" if there are none. It returns an error for what such a net.toml cannot
// express: bonds and VLANs, which refer to cards by the names that these have in the installed system, and MTUs. The primary card is the
// one that boots. See "Network
// configuration" in https://bottlerocket.dev/en/os/latest/#/concepts/networking/.
func Bottlerocket(m inventory.Machine) (network, settings string, err error) {
	n := networkOf(m)
	if len(n.Bonds)+len(n.VLANs) > 0 {
		return "", "", fmt.Errorf("machine %q has a bond or a VLAN: Bottlerocket's net.toml refers to its cards by name, and only the "+
			"installed system knows the names", m.Name)
	}

	var b strings.Builder
	b.WriteString("version = 3\n")
	var servers, search []string
	cards := 0
	boots, _ := m.Netboot()
	for _, name := range slices.Sorted(maps.Keys(n.Ethernets)) {
		e := n.Ethernets[name]
		if e.MTU > 0 {
			return "", "", fmt.Errorf("machine %q has an MTU, which Bottlerocket's net.toml cannot set", m.Name)
		}
		if !e.DHCP4 && len(e.Addresses) == 0 {
			continue
		}
		if slices.ContainsFunc(e.Addresses, func(p netip.Prefix) bool { return !p.Addr().Is4() }) ||
			slices.ContainsFunc(e.Routes, func(r netplanRoute) bool { return r.OnLink || !r.Via.Is4() }) {
			return "", "", fmt.Errorf("machine %q has an IPv6 address or a router outside its subnets, which Ingot does not write into net.toml",
				m.Name)
		}
		cards++
		card := fmt.Sprintf("%q", e.Match["macaddress"])
		fmt.Fprintf(&b, "\n[%s]\n", card)
		if e.Match["macaddress"] == boots.MAC {
			b.WriteString("primary = true\n")
		}
		if e.DHCP4 {
			b.WriteString("dhcp4 = true\n")
		}
		if len(e.Addresses) > 0 {
			fmt.Fprintf(&b, "\n[%s.static4]\naddresses = [%s]\n", card, quote(e.Addresses))
		}
		for _, r := range e.Routes {
			to := r.To.String()
			if r.To == defaultRoute {
				to = "default"
			}
			fmt.Fprintf(&b, "\n[[%s.route]]\nto = %q\nvia = %q\n", card, to, r.Via.String())
			if r.Metric > 0 {
				fmt.Fprintf(&b, "route-metric = %d\n", r.Metric)
			}
		}
		if e.Nameservers != nil {
			for _, a := range e.Nameservers.Addresses {
				servers = appendNew(servers, a.String())
			}
			for _, domain := range e.Nameservers.Search {
				search = appendNew(search, domain)
			}
		}
	}
	if cards == 0 {
		return "", "", fmt.Errorf("machine %q has no interface with an address or DHCP", m.Name)
	}

	if len(servers) > 0 {
		settings += fmt.Sprintf("name-servers = [%s]\n", quote(servers))
	}
	if len(search) > 0 {
		settings += fmt.Sprintf("search-list = [%s]\n", quote(search))
	}
	if settings != "" {
		settings = "[settings.dns]\n" + settings
	}
	return b.String(), settings, nil
}

func appendNew(all []string, s string) []string {
	if slices.Contains(all, s) {
		return all
	}
	return append(all, s)
}

// quote returns the values as strings of TOML, separated by commas.
func quote[T any](values []T) string {
	var all []string
	for _, v := range values {
		all = append(all, fmt.Sprintf("%q", fmt.Sprint(v)))
	}
	return strings.Join(all, ", ")
}
