package dhcp

import (
	"net"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/wire"
)

// relaySubOption returns a sub-option of option 82 (RFC 3046), or nil. It is nil for a packet without giaddr too, because
// any client can send option 82 itself, and if one of the sub-options is cut off. Whatever option 82 contains, it is
// returned to the relay as it was received.
func relaySubOption(p *dhcpv4.DHCPv4, code dhcpv4.OptionCode) net.IP {
	if !wire.Addr4(p.GatewayIPAddr).IsValid() {
		return nil
	}
	if o := p.RelayAgentInfo(); o != nil {
		return o.Get(code)
	}
	return nil
}

// linkSelection returns the subnet that a relay selects (RFC 3527), or an invalid address.
func linkSelection(p *dhcpv4.DHCPv4) netip.Addr {
	return wire.Addr4(relaySubOption(p, dhcpv4.LinkSelectionSubOption))
}

// identifierFor returns the server identifier (option 54) in a lease for the client of p: self, the address of this server,
// or the address of a relay which asks for the client's later messages (RFC 5107).
func identifierFor(p *dhcpv4.DHCPv4, self netip.Addr) netip.Addr {
	if a := wire.Addr4(relaySubOption(p, dhcpv4.ServerIdentifierOverrideSubOption)); a.IsValid() {
		return a
	}
	return self
}

// isFor reports whether a packet names this server, the relay that acts for it (RFC 5107), or none (option 54).
func isFor(p *dhcpv4.DHCPv4, self netip.Addr) bool {
	id := p.Options.Get(dhcpv4.OptionServerIdentifier)
	return id == nil || wire.Addr4(id) == self || wire.Addr4(id) == identifierFor(p, self)
}
