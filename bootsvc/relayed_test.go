package bootsvc

import (
	"net"
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/inventory"
)

func TestRelayed(t *testing.T) {
	s, _ := newServer(t, &fakeMachines{machines: []inventory.Machine{machine(nil)}}, relayOnly)
	in := (&dhcpConn{}).link()
	ask := func(giaddr string) {
		t.Helper()
		s.answer(t.Context(), packet(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithGatewayIP(net.ParseIP(giaddr))), in)
	}
	gateway, other := netip.MustParseAddr("10.10.20.1"), netip.MustParseAddr("10.10.20.254")
	if at := s.Relayed(gateway); !at.IsZero() {
		t.Fatalf("heard at %s of a relay that has sent nothing", at)
	}
	ask("0.0.0.0")
	ask(other.String())
	if !s.Relayed(gateway).IsZero() || !s.Relayed(other).IsZero() {
		t.Error("a packet without giaddr, or of a relay that is not listed, proves nothing")
	}
	ask(gateway.String())
	if s.Relayed(gateway).IsZero() {
		t.Error("a relayed DISCOVER was not remembered")
	}
}
