package dhcp

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

func TestRelayed(t *testing.T) {
	now := testNow
	s, j := newServer(t, &fakeDecider{}, func(c *Config) {
		relayOnly(c)
		c.Now = func() time.Time { return now }
	})
	in := (&Conn{}).link()
	ask := func(giaddr string) {
		t.Helper()
		r := s.answer(t.Context(), packet(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithGatewayIP(net.ParseIP(giaddr))), in)
		if r.Route == RouteNone && giaddr == "10.10.20.1" {
			t.Error("a relayed DISCOVER was not answered")
		}
	}
	recorded := func(want int) {
		t.Helper()
		if !slices.Equal(j.relays, slices.Repeat([]netip.Addr{netip.MustParseAddr("10.10.20.1")}, want)) {
			t.Errorf("recorded: %v, want the gateway %d times", j.relays, want)
		}
	}
	ask("0.0.0.0")
	ask("10.10.20.254")
	recorded(0) // a packet without giaddr, or from a relay that is not listed, is not recorded

	// The record is written before the answer, once in relayAgain (S48).
	for range 100 {
		ask("10.10.20.1")
		recorded(1)
	}
	now = now.Add(relayAgain)
	ask("10.10.20.1")
	recorded(2)

	// A failing journal does not prevent answers, and is retried.
	now, j.err = now.Add(relayAgain), errors.New("the disk is full")
	ask("10.10.20.1")
	recorded(2)
	now, j.err = now.Add(relayRetry), nil
	ask("10.10.20.1")
	recorded(3)

	// The relay is also recorded after the clock was set back.
	now = now.Add(-time.Hour)
	ask("10.10.20.1")
	recorded(4)

	// S48: forged relays use limited memory and cause a limited number of writes. A real
	// relay is recorded again after relayAgain.
	j.relays, j.stall = nil, func(context.Context, netip.Addr) error { now = now.Add(time.Millisecond); return nil }
	for n := range 4 * maxRelays {
		s.relays.record(t.Context(), netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), func() *slog.Logger { return s.cfg.Log })
	}
	if n := len(s.relays.known); n != maxRelays || len(j.relays) >= maxRelays {
		t.Errorf("%d relays are remembered, want %d; %d writes", n, maxRelays, len(j.relays))
	}
	j.relays, now = nil, now.Add(relayAgain)
	fresh := netip.MustParseAddr("10.10.20.3")
	s.relays.record(t.Context(), fresh, func() *slog.Logger { return s.cfg.Log })
	if n := len(s.relays.known); n != maxRelays || !slices.Equal(j.relays, []netip.Addr{fresh}) {
		t.Errorf("after a flood %v was recorded, want %s; %d are remembered", j.relays, fresh, n)
	}
	if _, kept := s.relays.known[netip.MustParseAddr("10.10.20.1")]; kept {
		t.Error("the one that had been due for the longest time was not the one that was forgotten")
	}
}

// TestS48ForgedRelaysWriteNothing: if no relay is listed, a giaddr is recorded only if it
// is in the network of a reservation. The client may be unknown.
func TestS48ForgedRelaysWriteNothing(t *testing.T) {
	s, j := newServer(t, &fakeDecider{}, nil)
	stranger := dhcpv4.WithHwAddr(net.HardwareAddr{2, 0, 0, 0, 0, 9})
	for n := range 2 * maxRelays {
		giaddr := dhcpv4.WithGatewayIP(net.IPv4(192, 0, byte(n>>8), byte(n)))
		s.answer(t.Context(), packet(t, dhcpv4.MessageTypeDiscover, giaddr), Link{Name: "eth0"})
		s.answer(t.Context(), packet(t, dhcpv4.MessageTypeDiscover, giaddr, stranger), Link{Name: "eth0"})
	}
	if len(j.relays) != 0 {
		t.Errorf("%d relays were recorded", len(j.relays))
	}
	for _, c := range []struct {
		giaddr string
		by     dhcpv4.Modifier
	}{{"10.10.20.1", func(*dhcpv4.DHCPv4) {}}, {"10.10.20.3", stranger}} {
		s.answer(t.Context(), packet(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithGatewayIP(net.ParseIP(c.giaddr)), c.by), Link{Name: "eth0"})
		if n := len(j.relays); n == 0 || j.relays[n-1].String() != c.giaddr {
			t.Errorf("%s was not recorded: %v", c.giaddr, j.relays)
		}
	}
}

// While a relay is being recorded, only its own packets wait.
func TestRelayedWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := testNow
		s, j := newServer(t, &fakeDecider{}, func(c *Config) {
			relayOnly(c)
			c.Now = func() time.Time { return now }
		})
		slow, other := netip.MustParseAddr("10.10.20.1"), netip.MustParseAddr("10.10.20.3")
		release := make(chan struct{})
		j.stall = func(_ context.Context, giaddr netip.Addr) error {
			if giaddr == slow {
				<-release
			}
			return nil
		}
		var waiting atomic.Int32
		record := func() {
			s.relays.record(t.Context(), slow, func() *slog.Logger { return s.cfg.Log })
			waiting.Add(-1)
			if !slices.Contains(j.relays, slow) {
				t.Error("a packet goes on before its relay was recorded")
			}
		}
		for range 4 {
			waiting.Add(1)
			go record()
		}
		synctest.Wait()
		s.relays.record(t.Context(), other, func() *slog.Logger { return s.cfg.Log })
		if !slices.Equal(j.relays, []netip.Addr{other}) || waiting.Load() != 4 {
			t.Errorf("recorded: %v; %d wait", j.relays, waiting.Load())
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		s.relays.record(ended, slow, func() *slog.Logger { return s.cfg.Log }) // its context has ended: it does not wait
		close(release)
		synctest.Wait()
		if !slices.Equal(j.relays, []netip.Addr{other, slow}) || waiting.Load() != 0 {
			t.Errorf("recorded: %v; %d wait", j.relays, waiting.Load())
		}

		// A packet waits at most relayWait for a slow record.
		now = now.Add(relayAgain)
		release = make(chan struct{})
		go s.relays.record(t.Context(), slow, func() *slog.Logger { return s.cfg.Log })
		synctest.Wait()
		began := time.Now()
		s.relays.record(t.Context(), slow, func() *slog.Logger { return s.cfg.Log })
		if d := time.Since(began); d != relayWait { // exact in the synctest bubble
			t.Errorf("a packet waited %s", d)
		}
		close(release)
		synctest.Wait()
	})
}
