package bootsvc

import (
	"bytes"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

// What relays and clients put into options 82 and 61 comes back as it was, option 82 last, also if it is malformed
// (RFC 3046 §2.2, RFC 6842 §3).
func TestOptionsOfRelaysAndClientsComeBack(t *testing.T) {
	long := bytes.Repeat([]byte{1, 2, 'a', 'b'}, 80) // 320 bytes, in two parts (RFC 3396)
	relay := dhcpv4.WithGatewayIP(net.ParseIP("10.10.20.1"))
	for name, mods := range map[string][]dhcpv4.Modifier{
		"sub-options of every kind":     {relay, generic(82, 1, 1, 'a', 2, 1, 'b', 9, 3, 1, 2, 3, 250, 0)},
		"a sub-option that is cut off":  {relay, generic(82, 1, 9, 'a')},
		"a length that is missing":      {relay, generic(82, 5)},
		"the same sub-option twice":     {relay, generic(82, 5, 4, 10, 10, 20, 1, 5, 4, 10, 10, 30, 1)},
		"pad and end as sub-options":    {relay, generic(82, 0, 1, 2, 'x', 'y', 255)},
		"longer than an option":         {relay, generic(82, long...)},
		"empty":                         {relay, generic(82), generic(61)},
		"from a client without a relay": {generic(82, 1, 1, 'a'), generic(61, 255, 0, 0, 0, 1, 0, 1)},
		"flags, received by unicast":    {relay, generic(82, 10, 1, 0x80)}, // RFC 5010
		"flags, received by broadcast":  {relay, generic(82, 10, 1, 0)},
	} {
		for kind, wanted := range map[dhcpv4.MessageType]string{
			dhcpv4.MessageTypeDiscover: testAddr, dhcpv4.MessageTypeRequest: testAddr, dhcpv4.MessageTypeInform: testAddr, dhcpv4.MessageTypeNak: "10.10.20.99",
		} {
			mods := slices.Concat([]dhcpv4.Modifier{generic(61, 1, 2, 3, 4), generic(50, net.ParseIP(wanted).To4()...)}, mods)
			switch kind {
			case dhcpv4.MessageTypeNak: // the answer to a REQUEST
				kind = dhcpv4.MessageTypeRequest
			case dhcpv4.MessageTypeInform:
				mods = append(mods, dhcpv4.WithClientIP(net.ParseIP(wanted)))
			}
			f := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
			s, _ := newServer(t, f, nil)
			p := packet(t, kind, mods...)
			r := s.dhcp.Handle(t.Context(), p.ToBytes(), dhcp.Link{Name: "eth0", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.10.20.2/24")}})
			if r.Route == dhcp.RouteNone {
				t.Errorf("%s, %s: no answer", name, kind)
				continue
			}
			back, err := dhcpv4.FromBytes(r.Packet.ToBytes())
			if err != nil {
				t.Fatal(err)
			}
			options := allOptions(t, r.Packet.ToBytes())
			for _, code := range []uint8{82, 61} {
				if got, ok := options[code]; ok != p.Options.Has(dhcpv4.GenericOptionCode(code)) || !bytes.Equal(got, p.Options[code]) {
					t.Errorf("%s, %s: option %d is %x (%t), want %x", name, back.MessageType(), code, got, ok, p.Options[code])
				}
			}
			if p.Options.Has(dhcpv4.OptionRelayAgentInformation) && lastOption(r.Packet.ToBytes()) != 82 {
				t.Errorf("%s, %s: option 82 is not the last", name, back.MessageType())
			}
			if got := wire.Addr4(back.ServerIdentifier()); got != testSelf {
				t.Errorf("%s, %s: server identifier %s", name, back.MessageType(), got)
			}
		}
	}
}

// A relay that asks for it is the server identifier of leases and NAKs, and messages to it are messages to this server
// (RFC 5107). Only a packet with giaddr can ask. The copy of another relay is not answered, and no rival is seen.
func TestServerIdentifierOverride(t *testing.T) {
	const relay = "10.10.20.1"
	override := generic(82, 1, 1, 'a', 11, 4, 10, 10, 20, 1)
	via := func(a string) dhcpv4.Modifier { return dhcpv4.WithGatewayIP(net.ParseIP(a)) }
	server := func(a string) dhcpv4.Modifier { return generic(54, net.ParseIP(a).To4()...) }
	wants := func(a string) dhcpv4.Modifier { return generic(50, net.ParseIP(a).To4()...) }
	const discover, request, release = dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeRequest, dhcpv4.MessageTypeRelease
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
	s, _ := newServer(t, f, nil)
	var seen []inventory.Rival
	cfg := s.dhcpConfig()
	cfg.SightRival = func(x inventory.Rival) { seen = append(seen, x) }
	s.dhcp = dhcp.New(cfg)
	for _, c := range []struct {
		name string
		p    *dhcpv4.DHCPv4
		kind dhcpv4.MessageType // of the answer
		id   string
	}{
		{"DISCOVER", packet(t, discover, via(relay), override), dhcpv4.MessageTypeOffer, relay},
		{"REQUEST to the relay", packet(t, request, via(relay), override, server(relay), wants(testAddr)), dhcpv4.MessageTypeAck, relay},
		{"REQUEST to this server", packet(t, request, via(relay), override, server("10.10.20.2"), wants(testAddr)), dhcpv4.MessageTypeAck, relay},
		{"renewal", packet(t, request, via(relay), generic(82, 10, 1, 0x80, 11, 4, 10, 10, 20, 1), dhcpv4.WithClientIP(net.ParseIP(testAddr))), dhcpv4.MessageTypeAck, relay},
		{"NAK", packet(t, request, via(relay), override, server(relay), wants("10.10.20.99")), dhcpv4.MessageTypeNak, relay},
		{"another relay's copy", packet(t, request, via("10.10.20.3"), generic(82, 11, 4, 10, 10, 20, 3), server(relay), wants(testAddr)), dhcpv4.MessageTypeNone, ""},
		{"without giaddr", packet(t, discover, override), dhcpv4.MessageTypeOffer, "10.10.20.2"},
		{"without giaddr, to the relay", packet(t, request, override, server(relay), wants(testAddr)), dhcpv4.MessageTypeNone, ""},
		{"three bytes", packet(t, discover, via(relay), generic(82, 11, 3, 10, 10, 20)), dhcpv4.MessageTypeOffer, "10.10.20.2"},
		{"0.0.0.0", packet(t, discover, via(relay), generic(82, 11, 4, 0, 0, 0, 0)), dhcpv4.MessageTypeOffer, "10.10.20.2"},
		{"RELEASE", packet(t, release, via(relay), override, server(relay), dhcpv4.WithClientIP(net.ParseIP(testAddr))), dhcpv4.MessageTypeNone, ""},
	} {
		r := s.dhcp.Handle(t.Context(), c.p.ToBytes(), dhcp.Link{Name: "eth0", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.10.20.2/24")}})
		kind, id := dhcpv4.MessageTypeNone, ""
		if r.Route != dhcp.RouteNone {
			kind, id = r.Packet.MessageType(), r.Packet.ServerIdentifier().String()
		}
		if kind != c.kind || id != c.id {
			t.Errorf("%s: %s from %q, want %s from %q", c.name, kind, id, c.kind, c.id)
		}
	}
	if leases := s.Leases(); len(leases) != 1 || leases[0].State != inventory.LeaseReleased {
		t.Errorf("after the RELEASE: %+v", leases)
	}
	if len(seen) > 0 {
		t.Errorf("the relay is taken for another server: %+v", seen)
	}
}
