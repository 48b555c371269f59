package bootsvc

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

const maxHops = 16 // RFC 1542 §4.1.1

// route is how a reply is sent.
type route int

const (
	routeNone      route = iota // no reply
	routeRelay                  // UDP to giaddr:67
	routeUnicast                // UDP to an address that the client has already
	routeBroadcast              // UDP to 255.255.255.255:68
	routeRaw                    // Ethernet frame to a client without an address, which cannot answer ARP
	routeSource                 // UDP to the source address and port of the request (wire.ProxyPort)
)

func (r route) String() string {
	return [...]string{"none", "relay", "unicast", "broadcast", "raw", "source"}[r]
}

// link is where a packet was received.
type link struct {
	name     string         // interface
	prefixes []netip.Prefix // of the interface
	mode     inventory.DHCPMode
	port     int            // of this server
	from     netip.AddrPort // the packet's source
}

// reply is a DHCP packet and how it is sent.
type reply struct {
	packet *dhcpv4.DHCPv4
	route  route
	to     netip.Addr // relay, unicast, raw, source
	port   uint16     // source
	mac    net.HardwareAddr
	own    bool // to is reserved for an armed machine, or is a listed relay
}

// requestOf returns the Request for a packet.
func requestOf(p *dhcpv4.DHCPv4, mac string) Request {
	r := Request{MAC: mac, Arch: wire.ArchUnknown, Brief: true}
	archs := wire.Architectures(p.Options.Get(dhcpv4.OptionClientSystemArchitectureType))
	if len(archs) > 0 {
		r.Arch = archs[max(0, slices.IndexFunc(archs, hasLoader))]
	}
	class := string(p.Options.Get(dhcpv4.OptionClassIdentifier))
	switch {
	case isIPXEUserClass(p.Options.Get(dhcpv4.OptionUserClassInformation)):
		r.Class = wire.ClassIPXE
	case strings.HasPrefix(class, "HTTPClient"):
		r.Class = wire.ClassHTTP
	case strings.HasPrefix(class, "PXEClient"):
		r.Class = wire.ClassPXE
	}
	return r
}

// isIPXEUserClass reports whether option 77 contains iPXE. iPXE sends the bare string,
// although RFC 3004 requires a length before each item.
func isIPXEUserClass(b []byte) bool {
	if bytes.Equal(b, []byte("iPXE")) {
		return true
	}
	for len(b) > 0 {
		n := int(b[0])
		if n == 0 || n >= len(b) {
			return false
		}
		if bytes.Equal(b[1:1+n], []byte("iPXE")) {
			return true
		}
		b = b[1+n:]
	}
	return false
}

// mayRelay reports whether Config.Relays allows giaddr.
func (s *Server) mayRelay(giaddr netip.Addr) bool {
	for _, p := range s.cfg.Relays {
		if p.Contains(giaddr) {
			return true
		}
	}
	return len(s.cfg.Relays) == 0
}

// exchange is a DHCP request, where it came from, and what the inventory has about
// its client.
type exchange struct {
	packet   *dhcpv4.DHCPv4
	request  Request
	in       link
	relay    netip.Addr // giaddr; invalid = not relayed
	network  netip.Addr // of the client: giaddr, or what the relay selects (RFC 3527)
	machine  inventory.Machine
	grant    inventory.Grant
	decision Decision     // without reasons
	subnet   netip.Prefix // of the reservation
	base     *slog.Logger
}

// log returns a logger with what is known of e. Few packets are logged, so it is made when needed.
func (e *exchange) log() *slog.Logger {
	l := e.base.With("mac", e.request.MAC, "message", e.packet.MessageType().String(), "interface", e.in.name)
	if e.relay.IsValid() {
		l = l.With("relay", e.relay.String())
	}
	if e.decision.Machine != "" {
		l = l.With(e.decision.logKeys()...)
	}
	return l
}

// answer returns the reply to a packet, or routeNone. It sends nothing. It waits only
// for the inventory and for the record of a relay.
func (s *Server) answer(ctx context.Context, p *dhcpv4.DHCPv4, in link) reply {
	if p.OpCode == dhcpv4.OpcodeBootReply {
		s.deliver(p)
		return reply{}
	}
	x, ok := s.newExchange(p, in)
	if !ok {
		s.noteHardware(p, in)
		return reply{}
	}

	// A pointer to it is not returned, so that it stays on the stack.
	e := &x
	if e.request.MAC == neighbours.CheckMAC && e.relay.IsValid() && e.relay == s.cfg.Address { // from CheckClient of this server
		return s.answerCheck(p, e.request, e.relay)
	}
	if !s.acceptsRelay(ctx, e) {
		return reply{}
	}

	var err error
	if e.machine, e.grant, e.decision, err = s.lookup(ctx, e.request); err != nil {
		e.log().Error("looking up a machine for DHCP", "error", err)
		return reply{}
	}
	if e.decision.Verdict == Unknown || e.decision.Verdict == Discover {
		if !s.discoverGuest(ctx, e) {
			return s.answerUnknown(ctx, e)
		}
		s.noteUnknown(e)
	}
	e.subnet = reservationPrefix(e.decision.Interface, in)
	var r reply
	switch {
	case in.mode == inventory.DHCPProxy:
		r = s.answerProxy(ctx, e)
	case s.mayLease(ctx, e):
		r = s.answerKnown(e)
		s.noteLease(e, r)
	}
	if r.route != routeNone {
		e.shortenReply(r.packet)
	}
	r.own = e.decision.Armed() && r.to == e.decision.Interface.Address || r.route == routeRelay && len(s.cfg.Relays) > 0
	if r.route != routeNone {
		s.stats.dhcpAnswered.Add(1)
		if s.log.Enabled(ctx, slog.LevelDebug) {
			e.log().Debug("DHCP answered", "reply", r.packet.MessageType().String(), "route", r.route.String(),
				"bootFile", r.packet.BootFileName, "verdict", string(e.decision.Verdict))
		}
	}
	return r
}

// reasons explains e's decision, for the log.
func (s *Server) reasons(e *exchange) []string {
	r := e.request
	r.Brief = false
	return s.decide(e.machine, e.grant, r).Reasons
}

// newExchange returns false for a packet that is not a DHCP request of an
// Ethernet client.
func (s *Server) newExchange(p *dhcpv4.DHCPv4, in link) (exchange, bool) {
	if p.OpCode != dhcpv4.OpcodeBootRequest || p.HWType != iana.HWTypeEthernet || p.HopCount > maxHops {
		return exchange{}, false
	}
	mac, ok := wire.HostMAC(p.ClientHWAddr)
	kind := p.MessageType()
	if !ok || kind == dhcpv4.MessageTypeNone {
		return exchange{}, false
	}
	e := exchange{
		packet: p, request: requestOf(p, mac), in: in, relay: wire.Addr4(p.GatewayIPAddr),
		base: s.log,
	}
	e.network = cmp.Or(linkSelection(p), e.relay)
	return e, true
}

// acceptsRelay applies Config.Relays and Config.RelayOnly. It records that a listed
// relay was heard. Without a list, a relay is recorded once its request matches a
// reservation.
func (s *Server) acceptsRelay(ctx context.Context, e *exchange) bool {
	if !e.relay.IsValid() {
		if s.cfg.RelayOnly {
			// A renewal by unicast, which the client repeats by broadcast, or a client
			// that is not behind a relay.
			s.stats.dhcpDirect.Add(1)
		}
		return !s.cfg.RelayOnly
	}
	if !s.mayRelay(e.relay) {
		e.log().Warn("DHCP through a relay that is not listed: not answered")
		return false
	}
	if len(s.cfg.Relays) > 0 {
		s.recordRelay(ctx, e.relay, e.log)
	}
	return true
}

// answerUnknown records a client that is not in the inventory. It answers only the
// client of a check, CheckMAC.
func (s *Server) answerUnknown(ctx context.Context, e *exchange) reply {
	mac := e.request.MAC
	if e.relay.IsValid() && len(s.cfg.Relays) == 0 {
		// The client has no reservation to compare giaddr with. Answers to any giaddr
		// would let a sender direct packets to any host (S30).
		reserved := s.machines.InReservedNetwork(e.relay)
		if reserved {
			s.recordRelay(ctx, e.relay, e.log)
		}
		if mac == neighbours.CheckMAC && !reserved && !local(e.in, e.relay) {
			return reply{}
		}
	}
	if mac == neighbours.CheckMAC {
		return s.answerCheck(e.packet, e.request, e.relay)
	}

	s.noteUnknown(e)
	return reply{}
}

// noteUnknown records that an unknown MAC has asked, and renews what it has as a guest.
func (s *Server) noteUnknown(e *exchange) {
	mac := e.request.MAC
	s.stats.dhcpUnknown.Add(1)
	if _, g := s.guestsOf(e); g != nil {
		if _, _, ok := g.find(mac, netip.Addr{}, s.now()); ok {
			g.admit(mac, s.now(), func(netip.Addr) bool { return false })
		}
	}
	port, relay := e.in.name, ""
	if e.relay.IsValid() {
		relay = e.relay.String()
		port = relay
	}
	s.rec.Unknown(mac, port, relay, string(e.packet.Options.Get(dhcpv4.OptionClassIdentifier)))
}

// mayLease reports whether the machine has a reservation in the network that the
// request came from.
func (s *Server) mayLease(ctx context.Context, e *exchange) bool {
	if !e.decision.Address {
		e.log().Info("DHCP not answered", "reasons", s.reasons(e))
		return false
	}
	if !e.relay.IsValid() {
		return true
	}
	if !e.near(e.network) || len(s.cfg.Relays) == 0 && !e.near(e.relay) {
		e.log().Error("DHCP not answered: the reservation is not in the relay's subnet; "+
			"correct the machine's address or its cabling, or list the relay under netboot.relays if it selects another subnet",
			"reservation", e.subnet.String(), "selected", e.network.String())
		return false
	}
	if len(s.cfg.Relays) == 0 {
		s.recordRelay(ctx, e.relay, e.log)
	}
	return true
}

// near reports whether a is in the reservation's subnet, or is the reservation's router, which may be outside.
func (e *exchange) near(a netip.Addr) bool {
	return e.subnet.Contains(a) || a.IsValid() && a == e.decision.Interface.Gateway
}

// reservationPrefix returns i's address with a prefix length: that of i's netmask, or
// of the subnet of in that contains the address, or 24.
func reservationPrefix(i inventory.Interface, in link) netip.Prefix {
	if _, ok := i.MaskBits(); !ok {
		for _, p := range in.prefixes {
			if p.Contains(i.Address) {
				return netip.PrefixFrom(i.Address, p.Bits())
			}
		}
	}
	return i.Subnet()
}

// answerKnown answers a machine that has a reservation.
func (s *Server) answerKnown(e *exchange) reply {
	p, reserved := e.packet, e.decision.Interface.Address
	// Send by unicast only to the reservation. With any other address, a sender could
	// direct packets to any host.
	to := wire.Addr4(p.ClientIPAddr)
	if to != reserved {
		to = netip.Addr{}
	}
	forUs := s.isFor(p)

	switch p.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		if x, ok := s.conflict(e.request.MAC, reserved); ok {
			e.log().Warn("DHCP not answered: another host uses the reserved address", "address", reserved.String(), "other", x.Other)
			return reply{}
		}
		return s.send(s.lease(e, dhcpv4.MessageTypeOffer), e.relay, to)
	case dhcpv4.MessageTypeRequest:
		if forUs { // otherwise the client chose another server
			return s.answerRequest(e, to)
		}
		s.noteRival(e)
	case dhcpv4.MessageTypeInform:
		if !to.IsValid() {
			return reply{}
		}
		r := s.lease(e, dhcpv4.MessageTypeAck)
		r.YourIPAddr = net.IPv4zero
		r.Options.Del(dhcpv4.OptionIPAddressLeaseTime)
		return reply{packet: r, route: routeUnicast, to: to, mac: r.ClientHWAddr}
	case dhcpv4.MessageTypeDecline:
		if s.declinesReservation(e) { // the packet may be forged, so the reservation stays
			e.log().Error("DHCP DECLINE: the machine reports that another host uses its reserved address",
				"address", reserved.String())
			if _, g := s.guestsOf(e); g != nil && e.decision.Verdict == Discover {
				g.declined(e.request.MAC, s.now())
			}
		}
	case dhcpv4.MessageTypeRelease:
		if forUs {
			e.log().Info("DHCP RELEASE: the reservation stays")
		}
	}
	return reply{}
}

// declinesReservation reports whether a DECLINE is for this server and names the reserved address
// (RFC 2131 table 5).
func (s *Server) declinesReservation(e *exchange) bool {
	return s.isFor(e.packet) && wire.Addr4(e.packet.Options.Get(dhcpv4.OptionRequestedIPAddress)) == e.decision.Interface.Address
}

// answerRequest answers a REQUEST to this server. to is the address for a unicast
// answer, if any.
func (s *Server) answerRequest(e *exchange, to netip.Addr) reply {
	reserved := e.decision.Interface.Address
	wanted := wire.Addr4(e.packet.Options.Get(dhcpv4.OptionRequestedIPAddress))
	if !wanted.IsValid() {
		wanted = wire.Addr4(e.packet.ClientIPAddr)
	}
	switch {
	case !wanted.IsValid():
		e.log().Info("DHCP REQUEST without an address: not answered")
	case wanted == reserved:
		return s.send(s.lease(e, dhcpv4.MessageTypeAck), e.relay, to)
	case e.relay.IsValid() || local(e.in, reserved):
		e.log().Info("DHCP REQUEST for an address that is not the reservation: NAK",
			"wanted", wanted.String(), "reservation", reserved.String())
		return s.nak(e.packet, e.relay)
	}
	return reply{}
}

// local reports whether a is in a subnet of the interface.
func local(in link, a netip.Addr) bool {
	for _, p := range in.prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// noteRival notes that a machine with a reservation has chosen another server (RFC 2131 §4.3.2). It may also have
// chosen this one, through a relay which stands in for it (RFC 5107); that relay's copy of the message is answered.
func (s *Server) noteRival(e *exchange) {
	server := wire.Addr4(e.packet.Options.Get(dhcpv4.OptionServerIdentifier))
	if !server.IsValid() || s.relayed.has(server) {
		return
	}
	s.sightRival(inventory.Rival{Server: server, Where: e.where(), Machine: e.machine.Name})
}
