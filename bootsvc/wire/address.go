package wire

import (
	"encoding/hex"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// ParseMAC parses an Ethernet MAC address in colon, dash, dot or bare form and
// returns its canonical form. ok is false for anything else, and for an address that
// no machine can have (zero, multicast, broadcast).
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

// HostMAC returns the canonical text of an Ethernet address, or false if it does not address a single host.
func HostMAC(b net.HardwareAddr) (mac string, ok bool) {
	if len(b) != 6 || b[0]&1 != 0 || slices.Max(b) == 0 {
		return "", false
	}
	return b.String(), true
}

// Addr4 returns ip as an address, or an invalid address if ip is zero or missing.
func Addr4(ip net.IP) netip.Addr {
	a, ok := netip.AddrFromSlice(ip.To4())
	if !ok || a.IsUnspecified() {
		return netip.Addr{}
	}
	return a
}

// Unmap returns a without a zone, and as IPv4 if it is IPv4-mapped IPv6.
func Unmap(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// Prefixes returns the IPv4 addresses of i with their lengths.
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

// OnNetworks reports whether a is in one of these networks.
func OnNetworks(networks []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Relays are the relays that may ask, or their networks. If there are none, any relay may.
type Relays []netip.Prefix

// MayAsk reports whether a relay may ask.
func (r Relays) MayAsk(giaddr netip.Addr) bool { return len(r) == 0 || OnNetworks(r, giaddr) }

// AreNear reports whether an address is in the network of a listed relay. The length of that
// network is not known: 24 bits are assumed, as for a reservation without a netmask.
func (r Relays) AreNear(a netip.Addr) bool {
	return slices.ContainsFunc(r, func(p netip.Prefix) bool {
		if p.IsSingleIP() {
			p = netip.PrefixFrom(p.Addr(), 24)
		}
		return p.Masked().Contains(a)
	})
}
