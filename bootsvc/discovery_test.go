package bootsvc

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/inventory"
)

func discovering(c *Config) {
	c.Discovery = map[string]inventory.Range{"eth8": {From: netip.MustParseAddr("10.10.20.10"), To: netip.MustParseAddr("10.10.20.13")}}
}

// S7, S8, S32: an unknown machine gets an address that is not reserved, and the agent without claim
// and key. It never takes one from a known machine, few are admitted at a time, and none without
// a boot class.
func TestS7S8S32Discovery(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}} // 10.10.20.11
	now := testNow
	s, _ := newServer(t, f, func(c *Config) { discovering(c); c.Now = func() time.Time { return now } })
	now = now.Add(guestLease) // no earlier process has given addresses
	in := dhcp.Link{Name: "eth8", Port: dhcpv4.ServerPort, Mode: inventory.DHCPReservation}
	mac := func(n byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, n} }
	ask := func(n byte, kind dhcpv4.MessageType, mods ...dhcpv4.Modifier) string {
		r := s.dhcp.Handle(t.Context(), packet(t, kind, append(mods, dhcpv4.WithHwAddr(mac(n)))...).ToBytes(), in)
		if r.Route == dhcp.RouteNone {
			return ""
		}
		return r.Packet.MessageType().String() + " " + r.Packet.YourIPAddr.String() + " " + r.Packet.BootFileName
	}
	if got := ask(1, dhcpv4.MessageTypeDiscover); got != "" {
		t.Errorf("a telephone got %s", got)
	}
	if got := ask(1, dhcpv4.MessageTypeDiscover, pxeClient(7)); got != "OFFER 10.10.20.10 snponly.efi" {
		t.Errorf("firmware: %q", got)
	}
	wants := generic(50, 10, 10, 20, 10)
	if got := ask(1, dhcpv4.MessageTypeRequest, wants); got != "ACK 10.10.20.10 " {
		t.Errorf("its agent: %q", got)
	}
	if got := ask(2, dhcpv4.MessageTypeRequest, wants, pxeClient(7)); got != "" {
		t.Errorf("without a DISCOVER: %q", got)
	}
	if got := ask(2, dhcpv4.MessageTypeDiscover, pxeClient(0)); got != "OFFER 10.10.20.12 undionly.kpxe" {
		t.Errorf("the reserved address is skipped: %q", got)
	}
	ask(3, dhcpv4.MessageTypeDiscover, pxeClient(0))
	if got := ask(4, dhcpv4.MessageTypeDiscover, pxeClient(0)); got != "" {
		t.Errorf("from a full range: %q", got)
	}
	if leases := s.dhcp.Leases(); len(leases) != 0 {
		t.Errorf("guests fill the table of leases: %+v", leases)
	}
	if all := s.Leases(); len(all) != 3 || all[0] != (inventory.DHCPLease{
		MAC: "02:00:00:00:00:01", Address: netip.MustParseAddr("10.10.20.10"), State: inventory.LeaseDiscovery,
		At: now, Expires: now.Add(guestLease), Where: "eth8",
	}) {
		t.Errorf("the leases of discovery: %+v", all)
	}
	if !s.Guest(t.Context(), "02:00:00:00:00:01", netip.MustParseAddr("10.10.20.10")) ||
		s.Guest(t.Context(), "02:00:00:00:00:01", netip.MustParseAddr("10.10.20.12")) ||
		s.Guest(t.Context(), testMAC, netip.MustParseAddr(testAddr)) {
		t.Error("a guest is a MAC with its own address")
	}

	e, err := s.Why(t.Context(), "02:00:00:00:00:01")
	if err != nil || e.Lease == nil || e.Lease.State != inventory.LeaseDiscovery || e.Answers[1].BootFile != "snponly.efi" {
		t.Errorf("why: %+v, %v", e, err)
	}

	h := s.Handler()
	script := get(t, h, http.MethodGet, "/ipxe/script/02:00:00:00:00:01/auto.ipxe", "10.10.20.10").Body.String()
	for _, secret := range []string{"ingot.claim=", "ingot.plan=", "ingot.machine="} {
		if strings.Contains(script, secret) {
			t.Errorf("the script has %s", secret)
		}
	}
	_, rest, _ := strings.Cut(script, "kernel http://10.10.20.2")
	kernel, _, _ := strings.Cut(rest, " ")
	if !strings.Contains(script, "ingot.discover=1") || get(t, h, http.MethodGet, kernel, "10.10.20.10").Code != http.StatusOK {
		t.Errorf("the script: %s", script)
	}

	// The lease ends, and with it everything else.
	now = now.Add(guestLease)
	if all := s.Leases(); len(all) != 0 {
		t.Errorf("leases that have ended are listed: %+v", all)
	}
	for _, url := range []string{kernel, "/ipxe/script/02:00:00:00:00:01/auto.ipxe"} {
		if w := get(t, h, http.MethodGet, url, "10.10.20.10"); w.Code != http.StatusNotFound {
			t.Errorf("%s after the lease: %d", url, w.Code)
		}
	}
	if got := ask(4, dhcpv4.MessageTypeDiscover, pxeClient(0)); got == "" {
		t.Error("an address whose lease has ended is not given again")
	}

	g := newGuests(inventory.Range{From: netip.MustParseAddr("10.0.0.0"), To: netip.MustParseAddr("10.0.0.200")})
	admitted := 0
	for n := range byte(100) {
		if g.admit(mac(n).String(), now, func(netip.Addr) bool { return false }) {
			admitted++
		}
	}
	if admitted != maxNewGuests {
		t.Errorf("%d were admitted in a minute", admitted)
	}
}

// TestS32AGuestGivesUpAReservedAddress: an address that a guest has may be reserved for a machine later.
func TestS32AGuestGivesUpAReservedAddress(t *testing.T) {
	f := &fakeMachines{}
	now := testNow
	s, _ := newServer(t, f, func(c *Config) { discovering(c); c.Now = func() time.Time { return now } })
	now = now.Add(guestLease) // no earlier process has given addresses
	ask := func(kind dhcpv4.MessageType, mods ...dhcpv4.Modifier) string {
		mods = append(mods, dhcpv4.WithHwAddr(net.HardwareAddr{2, 0, 0, 0, 0, 1}))
		r := s.dhcp.Handle(t.Context(), packet(t, kind, mods...).ToBytes(), dhcp.Link{Name: "eth8", Mode: inventory.DHCPReservation})
		if r.Route == dhcp.RouteNone {
			return ""
		}
		return r.Packet.YourIPAddr.String()
	}
	first := ask(dhcpv4.MessageTypeDiscover, pxeClient(7))
	f.err = errors.New("the database is locked")
	if got := ask(dhcpv4.MessageTypeDiscover, pxeClient(7)); got != "" {
		t.Errorf("while the inventory cannot be read, it gets %s", got)
	}
	f.err = nil
	if got := ask(dhcpv4.MessageTypeDiscover, pxeClient(7)); got != first {
		t.Errorf("it had %s and gets %s", first, got)
	}

	address := netip.MustParseAddr(first)
	f.machines = []inventory.Machine{machine(func(m *inventory.Machine) { m.Interfaces[0].Address = address })}
	if got := ask(dhcpv4.MessageTypeRequest, generic(50, address.AsSlice()...)); got != "" {
		t.Errorf("it keeps the reserved address %s", got)
	}
	if got := ask(dhcpv4.MessageTypeDiscover, pxeClient(7)); got == first || got == "" {
		t.Errorf("%s is reserved, and it gets %q", first, got)
	}
	if s.Guest(t.Context(), "02:00:00:00:00:01", address) {
		t.Error("the reserved address counts as its own")
	}
}

// A range may hold addresses that no guest can have: those of the network, of its broadcasts, of this server and
// of another network.
func TestGuestsGetAddressesOfTheirNetwork(t *testing.T) {
	for text, want := range map[string]string{
		"127.0.0.0-127.0.0.9":             "127.0.0.3",
		"127.255.255.254-127.255.255.255": "127.255.255.254",
		"127.255.255.255-128.0.0.9":       "",
		"10.10.20.10-10.10.20.13":         "",
	} {
		var r inventory.Range
		if err := r.UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
		now := testNow
		s, _ := newServer(t, &fakeMachines{}, func(c *Config) {
			c.Address, c.Now = netip.MustParseAddr("127.0.0.2"), func() time.Time { return now }
			c.Discovery = map[string]inventory.Range{"lo": r}
		})
		now = now.Add(guestLease) // no earlier process has given addresses
		got := ""
		a := s.dhcp.Handle(t.Context(), packet(t, dhcpv4.MessageTypeDiscover, pxeClient(0), func(p *dhcpv4.DHCPv4) {
			p.ClientHWAddr = net.HardwareAddr{2, 0, 0, 0, 0, 1}
		}).ToBytes(), dhcp.Link{Name: "lo", Port: dhcpv4.ServerPort, Mode: inventory.DHCPReservation})
		if a.Route != dhcp.RouteNone {
			got = a.Packet.YourIPAddr.String()
		}
		if got != want {
			t.Errorf("of %s: %q, not %q", text, got, want)
		}
	}
}

// Without discovery an unknown machine gets nothing.
func TestS41DiscoveryIsOffByDefault(t *testing.T) {
	s, _ := newServer(t, &fakeMachines{}, nil)
	r := s.dhcp.Handle(t.Context(), packet(t, dhcpv4.MessageTypeDiscover, pxeClient(7)).ToBytes(), dhcp.Link{Name: "lo"})
	if r.Route != dhcp.RouteNone {
		t.Errorf("answered by %s", r.Route)
	}
}

// A guest of one interface is not answered on another one: it is admitted there, or gets nothing. Its
// gateway is this host where the server's address is on another network.
func TestGuestsAreOfOneInterface(t *testing.T) {
	now := testNow
	s, _ := newServer(t, &fakeMachines{}, func(c *Config) {
		c.Now = func() time.Time { return now }
		c.Interfaces, c.Modes = []string{"lo", "eth8", "eth9"}, map[string]inventory.DHCPMode{"eth9": inventory.DHCPProxy}
		c.Discovery = map[string]inventory.Range{
			"lo":   {From: netip.MustParseAddr("127.0.20.10"), To: netip.MustParseAddr("127.0.20.13")},
			"eth8": {From: netip.MustParseAddr("10.10.20.10"), To: netip.MustParseAddr("10.10.20.13")},
		}
	})
	now = now.Add(guestLease) // no earlier process has given addresses
	ask := func(iface string, mode inventory.DHCPMode) dhcp.Reply {
		return s.dhcp.Handle(t.Context(), packet(t, dhcpv4.MessageTypeDiscover, pxeClient(0), func(p *dhcpv4.DHCPv4) {
			p.ClientHWAddr = net.HardwareAddr{2, 0, 0, 0, 0, 1}
		}).ToBytes(), dhcp.Link{Name: iface, Mode: mode, Port: dhcpv4.ServerPort})
	}
	r := ask("lo", inventory.DHCPReservation)
	if r.Packet == nil || r.Packet.YourIPAddr.String() != "127.0.20.10" || len(r.Packet.Router()) != 1 ||
		r.Packet.Router()[0].String() != "127.0.0.1" {
		t.Fatalf("on another network than the server's address: %v", r.Packet)
	}
	if r := ask("eth9", inventory.DHCPProxy); r.Route != dhcp.RouteNone {
		t.Errorf("where discovery is off: %s", r.Packet.Summary())
	}
	if r := ask("eth8", inventory.DHCPReservation); r.Packet == nil || r.Packet.YourIPAddr.String() != "10.10.20.10" {
		t.Errorf("on the other interface with a range: %v", r.Packet)
	}
	for _, a := range []string{"127.0.20.10", "10.10.20.10"} {
		for range 20 { // the order of a map is random
			if !s.Guest(t.Context(), unknownMAC, netip.MustParseAddr(a)) {
				t.Fatalf("its report from %s does not count", a)
			}
		}
	}
}

// After a restart, the server does not know which addresses of its range are in use. A guest of the earlier
// process keeps its address, and another machine gets another one.
func TestGuestsKeepTheirAddressesAfterARestart(t *testing.T) {
	const old = "02:00:00:00:00:77"
	now := testNow
	s, _ := newServer(t, &fakeMachines{machines: []inventory.Machine{machine(nil)}}, func(c *Config) {
		discovering(c)
		c.Now = func() time.Time { return now }
	})
	probes := make(chan string) // the MAC that answers, or ""
	s.discovery.probe = func(netip.Addr, string) (string, bool) { mac := <-probes; return mac, mac != "" }
	done := make(chan struct{})
	probe := s.discovery.guests["eth8"].probe
	s.discovery.guests["eth8"].probe = func(mac string, a netip.Addr) { probe(mac, a); done <- struct{}{} }
	ask := func(mac string, kind dhcpv4.MessageType, mods ...dhcpv4.Modifier) string {
		t.Helper()
		hw, err := net.ParseMAC(mac)
		if err != nil {
			t.Fatal(err)
		}
		mods = append(mods, dhcpv4.WithHwAddr(hw))
		r := s.dhcp.Handle(t.Context(), packet(t, kind, mods...).ToBytes(), dhcp.Link{Name: "eth8", Mode: inventory.DHCPReservation})
		if r.Route == dhcp.RouteNone {
			return ""
		}
		return r.Packet.MessageType().String() + " " + r.Packet.YourIPAddr.String()
	}
	discover := func() string { return ask(unknownMAC, dhcpv4.MessageTypeDiscover, pxeClient(7)) }

	// The loader of this machine was admitted before the restart; its agent asks after it.
	const agents = "02:00:00:00:00:78"
	for _, c := range [][2]string{{"udhcp 1.35.0", ""}, {action.VendorClass, "OFFER 10.10.20.10"}} {
		class, want := c[0], c[1]
		got := ask(agents, dhcpv4.MessageTypeDiscover, dhcpv4.WithOption(dhcpv4.OptClassIdentifier(class)))
		if want != "" { // not before the probe
			probes <- ""
			<-done
			got += ask(agents, dhcpv4.MessageTypeDiscover, dhcpv4.WithOption(dhcpv4.OptClassIdentifier(class)))
		}
		if got != want {
			t.Errorf("DISCOVER of class %q: %q, want %q", class, got, want)
		}
	}
	s.discovery.guests["eth8"].evict(agents)

	for _, other := range []string{old, ""} {
		for range 2 {
			if got := discover(); got != "" {
				t.Fatalf("offered before the probe has ended: %s", got)
			}
		}
		probes <- other
		<-done
	}
	if got := discover(); got != "OFFER 10.10.20.12" {
		t.Errorf("the address that another machine has: %q", got)
	}
	if got := ask(old, dhcpv4.MessageTypeRequest, generic(50, 10, 10, 20, 10)); got != "ACK 10.10.20.10" ||
		!s.Guest(t.Context(), old, netip.MustParseAddr("10.10.20.10")) {
		t.Errorf("a guest of the earlier process: %q", got)
	}
	// A client that renews its address has it, so it is asked for nothing more.
	renews := func(mac, address string) string {
		return ask(mac, dhcpv4.MessageTypeRequest, dhcpv4.WithClientIP(net.ParseIP(address)))
	}
	if got := renews("02:00:00:00:00:79", "10.10.20.13"); got != "ACK 10.10.20.13" ||
		!s.Guest(t.Context(), "02:00:00:00:00:79", netip.MustParseAddr("10.10.20.13")) {
		t.Errorf("an address of the earlier process is renewed: %q", got)
	}
	for _, address := range []string{"10.10.20.9", "10.10.20.10", testAddr, "10.10.20.200"} {
		if got := renews("02:00:00:00:00:80", address); got != "" {
			t.Errorf("the renewal of %s, which is of another client or not of the range: %q", address, got)
		}
	}
	now = now.Add(guestLease)
	if got := renews("02:00:00:00:00:79", "10.10.20.13"); got != "" {
		t.Errorf("after the lease has ended: %q", got)
	}
	const late = "02:00:00:00:00:78"
	offer := func() string { return ask(late, dhcpv4.MessageTypeDiscover, pxeClient(7)) }
	if got := offer(); got != "OFFER 10.10.20.10" {
		t.Errorf("after all leases have ended: %q", got)
	}
	// A guest that declines its address gets another one if another host has it.
	for _, c := range []struct{ other, want string }{{"", "OFFER 10.10.20.10"}, {old, "OFFER 10.10.20.12"}} {
		if got := ask(late, dhcpv4.MessageTypeDecline, generic(50, 10, 10, 20, 10)); got != "" {
			t.Errorf("a DECLINE is answered: %q", got)
		}
		probes <- c.other
		<-done
		if got := offer(); got != c.want {
			t.Errorf("after a DECLINE, with the host %q at the address: %q", c.other, got)
		}
	}
}
