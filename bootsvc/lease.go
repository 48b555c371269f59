package bootsvc

import (
	"cmp"
	"math"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

const (
	defaultLease = 7 * 24 * time.Hour // a lease time of 0 would expire at once
)

// bootThisFile is option 43: PXE discovery control (6) with bit 3, boot the file of this packet.
var bootThisFile = []byte{6, 1, 8, 255}

// send chooses how an OFFER or ACK is sent (RFC 2131 §4.1).
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
		r.route, r.to = routeRaw, wire.Addr4(p.YourIPAddr)
	}
	return r
}

// base returns a reply with what every kind contains: giaddr, options 82 and 61 as
// received (RFC 3046, 6842; the library puts 82 last), 54 and 97.
func (s *Server) base(p *dhcpv4.DHCPv4, kind dhcpv4.MessageType) *dhcpv4.DHCPv4 {
	r := &dhcpv4.DHCPv4{
		OpCode: dhcpv4.OpcodeBootReply, HWType: p.HWType, ClientHWAddr: p.ClientHWAddr,
		TransactionID: p.TransactionID, Flags: p.Flags,
		GatewayIPAddr: p.GatewayIPAddr, ClientIPAddr: net.IPv4zero,
		YourIPAddr: net.IPv4zero, ServerIPAddr: net.IPv4zero,
		Options: make(dhcpv4.Options),
	}
	r.UpdateOption(dhcpv4.OptMessageType(kind))
	r.UpdateOption(dhcpv4.OptServerIdentifier(s.cfg.Address.AsSlice()))
	for _, code := range []dhcpv4.OptionCode{dhcpv4.OptionRelayAgentInformation, dhcpv4.OptionClientIdentifier} {
		if p.Options.Has(code) { // it may be empty
			r.UpdateOption(dhcpv4.OptGeneric(code, p.Options.Get(code)))
		}
	}
	// Some ROMs do not send option 97; echo it only if it was received, as 17 bytes.
	if b := p.Options.Get(dhcpv4.OptionClientMachineIdentifier); len(b) == 17 && b[0] == 0 {
		r.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionClientMachineIdentifier, b))
	}
	return r
}

func (s *Server) nak(p *dhcpv4.DHCPv4, giaddr netip.Addr) reply {
	r := s.base(p, dhcpv4.MessageTypeNak)
	r.UpdateOption(dhcpv4.OptServerIdentifier(s.identifierFor(p).AsSlice()))
	if giaddr.IsValid() {
		r.SetBroadcast() // the client's address is wrong, so the relay must broadcast (RFC 2131 §4.3.2)
		return reply{packet: r, route: routeRelay, to: giaddr, mac: r.ClientHWAddr}
	}
	return reply{packet: r, route: routeBroadcast, mac: r.ClientHWAddr}
}

// lease returns an OFFER or ACK with the reservation and, if the decision allows it,
// a boot file.
func (s *Server) lease(e *exchange, kind dhcpv4.MessageType) *dhcpv4.DHCPv4 {
	i := e.decision.Interface
	r := s.base(e.packet, kind)
	r.UpdateOption(dhcpv4.OptServerIdentifier(s.identifierFor(e.packet).AsSlice()))
	r.YourIPAddr = i.Address.AsSlice()
	if kind == dhcpv4.MessageTypeAck {
		r.ClientIPAddr = e.packet.ClientIPAddr
	}

	mask := net.CIDRMask(e.subnet.Bits(), 32)
	r.UpdateOption(dhcpv4.OptSubnetMask(mask))
	if e.subnet.Bits() < 31 {
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
		s.routes(r, e)
	}

	if ns := ips(i.Nameservers); len(ns) > 0 {
		r.UpdateOption(dhcpv4.OptDNS(ns...))
	}
	if ts := ips(i.TimeServers); len(ts) > 0 {
		r.UpdateOption(dhcpv4.OptNTPServers(ts...))
	}
	if name := cmp.Or(i.Hostname, e.machine.Name); name != "" {
		r.UpdateOption(dhcpv4.OptHostName(name))
	}
	if i.Domain != "" {
		r.UpdateOption(dhcpv4.OptDomainName(i.Domain))
	}
	lease := time.Duration(i.LeaseTime)
	if lease <= 0 {
		lease = defaultLease
	}
	lease = min(max(lease, time.Minute), math.MaxUint32*time.Second)
	r.UpdateOption(dhcpv4.OptIPAddressLeaseTime(lease))
	s.boot(r, e)
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

// metadataAddress is where clients look for an EC2 metadata service.
var metadataAddress = netip.AddrFrom4([4]byte{169, 254, 169, 254})

// routes adds option 121 with the route to the metadata address. A client that
// knows option 121 ignores option 3 (RFC 3442), so the default route is
// repeated. A router outside of the reservation's subnet first gets a host
// route with the router 0.0.0.0, which means on the link.
func (s *Server) routes(r *dhcpv4.DHCPv4, e *exchange) {
	var b []byte
	addHost := func(host, via netip.Addr) { b = append(append(append(b, 32), host.AsSlice()...), via.AsSlice()...) }
	reach := func(router netip.Addr) {
		if !e.subnet.Contains(router) {
			addHost(router, netip.IPv4Unspecified())
		}
	}
	via, gateway := s.cfg.Address, e.decision.Interface.Gateway
	if gateway.Is4() {
		reach(gateway)
		b = append(append(b, 0), gateway.AsSlice()...)
	}
	switch {
	case !e.relay.IsValid():
		reach(via)
	case gateway.Is4():
		via = gateway
	default:
		return
	}
	addHost(metadataAddress, via)
	r.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionClasslessStaticRoute, b))
}

// boot adds what a client needs to boot from the network, and records it as an event.
func (s *Server) boot(r *dhcpv4.DHCPv4, e *exchange) {
	if e.request.Class == wire.ClassIPXE {
		r.UpdateOption(dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(wire.IPXEOptions), []byte{wire.NoProxyDHCP, 1, 1}))
		if s.logServer() { // iPXE built with CONSOLE_SYSLOG sends its console there
			r.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionLogServer, s.cfg.Address.AsSlice()))
		}
	}
	file := s.offeredFile(e)
	if file == "" {
		return
	}
	if e.request.Class == wire.ClassPXE {
		r.ServerHostName = s.cfg.Address.String()
		r.UpdateOption(dhcpv4.OptTFTPServerName(s.cfg.Address.String() + "\x00")) // as putBootFile
	}
	s.putBootFile(r, e.request.Class, file)
}

// offeredFile returns the boot file for a DHCP client, or "", and records the request as an event.
func (s *Server) offeredFile(e *exchange) string {
	d, req := e.decision, e.request
	file, why := s.bootFile(d, req.Class)
	if why != "" {
		s.log.With(d.logKeys()...).Error("no boot file for an armed machine", "reason", why)
	}
	switch {
	case req.Class == wire.ClassNone:
		s.rec.Event(d.event(inventory.EventOS, ""))
	case d.Armed() && file != "":
		s.rec.Event(d.event(inventory.EventDHCP, string(req.Class)+", "+archName(req.Arch)+": "+file))
	case d.Armed():
		s.log.With(d.logKeys()...).Warn("an armed machine asks for a boot file and gets none", "reasons", s.reasons(e))
	default:
		s.rec.Event(d.event(diskEvent(d), string(req.Class)))
	}
	return file
}

// putBootFile adds a boot file to a reply, with what a client of that class needs to accept it.
func (s *Server) putBootFile(r *dhcpv4.DHCPv4, class wire.Class, file string) {
	r.ServerIPAddr = s.cfg.Address.AsSlice()
	option := file
	if class == wire.ClassPXE { // PXE ROMs of about 2010 read the option until a zero byte, and so parts of the next option
		option += "\x00"
	}
	r.UpdateOption(dhcpv4.OptBootFileName(option))
	if len(file) < 128 {
		r.BootFileName = file // U-Boot and some ROMs read only the header
	}
	switch class {
	case wire.ClassHTTP: // UEFI HTTP boot ignores an offer without this echo
		r.UpdateOption(dhcpv4.OptClassIdentifier("HTTPClient"))
	case wire.ClassPXE:
		r.UpdateOption(dhcpv4.OptClassIdentifier("PXEClient"))
		// PXE discovery control 8: use the boot file of this packet. Without it, EDK2
		// treats the offer as BINL, asks port 4011 and fails with PXE-E16.
		r.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionVendorSpecificInformation, bootThisFile))
	}
}
