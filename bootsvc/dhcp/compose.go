package dhcp

import (
	"cmp"
	"math"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/wire"
)

const (
	defaultLease = 7 * 24 * time.Hour // for reservations that set no lease time; a lease of 0 would end at once
)

// bootThisFile is the value of option 43 that makes a PXE client boot the file that the same packet names. It sets PXE
// discovery control (6), bit 3.
var bootThisFile = []byte{6, 1, 8, 255}

// composer builds reply packets.
type composer struct {
	address   netip.Addr // of this server
	linkLocal bool
	logServer func() bool
}

// newReply returns a reply with the fields and options that every kind of reply contains: giaddr and options 82 and 61
// as received (RFC 3046, 6842; the library writes 82 last), and options 53, 54 and 97.
func (c *composer) newReply(p *dhcpv4.DHCPv4, kind dhcpv4.MessageType) *dhcpv4.DHCPv4 {
	r := &dhcpv4.DHCPv4{
		OpCode: dhcpv4.OpcodeBootReply, HWType: p.HWType, ClientHWAddr: p.ClientHWAddr,
		TransactionID: p.TransactionID, Flags: p.Flags,
		GatewayIPAddr: p.GatewayIPAddr, ClientIPAddr: net.IPv4zero,
		YourIPAddr: net.IPv4zero, ServerIPAddr: net.IPv4zero,
		Options: make(dhcpv4.Options),
	}
	r.UpdateOption(dhcpv4.OptMessageType(kind))
	r.UpdateOption(dhcpv4.OptServerIdentifier(c.address.AsSlice()))
	for _, code := range []dhcpv4.OptionCode{dhcpv4.OptionRelayAgentInformation, dhcpv4.OptionClientIdentifier} {
		if p.Options.Has(code) { // the option may be empty
			r.UpdateOption(dhcpv4.OptGeneric(code, p.Options.Get(code)))
		}
	}
	// Some ROMs do not send option 97. Copy the option only if the client has sent a valid one, which has 17 bytes.
	if b := p.Options.Get(dhcpv4.OptionClientMachineIdentifier); len(b) == 17 && b[0] == 0 {
		r.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionClientMachineIdentifier, b))
	}
	return r
}

func (c *composer) newNAK(p *dhcpv4.DHCPv4, giaddr netip.Addr) Reply {
	r := c.newReply(p, dhcpv4.MessageTypeNak)
	r.UpdateOption(dhcpv4.OptServerIdentifier(identifierFor(p, c.address).AsSlice()))
	if giaddr.IsValid() {
		r.SetBroadcast() // the client has a wrong address, so the relay must broadcast the NAK (RFC 2131 §4.3.2)
		return Reply{Packet: r, Route: RouteRelay, To: giaddr, mac: r.ClientHWAddr}
	}
	return Reply{Packet: r, Route: RouteBroadcast, mac: r.ClientHWAddr}
}

// newLease returns an OFFER or ACK with the address that is reserved for e's client.
func (c *composer) newLease(e *exchange, kind dhcpv4.MessageType) *dhcpv4.DHCPv4 {
	i := e.client.Interface
	r := c.newReply(e.Packet, kind)
	r.UpdateOption(dhcpv4.OptServerIdentifier(identifierFor(e.Packet, c.address).AsSlice()))
	r.YourIPAddr = i.Address.AsSlice()
	if kind == dhcpv4.MessageTypeAck {
		r.ClientIPAddr = e.Packet.ClientIPAddr
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
	if c.linkLocal {
		c.addRoutes(r, e)
	}

	if ns := addressesOf(i.Nameservers); len(ns) > 0 {
		r.UpdateOption(dhcpv4.OptDNS(ns...))
	}
	if ts := addressesOf(i.TimeServers); len(ts) > 0 {
		r.UpdateOption(dhcpv4.OptNTPServers(ts...))
	}
	if name := cmp.Or(i.Hostname, e.client.Owner.Machine); name != "" {
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
	return r
}

func addressesOf(as []netip.Addr) []net.IP {
	var out []net.IP
	for _, a := range as {
		if a.Is4() && len(out) < 8 {
			out = append(out, a.AsSlice())
		}
	}
	return out
}

// metadataAddress is the address at which clients look for the metadata service of EC2.
var metadataAddress = netip.AddrFrom4([4]byte{169, 254, 169, 254})

// addRoutes adds option 121 with a route to metadataAddress. A client that supports option 121 ignores option 3 (RFC
// 3442), so option 121 repeats the default route. For a router outside the reservation's subnet, option 121 also
// contains a host route through 0.0.0.0, which means "directly on the link". If the client is behind a relay and has no
// gateway, addRoutes adds nothing.
func (c *composer) addRoutes(r *dhcpv4.DHCPv4, e *exchange) {
	var b []byte
	addHost := func(host, via netip.Addr) { b = append(append(append(b, 32), host.AsSlice()...), via.AsSlice()...) }
	reach := func(router netip.Addr) {
		if !e.subnet.Contains(router) {
			addHost(router, netip.IPv4Unspecified())
		}
	}
	via, gateway := c.address, e.client.Interface.Gateway
	if gateway.Is4() {
		reach(gateway)
		b = append(append(b, 0), gateway.AsSlice()...)
	}
	switch {
	case !e.Relay.IsValid():
		reach(via)
	case gateway.Is4():
		via = gateway
	default:
		return
	}
	addHost(metadataAddress, via)
	r.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionClasslessStaticRoute, b))
}

// addBoot adds to r what a client needs to boot from the network, with file as its boot file. If file is "", it adds no
// boot file.
func (c *composer) addBoot(r *dhcpv4.DHCPv4, e *exchange, file string) {
	if e.Class == wire.ClassIPXE {
		r.UpdateOption(dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(wire.IPXEOptions), []byte{wire.NoProxyDHCP, 1, 1}))
		if c.logServer() { // iPXE built with CONSOLE_SYSLOG sends its console output to this log server
			r.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionLogServer, c.address.AsSlice()))
		}
	}
	if file == "" {
		return
	}
	if e.Class == wire.ClassPXE {
		r.ServerHostName = c.address.String()
		r.UpdateOption(dhcpv4.OptTFTPServerName(c.address.String() + "\x00")) // ends with a zero byte, as in putBootFile
	}
	c.putBootFile(r, e.Class, file)
}

// putBootFile adds the boot file to r, together with what a client of this class requires to accept it.
func (c *composer) putBootFile(r *dhcpv4.DHCPv4, class wire.Class, file string) {
	r.ServerIPAddr = c.address.AsSlice()
	option := file
	if class == wire.ClassPXE { // PXE ROMs of about 2010 read on until a zero byte, even into the next option
		option += "\x00"
	}
	r.UpdateOption(dhcpv4.OptBootFileName(option))
	if len(file) < 128 {
		r.BootFileName = file // U-Boot and some ROMs read only this header field, not the option
	}
	switch class {
	case wire.ClassHTTP: // UEFI HTTP boot ignores an offer unless the offer repeats the client's class
		r.UpdateOption(dhcpv4.OptClassIdentifier("HTTPClient"))
	case wire.ClassPXE:
		r.UpdateOption(dhcpv4.OptClassIdentifier("PXEClient"))
		// PXE discovery control 8: use the boot file of this packet. Without this option, EDK2 takes the offer for one
		// of a BINL server, asks port 4011 and fails with PXE-E16.
		r.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionVendorSpecificInformation, bootThisFile))
	}
}
