package bootsvc

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/inventory"
)

func TestRelayed(t *testing.T) {
	s, j := newServer(t, &fakeMachines{machines: []inventory.Machine{machine(nil)}}, relayOnly)
	now := testNow
	s.now = func() time.Time { return now }
	in := (&dhcpConn{}).link()
	ask := func(giaddr string) {
		t.Helper()
		if r := s.answer(t.Context(), packet(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithGatewayIP(net.ParseIP(giaddr))), in); r.route == routeNone && giaddr == "10.10.20.1" {
			t.Error("a relayed DISCOVER was not answered")
		}
	}
	heard := func(want int) {
		t.Helper()
		if !slices.Equal(j.relays, slices.Repeat([]netip.Addr{netip.MustParseAddr("10.10.20.1")}, want)) {
			t.Errorf("heard: %v, want the gateway %d times", j.relays, want)
		}
	}
	ask("0.0.0.0")
	ask("10.10.20.254")
	heard(0) // a packet without giaddr, or of a relay that is not listed, proves nothing

	// It stands in the journal when the answer is there, once for a while (S48).
	for range 100 {
		ask("10.10.20.1")
		heard(1)
	}
	now = now.Add(hearAgain)
	ask("10.10.20.1")
	heard(2)

	// A journal that takes nothing keeps nobody from being answered, and is asked again.
	now, j.err = now.Add(hearAgain), errors.New("the disk is full")
	ask("10.10.20.1")
	heard(2)
	now, j.err = now.Add(hearTry), nil
	ask("10.10.20.1")
	heard(3)

	// Of a clock that was set back as well.
	now = now.Add(-time.Hour)
	ask("10.10.20.1")
	heard(4)

	// S46: who makes up relays fills no memory.
	for n := range 2 * maxRelays {
		s.hear(t.Context(), netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), s.log)
	}
	if n := len(s.relayed.due); n != maxRelays {
		t.Errorf("%d relays are remembered, want %d", n, maxRelays)
	}
}
