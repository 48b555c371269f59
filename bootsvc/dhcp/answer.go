package dhcp

import (
	"context"
	"log/slog"
	"net"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

// answer returns the reply to a packet, without sending it. The Route of the reply is RouteNone if the packet gets no
// reply. answer waits only for the inventory, and for the record of a relay.
func (s *Server) answer(ctx context.Context, p *dhcpv4.DHCPv4, in Link) Reply {
	if p.OpCode == dhcpv4.OpcodeBootReply {
		s.cfg.Deliver(p)
		return Reply{}
	}
	x, ok := newExchange(p, in, s.cfg.Address, s.cfg.Log)
	if !ok {
		s.noteHardware(p, in)
		return Reply{}
	}

	// newExchange returns a value, not a pointer, so that x stays on the stack.
	e := &x
	if e.MAC == neighbours.CheckMAC && e.Relay.IsValid() && e.Relay == s.cfg.Address { // sent by this server's own CheckClient
		return s.answerCheck(e)
	}
	if !s.acceptsRelay(ctx, e) {
		return Reply{}
	}

	var err error
	if e.client, err = s.cfg.Decider.FindClient(ctx, e.Request); err != nil {
		e.log().Error("looking up a machine for DHCP", "error", err)
		return Reply{}
	}
	if e.client.Owner.Machine == "" {
		if e.client, ok = s.cfg.Guests.Discover(ctx, e.Request); !ok {
			return s.answerUnknown(ctx, e)
		}
		s.noteUnknown(e)
	}
	return s.answerClient(ctx, e)
}

// answerClient returns the reply to a client that has a reservation or is in discovery.
func (s *Server) answerClient(ctx context.Context, e *exchange) Reply {
	e.subnet = reservationPrefix(e.client.Interface, e.In)
	var r Reply
	switch {
	case e.In.Mode == inventory.DHCPProxy:
		r = s.answerProxy(ctx, e)
	case s.mayLease(ctx, e):
		r = s.answerKnown(ctx, e)
		s.leases.note(e, r)
	}
	if r.Route == RouteNone {
		return r
	}

	e.shortenReply(r.Packet)
	r.own = e.client.Armed && r.To == e.client.Interface.Address || r.Route == RouteRelay && len(s.cfg.Relays) > 0
	s.Counters.Answered.Add(1)
	if s.cfg.Log.Enabled(ctx, slog.LevelDebug) {
		e.log().Debug("DHCP answered", "reply", r.Packet.MessageType().String(), "route", r.Route.String(),
			"bootFile", r.Packet.BootFileName, "armed", e.client.Armed)
	}
	return r
}

// acceptsRelay reports whether Config.Relays and Config.RelayAt permit this packet. If relays are listed, it records
// that the relay is used. If none are listed, that is recorded later, when a request through the relay matches a
// reservation.
func (s *Server) acceptsRelay(ctx context.Context, e *exchange) bool {
	if !e.Relay.IsValid() {
		relaysOnly := s.cfg.RelayAt.IsValid()
		if relaysOnly {
			// The client either renews its lease by unicast, and will later repeat the request by broadcast; or it is
			// not behind a relay.
			s.Counters.Direct.Add(1)
		}
		return !relaysOnly
	}
	if !s.cfg.Relays.MayAsk(e.Relay) {
		e.log().Warn("DHCP not answered: the relay is not listed in netboot.relays")
		return false
	}
	if len(s.cfg.Relays) > 0 {
		s.relays.record(ctx, e.Relay, e.log)
	}
	return true
}

// answerUnknown records a client that is not in the inventory. Only the MAC CheckMAC gets a reply.
func (s *Server) answerUnknown(ctx context.Context, e *exchange) Reply {
	if e.Relay.IsValid() && len(s.cfg.Relays) == 0 {
		// There is no reservation to which giaddr could be compared. If every giaddr got an answer, anyone could make
		// this server send packets to any host (S30).
		reserved := s.cfg.Decider.InReservedNetwork(e.Relay)
		if reserved {
			s.relays.record(ctx, e.Relay, e.log)
		}
		if e.MAC == neighbours.CheckMAC && !reserved && !wire.OnNetworks(e.In.Prefixes, e.Relay) {
			return Reply{}
		}
	}
	if e.MAC == neighbours.CheckMAC {
		return s.answerCheck(e)
	}

	s.noteUnknown(e)
	return Reply{}
}

// answerCheck returns an OFFER if the packet is a DISCOVER from CheckMAC of PXE class. Any other packet gets no reply.
func (s *Server) answerCheck(e *exchange) Reply {
	if e.Packet.MessageType() != dhcpv4.MessageTypeDiscover || e.Class != wire.ClassPXE {
		return Reply{}
	}
	r := s.compose.newReply(e.Packet, dhcpv4.MessageTypeOffer)
	r.SetBroadcast() // the client has no address, and will not use an offered one
	r.ServerIPAddr = s.cfg.Address.AsSlice()
	r.UpdateOption(dhcpv4.OptClassIdentifier("PXEClient"))
	r.UpdateOption(dhcpv4.OptBootFileName(s.cfg.Base() + neighbours.CheckPath))
	s.Counters.Answered.Add(1)
	return routeReply(r, e.Relay, netip.Addr{})
}

// noteUnknown counts and records a request from an unknown MAC.
func (s *Server) noteUnknown(e *exchange) {
	s.Counters.Unknown.Add(1)
	port, giaddr := seenAt(e.In, e.Relay)
	s.cfg.Recorder.Unknown(e.MAC, port, giaddr, string(e.Packet.Options.Get(dhcpv4.OptionClassIdentifier)))
}

// mayLease reports whether the client may get its reserved address. If the request came through a relay, the address
// must be in the network from which the client asks.
func (s *Server) mayLease(ctx context.Context, e *exchange) bool {
	if !e.client.Address {
		e.log().Info("DHCP not answered", "reasons", s.cfg.Decider.Reasons(ctx, e.Request))
		return false
	}
	if !e.Relay.IsValid() {
		return true
	}
	if !e.isNear(e.Network) || len(s.cfg.Relays) == 0 && !e.isNear(e.Relay) {
		e.log().Error("DHCP not answered: the reservation is not in the relay's subnet; "+
			"correct the machine's address or its cabling, or list the relay under netboot.relays if the relay selects another subnet",
			"reservation", e.subnet.String(), "selected", e.Network.String())
		return false
	}
	if len(s.cfg.Relays) == 0 {
		s.relays.record(ctx, e.Relay, e.log)
	}
	return true
}

// answerKnown returns the reply to a client that has a reservation or is a guest.
func (s *Server) answerKnown(ctx context.Context, e *exchange) Reply {
	p, reserved := e.Packet, e.client.Interface.Address
	// Send unicast replies only to the reserved address. Otherwise anyone could make this server send packets to any
	// host.
	to := wire.Addr4(p.ClientIPAddr)
	if to != reserved {
		to = netip.Addr{}
	}

	switch p.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		if x, ok := s.leases.conflict(e.MAC, reserved); ok {
			e.log().Warn("DHCP not answered: another host uses the reserved address", "address", reserved.String(), "other", x.Other)
			return Reply{}
		}
		return routeReply(s.offerLease(ctx, e, dhcpv4.MessageTypeOffer), e.Relay, to)
	case dhcpv4.MessageTypeRequest:
		if e.toUs { // if the REQUEST is not for this server, the client has chosen another server
			return s.answerRequest(ctx, e, to)
		}
		s.noteRival(e)
	case dhcpv4.MessageTypeInform:
		if !to.IsValid() {
			return Reply{}
		}
		r := s.offerLease(ctx, e, dhcpv4.MessageTypeAck)
		r.YourIPAddr = net.IPv4zero
		r.Options.Del(dhcpv4.OptionIPAddressLeaseTime)
		return Reply{Packet: r, Route: RouteUnicast, To: to, mac: r.ClientHWAddr}
	case dhcpv4.MessageTypeDecline:
		if e.declinesReservation() { // keep the reservation, because the packet may be forged: only report the DECLINE
			e.log().Error("DHCP DECLINE: the machine reports that another host uses its reserved address",
				"address", reserved.String())
			if e.client.Guest {
				s.cfg.Guests.Decline(e.Request)
			}
		}
	case dhcpv4.MessageTypeRelease:
		if e.toUs {
			e.log().Info("DHCP RELEASE: the reservation stays")
		}
	}
	return Reply{}
}

// answerRequest returns the reply to a REQUEST for this server: an ACK, a NAK or no reply. to is the address for a
// unicast reply; if it is invalid, the reply is not sent by unicast.
func (s *Server) answerRequest(ctx context.Context, e *exchange, to netip.Addr) Reply {
	reserved := e.client.Interface.Address
	wanted := wire.Addr4(e.Packet.Options.Get(dhcpv4.OptionRequestedIPAddress))
	if !wanted.IsValid() {
		wanted = wire.Addr4(e.Packet.ClientIPAddr)
	}
	switch {
	case !wanted.IsValid():
		e.log().Info("DHCP REQUEST without an address: not answered")
	case wanted == reserved:
		return routeReply(s.offerLease(ctx, e, dhcpv4.MessageTypeAck), e.Relay, to)
	case e.Relay.IsValid() || wire.OnNetworks(e.In.Prefixes, reserved):
		e.log().Info("DHCP REQUEST for an address that is not the reservation: NAK",
			"wanted", wanted.String(), "reservation", reserved.String())
		return s.compose.newNAK(e.Packet, e.Relay)
	}
	return Reply{}
}

// offerLease returns an OFFER or ACK with the reserved address. If the Decider names a boot file, the reply contains
// it.
func (s *Server) offerLease(ctx context.Context, e *exchange, kind dhcpv4.MessageType) *dhcpv4.DHCPv4 {
	r := s.compose.newLease(e, kind)
	s.compose.addBoot(r, e, s.cfg.Decider.BootFile(ctx, e.client, e.Request))
	return r
}

// noteRival reports that a machine with a reservation has chosen another server (RFC 2131 §4.3.2). If the chosen server
// is a relay that acts for this server (RFC 5107), noteRival reports nothing: the machine has then chosen this server,
// which answers the copy of the message that the relay forwards.
func (s *Server) noteRival(e *exchange) {
	server := wire.Addr4(e.Packet.Options.Get(dhcpv4.OptionServerIdentifier))
	if !server.IsValid() || s.relays.has(server) {
		return
	}
	s.cfg.SightRival(inventory.Rival{Server: server, Where: e.where(), Machine: e.client.Owner.Machine})
}
