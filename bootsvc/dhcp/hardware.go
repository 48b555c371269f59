package dhcp

import (
	"fmt"
	"strconv"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/ingotmetal/ingot/bootsvc/wire"
)

// noteHardware logs and records a client that gets no answer because it does not use Ethernet. If the request contains
// no address, as may happen over InfiniBand (RFC 4390 §2.1), the client is only logged.
func (s *Server) noteHardware(p *dhcpv4.DHCPv4, in Link) {
	relay := wire.Addr4(p.GatewayIPAddr)
	if p.OpCode != dhcpv4.OpcodeBootRequest || p.HWType == iana.HWTypeEthernet || p.MessageType() == dhcpv4.MessageTypeNone ||
		!relay.IsValid() && s.cfg.RelayAt.IsValid() || relay.IsValid() && !s.cfg.Relays.MayAsk(relay) {
		return
	}
	class := "hardware type " + strconv.Itoa(int(p.HWType)) + ": not supported"
	if p.HWType == iana.HWTypeInfiniband {
		class = "InfiniBand: not supported"
	}
	port, giaddr := seenAt(in, relay)
	s.Counters.Unknown.Add(1)
	s.cfg.Log.Warn("DHCP not answered: the client does not use Ethernet; boot the machine from an Ethernet interface",
		"hardware", class, "address", p.ClientHWAddr.String(), "interface", in.Name, "relay", giaddr,
		"clientID", fmt.Sprintf("%x", p.Options.Get(dhcpv4.OptionClientIdentifier)))
	if mac, ok := wire.HostMAC(p.ClientHWAddr); ok {
		s.cfg.Recorder.Unknown(mac, port, giaddr, class)
	}
}
