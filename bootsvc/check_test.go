package bootsvc

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

func checking(t *testing.T, kind dhcpv4.MessageType, mods ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	t.Helper()
	mac, err := net.ParseMAC(neighbours.CheckMAC)
	if err != nil {
		t.Fatal(err)
	}
	p := packet(
		t,
		kind,
		append([]dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient:Arch:00007:UNDI:003016"))}, mods...)...)
	p.ClientHWAddr = mac
	return p
}

// Every server answers CheckMAC, but only to a DISCOVER like a firmware's. The
// answer cannot be used to boot anything (S30).
func TestCheckIsAnswered(t *testing.T) {
	machines := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
	s, j := newServer(t, machines, nil)
	r := s.dhcp.Handle(t.Context(), checking(t, dhcpv4.MessageTypeDiscover).ToBytes(), dhcp.Link{Name: "eth0"})
	if r.Route != dhcp.RouteBroadcast {
		t.Fatalf("it leaves by %s", r.Route)
	}
	if wire.Addr4(r.Packet.ServerIdentifier()) != s.cfg.Address || r.Packet.BootFileNameOption() != s.Base()+neighbours.CheckPath ||
		!r.Packet.YourIPAddr.IsUnspecified() {
		t.Errorf("%s", r.Packet.Summary())
	}
	for name, p := range map[string]*dhcpv4.DHCPv4{
		"a REQUEST": checking(t, dhcpv4.MessageTypeRequest),
		"an INFORM": checking(t, dhcpv4.MessageTypeInform),
		"a system":  checking(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithOption(dhcpv4.OptClassIdentifier("udhcp"))),
	} {
		if s.dhcp.Handle(t.Context(), p.ToBytes(), dhcp.Link{Name: "eth0"}).Route != dhcp.RouteNone {
			t.Errorf("%s is answered", name)
		}
	}
	if len(j.relays) != 0 {
		t.Errorf("relays recorded: %v", j.relays)
	}
	// S30: if no relay is listed, a giaddr may be forged. It is answered only in the
	// network of a reservation or of the interface.
	in := dhcp.Link{Name: "eth0", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.99.0.2/24")}}
	for range 100 {
		for giaddr, want := range map[string]dhcp.Route{"192.0.2.1": dhcp.RouteNone, "10.10.21.1": dhcp.RouteNone, "8.8.8.8": dhcp.RouteNone, "10.10.20.1": dhcp.RouteRelay, "10.99.0.1": dhcp.RouteRelay} {
			r := s.dhcp.Handle(t.Context(), checking(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithGatewayIP(net.ParseIP(giaddr))).ToBytes(), in)
			if r.Route != want || want == dhcp.RouteRelay && r.To.String() != giaddr {
				t.Errorf("giaddr %s: %s to %s", giaddr, r.Route, r.To)
			}
		}
	}
	if len(j.relays) != 1 || j.relays[0].String() != "10.10.20.1" {
		t.Errorf("relays recorded: %v", j.relays)
	}
	for _, path := range []string{neighbours.CheckPath, "/ipxe/binary/" + neighbours.CheckMAC + "/autoexec.ipxe"} {
		w := get(t, s.Handler(), http.MethodGet, s.Base()+path, testAddr)
		if w.Code != http.StatusOK || w.Body.String() != s.scripts.checkScript() || strings.Contains(w.Body.String(), "kernel") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	for _, path := range []string{"/ipxe/binary/" + neighbours.CheckMAC + "/snponly.efi", "/boot/" + neighbours.CheckMAC + "/x/vmlinuz", "/ipxe/script/02:69:6e:67:6f:75/auto.ipxe"} {
		if w := get(t, s.Handler(), http.MethodGet, s.Base()+path, testAddr); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

// With discovery on, a check is answered as without: its client is not discovered.
func TestCheckIsAnsweredWithDiscovery(t *testing.T) {
	s, _ := newServer(t, &fakeMachines{}, discovering)
	r := s.dhcp.Handle(t.Context(), checking(t, dhcpv4.MessageTypeDiscover).ToBytes(), dhcp.Link{Name: "eth8"})
	if r.Route != dhcp.RouteBroadcast {
		t.Fatalf("it leaves by %s", r.Route)
	}
	if r.Packet.BootFileNameOption() != s.Base()+neighbours.CheckPath || !r.Packet.YourIPAddr.IsUnspecified() {
		t.Errorf("%s", r.Packet.Summary())
	}
}

// A relay-only server answers its own check in addition to listed relays. A reply to its own
// port reaches the check that waits for it.
func TestCheckThroughARelay(t *testing.T) {
	s, j := newServer(t, &fakeMachines{}, relayOnly)
	in := dhcp.Link{Name: "relay"}
	for giaddr, want := range map[string]dhcp.Route{s.cfg.Address.String(): dhcp.RouteRelay, "10.10.20.1": dhcp.RouteRelay, "10.10.20.254": dhcp.RouteNone, "0.0.0.0": dhcp.RouteNone} {
		p := checking(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithGatewayIP(net.ParseIP(giaddr)))
		r := s.dhcp.Handle(t.Context(), p.ToBytes(), in)
		if r.Route != want || want == dhcp.RouteRelay && r.To.String() != giaddr {
			t.Errorf("giaddr %s: %s to %s", giaddr, r.Route, r.To)
		}
	}
	for _, relay := range j.relays {
		if relay == s.cfg.Address {
			t.Error("the server takes itself for a relay")
		}
	}
	p := checking(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithGatewayIP(s.cfg.Address.AsSlice()))
	var delivered *dhcpv4.DHCPv4
	cfg := s.dhcpConfig()
	cfg.Deliver = func(p *dhcpv4.DHCPv4) { delivered = p }
	s.dhcp = dhcp.New(cfg)
	r := s.dhcp.Handle(t.Context(), p.ToBytes(), in)
	if x := s.dhcp.Handle(t.Context(), r.Packet.ToBytes(), in); x.Route != dhcp.RouteNone {
		t.Errorf("a reply is answered by %s", x.Route)
	}
	if delivered == nil || !bytes.Equal(delivered.ToBytes(), r.Packet.ToBytes()) {
		t.Error("the reply does not reach the check")
	}
}

// A server with Listen cannot be checked from its own host. TestLabCheckClient uses
// real sockets.
func TestCheckClient(t *testing.T) {
	s, _ := newServer(t, &fakeMachines{}, relayOnly)
	s.cfg.Listen = netip.MustParseAddr("0.0.0.0")
	notes, err := s.CheckClient(context.Background())
	if err != nil || len(notes) != 1 || !strings.Contains(notes[0], "test from another host") {
		t.Errorf("a server behind published ports: %v %v", notes, err)
	}
}
