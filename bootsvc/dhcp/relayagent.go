package dhcp

import (
	"net"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/wire"
)

// relaySubOption returns a sub-option of option 82 (RFC 3046), or nil if it is missing. It also returns nil if a
// sub-option is truncated, and for a packet without giaddr, because any client can send option 82 itself. In each
// case, replies return option 82 to the relay as received.
func relaySubOption(p *dhcpv4.DHCPv4, code dhcpv4.OptionCode) net.IP {
	if !wire.Addr4(p.GatewayIPAddr).IsValid() {
		return nil
	}
	if o := p.RelayAgentInfo(); o != nil {
		return o.Get(code)
	}
	return nil
}

// linkSelection returns the subnet that a relay selects for the client (RFC 3527), or an invalid address if it selects
// none.
func linkSelection(p *dhcpv4.DHCPv4) netip.Addr {
	return wire.Addr4(relaySubOption(p, dhcpv4.LinkSelectionSubOption))
}

// identifierFor returns the server identifier (option 54) for a lease to the client of p: the address of a relay that
// asks to get the client's later messages (RFC 5107), or otherwise self, the address of this server.
func identifierFor(p *dhcpv4.DHCPv4, self netip.Addr) netip.Addr {
	if a := wire.Addr4(relaySubOption(p, dhcpv4.ServerIdentifierOverrideSubOption)); a.IsValid() {
		return a
	}
	return self
}

// isFor reports whether option 54 of a packet names this server or the relay that acts for it (RFC 5107), or is
// missing.
func isFor(p *dhcpv4.DHCPv4, self netip.Addr) bool {
	id := p.Options.Get(dhcpv4.OptionServerIdentifier)
	return id == nil || wire.Addr4(id) == self || wire.Addr4(id) == identifierFor(p, self)
}
