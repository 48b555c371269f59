package wire

import (
	"encoding/hex"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// ParseMAC parses an Ethernet MAC address in colon, dash, dot or bare notation and returns its canonical form (lower
// case, colons). ok is false for any other text, and for an address that no machine can have (zero, multicast,
// broadcast).
func ParseMAC(s string) (mac string, ok bool) {
	if len(s) > 17 {
		return "", false
	}
	digits := s
	switch {
	case len(s) == 17 && (s[2] == ':' || s[2] == '-'):
		for i := 2; i < 17; i += 3 {
			if s[i] != s[2] {
				return "", false
			}
		}
		digits = strings.ReplaceAll(s, s[2:3], "")
	case len(s) == 14 && s[4] == '.' && s[9] == '.':
		digits = strings.ReplaceAll(s, ".", "")
	}
	b, err := hex.DecodeString(digits)
	if err != nil {
		return "", false
	}
	return HostMAC(b)
}

// HostMAC returns the canonical text of an Ethernet address. ok is false if it is not the address of a single host.
func HostMAC(b net.HardwareAddr) (mac string, ok bool) {
	if len(b) != 6 || b[0]&1 != 0 || slices.Max(b) == 0 {
		return "", false
	}
	return b.String(), true
}

// Addr4 returns ip as a netip.Addr, or an invalid address if ip is zero, missing or not IPv4.
func Addr4(ip net.IP) netip.Addr {
	a, ok := netip.AddrFromSlice(ip.To4())
	if !ok || a.IsUnspecified() {
		return netip.Addr{}
	}
	return a
}

// Unmap returns the address a without its zone. It converts an IPv4-mapped IPv6 address to IPv4.
func Unmap(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// Prefixes returns the IPv4 addresses of i with their prefix lengths, or nil if they cannot be read.
func Prefixes(i *net.Interface) []netip.Prefix {
	addrs, err := i.Addrs()
	if err != nil {
		return nil
	}
	var out []netip.Prefix
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
			out = append(out, p)
		}
	}
	return out
}

// OnNetworks reports whether the address a is in one of the networks.
func OnNetworks(networks []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Relays are the addresses or networks of the relays that may send requests. If the list is empty, any relay may.
type Relays []netip.Prefix

// MayAsk reports whether the relay giaddr may send requests.
func (r Relays) MayAsk(giaddr netip.Addr) bool { return len(r) == 0 || OnNetworks(r, giaddr) }

// AreNear reports whether an address is in the network of a listed relay. If only the relay's address is listed, it
// assumes a network of 24 bits, as for a reservation without a netmask.
func (r Relays) AreNear(a netip.Addr) bool {
	return slices.ContainsFunc(r, func(p netip.Prefix) bool {
		if p.IsSingleIP() {
			p = netip.PrefixFrom(p.Addr(), 24)
		}
		return p.Masked().Contains(a)
	})
}
