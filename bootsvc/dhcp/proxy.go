package dhcp

import (
	"context"
	"net/netip"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/wire"
)

// answerProxy answers a known machine next to the DHCP server that gives it an address. It is
// silent unless there is a boot file: the machine then boots from disk by the other server's offer.
//
//   - A DISCOVER is answered with an OFFER without an address. For BIOS, iPXE and HTTP clients it
//     has the boot file. UEFI PXE clients of EDK2 take the file only from port 4011: without
//     option 43 they send a REQUEST there.
//   - A message on port 4011 is answered with an ACK that has the boot file.
//   - Everything else belongs to the other server.
func (s *Server) answerProxy(ctx context.Context, e *exchange) Reply {
	kind := e.Packet.MessageType()
	asked := e.In.Port == wire.ProxyPort
	if e.Class == wire.ClassNone {
		if kind == dhcpv4.MessageTypeDiscover || kind == dhcpv4.MessageTypeRequest {
			s.cfg.Decider.BootFile(ctx, e.client, e.Request) // there is none, but the request is recorded
		}
		return Reply{}
	}
	if !asked && kind != dhcpv4.MessageTypeDiscover || !s.mayProxy(ctx, e, asked) {
		return Reply{}
	}
	file := s.cfg.Decider.BootFile(ctx, e.client, e.Request)
	if file == "" {
		return Reply{}
	}
	if e.Class == wire.ClassPXE {
		// The client's address is the other server's choice, so the name says which machine it is.
		file = strings.ReplaceAll(e.MAC, ":", "-") + "/" + file
	}

	if asked {
		r := s.compose.newReply(e.Packet, dhcpv4.MessageTypeAck)
		r.ClientIPAddr = e.Packet.ClientIPAddr
		s.compose.putProxyFile(r, e.Class, file)
		from := e.In.From
		return Reply{Packet: r, Route: RouteSource, To: wire.Unmap(from.Addr()), Port: from.Port(), mac: r.ClientHWAddr}
	}
	r := s.compose.newReply(e.Packet, dhcpv4.MessageTypeOffer)
	if e.Class == wire.ClassPXE && isUEFI(e.Arch) {
		r.ServerIPAddr = s.cfg.Address.AsSlice()
		r.UpdateOption(dhcpv4.OptClassIdentifier("PXEClient"))
	} else {
		s.compose.putProxyFile(r, e.Class, file)
	}
	// There is no address to send a unicast to.
	r.SetBroadcast()
	return routeReply(r, e.Relay, netip.Addr{})
}

// putProxyFile adds a boot file to a proxy's reply. Every PXE client, also iPXE, recognizes a proxy
// by option 60, and skips port 4011 with option 43.
func (c *composer) putProxyFile(r *dhcpv4.DHCPv4, class wire.Class, file string) {
	if class == wire.ClassIPXE {
		class = wire.ClassPXE
	}
	c.putBootFile(r, class, file)
}

// mayProxy reports whether a request may be answered: the machine's interface is not excluded,
// and the answer goes to a network of this host or to the network of the machine's address, so
// that a sender cannot direct packets to any host (S30).
func (s *Server) mayProxy(ctx context.Context, e *exchange, asked bool) bool {
	i := e.client.Interface
	if i.DisableDHCP {
		e.log().Info("DHCP not answered", "reasons", s.cfg.Decider.Reasons(ctx, e.Request))
		return false
	}
	to := e.Network
	if asked {
		to = wire.Unmap(e.In.From.Addr())
	}
	switch {
	case !to.IsValid(), asked && wire.OnNetworks(e.In.Prefixes, to):
		return true
	case i.Address.Is4() && e.isNear(to) && (asked || len(s.cfg.Relays) > 0 || e.isNear(e.Relay)):
	case !i.Address.Is4() && s.cfg.Relays.AreNear(to):
	default:
		e.log().Error("DHCP not answered: the machine has no address in the network that it asks from; "+
			"enter the one that the other DHCP server gives to it, or list the relay under netboot.relays, with the length of "+
			"its network unless that is 24, for example 10.10.30.0/23", "from", to.String())
		return false
	}
	if !asked && len(s.cfg.Relays) == 0 {
		s.relays.record(ctx, e.Relay, e.log)
	}
	return true
}

// isUEFI reports whether an architecture of option 93 is UEFI PXE.
func isUEFI(arch int) bool { return arch != wire.ArchBIOS && arch != wire.ArchUnknown }
