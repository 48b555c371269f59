package dhcp

import (
	"net"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/wire"
)

// Route is the way in which a reply is sent.
type Route int

// Routes of replies.
const (
	RouteNone      Route = iota // no reply
	RouteRelay                  // UDP to giaddr:67
	RouteUnicast                // UDP to an address that the client already has
	RouteBroadcast              // UDP to 255.255.255.255:68
	RouteRaw                    // Ethernet frame to the MAC of a client that has no address yet, so it cannot answer ARP
	RouteSource                 // UDP to the source address and port of the request (wire.ProxyPort)
)

func (r Route) String() string {
	return [...]string{"none", "relay", "unicast", "broadcast", "raw", "source"}[r]
}

// Reply is a DHCP packet and the way in which it is sent.
type Reply struct {
	Packet *dhcpv4.DHCPv4
	Route  Route
	To     netip.Addr // for the routes relay, unicast, raw and source
	Port   uint16     // for the route source
	mac    net.HardwareAddr
	own    bool // To is reserved for an armed machine, or To is a listed relay
}

// routeReply returns the reply p with the route for an OFFER or ACK (RFC 2131 §4.1).
func routeReply(p *dhcpv4.DHCPv4, giaddr, ciaddr netip.Addr) Reply {
	r := Reply{Packet: p, mac: p.ClientHWAddr}
	switch {
	case giaddr.IsValid():
		r.Route, r.To = RouteRelay, giaddr
	case ciaddr.IsValid():
		r.Route, r.To = RouteUnicast, ciaddr
	case p.IsBroadcast():
		r.Route = RouteBroadcast
	default:
		r.Route, r.To = RouteRaw, wire.Addr4(p.YourIPAddr)
	}
	return r
}

// summary returns the part of r that the history keeps.
func (r Reply) summary() wire.Reply {
	if r.Route == RouteNone {
		return wire.Reply{}
	}
	return wire.Reply{
		Route: r.Route.String(), Kind: r.Packet.MessageType(), Address: wire.Addr4(r.Packet.YourIPAddr), File: r.Packet.BootFileNameOption(),
	}
}
