package bootsvc

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab/pcap"
)

var update = flag.Bool("update", false, "rewrite the golden files of this package")

const captures = "testdata/captures/*.pcap"

// dhcpPackets returns the packets to DHCP ports in the captures that match pattern.
func dhcpPackets(t testing.TB, pattern string) []pcap.Packet {
	t.Helper()
	packets, err := pcap.Read(pattern, pcap.UDP, 67, 68, 4011)
	if err != nil {
		t.Fatal(err)
	}
	return packets
}

// describe returns the text of a reply for golden files.
func describe(r dhcp.Reply) string {
	if r.Route == dhcp.RouteNone {
		return "silence"
	}
	p := r.Packet
	var b strings.Builder
	fmt.Fprintf(
		&b,
		"%s by %s to %s yiaddr=%s siaddr=%s giaddr=%s",
		p.MessageType(),
		r.Route,
		r.To,
		p.YourIPAddr,
		p.ServerIPAddr,
		p.GatewayIPAddr,
	)
	if p.IsBroadcast() {
		b.WriteString(" broadcast")
	}
	fmt.Fprintf(&b, " sname=%q file=%q", p.ServerHostName, p.BootFileName)
	for _, code := range slices.Sorted(maps.Keys(p.Options)) {
		if code != 53 {
			fmt.Fprintf(&b, " %d=%x", code, p.Options[code])
		}
	}
	return b.String()
}

// lastOption returns the code of the last option on the wire.
func lastOption(b []byte) byte {
	last := byte(0)
	for o := b[240:]; len(o) > 1 && o[0] != 255; {
		if o[0] == 0 {
			o = o[1:]
			continue
		}
		last = o[0]
		o = o[2+int(o[1]):]
	}
	return last
}

// Packets captured from real firmware, iPXE, relays and Linux get valid answers, armed
// or not. All answers are in a golden file.
func TestCaptures(t *testing.T) {
	files, err := filepath.Glob(captures)
	if err != nil || len(files) < 20 {
		t.Fatalf("captures: %d, %v", len(files), err)
	}
	var golden strings.Builder
	answered := 0
	for _, file := range files {
		packets := dhcpPackets(t, file)
		if len(packets) == 0 {
			t.Errorf("%s: no DHCP packet was found", file)
		}
		reserved := map[string]netip.Addr{} // addresses from the server in the capture
		for _, c := range packets {
			p, err := dhcpv4.FromBytes(c.Payload)
			if err != nil {
				t.Fatalf("%s packet %d: %v", file, c.N, err)
			}
			if a := wire.Addr4(p.YourIPAddr); p.OpCode == dhcpv4.OpcodeBootReply && a.IsValid() {
				reserved[p.ClientHWAddr.String()] = a
			}
		}
		fmt.Fprintf(&golden, "## %s\n", filepath.Base(file))
		for _, c := range packets {
			p, err := dhcpv4.FromBytes(c.Payload)
			if err != nil {
				t.Fatal(err)
			}
			if p.OpCode != dhcpv4.OpcodeBootRequest || c.Dst.Port() != 67 {
				continue
			}
			mac := p.ClientHWAddr.String()
			m := machine(func(m *inventory.Machine) {
				m.Interfaces[0].MAC = mac
				if a, ok := reserved[mac]; ok {
					m.Interfaces[0].Address = a
					g := a.As4()
					g[3] = 1
					m.Interfaces[0].Gateway = netip.AddrFrom4(g)
				}
			})
			for _, grant := range []inventory.Grant{{}, armed("node1")} {
				f := &fakeMachines{machines: []inventory.Machine{m}, grants: map[string]inventory.Grant{"node1": grant}}
				s, _ := newServer(t, f, nil)
				r := s.dhcp.Handle(t.Context(), c.Payload, dhcp.Link{Name: "eth0", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.10.20.2/24")}})
				state := "off  "
				if grant.Run != "" {
					state = "armed"
				}
				fmt.Fprintf(&golden, "%3d %s %s %s\n", c.N, p.MessageType(), state, describe(r))
				if r.Route == dhcp.RouteNone {
					continue
				}
				answered++
				checkSane(t, fmt.Sprintf("%s packet %d %s", file, c.N, state), p, r, m.Interfaces[0].Address, grant.Run != "")
			}
		}
	}
	if answered < 150 {
		t.Errorf("only %d packets were answered", answered)
	}
	compareGolden(t, "testdata/captures.golden", golden.String())
}

func compareGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		write(t, file, got)
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		g, w := strings.Split(got, "\n"), strings.Split(string(want), "\n")
		for i := range max(len(g), len(w)) {
			var a, b string
			if i < len(g) {
				a = g[i]
			}
			if i < len(w) {
				b = w[i]
			}
			if a != b {
				t.Fatalf("%s line %d (go test -update rewrites it):\n got %s\nwant %s", file, i+1, a, b)
			}
		}
	}
}

func checkSane(t *testing.T, where string, p *dhcpv4.DHCPv4, r dhcp.Reply, address netip.Addr, isArmed bool) {
	t.Helper()
	sent := r.Packet.ToBytes()
	back, err := dhcpv4.FromBytes(sent)
	if err != nil {
		t.Fatalf("%s: the reply cannot be read back: %v", where, err)
	}
	if back.TransactionID != p.TransactionID || !bytes.Equal(back.ClientHWAddr, p.ClientHWAddr) ||
		wire.Addr4(back.ServerIdentifier()) != testSelf {
		t.Errorf("%s: id, MAC or server id differ", where)
	}
	if len(sent) > 576 || len(sent) > 2*len(p.ToBytes()) {
		t.Errorf("%s: the reply has %d bytes", where, len(sent))
	}
	for _, code := range []dhcpv4.OptionCode{dhcpv4.OptionClientIdentifier, dhcpv4.OptionClientMachineIdentifier, dhcpv4.OptionRelayAgentInformation} {
		if b := p.Options.Get(code); b != nil && !bytes.Equal(b, back.Options.Get(code)) {
			t.Errorf("%s: option %v is %x, want %x", where, code, back.Options.Get(code), b)
		}
	}
	if p.Options.Has(dhcpv4.OptionRelayAgentInformation) && lastOption(sent) != 82 {
		t.Errorf("%s: option 82 is not the last", where)
	}
	switch giaddr := wire.Addr4(p.GatewayIPAddr); {
	case giaddr.IsValid():
		if r.Route != dhcp.RouteRelay || r.To != giaddr {
			t.Errorf("%s: relayed, but answered by %s to %s", where, r.Route, r.To)
		}
	case p.IsBroadcast() && r.Route != dhcp.RouteBroadcast, !p.IsBroadcast() && r.Route != dhcp.RouteRaw && r.Route != dhcp.RouteUnicast:
		t.Errorf("%s: answered by %s", where, r.Route)
	}
	if got := wire.Addr4(back.YourIPAddr); got != address {
		t.Errorf("%s: yiaddr %s, want %s", where, got, address)
	}
	if back.IPAddressLeaseTime(0) != 7*24*time.Hour {
		t.Errorf("%s: lease time %s", where, back.IPAddressLeaseTime(0))
	}
	class := p.ClassIdentifier()
	if !isArmed || class == "" {
		if back.BootFileName != "" || back.Options.Has(dhcpv4.OptionBootfileName) || back.Options.Has(dhcpv4.OptionVendorSpecificInformation) ||
			back.Options.Has(dhcpv4.OptionClassIdentifier) {
			t.Errorf("%s: boot options without a boot: %s", where, describe(r))
		}
		return
	}
	ipxe := string(p.Options.Get(dhcpv4.OptionUserClassInformation)) == "iPXE"
	arch := p.ClientArch()[0]
	want := map[iana.Arch]string{0: "undionly.kpxe", 7: "snponly.efi", 16: "http://10.10.20.2/ipxe/binary/" + strings.ReplaceAll(p.ClientHWAddr.String(), ":", "-") + "/snponly.efi"}[arch]
	if ipxe {
		want = "http://10.10.20.2/ipxe/script/" + p.ClientHWAddr.String() + "/auto.ipxe"
		if !bytes.Equal(back.Options.Get(dhcpv4.GenericOptionCode(175)), []byte{176, 1, 1}) {
			t.Errorf("%s: option 175 is %x", where, back.Options.Get(dhcpv4.GenericOptionCode(175)))
		}
	}
	if back.BootFileName != want || back.BootFileNameOption() != want {
		t.Errorf("%s: file %q, option 67 %q, want %q", where, back.BootFileName, back.BootFileNameOption(), want)
	}
	if want == "" || ipxe {
		return
	}
	if strings.HasPrefix(class, "HTTPClient") {
		if back.ClassIdentifier() != "HTTPClient" {
			t.Errorf("%s: HTTPClient is not echoed", where)
		}
		return
	}
	if back.ClassIdentifier() != "PXEClient" || !bytes.Equal(back.Options.Get(dhcpv4.OptionVendorSpecificInformation), []byte{6, 1, 8, 255}) ||
		back.ServerHostName != "10.10.20.2" ||
		wire.Addr4(back.ServerIPAddr) != testSelf {
		t.Errorf("%s: PXE options: %s", where, describe(r))
	}
}

// packet returns a request like a real client's.
func packet(t testing.TB, kind dhcpv4.MessageType, mods ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	t.Helper()
	mac, err := net.ParseMAC(testMAC)
	if err != nil {
		t.Fatal(err)
	}
	p, err := dhcpv4.New(append([]dhcpv4.Modifier{
		dhcpv4.WithMessageType(kind), dhcpv4.WithHwAddr(mac), dhcpv4.WithTransactionID(dhcpv4.TransactionID{1, 2, 3, 4}),
	}, mods...)...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func generic(code uint8, b ...byte) dhcpv4.Modifier {
	return dhcpv4.WithGeneric(dhcpv4.GenericOptionCode(code), b)
}

func pxeClient(arch byte) dhcpv4.Modifier {
	return func(p *dhcpv4.DHCPv4) {
		class := "PXEClient:Arch:00000:UNDI:002001"
		if arch >= 15 && arch <= 20 {
			class = "HTTPClient:Arch:00016:UNDI:003000"
		}
		p.UpdateOption(dhcpv4.OptClassIdentifier(class))
		p.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionClientSystemArchitectureType, []byte{0, arch}))
	}
}

// The golden file has a packet for each architecture, message and rule.
func TestAnswers(t *testing.T) {
	wants := func(a string) dhcpv4.Modifier { return generic(50, net.ParseIP(a).To4()...) }
	from := func(a string) dhcpv4.Modifier { return generic(54, net.ParseIP(a).To4()...) }
	relay := func(a string) dhcpv4.Modifier { return dhcpv4.WithGatewayIP(net.ParseIP(a)) }
	ciaddr := func(a string) dhcpv4.Modifier { return dhcpv4.WithClientIP(net.ParseIP(a)) }
	type row struct {
		name string
		p    *dhcpv4.DHCPv4
		edit func(*inventory.Machine)
		cfg  func(*Config)
	}
	const discover, request = dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeRequest
	rows := []row{
		{name: "iPXE, RFC 3004 form", p: packet(t, discover, pxeClient(0), generic(77, 4, 'i', 'P', 'X', 'E'))},
		{name: "user class of somebody else", p: packet(t, discover, pxeClient(0), generic(77, []byte("labagent")...))},
		{name: "PXE without option 93", p: packet(t, discover, generic(60, []byte("PXEClient")...))},
		{name: "option 97 with another type is not mirrored", p: packet(t, discover, generic(97, append([]byte{1}, make([]byte, 16)...)...))},
		{name: "REQUEST selecting", p: packet(t, request, from("10.10.20.2"), wants(testAddr))},
		{name: "REQUEST of another server", p: packet(t, request, from("10.10.20.3"), wants(testAddr))},
		{name: "REQUEST init-reboot, right", p: packet(t, request, wants(testAddr))},
		{name: "REQUEST init-reboot, wrong", p: packet(t, request, wants("10.10.20.77"))},
		{name: "REQUEST wrong, relayed", p: packet(t, request, wants("10.10.20.77"), relay("10.10.20.1"), generic(82, 1, 2, 'p', '7'))},
		{
			name: "REQUEST wrong, not our subnet",
			p:    packet(t, request, wants("10.10.20.77")),
			edit: func(m *inventory.Machine) { m.Interfaces[0].Address = netip.MustParseAddr("10.9.9.9") },
		},
		{name: "REQUEST renewing", p: packet(t, request, ciaddr(testAddr))},
		{name: "REQUEST renewing, wrong", p: packet(t, request, ciaddr("10.10.20.77"))},
		{name: "REQUEST without address", p: packet(t, request, from("10.10.20.2"))},
		{name: "DISCOVER with a foreign ciaddr", p: packet(t, discover, ciaddr("192.0.2.7"))},
		{name: "INFORM", p: packet(t, dhcpv4.MessageTypeInform, ciaddr(testAddr))},
		{name: "INFORM from elsewhere", p: packet(t, dhcpv4.MessageTypeInform, ciaddr("192.0.2.7"))},
		{name: "DECLINE", p: packet(t, dhcpv4.MessageTypeDecline, from("10.10.20.2"), wants(testAddr))},
		{name: "RELEASE", p: packet(t, dhcpv4.MessageTypeRelease, from("10.10.20.2"), ciaddr(testAddr))},
		{name: "a reply", p: packet(t, dhcpv4.MessageTypeOffer, func(p *dhcpv4.DHCPv4) { p.OpCode = dhcpv4.OpcodeBootReply })},
		{name: "BOOTP", p: packet(t, discover, dhcpv4.WithoutOption(dhcpv4.OptionDHCPMessageType))},
		{name: "too many hops", p: packet(t, discover, relay("10.10.20.1"), func(p *dhcpv4.DHCPv4) { p.HopCount = 17 })},
		{name: "relay of another subnet", p: packet(t, discover, relay("10.10.30.1"))},
		{
			name: "relay that is listed",
			p:    packet(t, discover, relay("10.10.20.1")),
			cfg:  func(c *Config) { c.Relays = []netip.Prefix{netip.MustParsePrefix("10.10.20.1/32")} },
		},
		{
			name: "relay that is not listed",
			p:    packet(t, discover, relay("10.10.20.254")),
			cfg:  func(c *Config) { c.Relays = []netip.Prefix{netip.MustParsePrefix("10.10.20.1/32")} },
		},
		{name: "DHCP disabled", p: packet(t, discover), edit: func(m *inventory.Machine) { m.Interfaces[0].DisableDHCP = true }},
		{name: "no netboot", p: packet(t, discover, pxeClient(7)), edit: func(m *inventory.Machine) { m.Interfaces[0].DisableNetboot = true }},
		{name: "lease of an hour, NTP, own hostname", p: packet(t, discover), edit: func(m *inventory.Machine) {
			m.Interfaces[0].LeaseTime, m.Interfaces[0].Hostname = inventory.Lease(time.Hour), "web1"
			m.Interfaces[0].TimeServers = []netip.Addr{netip.MustParseAddr("10.10.20.3")}
		}},
		{name: "link-local route", p: packet(t, discover), cfg: func(c *Config) { c.LinkLocal = true }},
		{name: "link-local route, relayed", p: packet(t, discover, relay("10.10.20.254")), cfg: func(c *Config) { c.LinkLocal = true }},
		{name: "router on link, link-local route", p: packet(t, discover), edit: leased, cfg: func(c *Config) { c.LinkLocal = true }},
		{name: "router on link", p: packet(t, discover), edit: leased},
		{name: "router on link, relayed", p: packet(t, discover, relay("192.0.2.65")), edit: leased, cfg: func(c *Config) { c.LinkLocal = true }},
		{
			name: "router on link, relayed by a listed one", p: packet(t, discover, relay("192.0.2.65")), edit: leased,
			cfg: func(c *Config) { c.Relays = []netip.Prefix{netip.MustParsePrefix("192.0.2.65/32")} },
		},
		{name: "router on link, relayed by another", p: packet(t, discover, relay("192.0.2.66")), edit: leased},
		{name: "another port", p: packet(t, discover, generic(77, []byte("iPXE")...)), cfg: func(c *Config) { c.HTTPAddr = []string{":7080"} }},
		{
			name: "a loader that is missing",
			p:    packet(t, discover, pxeClient(7)),
			edit: func(m *inventory.Machine) { m.Interfaces[0].Loader = "shimx64.efi" },
		},
	}
	for _, arch := range []byte{0, 6, 7, 9, 10, 11, 15, 16, 17, 19, 20, 41} {
		rows = append(rows, row{name: fmt.Sprintf("architecture %d", arch), p: packet(t, discover, pxeClient(arch))})
	}
	var golden strings.Builder
	for _, r := range rows {
		f := &fakeMachines{machines: []inventory.Machine{machine(r.edit)}, grants: map[string]inventory.Grant{"node1": armed("node1")}}
		s, _ := newServer(t, f, r.cfg)
		got := s.dhcp.Handle(
			t.Context(),
			r.p.ToBytes(),
			dhcp.Link{Name: "eth0", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.10.20.2/24")}},
		)
		fmt.Fprintf(&golden, "%s: %s\n", r.name, describe(got))
	}
	compareGolden(t, "testdata/answers.golden", golden.String())
}

// leased gives a machine a host address and a router on the link.
func leased(m *inventory.Machine) {
	i := &m.Interfaces[0]
	i.Address, i.Netmask, i.Gateway = netip.MustParseAddr("192.0.2.77"), "255.255.255.255", netip.MustParseAddr("192.0.2.65")
}

func TestLogSaysWhyDHCPRefuses(t *testing.T) {
	for reason, refused := range map[string]struct {
		edit func(*inventory.Machine)
		arch byte
	}{
		"DHCP is disabled for this interface":     {edit: func(m *inventory.Machine) { m.Interfaces[0].DisableDHCP = true }},
		"no loader for architecture Raspberry Pi": {arch: 41},
	} {
		var log bytes.Buffer
		f := &fakeMachines{machines: []inventory.Machine{machine(refused.edit)}, grants: map[string]inventory.Grant{"node1": armed("node1")}}
		s, _ := newServer(t, f, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		s.dhcp.Handle(t.Context(), packet(t, dhcpv4.MessageTypeDiscover, pxeClient(refused.arch)).ToBytes(), dhcp.Link{Name: "eth0"})
		if !strings.Contains(log.String(), reason) {
			t.Errorf("%q is not in the log: %s", reason, log.String())
		}
	}
}

func TestEventsOfDHCP(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
	s, j := newServer(t, f, nil)
	discover := func() {
		t.Helper()
		if r := s.dhcp.Handle(
			t.Context(),
			packet(t, dhcpv4.MessageTypeDiscover, pxeClient(0)).ToBytes(),
			dhcp.Link{Name: "eth0"},
		); r.Route == dhcp.RouteNone {
			t.Fatal("not answered")
		}
	}
	discover()
	if got := j.kinds(t, s); got != inventory.EventDisk {
		t.Errorf("not armed: %q", got)
	}
	g := armed("node1")
	f.setGrant(g)
	for range 1000 {
		discover()
	}
	s.rec.Flush(t.Context())
	if len(j.events) != 1 || j.events[0].Kind != inventory.EventDHCP || j.events[0].Count != 1000 || j.events[0].Run != g.Run ||
		j.events[0].Epoch != 7 ||
		j.events[0].Boot != 1 {
		t.Errorf("a flood while armed: %+v", j.events)
	}
	j.events = nil
	g.Spent = true
	f.setGrant(g)
	discover()
	if got := j.kinds(t, s); got != inventory.EventRebooted {
		t.Errorf("spent: %q", got)
	}
	s.dhcp.Handle(t.Context(), packet(t, dhcpv4.MessageTypeDiscover).ToBytes(), dhcp.Link{Name: "eth0"})
	if got := j.kinds(t, s); got != inventory.EventOS {
		t.Errorf("operating system: %q", got)
	}
}

func TestUnknownMACs(t *testing.T) {
	f := &fakeMachines{}
	s, j := newServer(t, f, nil)
	for n := range 5000 {
		p := packet(t, dhcpv4.MessageTypeDiscover, pxeClient(0), func(p *dhcpv4.DHCPv4) {
			p.ClientHWAddr = net.HardwareAddr{2, 0, 0, 0, byte(n >> 8), byte(n)}
			p.UpdateOption(dhcpv4.OptClassIdentifier("PXEClient\x1b[2J<script>"))
		})
		if r := s.dhcp.Handle(t.Context(), p.ToBytes(), dhcp.Link{Name: "eth0"}); r.Route != dhcp.RouteNone {
			t.Fatal("an unknown MAC was answered")
		}
	}
	s.rec.Flush(t.Context())
	if len(j.seen) != 64 || s.Stats().SeenDropped != 5000-64 || s.Stats().DHCPUnknown != 5000 {
		t.Errorf("%d stored, %+v", len(j.seen), s.Stats())
	}
	if j.seen[0].Class != "PXEClient[2J<script>" {
		t.Errorf("class %q", j.seen[0].Class)
	}
	f.err = errors.New("database is gone")
	if r := s.dhcp.Handle(t.Context(), packet(t, dhcpv4.MessageTypeDiscover).ToBytes(), dhcp.Link{}); r.Route != dhcp.RouteNone {
		t.Error("answered without an inventory")
	}
}

// FuzzDHCP sends packets of a known and of an unknown machine to an interface with discovery (security S30).
func FuzzDHCP(f *testing.F) {
	for _, c := range dhcpPackets(f, captures) {
		f.Add(c.Payload, true)
		f.Add(c.Payload, false)
	}
	f.Add([]byte{}, true)
	m := &fakeMachines{machines: []inventory.Machine{machine(withLongNames)}, grants: map[string]inventory.Grant{"node1": armed("node1")}}
	guests := inventory.Range{From: netip.MustParseAddr("10.10.20.100"), To: netip.MustParseAddr("10.10.20.109")}
	s, _ := newServer(f, m, func(c *Config) { c.Discovery = map[string]inventory.Range{"eth8": guests} })
	s.discovery.guests["eth8"].earlierUntil = testNow // no earlier process has given addresses
	s.discovery.probe = func(netip.Addr, string) (string, bool) { return "", false }
	in := onWire
	in.Name = "eth8"
	unknown := packet(f, dhcpv4.MessageTypeDiscover, dhcpv4.WithHwAddr(net.HardwareAddr{2, 0, 0, 0, 0, 1}), pxeClient(7))
	if r := s.dhcp.Handle(f.Context(), unknown.ToBytes(), in); r.Route == dhcp.RouteNone {
		f.Fatal("an unknown machine is not answered")
	}
	f.Fuzz(func(t *testing.T, b []byte, known bool) {
		allowed := func(a netip.Addr) bool { return guests.From.Compare(a) <= 0 && a.Compare(guests.To) <= 0 }
		mac := []byte{2, 0, 0, 0, 0, 1}
		if known {
			allowed = func(a netip.Addr) bool { return a == netip.MustParseAddr(testAddr) }
			mac = []byte{0x52, 0x54, 0, 0x20, 1, 1}
		}
		if len(b) >= 34 {
			copy(b[28:], mac)
		}
		r := s.dhcp.Handle(t.Context(), b, in)
		if r.Route == dhcp.RouteNone {
			return
		}
		sent := r.Packet.ToBytes()
		if len(sent) > len(b)+400 {
			t.Fatalf("%d bytes were answered by %d", len(b), len(sent))
		}
		p, err := dhcpv4.FromBytes(b)
		if err != nil {
			t.Fatal(err)
		}
		o := allOptions(t, sent)
		if most := sizeFor(p) + partsSize(o[82]) + partsSize(o[61]); len(sent) > most {
			t.Fatalf("a reply of %d bytes; the client accepts %d", len(sent), most)
		}
		checkConfined(t, b, r, allowed)
	})
}

// sizeFor returns the size of the longest reply that the client of p accepts (option 57), without IP and UDP.
func sizeFor(p *dhcpv4.DHCPv4) int {
	size := 576
	if b := p.Options.Get(dhcpv4.OptionMaximumDHCPMessageSize); len(b) == 2 {
		size = min(max(int(b[0])<<8|int(b[1]), size), 1500)
	}
	return size - 28
}

// partsSize returns the size of an option, which may be in several parts (RFC 3396).
func partsSize(b []byte) int { return len(b) + 2*max(1, (len(b)+254)/255) }
