package bootsvc

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ingotmetal/ingot/bootsvc/tftp/tftptest"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/bootsvc/tftp"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

// inMode returns a change of the configuration: the server's only interface has that mode.
func inMode(mode inventory.DHCPMode) func(*Config) {
	return func(c *Config) {
		c.Modes = map[string]inventory.DHCPMode{"lo": mode}
		c.Relays = []netip.Prefix{netip.MustParsePrefix("10.10.30.1/32")}
	}
}

// The golden file has the answers next to a server that gives addresses: on port 67 and on 4011.
func TestS30ProxyAnswers(t *testing.T) {
	const discover, request, inform = dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeRequest, dhcpv4.MessageTypeInform
	ipxe := func(p *dhcpv4.DHCPv4) { pxeClient(0)(p); generic(77, []byte("iPXE")...)(p) }
	dynamic := func(m *inventory.Machine) { m.Interfaces[0].Address = netip.Addr{} }
	relay := dhcpv4.WithGatewayIP([]byte{10, 10, 30, 1})
	optionEightyTwo := generic(82, 1, 2, 'p', '7')
	var golden strings.Builder
	for _, r := range []struct {
		name    string
		p       *dhcpv4.DHCPv4
		from    string // on port 4011; "" = port 67
		unarmed bool
		edit    func(*inventory.Machine)
	}{
		{name: "BIOS", p: packet(t, discover, pxeClient(0))},
		{name: "UEFI", p: packet(t, discover, pxeClient(7))},
		{name: "UEFI HTTP", p: packet(t, discover, pxeClient(16))},
		{name: "iPXE", p: packet(t, discover, ipxe)},
		{name: "an operating system", p: packet(t, discover)},
		{name: "not armed", p: packet(t, discover, pxeClient(7)), unarmed: true},
		{name: "not armed, iPXE by ipxe-exit", p: packet(t, discover, ipxe), unarmed: true, edit: func(m *inventory.Machine) {
			m.BootFromDisk = MethodExit
		}},
		{name: "a machine without an address", p: packet(t, discover, pxeClient(0)), edit: dynamic},
		{name: "excluded", p: packet(t, discover, pxeClient(7)), edit: func(m *inventory.Machine) { m.Interfaces[0].DisableDHCP = true }},
		{name: "REQUEST to the other server", p: packet(t, request, pxeClient(7), generic(54, 10, 10, 20, 3))},
		{name: "relayed", p: packet(t, discover, pxeClient(7), relay, optionEightyTwo), edit: dynamic},
		{name: "relayed, address elsewhere", p: packet(t, discover, pxeClient(7), relay)},
		{name: "4011, UEFI", p: packet(t, request, pxeClient(7), dhcpv4.WithClientIP([]byte{10, 10, 20, 170})), from: "10.10.20.170:4011"},
		{name: "4011, BIOS from port 68", p: packet(t, inform, pxeClient(0)), from: "10.10.20.170:68"},
		{name: "4011, not armed", p: packet(t, request, pxeClient(7)), from: "10.10.20.170:4011", unarmed: true},
		{name: "4011, relayed", p: packet(t, request, pxeClient(7)), from: "10.10.30.170:4011", edit: dynamic},
		{name: "4011, from any host", p: packet(t, request, pxeClient(7)), from: "192.0.2.7:4011", edit: dynamic},
		{name: "4011, an operating system", p: packet(t, request), from: "10.10.20.170:4011"},
	} {
		f := &fakeMachines{machines: []inventory.Machine{machine(r.edit)}, grants: map[string]inventory.Grant{}}
		if !r.unarmed {
			f.grants["node1"] = armed("node1")
		}
		s, _ := newServer(t, f, inMode(inventory.DHCPProxy))
		in := dhcp.Link{
			Name: "lo", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.10.20.2/24")}, Mode: inventory.DHCPProxy,
			Port: dhcpv4.ServerPort,
		}
		if r.from != "" {
			in.Port, in.From = wire.ProxyPort, netip.MustParseAddrPort(r.from)
		}
		got := s.dhcp.Handle(t.Context(), r.p.ToBytes(), in)
		text := describe(got)
		if got.Route == dhcp.RouteSource {
			text = strings.Replace(text, "source to ", fmt.Sprintf("source to port %d of ", got.Port), 1)
		}
		fmt.Fprintf(&golden, "%s: %s\n", r.name, text)
	}
	compareGolden(t, "testdata/proxy.golden", golden.String())
}

// Every name that a proxy offers resolves by TFTP, whatever the address of the client.
func TestProxyNamesResolve(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}, grants: map[string]inventory.Grant{"node1": armed("node1")}}
	s, _ := newServer(t, f, inMode(inventory.DHCPProxy))
	s.network.neighbour = func(netip.Addr) (string, bool) { return "", false }
	addr := startTFTP(t, s)
	in := dhcp.Link{Name: "lo", Mode: inventory.DHCPProxy, Port: dhcpv4.ServerPort}
	r := s.dhcp.Handle(t.Context(), packet(t, dhcpv4.MessageTypeDiscover, pxeClient(0)).ToBytes(), in)
	name := r.Packet.BootFileName
	body, err := tftptest.Get(t, addr, name)
	if err != nil || !strings.Contains(body, "undionly.kpxe") {
		t.Fatalf("TFTP %q: %v", name, err)
	}
	script, err := tftptest.Get(t, addr, strings.Replace(name, "undionly.kpxe", "autoexec.ipxe", 1))
	if err != nil || !strings.Contains(script, "ingot.claim=") {
		t.Fatalf("the script next to %q: %v\n%s", name, err, script)
	}
}

// Where another server always names the loader, the files decide: a machine is known by the MAC of
// its source address, and gets nothing unless it is armed. A client that cannot be told gets a
// loader and a script that asks by MAC. An unknown MAC gets nothing.
func TestFilesNextToAnotherServer(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}, grants: map[string]inventory.Grant{}}
	s, j := newServer(t, f, inMode(inventory.DHCPOff))
	var neighbour atomic.Value // of the kernel's table; the servers' goroutines read it
	be := func(mac string) { neighbour.Store(mac) }
	s.network.neighbour = func(netip.Addr) (string, bool) { mac := neighbour.Load().(string); return mac, mac != "" }
	addr, h := startTFTP(t, s), s.Handler()
	const refused, loader, chain, boot, disk = "404", "the loader", "by MAC", "the boot script", "disk"
	kind := func(body string) string {
		switch {
		case strings.Contains(body, "ingot.claim="):
			return boot
		case strings.Contains(body, "${mac:hexhyp}"):
			return chain
		case strings.Contains(body, "booting from disk"):
			return disk
		case strings.HasPrefix(body, "snponly.efi\n"):
			return loader
		}
		return refused
	}
	check := func(who, wantLoader, wantScript string) {
		t.Helper()
		for name, want := range map[string]string{"snponly.efi": wantLoader, "autoexec.ipxe": wantScript} {
			body, err := tftptest.Get(t, addr, name)
			if err != nil {
				body = ""
			}
			if got := kind(body); got != want {
				t.Errorf("%s, %s by TFTP: %s, not %s", who, name, got, want)
			}
			urls := []string{"/ipxe/binary/" + name}
			if name == autoexecName {
				urls = []string{"/" + autoexecName, "/" + scriptName}
			}
			for _, url := range urls {
				if got := kind(get(t, h, http.MethodGet, url, "10.10.20.170").Body.String()); got != want {
					t.Errorf("%s, %s by HTTP: %s, not %s", who, url, got, want)
				}
			}
		}
	}

	be(testMAC)
	check("known, not armed", refused, disk)
	if got := j.kinds(t, s); got != inventory.EventDisk {
		t.Errorf("the refused loader and the script make the event %q", got)
	}
	get(t, h, http.MethodGet, "/ipxe/binary/snponly.efi", "10.10.20.170")
	if got := j.kinds(t, s); got != inventory.EventDisk {
		t.Errorf("the loader that is refused by HTTP makes the event %q", got)
	}
	f.setGrant(armed("node1"))
	check("armed", loader, boot)
	g := armed("node1")
	g.Spent = true
	f.setGrant(g)
	check("spent", refused, disk)
	be("52:54:00:99:99:99")
	check("an unknown MAC", refused, refused)
	be("")
	check("behind a router", loader, chain)

	s, _ = newServer(t, f, nil)
	h = s.Handler()
	if w := get(t, h, http.MethodGet, "/autoexec.ipxe", "10.10.20.170"); w.Code != http.StatusNotFound {
		t.Errorf("a server that gives all addresses answers an unknown one: %d", w.Code)
	}
}

// S34: next to another server, an armed machine's own address is the one for which the kernel knows its MAC.
func TestTFTPOwnRankBesideAnotherServer(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}, grants: map[string]inventory.Grant{"node1": armed("node1")}}
	s, _ := newServer(t, f, inMode(inventory.DHCPOff))
	for neighbour, want := range map[string]tftp.Rank{testMAC: tftp.RankOwn, "52:54:00:99:99:99": tftp.RankArmed, "": tftp.RankArmed} {
		s.network.neighbour = func(netip.Addr) (string, bool) { return neighbour, neighbour != "" }
		for _, name := range []string{"/snponly.efi", "/" + autoexecName} {
			got := tftp.RankKnown
			err := s.files.read(t.Context(), tftp.Request{
				Name: testMAC + name, From: netip.MustParseAddr("10.10.20.170"),
				Send: func(rank tftp.Rank, _ int64, _ io.Reader) error { got = rank; return nil },
			})
			if err != nil || got != want {
				t.Errorf("%s to the neighbour %q: rank %d, not %d, %v", name, neighbour, got, want, err)
			}
		}
	}
}

// An address of an interface in mode reservation is the one in its document, whatever MAC answers for it (a
// bond's, say), also if another interface has another mode. Elsewhere an unknown MAC is none of the machines.
func TestReservedAddressesNextToAnotherServer(t *testing.T) {
	at := func(a string) inventory.Machine {
		return machine(func(m *inventory.Machine) { m.Interfaces[0].Address = netip.MustParseAddr(a) })
	}
	for address, found := range map[string]bool{"127.0.0.5": true, "10.10.20.11": false} {
		s, _ := newServer(t, &fakeMachines{machines: []inventory.Machine{at(address)}}, func(c *Config) {
			c.Interfaces, c.Modes = []string{"lo", "eth9"}, map[string]inventory.DHCPMode{"eth9": inventory.DHCPOff}
		})
		s.network.neighbour = func(netip.Addr) (string, bool) { return "52:54:00:99:99:99", true }
		r := s.network.identify(Request{Address: netip.MustParseAddr(address), Class: wire.ClassIPXE, Arch: wire.ArchUnknown})
		if m, _ := s.decider.find(t.Context(), r, netip.Addr{}); (m != nil) != found {
			t.Errorf("%s: %+v", address, m)
		}
		s.network.neighbour = func(netip.Addr) (string, bool) { return "", false }
		for from, want := range map[string]bool{"127.0.0.6": false, "10.10.20.12": true} {
			if r := s.network.identify(Request{Address: netip.MustParseAddr(from)}); s.network.isAnonymous(r) != want {
				t.Errorf("%s is anonymous: %t", from, !want)
			}
		}
	}
}

// The log names the remedy for a machine behind a relay whose network is larger than 24 bits say.
func TestProxyNamesTheLengthOfARelaysNetwork(t *testing.T) {
	for relay, answered := range map[string]bool{"10.10.30.1/32": false, "10.10.30.0/23": true} {
		var log bytes.Buffer
		f := &fakeMachines{machines: []inventory.Machine{machine(func(m *inventory.Machine) { m.Interfaces[0].Address = netip.Addr{} })}}
		f.grants = map[string]inventory.Grant{"node1": armed("node1")}
		s, _ := newServer(t, f, func(c *Config) {
			inMode(inventory.DHCPProxy)(c)
			c.Relays, c.Log = []netip.Prefix{netip.MustParsePrefix(relay)}, slog.New(slog.NewTextHandler(&log, nil))
		})
		in := dhcp.Link{Name: "lo", Mode: inventory.DHCPProxy, Port: wire.ProxyPort, From: netip.MustParseAddrPort("10.10.31.77:4011")}
		r := s.dhcp.Handle(t.Context(), packet(t, dhcpv4.MessageTypeRequest, pxeClient(7)).ToBytes(), in)
		if (r.Route == dhcp.RouteSource) != answered || strings.Contains(log.String(), "for example 10.10.30.0/23") == answered {
			t.Errorf("relays: [%s]: by %s; %s", relay, r.Route, log.String())
		}
	}
}

func TestModesOfInterfaces(t *testing.T) {
	cfg := Config{
		Interfaces: []string{"eth0"},
		Address:    testSelf,
		AgentURL:   "https://10.10.20.2:7443",
		AgentPin:   "sha256:" + strings.Repeat("ab", 32),
	}
	cfg.Modes = map[string]inventory.DHCPMode{"eth0": "on", "eth1": inventory.DHCPProxy}
	_, err := New(cfg, &fakeMachines{}, &fakeJournal{})
	for _, want := range []string{`invalid DHCP mode "on"`, `does not answer machines on interface "eth1"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
}
