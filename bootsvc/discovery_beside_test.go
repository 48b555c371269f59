package bootsvc

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/bootsvc/tftp"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

const unknownMAC = "02:00:00:00:00:01"

// reports checks that a script boots the agent that only reports, and returns the URL of its kernel.
func reports(t *testing.T, script string) string {
	t.Helper()
	for _, secret := range []string{"ingot.claim=", "ingot.plan=", "ingot.machine="} {
		if strings.Contains(script, secret) {
			t.Errorf("the script has %s", secret)
		}
	}
	_, rest, _ := strings.Cut(script, "kernel http://10.10.20.2")
	kernel, _, _ := strings.Cut(rest, " ")
	if !strings.Contains(script, "ingot.discover=1") || kernel == "" {
		t.Errorf("the script: %s", script)
	}
	return kernel
}

// S7, S8, S32: through a listed relay an unknown machine gets an address of that relay's range, with the
// relay as its gateway. No other relay's machines get one.
func TestS7S8S32DiscoveryThroughARelay(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(func(m *inventory.Machine) {
		m.Interfaces[0].Address, m.Interfaces[0].Gateway = netip.MustParseAddr("10.10.30.200"), netip.MustParseAddr("10.10.30.1")
	})}}
	s, j := newServer(t, f, func(c *Config) {
		c.Relays = []netip.Prefix{netip.MustParsePrefix("10.10.30.1/32"), netip.MustParsePrefix("10.10.40.1/32")}
		c.Discovery = map[string]inventory.Range{
			"10.10.30.1/24": {From: netip.MustParseAddr("10.10.30.200"), To: netip.MustParseAddr("10.10.30.201")},
		}
	})
	ask := func(mac, giaddr string, kind dhcpv4.MessageType, mods ...dhcpv4.Modifier) dhcp.Reply {
		t.Helper()
		hw, err := net.ParseMAC(mac)
		if err != nil {
			t.Fatal(err)
		}
		mods = append(mods, dhcpv4.WithHwAddr(hw), dhcpv4.WithGatewayIP(net.ParseIP(giaddr)))
		return s.dhcp.Handle(t.Context(), packet(t, kind, mods...).ToBytes(), dhcp.Link{Name: "lo", Mode: inventory.DHCPReservation})
	}
	if r := ask(unknownMAC, "10.10.40.1", dhcpv4.MessageTypeDiscover, pxeClient(7)); r.Route != dhcp.RouteNone {
		t.Errorf("a relay without a range: %s", r.Packet.Summary())
	}
	if r := ask(unknownMAC, "10.10.30.1", dhcpv4.MessageTypeDiscover); r.Route != dhcp.RouteNone {
		t.Errorf("a telephone: %s", r.Packet.Summary())
	}
	r := ask(unknownMAC, "10.10.30.1", dhcpv4.MessageTypeDiscover, pxeClient(7))
	if r.Route != dhcp.RouteRelay || r.To.String() != "10.10.30.1" || r.Packet.YourIPAddr.String() != "10.10.30.201" ||
		r.Packet.BootFileName != "snponly.efi" || !r.Packet.Router()[0].Equal(net.IPv4(10, 10, 30, 1)) ||
		net.IP(r.Packet.SubnetMask()).String() != "255.255.255.0" {
		t.Fatalf("firmware by %s: %v", r.Route, r.Packet)
	}
	r = ask(unknownMAC, "10.10.30.1", dhcpv4.MessageTypeRequest, generic(50, 10, 10, 30, 201))
	if r.Packet == nil || r.Packet.MessageType() != dhcpv4.MessageTypeAck || r.Packet.BootFileName != "" {
		t.Errorf("its agent: %v", r.Packet)
	}
	if r := ask("02:00:00:00:00:02", "10.10.30.1", dhcpv4.MessageTypeDiscover, pxeClient(7)); r.Route != dhcp.RouteNone {
		t.Errorf("the only address that is left is reserved: %s", r.Packet.Summary())
	}
	if !s.Guest(t.Context(), unknownMAC, netip.MustParseAddr("10.10.30.201")) ||
		s.Guest(t.Context(), unknownMAC, netip.MustParseAddr("10.10.30.200")) {
		t.Error("a guest has its own address")
	}
	kernel := reports(t, get(t, s.Handler(), http.MethodGet, "/ipxe/script/"+unknownMAC+"/auto.ipxe", "10.10.30.201").Body.String())
	if w := get(t, s.Handler(), http.MethodGet, kernel, "10.10.30.201"); w.Code != http.StatusOK {
		t.Errorf("the kernel: %d", w.Code)
	}
	s.rec.Flush(t.Context())
	if len(j.seen) == 0 || j.seen[0].Giaddr == "" || len(j.events) != 0 {
		t.Errorf("seen %+v, events %+v", j.seen, j.events)
	}
}

// discoveringBeside returns a server on lo with one known machine, and what the kernel knows of addresses.
func discoveringBeside(t *testing.T, mode inventory.DHCPMode, f *fakeMachines) (*Server, map[string]string) {
	t.Helper()
	s, _ := newServer(t, f, func(c *Config) {
		c.Modes = map[string]inventory.DHCPMode{"lo": mode}
		c.DiscoverBeside = []string{"lo"}
		c.Relays = []netip.Prefix{netip.MustParsePrefix("10.10.30.1/32")}
	})
	arp := map[string]string{}
	s.network.neighbour = func(a netip.Addr) (string, bool) { mac, ok := arp[a.String()]; return mac, ok }
	return s, arp
}

// S7, S8, S32: next to another DHCP server an unknown machine gets the boot file by ProxyDHCP and no
// address. A report counts from the MAC that the kernel knows for the source.
func TestS7S8S32DiscoveryByProxy(t *testing.T) {
	s, arp := discoveringBeside(t, inventory.DHCPProxy, &fakeMachines{machines: []inventory.Machine{machine(nil)}})
	in := dhcp.Link{Name: "lo", Port: dhcpv4.ServerPort, Mode: inventory.DHCPProxy, Prefixes: interfacePrefixes("lo")}
	mac := func(n int) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, byte(n >> 8), byte(n)} }
	ask := func(n int, in dhcp.Link, kind dhcpv4.MessageType, mods ...dhcpv4.Modifier) dhcp.Reply {
		t.Helper()
		return s.dhcp.Handle(t.Context(), packet(t, kind, append(mods, dhcpv4.WithHwAddr(mac(n)))...).ToBytes(), in)
	}
	if r := ask(1, in, dhcpv4.MessageTypeDiscover); r.Route != dhcp.RouteNone {
		t.Errorf("a telephone: %s", r.Packet.Summary())
	}
	r := ask(1, in, dhcpv4.MessageTypeDiscover, pxeClient(0))
	if r.Route != dhcp.RouteBroadcast || wire.Addr4(r.Packet.YourIPAddr).IsValid() ||
		r.Packet.BootFileName != "02-00-00-00-00-01/undionly.kpxe" {
		t.Fatalf("BIOS by %s: %v", r.Route, r.Packet)
	}
	ask(2, in, dhcpv4.MessageTypeDiscover, pxeClient(7))
	asked := in
	asked.Port, asked.From = wire.ProxyPort, netip.MustParseAddrPort("127.0.0.77:4011")
	r = ask(2, asked, dhcpv4.MessageTypeRequest, pxeClient(7))
	if r.Route != dhcp.RouteSource || r.Packet.BootFileName != "02-00-00-00-00-02/snponly.efi" {
		t.Fatalf("UEFI on port 4011 by %s: %v", r.Route, r.Packet)
	}
	if r := ask(3, in, dhcpv4.MessageTypeDiscover, pxeClient(0), dhcpv4.WithGatewayIP(net.ParseIP("10.10.30.1"))); r.Route != dhcp.RouteRelay {
		t.Errorf("through a listed relay: %s", r.Route)
	}
	if r := ask(4, in, dhcpv4.MessageTypeDiscover, pxeClient(0), dhcpv4.WithGatewayIP(net.ParseIP("10.10.99.1"))); r.Route != dhcp.RouteNone {
		t.Errorf("through another relay: %s", r.Route)
	}
	kernel := reports(t, get(t, s.Handler(), http.MethodGet, "/ipxe/script/"+unknownMAC+"/auto.ipxe", "127.0.0.77").Body.String())
	if w := get(t, s.Handler(), http.MethodGet, kernel, "127.0.0.77"); w.Code != http.StatusOK {
		t.Errorf("the kernel: %d", w.Code)
	}

	at := netip.MustParseAddr("127.0.0.77")
	if s.Guest(t.Context(), unknownMAC, at) {
		t.Error("a report from an address whose MAC is not known")
	}
	arp["127.0.0.77"] = "02:00:00:00:00:02"
	guest := func(mac string, at netip.Addr) bool { return s.Guest(t.Context(), mac, at) }
	if guest(unknownMAC, at) || !guest("02:00:00:00:00:02", at) || guest(testMAC, at) || guest("02:00:00:00:00:66", at) {
		t.Error("the MAC of the source decides")
	}
	if !guest("02:00:00:00:00:03", netip.MustParseAddr("10.10.30.77")) || guest("02:00:00:00:00:03", netip.MustParseAddr("10.10.99.77")) {
		t.Error("behind a router, the network of a listed relay decides")
	}

	admitted := 0
	for n := 10; n < 600; n++ {
		if r := ask(n, in, dhcpv4.MessageTypeDiscover, pxeClient(0)); r.Route != dhcp.RouteNone {
			admitted++
		}
	}
	if admitted != maxNewGuests-3 {
		t.Errorf("%d more were admitted in a minute", admitted)
	}
	g := newGuests(inventory.Range{})
	now, most := testNow, 0
	for n := range 2 * maxVisitors {
		if n%maxNewGuests == 0 {
			now = now.Add(time.Minute)
		}
		g.admit(mac(n).String(), now, nil)
		most = max(most, len(g.byMAC))
	}
	if most != maxVisitors {
		t.Errorf("%d are discovered at a time", most)
	}
}

// S7, S8, S32: with DHCP off, the loader and the script of an unknown machine are served: to the MAC of the
// source, or behind a router to the MAC that its script asks with. A machine that may be in the inventory is
// never one of them.
func TestS7S8S32DiscoveryWithDHCPOff(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
	s, arp := discoveringBeside(t, inventory.DHCPOff, f)
	loader := func(from string) error {
		return s.files.read(t.Context(), tftp.Request{
			Name: "snponly.efi", From: netip.MustParseAddr(from), Send: func(tftp.Rank, int64, io.Reader) error { return nil },
		})
	}
	script := func(mac, from string) (int, string) {
		w := get(t, s.Handler(), http.MethodGet, "/ipxe/script/"+mac+"/auto.ipxe", from)
		return w.Code, w.Body.String()
	}
	arp["127.0.0.77"], arp["127.0.0.78"] = unknownMAC, testMAC
	if err := loader("127.0.0.77"); err != nil {
		t.Errorf("the loader of an unknown machine: %v", err)
	}
	if err := loader("127.0.0.78"); !errors.Is(err, tftp.ErrNoFile) {
		t.Errorf("the loader of a machine that is not armed: %v", err)
	}
	code, text := script(unknownMAC, "127.0.0.77")
	if code != http.StatusOK {
		t.Fatalf("the script: %d", code)
	}
	reports(t, text)
	for mac, from := range map[string]string{
		"02:00:00:00:00:02": "127.0.0.77",  // the source has another MAC
		"02:00:00:00:00:03": "127.0.0.99",  // unknown to the kernel
		"02:00:00:00:00:04": "10.10.99.77", // of no network of a relay
	} {
		if code, text := script(mac, from); code != http.StatusNotFound {
			t.Errorf("%s from %s: %d %s", mac, from, code, text)
		}
	}
	code, text = script("02:00:00:00:00:05", "10.10.30.77")
	if code != http.StatusOK {
		t.Errorf("behind a listed relay: %d", code)
	}
	reports(t, text)
	var grub string
	err := s.files.read(t.Context(), tftp.Request{
		Name: "/grub/m/02:00:00:00:00:07", From: netip.MustParseAddr("10.10.30.79"), Send: func(_ tftp.Rank, _ int64, r io.Reader) error {
			b, err := io.ReadAll(r)
			grub = string(b)
			return err
		},
	})
	if err != nil || !strings.Contains(grub, " 'ingot.discover=1' ") {
		t.Errorf("GRUB behind a listed relay: %q, %v", grub, err)
	}
	if code, text := script(testMAC, "127.0.0.78"); strings.Contains(text, "ingot.discover") {
		t.Errorf("a known machine: %d %s", code, text)
	}
	f.err = fmt.Errorf("the database is locked")
	if code, text := script("02:00:00:00:00:06", "10.10.30.78"); code != http.StatusNotFound {
		t.Errorf("while the inventory cannot be read: %d %s", code, text)
	}
	if s.Guest(t.Context(), "02:00:00:00:00:06", netip.MustParseAddr("10.10.30.78")) {
		t.Error("a machine that may be in the inventory is discovered")
	}
	f.err = nil

	// Its loader was admitted before this server was started.
	if !s.Guest(t.Context(), "02:00:00:00:00:08", netip.MustParseAddr("10.10.30.79")) ||
		s.Guest(t.Context(), testMAC, netip.MustParseAddr("10.10.30.79")) {
		t.Error("an agent that an earlier process has admitted is not discovered")
	}
	for _, g := range s.discovery.guests {
		g.earlierUntil = testNow
	}
	if s.Guest(t.Context(), "02:00:00:00:00:09", netip.MustParseAddr("10.10.30.79")) {
		t.Error("an agent whose loader was never admitted is discovered")
	}
}
