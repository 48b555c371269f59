package bootsvc

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

// answerProxy answers a known machine beside the DHCP server that gives it an address. It is
// silent unless there is a boot file: the machine then boots from disk by the other server's offer.
//
//   - A DISCOVER is answered with an OFFER without an address. For BIOS, iPXE and HTTP clients it
//     has the boot file. UEFI PXE clients of EDK2 take the file only from port 4011: without
//     option 43 they send a REQUEST there.
//   - A message on port 4011 is answered with an ACK that has the boot file.
//   - Everything else belongs to the other server.
func (s *Server) answerProxy(ctx context.Context, e *exchange) reply {
	kind := e.packet.MessageType()
	asked := e.in.port == wire.ProxyPort
	if e.request.Class == wire.ClassNone {
		if kind == dhcpv4.MessageTypeDiscover || kind == dhcpv4.MessageTypeRequest {
			s.rec.Event(e.decision.event(inventory.EventOS, ""))
		}
		return reply{}
	}
	if !asked && kind != dhcpv4.MessageTypeDiscover || !s.mayProxy(ctx, e, asked) {
		return reply{}
	}
	file := s.offeredFile(e)
	if file == "" {
		return reply{}
	}
	if e.request.Class == wire.ClassPXE {
		// The client's address is the other server's choice, so the name says which machine it is.
		file = strings.ReplaceAll(e.request.MAC, ":", "-") + "/" + file
	}

	if asked {
		r := s.base(e.packet, dhcpv4.MessageTypeAck)
		r.ClientIPAddr = e.packet.ClientIPAddr
		s.putProxyFile(r, e.request, file)
		from := e.in.from
		return reply{packet: r, route: routeSource, to: wire.Unmap(from.Addr()), port: from.Port(), mac: r.ClientHWAddr}
	}
	r := s.base(e.packet, dhcpv4.MessageTypeOffer)
	if e.request.Class == wire.ClassPXE && isUEFI(e.request.Arch) {
		r.ServerIPAddr = s.cfg.Address.AsSlice()
		r.UpdateOption(dhcpv4.OptClassIdentifier("PXEClient"))
	} else {
		s.putProxyFile(r, e.request, file)
	}
	// There is no address to send a unicast to.
	r.SetBroadcast()
	return s.send(r, e.relay, netip.Addr{})
}

// putProxyFile adds a boot file to a proxy's reply. Every PXE client, also iPXE, recognizes a proxy
// by option 60, and skips port 4011 with option 43.
func (s *Server) putProxyFile(r *dhcpv4.DHCPv4, req Request, file string) {
	class := req.Class
	if class == wire.ClassIPXE {
		class = wire.ClassPXE
	}
	s.putBootFile(r, class, file)
}

// mayProxy reports whether a request may be answered: the machine's interface is not excluded,
// and the answer goes to a network of this host or to the network of the machine's address, so
// that a sender cannot direct packets to any host (S30).
func (s *Server) mayProxy(ctx context.Context, e *exchange, asked bool) bool {
	i := e.decision.Interface
	if i.DisableDHCP {
		e.log().Info("DHCP not answered", "reasons", s.reasons(e))
		return false
	}
	to := e.network
	if asked {
		to = wire.Unmap(e.in.from.Addr())
	}
	switch {
	case !to.IsValid(), asked && local(e.in, to):
		return true
	case i.Address.Is4() && e.near(to) && (asked || len(s.cfg.Relays) > 0 || e.near(e.relay)):
	case !i.Address.Is4() && s.nearRelay(to):
	default:
		e.log().Error("DHCP not answered: the machine has no address in the network that it asks from; "+
			"enter the one that the other DHCP server gives to it, or list the relay under netboot.relays, with the length of "+
			"its network unless that is 24, for example 10.10.30.0/23", "from", to.String())
		return false
	}
	if !asked && len(s.cfg.Relays) == 0 {
		s.recordRelay(ctx, e.relay, e.log)
	}
	return true
}

// nearRelay reports whether an address is in the network of a listed relay. The length of that
// network is not known: 24 bits are assumed, as for a reservation without a netmask.
func (s *Server) nearRelay(a netip.Addr) bool {
	return slices.ContainsFunc(s.cfg.Relays, func(p netip.Prefix) bool {
		if p.IsSingleIP() {
			p = netip.PrefixFrom(p.Addr(), 24)
		}
		return p.Masked().Contains(a)
	})
}

// isUEFI reports whether an architecture of option 93 is UEFI PXE.
func isUEFI(arch int) bool { return arch != wire.ArchBIOS && arch != wire.ArchUnknown }
