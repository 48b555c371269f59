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

// Link describes on which network and port this server received a packet, and from whom.
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
	Arch    int // option 93: its first value for which a loader exists, else its first value; wire.ArchUnknown if it is missing
	In      Link
	Relay   netip.Addr // giaddr; invalid = not relayed
	Network netip.Addr // network of the client: the subnet that the relay names (RFC 3527), or else giaddr
}

// Log returns the logger base with attributes that describe r.
func (r Request) Log(base *slog.Logger) *slog.Logger {
	l := base.With("mac", r.MAC, "message", r.Packet.MessageType().String(), "interface", r.In.Name)
	if r.Relay.IsValid() {
		l = l.With("relay", r.Relay.String())
	}
	return l
}

// where returns a text that names the relay or interface through which r came.
func (r Request) where() string {
	if r.Relay.IsValid() {
		return "relay " + r.Relay.String()
	}
	return r.In.Name
}

// seenAt returns the values of port and giaddr with which to call wire.Recorder.Unknown.
func seenAt(in Link, relay netip.Addr) (port, giaddr string) {
	if relay.IsValid() {
		return relay.String(), relay.String()
	}
	return in.Name, ""
}

// Client is what a Decider has decided for the client that sent a request. For an unknown client it is zero.
type Client struct {
	Owner     inventory.Owner     // the machine and the run that owns it; without a machine, the client is not in the inventory
	Boot      int                 // number of the run's boot
	Interface inventory.Interface // of the machine
	Address   bool                // whether DHCP assigns the interface's address
	Armed     bool                // whether the client gets boot files
	Guest     bool                // whether the client is not in the inventory, but in discovery
	Script    bool                // whether the client is iPXE and gets a script
	Loader    string              // loader for the client if it is firmware; "" = none
	Event     string              // kind of event to record if the client is not armed and asks for a boot file
}

// exchange is a request, together with what was decided for its client.
type exchange struct {
	Request
	client Client
	subnet netip.Prefix // subnet of the reservation
	toUs   bool         // the packet names this server, or names no server
	base   *slog.Logger
}

// newExchange returns the exchange for a DHCP request; the caller sets the field client. It returns false if the packet
// is not a request of an Ethernet client. self is this server's address.
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

// classOf returns the kind of client that has sent p.
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

// archOf returns the architecture of the client that has sent p.
func archOf(p *dhcpv4.DHCPv4) int {
	archs := wire.Architectures(p.Options.Get(dhcpv4.OptionClientSystemArchitectureType))
	if len(archs) == 0 {
		return wire.ArchUnknown
	}
	return archs[max(0, slices.IndexFunc(archs, wire.HasLoader))]
}

// isIPXEUserClass reports whether b, the value of option 77, contains iPXE. iPXE itself sends the text without a
// length, although RFC 3004 requires a length before each item.
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

// log returns a logger with attributes that describe e. e does not store this logger, because few packets are logged.
func (e *exchange) log() *slog.Logger {
	l := e.Log(e.base)
	if e.client.Owner.Machine != "" {
		l = l.With(e.client.Owner.LogKeys(e.client.Boot)...)
	}
	return l
}

// isNear reports whether a is in the subnet of the reservation, or is the gateway of the reservation. (A gateway may be
// outside the subnet.)
func (e *exchange) isNear(a netip.Addr) bool {
	return e.subnet.Contains(a) || a.IsValid() && a == e.client.Interface.Gateway
}

// declinesReservation reports whether the DECLINE is for this server and names the reserved address (RFC 2131 table 5).
func (e *exchange) declinesReservation() bool {
	return e.toUs && wire.Addr4(e.Packet.Options.Get(dhcpv4.OptionRequestedIPAddress)) == e.client.Interface.Address
}

// reservationPrefix returns the address of i with the prefix length of its network. The length is taken from the
// netmask of i, otherwise from the prefix in in.Prefixes that contains the address, otherwise it is 24.
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
