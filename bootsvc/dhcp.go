package bootsvc

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"net"
	"net/netip"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/ingotmetal/ingot/inventory"
)

const maxHops = 16 // RFC 1542 §4.1.1

// A route is how a reply is sent.
type route int

const (
	routeNone      route = iota // no reply
	routeRelay                  // UDP to giaddr:67
	routeUnicast                // UDP to an address that the client has
	routeBroadcast              // UDP to 255.255.255.255:68
	routeRaw                    // Ethernet frame to a client without an address: it could not answer ARP
)

func (r route) String() string {
	return [...]string{"none", "relay", "unicast", "broadcast", "raw"}[r]
}

// link is where a packet came in.
type link struct {
	name     string         // interface
	prefixes []netip.Prefix // of the interface
}

// reply is a DHCP packet and how it is sent.
type reply struct {
	packet *dhcpv4.DHCPv4
	route  route
	to     netip.Addr // relay, unicast, raw
	mac    net.HardwareAddr
}

// addr4 returns ip as an address; zero and absent ones are invalid.
func addr4(ip net.IP) netip.Addr {
	a, ok := netip.AddrFromSlice(ip.To4())
	if !ok || a.IsUnspecified() {
		return netip.Addr{}
	}
	return a
}

// requestOf reads what Decide needs of a packet.
func requestOf(p *dhcpv4.DHCPv4, mac string) Request {
	r := Request{MAC: mac, Arch: ArchUnknown}
	if a := p.Options.Get(dhcpv4.OptionClientSystemArchitectureType); len(a) >= 2 {
		r.Arch = int(binary.BigEndian.Uint16(a))
	}
	class := string(p.Options.Get(dhcpv4.OptionClassIdentifier))
	switch {
	case userClass(p.Options.Get(dhcpv4.OptionUserClassInformation)):
		r.Class = ClassIPXE
	case strings.HasPrefix(class, "HTTPClient"):
		r.Class = ClassHTTP
	case strings.HasPrefix(class, "PXEClient"):
		r.Class = ClassPXE
	}
	return r
}

// userClass reports whether option 77 says iPXE. RFC 3004 asks for items with a
// length before each; iPXE sends the bare string.
func userClass(b []byte) bool {
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

// mayRelay applies Config.Relays.
func (s *Server) mayRelay(giaddr netip.Addr) bool {
	for _, p := range s.cfg.Relays {
		if p.Contains(giaddr) {
			return true
		}
	}
	return len(s.cfg.Relays) == 0
}

// An exchange is a DHCP request, what the inventory has of its client, and where
// it came from.
type exchange struct {
	packet   *dhcpv4.DHCPv4
	request  Request
	in       link
	relay    netip.Addr // giaddr; invalid: not relayed
	machine  inventory.Machine
	decision Decision
	subnet   netip.Prefix // of the reservation
	log      *slog.Logger
}

// answer returns the reply to a packet, with routeNone when there is none. It
// sends nothing, and waits only for the inventory and the record of a relay.
func (s *Server) answer(ctx context.Context, p *dhcpv4.DHCPv4, in link) reply {
	if p.OpCode == dhcpv4.OpcodeBootReply {
		s.checks.hear(p)
		return reply{}
	}
	e, ok := s.newExchange(p, in)
	if !ok {
		return reply{}
	}
	if e.request.MAC == CheckMAC && e.relay.IsValid() && e.relay == s.cfg.Address { // this server's own, see CheckClient
		return s.answerCheck(p, e.request, e.relay)
	}
	if !s.acceptsRelay(ctx, e) {
		return reply{}
	}

	var err error
	if e.machine, _, e.decision, err = s.lookup(ctx, e.request); err != nil {
		e.log.Error("looking up a machine for DHCP", "error", err)
		return reply{}
	}
	if e.decision.Verdict == Unknown {
		return s.answerUnknown(ctx, e)
	}
	e.log = e.log.With("machine", e.machine.Name)
	e.subnet = reservationPrefix(e.decision.Interface, in)
	if !s.mayLease(ctx, e) {
		return reply{}
	}

	r := s.answerKnown(e)
	if r.route != routeNone {
		s.stats.dhcpAnswered.Add(1)
		e.log.Debug("DHCP answered", "reply", r.packet.MessageType().String(), "route", r.route.String(),
			"bootFile", r.packet.BootFileName, "verdict", string(e.decision.Verdict))
	}
	return r
}

// newExchange returns false for a packet that is not a DHCP request of an
// Ethernet client.
func (s *Server) newExchange(p *dhcpv4.DHCPv4, in link) (*exchange, bool) {
	if p.OpCode != dhcpv4.OpcodeBootRequest || p.HWType != iana.HWTypeEthernet ||
		len(p.ClientHWAddr) != 6 || p.HopCount > maxHops {
		return nil, false
	}
	mac, ok := ParseMAC(p.ClientHWAddr.String())
	kind := p.MessageType()
	if !ok || kind == dhcpv4.MessageTypeNone {
		return nil, false
	}
	e := &exchange{
		packet: p, request: requestOf(p, mac), in: in, relay: addr4(p.GatewayIPAddr),
		log: s.log.With("mac", mac, "message", kind.String(), "interface", in.name),
	}
	if e.relay.IsValid() {
		e.log = e.log.With("relay", e.relay.String())
	}
	return e, true
}

// acceptsRelay applies Config.Relays and Config.RelayOnly. A listed relay is
// recorded as heard; any other proves itself by what it asks for.
func (s *Server) acceptsRelay(ctx context.Context, e *exchange) bool {
	if !e.relay.IsValid() {
		if s.cfg.RelayOnly {
			// A renewal by unicast, or a client that is not behind a relay. Clients
			// repeat a renewal by broadcast.
			s.stats.dhcpDirect.Add(1)
		}
		return !s.cfg.RelayOnly
	}
	if !s.mayRelay(e.relay) {
		e.log.Warn("DHCP through a relay that is not listed: not answered")
		return false
	}
	if len(s.cfg.Relays) > 0 {
		s.hear(ctx, e.relay, e.log)
	}
	return true
}

// answerUnknown records a client that the inventory does not have. Only the
// client of this server's own check is answered.
func (s *Server) answerUnknown(ctx context.Context, e *exchange) reply {
	mac := e.request.MAC
	if e.relay.IsValid() && len(s.cfg.Relays) == 0 {
		// There is no reservation to compare giaddr with, and an answer to any
		// giaddr would go wherever its sender points (S30).
		reserved := s.reserved(ctx, e.relay, e.log)
		if reserved {
			s.hear(ctx, e.relay, e.log)
		}
		if mac == CheckMAC && !reserved && !local(e.in, e.relay) {
			return reply{}
		}
	}
	if mac == CheckMAC {
		return s.answerCheck(e.packet, e.request, e.relay)
	}

	s.stats.dhcpUnknown.Add(1)
	port, relay := e.in.name, ""
	if e.relay.IsValid() {
		relay = e.relay.String()
		port = relay
	}
	s.rec.unknown(mac, port, relay, string(e.packet.Options.Get(dhcpv4.OptionClassIdentifier)))
	return reply{}
}

// mayLease reports whether the machine has a reservation in the network from which
// the request came.
func (s *Server) mayLease(ctx context.Context, e *exchange) bool {
	if !e.decision.Address {
		e.log.Info("DHCP not answered", "reasons", e.decision.Reasons)
		return false
	}
	if !e.relay.IsValid() {
		return true
	}
	if !e.subnet.Contains(e.relay) {
		e.log.Error("DHCP not answered: the reservation is not in the relay's subnet, "+
			"correct the machine's address or move the cable", "reservation", e.subnet.String())
		return false
	}
	if len(s.cfg.Relays) == 0 {
		s.hear(ctx, e.relay, e.log)
	}
	return true
}

// reservationPrefix returns i's address with the length of its netmask or,
// without one, of the interface's own subnet that holds it.
func reservationPrefix(i inventory.Interface, in link) netip.Prefix {
	if ip := net.ParseIP(i.Netmask).To4(); ip != nil {
		if ones, size := net.IPMask(ip).Size(); size == 32 {
			return netip.PrefixFrom(i.Address, ones)
		}
	}
	for _, p := range in.prefixes {
		if p.Contains(i.Address) {
			return netip.PrefixFrom(i.Address, p.Bits())
		}
	}
	return netip.PrefixFrom(i.Address, 24)
}

// answerKnown answers a machine that has a reservation.
func (s *Server) answerKnown(e *exchange) reply {
	p, reserved := e.packet, e.decision.Interface.Address
	// Only the reservation itself is answered by unicast: any other address that
	// a packet claims would make us send wherever its sender points.
	to := addr4(p.ClientIPAddr)
	if to != reserved {
		to = netip.Addr{}
	}
	id := p.Options.Get(dhcpv4.OptionServerIdentifier)
	forUs := id == nil || addr4(id) == s.cfg.Address

	switch p.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		return s.send(s.lease(e, dhcpv4.MessageTypeOffer), e.relay, to)
	case dhcpv4.MessageTypeRequest:
		if forUs { // otherwise the client chose another server
			return s.answerRequest(e, to)
		}
	case dhcpv4.MessageTypeInform:
		if !to.IsValid() {
			return reply{}
		}
		r := s.lease(e, dhcpv4.MessageTypeAck)
		r.YourIPAddr = net.IPv4zero
		r.Options.Del(dhcpv4.OptionIPAddressLeaseTime)
		return reply{packet: r, route: routeUnicast, to: to, mac: r.ClientHWAddr}
	case dhcpv4.MessageTypeDecline:
		// The packet may be forged, so the reservation stays.
		e.log.Error("DHCP DECLINE: the machine says that its reserved address is in use by another host",
			"address", reserved.String())
	case dhcpv4.MessageTypeRelease:
		if forUs {
			e.log.Info("DHCP RELEASE: the reservation stays")
		}
	}
	return reply{}
}

// answerRequest answers a REQUEST for this server. to is where an answer by
// unicast may go.
func (s *Server) answerRequest(e *exchange, to netip.Addr) reply {
	reserved := e.decision.Interface.Address
	wanted := addr4(e.packet.Options.Get(dhcpv4.OptionRequestedIPAddress))
	if !wanted.IsValid() {
		wanted = addr4(e.packet.ClientIPAddr)
	}
	switch {
	case !wanted.IsValid():
		e.log.Info("DHCP REQUEST without an address: not answered")
	case wanted == reserved:
		return s.send(s.lease(e, dhcpv4.MessageTypeAck), e.relay, to)
	case e.relay.IsValid() || local(e.in, reserved):
		e.log.Info("DHCP REQUEST for an address that is not the reservation: NAK",
			"wanted", wanted.String(), "reservation", reserved.String())
		return s.nak(e.packet, e.relay)
	}
	return reply{}
}

func local(in link, a netip.Addr) bool {
	for _, p := range in.prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
