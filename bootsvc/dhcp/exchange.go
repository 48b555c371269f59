package dhcp

import (
	"bytes"
	"cmp"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

const maxHops = 16 // RFC 1542 §4.1.1

// Link describes where and how a packet was received.
type Link struct {
	Name     string         // interface
	Prefixes []netip.Prefix // of the interface
	Mode     inventory.DHCPMode
	Port     int            // UDP port of this server
	From     netip.AddrPort // source of the packet
}

// Request is a parsed packet of a client.
type Request struct {
	Packet  *dhcpv4.DHCPv4
	MAC     string
	Class   wire.Class
	Arch    int // the first value of option 93 that has a loader, or else the first value; wire.ArchUnknown without option 93
	In      Link
	Relay   netip.Addr // giaddr; invalid = not relayed
	Network netip.Addr // network of the client: the subnet that the relay selects (RFC 3527), or giaddr
}

// Log returns base with the attributes of r.
func (r Request) Log(base *slog.Logger) *slog.Logger {
	l := base.With("mac", r.MAC, "message", r.Packet.MessageType().String(), "interface", r.In.Name)
	if r.Relay.IsValid() {
		l = l.With("relay", r.Relay.String())
	}
	return l
}

// where returns a text for the relay or interface that r came through.
func (r Request) where() string {
	if r.Relay.IsValid() {
		return "relay " + r.Relay.String()
	}
	return r.In.Name
}

// seenAt returns the arguments port and giaddr for wire.Recorder.Unknown.
func seenAt(in Link, relay netip.Addr) (port, giaddr string) {
	if relay.IsValid() {
		return relay.String(), relay.String()
	}
	return in.Name, ""
}

// Client is what a Decider has decided for the client of a request. For an unknown client it is zero.
type Client struct {
	Owner     inventory.Owner     // the machine and the run that owns it; no machine = the client is not in the inventory
	Boot      int                 // number of the run's boot
	Interface inventory.Interface // of the machine
	Address   bool                // whether DHCP assigns the interface's address
	Armed     bool                // whether boot files are served to it
	Guest     bool                // whether it is not in the inventory, and is being discovered
	Script    bool                // whether it is iPXE and gets a script
	Loader    string              // file for firmware; "" = none
	Event     string              // kind of event to record for its request for a boot file if it is not armed
}

// exchange is a request with the decision for its client.
type exchange struct {
	Request
	client Client
	subnet netip.Prefix // subnet of the reservation
	toUs   bool         // the packet names this server, or no server
	base   *slog.Logger
}

// newExchange returns the exchange for a DHCP request, without its client. It returns false for any packet that is not
// a request of an Ethernet client. self is this server's address.
func newExchange(p *dhcpv4.DHCPv4, in Link, self netip.Addr, log *slog.Logger) (exchange, bool) {
	if p.OpCode != dhcpv4.OpcodeBootRequest || p.HWType != iana.HWTypeEthernet || p.HopCount > maxHops {
		return exchange{}, false
	}
	mac, ok := wire.HostMAC(p.ClientHWAddr)
	if !ok || p.MessageType() == dhcpv4.MessageTypeNone {
		return exchange{}, false
	}
	e := exchange{
		Request: Request{Packet: p, MAC: mac, Class: classOf(p), Arch: archOf(p), In: in, Relay: wire.Addr4(p.GatewayIPAddr)},
		toUs:    isFor(p, self), base: log,
	}
	e.Network = cmp.Or(linkSelection(p), e.Relay)
	return e, true
}

// classOf returns the kind of the client that sent p.
func classOf(p *dhcpv4.DHCPv4) wire.Class {
	class := string(p.Options.Get(dhcpv4.OptionClassIdentifier))
	switch {
	case isIPXEUserClass(p.Options.Get(dhcpv4.OptionUserClassInformation)):
		return wire.ClassIPXE
	case strings.HasPrefix(class, "HTTPClient"):
		return wire.ClassHTTP
	case strings.HasPrefix(class, "PXEClient"):
		return wire.ClassPXE
	}
	return wire.ClassNone
}

// archOf returns the architecture of the client that sent p.
func archOf(p *dhcpv4.DHCPv4) int {
	archs := wire.Architectures(p.Options.Get(dhcpv4.OptionClientSystemArchitectureType))
	if len(archs) == 0 {
		return wire.ArchUnknown
	}
	return archs[max(0, slices.IndexFunc(archs, wire.HasLoader))]
}

// isIPXEUserClass reports whether option 77 contains iPXE. iPXE sends the text without a length, although RFC 3004
// requires one before each item.
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

// log returns a logger with the attributes of e. It is created only on use, because few packets are logged.
func (e *exchange) log() *slog.Logger {
	l := e.Log(e.base)
	if e.client.Owner.Machine != "" {
		l = l.With(e.client.Owner.LogKeys(e.client.Boot)...)
	}
	return l
}

// isNear reports whether a is in the reservation's subnet, or is the reservation's gateway, which may be outside the
// subnet.
func (e *exchange) isNear(a netip.Addr) bool {
	return e.subnet.Contains(a) || a.IsValid() && a == e.client.Interface.Gateway
}

// declinesReservation reports whether a DECLINE is for this server and names the reserved address
// (RFC 2131 table 5).
func (e *exchange) declinesReservation() bool {
	return e.toUs && wire.Addr4(e.Packet.Options.Get(dhcpv4.OptionRequestedIPAddress)) == e.client.Interface.Address
}

// reservationPrefix returns i's address with a prefix length: the length of i's netmask, or of the prefix in
// in.Prefixes that contains the address, or 24.
func reservationPrefix(i inventory.Interface, in Link) netip.Prefix {
	if _, ok := i.MaskBits(); !ok {
		for _, p := range in.Prefixes {
			if p.Contains(i.Address) {
				return netip.PrefixFrom(i.Address, p.Bits())
			}
		}
	}
	return i.Subnet()
}
