package dhcp

import (
	"net"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/wire"
)

// relaySubOption returns a sub-option of option 82 (RFC 3046). It returns nil if the sub-option is missing or
// truncated. It also returns nil for a packet without giaddr, because any client can send option 82 itself. In all
// these cases, replies still contain option 82 as received.
func relaySubOption(p *dhcpv4.DHCPv4, code dhcpv4.OptionCode) net.IP {
	if !wire.Addr4(p.GatewayIPAddr).IsValid() {
		return nil
	}
	if o := p.RelayAgentInfo(); o != nil {
		return o.Get(code)
	}
	return nil
}

// linkSelection returns the subnet that a relay names for the client (RFC 3527). If the relay names none, it returns an
// invalid address.
func linkSelection(p *dhcpv4.DHCPv4) netip.Addr {
	return wire.Addr4(relaySubOption(p, dhcpv4.LinkSelectionSubOption))
}

// identifierFor returns the server identifier (option 54) for a lease to the client that sent p. It is the address of
// the relay if the relay asks to get the client's later messages (RFC 5107), otherwise self, the address of this
// server.
func identifierFor(p *dhcpv4.DHCPv4, self netip.Addr) netip.Addr {
	if a := wire.Addr4(relaySubOption(p, dhcpv4.ServerIdentifierOverrideSubOption)); a.IsValid() {
		return a
	}
	return self
}

// isFor reports whether a packet is for this server: option 54 names this server or a relay that acts for it (RFC
// 5107), or is missing.
func isFor(p *dhcpv4.DHCPv4, self netip.Addr) bool {
	id := p.Options.Get(dhcpv4.OptionServerIdentifier)
	return id == nil || wire.Addr4(id) == self || wire.Addr4(id) == identifierFor(p, self)
}
