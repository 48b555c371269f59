package bootsvc

import (
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

// In mode proxy a machine is known by the MAC of its address.
func TestSyslogByMAC(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(func(m *inventory.Machine) { m.Interfaces[0].Address = netip.Addr{} })}}
	s, _ := newServer(t, f, func(c *Config) { c.Modes = map[string]inventory.DHCPMode{"lo": inventory.DHCPProxy} })
	s.network.neighbour = func(a netip.Addr) (string, bool) { return testMAC, a == netip.MustParseAddr("10.10.20.77") }
	if got := s.decider.machineAt(t.Context(), netip.MustParseAddr("10.10.20.77")); got != "node1" {
		t.Errorf("machine %q", got)
	}
}

// DHCP names the syslog server to iPXE while clients can send there.
func TestOptionOfTheLogServer(t *testing.T) {
	s, _ := newServer(t, &fakeMachines{machines: []inventory.Machine{machine(nil)}}, nil)
	offer := func() string {
		ipxe := dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionUserClassInformation, []byte("iPXE")))
		r := s.dhcp.Handle(t.Context(), packet(t, dhcpv4.MessageTypeDiscover, ipxe).ToBytes(), dhcp.Link{Name: "lo"})
		return wire.Addr4(r.Packet.Options.Get(dhcpv4.OptionLogServer)).String()
	}
	if got := offer(); got != "invalid IP" {
		t.Errorf("option 7: %s", got)
	}
	cfg := s.dhcpConfig()
	cfg.LogServer = func() bool { return true }
	s.dhcp = dhcp.New(cfg)
	if got := offer(); got != testSelf.String() {
		t.Errorf("option 7: %s", got)
	}
}
