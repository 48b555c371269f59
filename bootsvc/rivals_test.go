package bootsvc

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

// S33: a machine that chooses another server is an alarm, once. A forger causes few.
func TestS33AMachineChoosesAnotherServer(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
	now := testNow
	s, j := newServer(t, f, func(c *Config) { c.Now = func() time.Time { return now } })
	in := link{name: "eth1", mode: inventory.DHCPReservation}
	request := func(server ...byte) {
		t.Helper()
		p := packet(t, dhcpv4.MessageTypeRequest, generic(54, server...), generic(50, 10, 10, 20, 11))
		if r := s.handlePacket(t.Context(), p.ToBytes(), in); wire.Addr4(server) != testSelf && r.route != routeNone {
			t.Errorf("answered by %s", r.route)
		}
		for len(s.rivals.sighted) > 0 {
			s.raiseRival(t.Context(), <-s.rivals.sighted)
		}
	}
	request(10, 10, 20, 2)
	if got := s.Rivals(); len(got) != 0 {
		t.Errorf("this server is its own rival: %v", got)
	}
	request(10, 10, 20, 66)
	now = now.Add(time.Minute)
	request(10, 10, 20, 66)
	got := s.Rivals()
	if len(got) != 1 || got[0].Server.String() != "10.10.20.66" || got[0].Machine != "node1" || got[0].Where != "eth1" ||
		got[0].Last.Sub(got[0].First) != time.Minute {
		t.Errorf("%+v", got)
	}
	if len(j.events) != 1 || j.events[0].Kind != inventory.EventOperator || j.events[0].Machine != "node1" ||
		!strings.Contains(j.events[0].Message, "another DHCP server, 10.10.20.66, is chosen by machine node1 (eth1)") {
		t.Errorf("events %+v", j.events)
	}

	for n := range 200 {
		request(10, 99, byte(n), 1)
	}
	if len(s.Rivals()) != maxRivals || len(j.events) != maxRivals {
		t.Errorf("%d are remembered, %d events", len(s.Rivals()), len(j.events))
	}
	now = now.Add(rivalFor)
	if len(s.Rivals()) != 0 {
		t.Error("a server that was not seen again is remembered")
	}
	request(10, 10, 20, 66)
	if len(j.events) != maxRivals+1 {
		t.Errorf("%d events after it came back", len(j.events))
	}

	// A flood of packets does not wait for the alarms.
	for range 10 * maxRivals {
		s.handlePacket(t.Context(), packet(t, dhcpv4.MessageTypeRequest, generic(54, 10, 10, 20, 77)).ToBytes(), in)
	}
}

// S33: a running server finds another one that answers clients, and another server of Ingot.
func TestLabS33SecondServer(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	s, j := newServer(t, &fakeMachines{}, func(c *Config) { c.Interfaces = []string{"srv0"} })
	ctx, stop := context.WithCancel(t.Context())
	own, err := listenDHCP(ctx, "srv0", 67, testSelf)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 2)
	go func() { done <- s.serveDHCP(ctx, own) }()
	s.probeRivals(ctx, "srv0")
	if got := s.Rivals(); len(got) != 0 {
		t.Errorf("alone: %v", got)
	}

	ip(t, "-n", clientNS, "addr", "add", "10.10.20.1/24", "dev", "cli0")
	// probe repeats the probe until it finds somebody: on a slow host an answer may come too late.
	probe := func() (found []inventory.Rival) {
		waitFor(t, func() bool {
			s.probeRivals(ctx, "srv0")
			found = s.Rivals()
			return len(found) > 0
		})
		return found
	}

	twin, _ := newServer(t, &fakeMachines{}, func(c *Config) { c.Address = netip.MustParseAddr("10.10.20.1") })
	var at *dhcpConn
	atClient(t, func() (err error) {
		at, err = listenDHCP(ctx, "cli0", 67, netip.MustParseAddr("10.10.20.1"))
		return err
	})
	go func() { done <- twin.serveDHCP(ctx, at) }()
	got := probe()
	if len(got) != 1 || got[0].Server.String() != "10.10.20.1" || !got[0].Ingot || got[0].Where != "srv0" || len(j.events) != 1 {
		t.Errorf("%+v, events %+v", got, j.events)
	}
	stop()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}

	// A DHCP server that offers an address to any client.
	foreign := offering(t)
	defer foreign.Close()
	own, err = listenDHCP(t.Context(), "srv0", 67, testSelf)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop = context.WithCancel(t.Context())
	go func() { done <- s.serveDHCP(ctx, own) }()
	s.rivals.known = nil
	if got = probe(); len(got) != 1 || got[0].Ingot {
		t.Errorf("a foreign server: %+v", got)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
