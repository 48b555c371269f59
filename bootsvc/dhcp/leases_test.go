package dhcp

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// S48: DECLINEs cause a probe every 30 s at most, also between OFFERs. A probe that ends after the machine
// has taken its address changes nothing.
func TestProbesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := testNow
		var begun atomic.Int32
		end := make(chan struct{})
		s, _ := newServer(t, &fakeDecider{}, func(c *Config) {
			c.Probe = func(netip.Addr, string) (string, bool) { begun.Add(1); <-end; return "52:54:00:99:99:99", true }
			c.Now = func() time.Time { return now }
		})
		probes := func() int32 { synctest.Wait(); return begun.Load() } // after each probe that begins has begun
		wants := dhcpv4.WithGeneric(dhcpv4.OptionRequestedIPAddress, net.ParseIP(testAddr).To4())
		for _, kind := range []dhcpv4.MessageType{
			dhcpv4.MessageTypeDecline, dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeDecline, dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeDecline,
		} {
			s.Handle(t.Context(), packet(t, kind, wants).ToBytes(), Link{Name: "eth0"})
		}
		if n := probes(); n != 1 {
			t.Errorf("%d probes", n)
		}
		now = now.Add(probeAgain)
		s.Handle(t.Context(), packet(t, dhcpv4.MessageTypeDecline, wants).ToBytes(), Link{Name: "eth0"})
		if n := probes(); n != 2 {
			t.Errorf("%d probes after the pause", n)
		}

		declined, _ := s.leases.get(testMAC)
		s.Handle(t.Context(), packet(t, dhcpv4.MessageTypeRequest, wants).ToBytes(), Link{Name: "eth0"})
		if s.leases.setConflict(declined, "52:54:00:99:99:99") {
			t.Error("a conflict replaces a lease that was taken since")
		}
		close(end)
	})
}
