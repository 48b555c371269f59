package dhcp

import (
	"context"
	"net/netip"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/wire"
)

// answerProxy returns the reply to a known machine on a network where another DHCP server assigns the addresses.
// Without a boot file there is no reply, and the machine boots from disk with the other server's offer.
//
//   - A DISCOVER gets an OFFER without an address. For BIOS, iPXE and HTTP clients, this OFFER contains the boot file.
//     But UEFI PXE clients of EDK2 accept the boot file only from port 4011. Their OFFER has no option 43, so that
//     they send a REQUEST to that port.
//   - A message on port 4011 gets an ACK with the boot file.
//   - Every other message is for the other server, and gets no reply.
func (s *Server) answerProxy(ctx context.Context, e *exchange) Reply {
	kind := e.Packet.MessageType()
	asked := e.In.Port == wire.ProxyPort
	if e.Class == wire.ClassNone {
		if kind == dhcpv4.MessageTypeDiscover || kind == dhcpv4.MessageTypeRequest {
			s.cfg.Decider.BootFile(ctx, e.client, e.Request) // records the request; it never returns a file here
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
		// The other server has assigned the client's address, so Ingot may not know it. Therefore the file name
		// contains the MAC, which identifies the machine.
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
	// Broadcast the reply, because the client has no address yet.
	r.SetBroadcast()
	return routeReply(r, e.Relay, netip.Addr{})
}

// putProxyFile adds a boot file to a proxy reply. PXE clients and iPXE recognize a reply of a proxy by option 60. If
// the reply also has option 43, they do not ask port 4011.
func (c *composer) putProxyFile(r *dhcpv4.DHCPv4, class wire.Class, file string) {
	if class == wire.ClassIPXE {
		class = wire.ClassPXE
	}
	c.putBootFile(r, class, file)
}

// mayProxy reports whether a request may be answered. DHCP must not be disabled for the machine's interface, and the
// reply must go to a network of this host or to the network of the machine's address. Otherwise anyone could make this
// server send packets to any host (S30).
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
		e.log().Error("DHCP not answered: the machine's address is not in the network of this request; "+
			"set the machine's address to the one that the other DHCP server assigns, or list the relay under netboot.relays, "+
			"with the prefix length of its network (24 may be left out), for example 10.10.30.0/23", "from", to.String())
		return false
	}
	if !asked && len(s.cfg.Relays) == 0 {
		s.relays.record(ctx, e.Relay, e.log)
	}
	return true
}

// isUEFI reports whether arch, the value of option 93 that a PXE client has sent, means UEFI.
func isUEFI(arch int) bool { return arch != wire.ArchBIOS && arch != wire.ArchUnknown }
