package bootsvc

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	defaultLease = 7 * 24 * time.Hour // 0 would be a lease that has ended when it begins
	maxHops      = 16                 // RFC 1542 §4.1.1
	ipxeOptions  = 175                // option of iPXE's own, encapsulated
	noProxyDHCP  = 176                // its sub-option: do not wait 3 s for a proxy offer
)

// How a reply leaves.
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

// reply is a DHCP packet and its way.
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

// requestOf reads what Decide wants to know.
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

// userClass tells whether option 77 says iPXE. RFC 3004 wants items with a
// length before each, iPXE sends the bare string.
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

// answer returns the reply to a packet, with routeNone when there is none. It
// sends nothing and waits for nothing but the inventory and the record of a relay.
func (s *Server) answer(ctx context.Context, p *dhcpv4.DHCPv4, in link) reply {
	none := reply{}
	if p.OpCode == dhcpv4.OpcodeBootReply {
		s.checks.hear(p)
		return none
	}
	if p.OpCode != dhcpv4.OpcodeBootRequest || p.HWType != iana.HWTypeEthernet || len(p.ClientHWAddr) != 6 || p.HopCount > maxHops {
		return none
	}
	mac, ok := ParseMAC(p.ClientHWAddr.String())
	kind := p.MessageType()
	if !ok || kind == dhcpv4.MessageTypeNone {
		return none
	}
	giaddr := addr4(p.GatewayIPAddr)
	if mac == CheckMAC && giaddr.IsValid() && giaddr == s.cfg.Address { // this server's own, see CheckClient
		return s.answerCheck(p, requestOf(p, mac), giaddr)
	}
	if s.cfg.RelayOnly && !giaddr.IsValid() {
		s.stats.dhcpDirect.Add(1) // a client's renewal by unicast, or somebody who is no relay; clients ask again by broadcast
		return none
	}
	log := s.log.With("mac", mac, "message", kind.String(), "interface", in.name)
	if giaddr.IsValid() {
		log = log.With("relay", giaddr.String())
		if !s.mayRelay(giaddr) {
			log.Warn("DHCP through a relay that is not listed: not answered")
			return none
		}
		if len(s.cfg.Relays) > 0 { // any other proves itself by what it asks for
			s.hear(ctx, giaddr, log)
		}
	}
	req := requestOf(p, mac)
	m, _, d, err := s.lookup(ctx, req)
	if err != nil {
		log.Error("looking up a machine for DHCP", "error", err)
		return none
	}
	if d.Verdict == Unknown && giaddr.IsValid() && len(s.cfg.Relays) == 0 {
		// It asks for no reservation against which its giaddr could be held, and
		// an answer to any giaddr would go wherever its sender points (S30).
		reserved := s.reserved(ctx, giaddr, log)
		if reserved {
			s.hear(ctx, giaddr, log)
		}
		if mac == CheckMAC && !reserved && !local(in, giaddr) {
			return none
		}
	}
	if d.Verdict == Unknown && mac == CheckMAC {
		return s.answerCheck(p, req, giaddr)
	}
	if d.Verdict == Unknown {
		s.stats.dhcpUnknown.Add(1)
		port, relay := in.name, ""
		if giaddr.IsValid() {
			relay = giaddr.String()
			port = relay
		}
		s.rec.unknown(mac, port, relay, string(p.Options.Get(dhcpv4.OptionClassIdentifier)))
		return none
	}
	log = log.With("machine", m.Name)
	if !d.Address {
		log.Info("DHCP not answered", "reasons", d.Reasons)
		return none
	}
	subnet := reservationPrefix(d.Interface, in)
	if giaddr.IsValid() && !subnet.Contains(giaddr) {
		log.Error("DHCP not answered: the reservation is not in the relay's subnet, correct the machine's address or move the cable",
			"reservation", subnet.String())
		return none
	}
	if giaddr.IsValid() && len(s.cfg.Relays) == 0 {
		s.hear(ctx, giaddr, log)
	}
	r := s.answerKnown(p, m, d, req, subnet, giaddr, in, log)
	if r.route == routeNone {
		return r
	}
	s.stats.dhcpAnswered.Add(1)
	log.Debug("DHCP answered", "reply", r.packet.MessageType().String(), "route", r.route.String(), "bootFile", r.packet.BootFileName, "verdict", string(d.Verdict))
	return r
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

func (s *Server) answerKnown(p *dhcpv4.DHCPv4, m inventory.Machine, d Decision, req Request, subnet netip.Prefix, giaddr netip.Addr, in link, log *slog.Logger) reply {
	self, ciaddr := s.cfg.Address, addr4(p.ClientIPAddr)
	// Only the reservation itself is answered by unicast: any other address
	// that a packet claims would make us send where its sender points.
	to := ciaddr
	if to != d.Interface.Address {
		to = netip.Addr{}
	}
	id := p.Options.Get(dhcpv4.OptionServerIdentifier)
	forUs := id == nil || addr4(id) == self
	switch p.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		return s.send(s.lease(p, m, d, req, subnet, dhcpv4.MessageTypeOffer, giaddr), giaddr, to)
	case dhcpv4.MessageTypeRequest:
		if !forUs {
			return reply{} // it chose another server
		}
		wanted := addr4(p.Options.Get(dhcpv4.OptionRequestedIPAddress))
		if !wanted.IsValid() {
			wanted = ciaddr
		}
		switch {
		case !wanted.IsValid():
			log.Info("DHCP REQUEST that names no address: not answered")
			return reply{}
		case wanted == d.Interface.Address:
			return s.send(s.lease(p, m, d, req, subnet, dhcpv4.MessageTypeAck, giaddr), giaddr, to)
		case giaddr.IsValid() || local(in, d.Interface.Address):
			log.Info("DHCP REQUEST for an address that is not the reservation: NAK", "wanted", wanted.String(), "reservation", d.Interface.Address.String())
			return s.nak(p, giaddr)
		}
		return reply{}
	case dhcpv4.MessageTypeInform:
		if !to.IsValid() {
			return reply{}
		}
		r := s.lease(p, m, d, req, subnet, dhcpv4.MessageTypeAck, giaddr)
		r.YourIPAddr = net.IPv4zero
		r.Options.Del(dhcpv4.OptionIPAddressLeaseTime)
		return reply{packet: r, route: routeUnicast, to: to, mac: r.ClientHWAddr}
	case dhcpv4.MessageTypeDecline:
		// It may be forged: the reservation stays, a person is told.
		log.Error("DHCP DECLINE: the machine says that its reserved address is in use by somebody else", "address", d.Interface.Address.String())
	case dhcpv4.MessageTypeRelease:
		if forUs {
			log.Info("DHCP RELEASE: the reservation stays")
		}
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

// send chooses the way of an OFFER or ACK (RFC 2131 §4.1).
func (s *Server) send(p *dhcpv4.DHCPv4, giaddr, ciaddr netip.Addr) reply {
	r := reply{packet: p, mac: p.ClientHWAddr}
	switch {
	case giaddr.IsValid():
		r.route, r.to = routeRelay, giaddr
	case ciaddr.IsValid():
		r.route, r.to = routeUnicast, ciaddr
	case p.IsBroadcast():
		r.route = routeBroadcast
	default:
		r.route, r.to = routeRaw, addr4(p.YourIPAddr)
	}
	return r
}

// base returns a reply of kind with what every one carries: giaddr, options
// 82 and 61 as they came (the library puts 82 last), 54 and 97.
func (s *Server) base(p *dhcpv4.DHCPv4, kind dhcpv4.MessageType) *dhcpv4.DHCPv4 {
	r := &dhcpv4.DHCPv4{
		OpCode: dhcpv4.OpcodeBootReply, HWType: p.HWType, ClientHWAddr: p.ClientHWAddr, TransactionID: p.TransactionID, Flags: p.Flags,
		GatewayIPAddr: p.GatewayIPAddr, ClientIPAddr: net.IPv4zero, YourIPAddr: net.IPv4zero, ServerIPAddr: net.IPv4zero,
		Options: make(dhcpv4.Options),
	}
	r.UpdateOption(dhcpv4.OptMessageType(kind))
	r.UpdateOption(dhcpv4.OptServerIdentifier(s.cfg.Address.AsSlice()))
	for _, code := range []dhcpv4.OptionCode{dhcpv4.OptionRelayAgentInformation, dhcpv4.OptionClientIdentifier} {
		if b := p.Options.Get(code); b != nil {
			r.UpdateOption(dhcpv4.OptGeneric(code, b))
		}
	}
	// Some ROMs send no option 97; mirror it only if it came, as 17 bytes.
	if b := p.Options.Get(dhcpv4.OptionClientMachineIdentifier); len(b) == 17 && b[0] == 0 {
		r.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionClientMachineIdentifier, b))
	}
	return r
}

func (s *Server) nak(p *dhcpv4.DHCPv4, giaddr netip.Addr) reply {
	r := s.base(p, dhcpv4.MessageTypeNak)
	if giaddr.IsValid() {
		r.SetBroadcast() // the relay must broadcast it: the client's address is wrong (RFC 2131 §4.3.2)
		return reply{packet: r, route: routeRelay, to: giaddr, mac: r.ClientHWAddr}
	}
	return reply{packet: r, route: routeBroadcast, mac: r.ClientHWAddr}
}

// lease returns an OFFER or ACK with the reservation and, if d says so, a
// boot file.
func (s *Server) lease(p *dhcpv4.DHCPv4, m inventory.Machine, d Decision, req Request, subnet netip.Prefix, kind dhcpv4.MessageType, giaddr netip.Addr) *dhcpv4.DHCPv4 {
	i := d.Interface
	r := s.base(p, kind)
	r.YourIPAddr = i.Address.AsSlice()
	if kind == dhcpv4.MessageTypeAck {
		r.ClientIPAddr = p.ClientIPAddr
	}
	mask := net.CIDRMask(subnet.Bits(), 32)
	r.UpdateOption(dhcpv4.OptSubnetMask(mask))
	if subnet.Bits() < 31 {
		b := i.Address.As4()
		for n := range b {
			b[n] |= ^mask[n]
		}
		r.UpdateOption(dhcpv4.OptBroadcastAddress(net.IP(b[:])))
	}
	if i.Gateway.Is4() {
		r.UpdateOption(dhcpv4.OptRouter(i.Gateway.AsSlice()))
	}
	if s.cfg.LinkLocal {
		s.routes(r, i.Gateway, giaddr)
	}
	if ns := ips(i.Nameservers); len(ns) > 0 {
		r.UpdateOption(dhcpv4.OptDNS(ns...))
	}
	if ts := ips(i.TimeServers); len(ts) > 0 {
		r.UpdateOption(dhcpv4.OptNTPServers(ts...))
	}
	hostname := i.Hostname
	if hostname == "" {
		hostname = m.Name
	}
	r.UpdateOption(dhcpv4.OptHostName(hostname))
	if i.Domain != "" {
		r.UpdateOption(dhcpv4.OptDomainName(i.Domain))
	}
	lease := time.Duration(i.LeaseTime)
	if lease <= 0 {
		lease = defaultLease
	}
	lease = min(max(lease, time.Minute), math.MaxUint32*time.Second)
	r.UpdateOption(dhcpv4.OptIPAddressLeaseTime(lease))
	s.boot(r, d, req)
	return r
}

func ips(as []netip.Addr) []net.IP {
	var out []net.IP
	for _, a := range as {
		if a.Is4() && len(out) < 8 {
			out = append(out, a.AsSlice())
		}
	}
	return out
}

// routes adds option 121 with the way to the metadata address. A client that
// knows option 121 ignores option 3 (RFC 3442), so the default route is
// repeated.
func (s *Server) routes(r *dhcpv4.DHCPv4, gateway, giaddr netip.Addr) {
	var b []byte
	via := s.cfg.Address
	if gateway.Is4() {
		b = append(append(b, 0), gateway.AsSlice()...)
		if giaddr.IsValid() {
			via = gateway
		}
	} else if giaddr.IsValid() {
		return
	}
	b = append(append(b, 32, 169, 254, 169, 254), via.AsSlice()...)
	r.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionClasslessStaticRoute, b))
}

// boot adds what a client needs to boot from the network, and records what it
// was told.
func (s *Server) boot(r *dhcpv4.DHCPv4, d Decision, req Request) {
	if req.Class == ClassIPXE {
		r.UpdateOption(dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(ipxeOptions), []byte{noProxyDHCP, 1, 1}))
	}
	file, why := s.bootFile(d, req.Class)
	if why != "" {
		s.log.Error("no boot file for an armed machine", "machine", d.Machine, "reason", why)
	}
	switch {
	case req.Class == ClassNone:
		s.rec.event(d, inventory.EventOS, "")
	case d.Armed() && file != "":
		s.rec.event(d, inventory.EventDHCP, string(req.Class)+", "+archName(req.Arch)+": "+file)
	case d.Armed():
		s.log.Warn("an armed machine asks for a boot file and gets none", "machine", d.Machine, "reasons", d.Reasons)
	default:
		s.rec.event(d, diskEvent(d), string(req.Class))
	}
	if file == "" {
		return
	}
	self := s.cfg.Address
	r.ServerIPAddr = self.AsSlice()
	r.UpdateOption(dhcpv4.OptBootFileName(file))
	if len(file) < 128 {
		r.BootFileName = file // U-Boot and some ROMs read the header alone
	}
	switch req.Class {
	case ClassHTTP: // UEFI HTTP boot ignores an offer without the echo
		r.UpdateOption(dhcpv4.OptClassIdentifier("HTTPClient"))
	case ClassPXE:
		r.ServerHostName = self.String()
		r.UpdateOption(dhcpv4.OptTFTPServerName(self.String()))
		r.UpdateOption(dhcpv4.OptClassIdentifier("PXEClient"))
		// PXE discovery control 8: use the boot file of this very packet.
		// Without it EDK2 takes the offer for BINL, asks port 4011 and ends
		// with PXE-E16.
		r.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionVendorSpecificInformation, []byte{6, 1, 8, 255}))
	}
}
