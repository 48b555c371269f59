package bootsvc

import (
	"context"
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/inventory"
)

// S33: a machine that chooses another server is noticed. A flood of packets does not wait.
func TestS33AMachineChoosesAnotherServer(t *testing.T) {
	s, _ := newServer(t, &fakeMachines{machines: []inventory.Machine{machine(nil)}}, nil)
	in := dhcp.Link{Name: "eth1", Mode: inventory.DHCPReservation}
	request := func(server ...byte) dhcp.Route {
		p := packet(t, dhcpv4.MessageTypeRequest, generic(54, server...), generic(50, 10, 10, 20, 11))
		return s.dhcp.Handle(t.Context(), p.ToBytes(), in).Route
	}
	for range 100 {
		request(10, 10, 20, 77)
	}
	var seen []inventory.Rival
	cfg := s.dhcpConfig()
	cfg.SightRival = func(x inventory.Rival) { seen = append(seen, x) }
	s.dhcp = dhcp.New(cfg)
	if request(10, 10, 20, 2) == dhcp.RouteNone || len(seen) != 0 {
		t.Errorf("this server is its own rival: %v", seen)
	}
	if by := request(10, 10, 20, 66); by != dhcp.RouteNone {
		t.Errorf("answered by %s", by)
	}
	if len(seen) != 1 || seen[0].Server.String() != "10.10.20.66" || seen[0].Machine != "node1" || seen[0].Where != "eth1" {
		t.Errorf("%+v", seen)
	}
}

// S33: a running server finds another one that answers clients, and another server of Ingot.
func TestLabS33SecondServer(t *testing.T) {
	t.Parallel()
	if !inNamespaces(t) {
		return
	}
	s, j := newServer(t, &fakeMachines{}, func(c *Config) { c.Interfaces = []string{"srv0"} })
	ctx, stop := context.WithCancel(t.Context())
	own, err := dhcp.Listen(ctx, "srv0", 67, testSelf)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 2)
	go func() { done <- s.dhcp.Serve(ctx, own) }()
	s.Rivals.Probe(ctx, "srv0")
	if got := s.Rivals.Recent(); len(got) != 0 {
		t.Errorf("alone: %v", got)
	}

	ip(t, "-n", clientNS, "addr", "add", "10.10.20.1/24", "dev", "cli0")
	// probe repeats the probe until it finds a server: on a slow host an answer may come too late.
	probe := func() (found []inventory.Rival) {
		waitFor(t, func() bool {
			s.Rivals.Probe(ctx, "srv0")
			found = s.Rivals.Recent()
			return len(found) > 0
		})
		return found
	}

	twin, _ := newServer(t, &fakeMachines{}, func(c *Config) { c.Address = netip.MustParseAddr("10.10.20.1") })
	var at *dhcp.Conn
	atClient(t, func() (err error) {
		at, err = dhcp.Listen(ctx, "cli0", 67, netip.MustParseAddr("10.10.20.1"))
		return err
	})
	go func() { done <- twin.dhcp.Serve(ctx, at) }()
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
	own, err = dhcp.Listen(t.Context(), "srv0", 67, testSelf)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop = context.WithCancel(t.Context())
	s, _ = newServer(t, &fakeMachines{}, func(c *Config) { c.Interfaces = []string{"srv0"} })
	go func() { done <- s.dhcp.Serve(ctx, own) }()
	if got = probe(); len(got) != 1 || got[0].Ingot {
		t.Errorf("a foreign server: %+v", got)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
