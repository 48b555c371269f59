package bootsvc

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

// allOptions returns the options of a packet on the wire, also those in file and sname (RFC 2131 §4.1, option 52).
func allOptions(t *testing.T, b []byte) dhcpv4.Options {
	t.Helper()
	o := dhcpv4.Options{}
	parts := [][]byte{b[240:]}
	if err := o.FromBytes(b[240:]); err != nil {
		t.Fatal(err)
	}
	used := byte(0)
	if x := o[52]; len(x) == 1 {
		used = x[0]
	}
	if used&1 != 0 {
		parts = append(parts, b[108:236])
	}
	if used&2 != 0 {
		parts = append(parts, b[44:108])
	}
	for _, part := range parts[1:] {
		more := dhcpv4.Options{}
		if err := more.FromBytes(part); err != nil {
			t.Fatal(err)
		}
		for code, content := range more {
			if o.Has(dhcpv4.GenericOptionCode(code)) {
				t.Errorf("option %d is there twice", code)
			}
			o[code] = content
		}
	}
	return o
}

// withLongNames gives a machine the longest options that are accepted for it.
func withLongNames(m *inventory.Machine) {
	servers := []netip.Addr{
		netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("10.0.0.4"),
	}
	i := &m.Interfaces[0]
	i.Hostname, i.Domain = strings.Repeat("h", 63), strings.Repeat(strings.Repeat("abcdefghij", 4)+".", 3)+"example.com"
	i.Nameservers, i.TimeServers = servers, servers
}

// No reply is longer than its client accepts (option 57, RFC 2131 §2): 576 bytes of IP, with 28 bytes of headers of IP and
// UDP. What does not fit goes to file and sname, if the client does not boot, or is left out in the order of its importance.
// What relay and client have sent, and what a boot needs, stays.
func TestRepliesAreNotTooLong(t *testing.T) {
	relay := dhcpv4.WithGatewayIP(net.ParseIP("10.10.20.1"))
	identifier, agent := generic(61, bytes.Repeat([]byte{7}, 61)...), generic(82, append([]byte{1, 120}, bytes.Repeat([]byte{'c'}, 120)...)...)
	asks := func(codes ...byte) dhcpv4.Modifier { return generic(55, codes...) }
	uuid := generic(97, append([]byte{0}, bytes.Repeat([]byte{9}, 16)...)...)
	rom := func(p *dhcpv4.DHCPv4) { pxeClient(0)(p); uuid(p) }
	ipxe := func(p *dhcpv4.DHCPv4) { rom(p); generic(77, []byte("iPXE")...)(p) }
	for _, c := range []struct {
		name    string
		mods    []dhcpv4.Modifier
		most    int   // bytes of UDP payload
		leftOut []int // of the options of the reservation
		port    int   // 4011: by proxy
	}{
		{name: "system", most: 548},
		{name: "system, relayed, shorter identifier", mods: []dhcpv4.Modifier{relay, agent, generic(61, bytes.Repeat([]byte{7}, 50)...)}, most: 548},
		{name: "system, relayed", mods: []dhcpv4.Modifier{relay, agent, identifier}, most: 548, leftOut: []int{15}},
		{name: "system, relayed, 576", mods: []dhcpv4.Modifier{relay, agent, identifier, generic(57, 0x02, 0x40)}, most: 548, leftOut: []int{15}},
		{name: "system, relayed, less than is legal", mods: []dhcpv4.Modifier{relay, agent, identifier, generic(57, 0, 9)}, most: 548, leftOut: []int{15}},
		{name: "system, relayed, malformed", mods: []dhcpv4.Modifier{relay, agent, identifier, generic(57, 5)}, most: 548, leftOut: []int{15}},
		{name: "system, relayed, 1500", mods: []dhcpv4.Modifier{relay, agent, identifier, generic(57, 0x05, 0xdc)}, most: 1472},
		{name: "system, relayed, 65535", mods: []dhcpv4.Modifier{relay, agent, identifier, generic(57, 0xff, 0xff)}, most: 1472},
		{
			name: "system, relayed, with a long option 82", mods: []dhcpv4.Modifier{relay, generic(82, bytes.Repeat([]byte{1, 2, 3, 4}, 63)...)},
			most: 548 + 252, leftOut: []int{15},
		},
		{name: "system that does not ask for the domain", mods: []dhcpv4.Modifier{identifier, asks(1, 3, 6, 12, 51)}, most: 548, leftOut: []int{28, 42, 15}},
		{name: "ROM", mods: []dhcpv4.Modifier{rom}, most: 548, leftOut: []int{28, 66, 42}},
		{name: "ROM that asks for the domain", mods: []dhcpv4.Modifier{rom, asks(1, 3, 15, 43, 54, 60, 67)}, most: 548, leftOut: []int{28, 66, 42}},
		{name: "ROM, relayed", mods: []dhcpv4.Modifier{rom, relay, agent, identifier}, most: 548, leftOut: []int{28, 42, 66, 15, 12}},
		{name: "iPXE", mods: []dhcpv4.Modifier{ipxe}, most: 548, leftOut: []int{28, 42, 15}},
		{name: "iPXE, 1472", mods: []dhcpv4.Modifier{ipxe, generic(57, 0x05, 0xc0)}, most: 1444},
		{name: "ROM at port 4011", mods: []dhcpv4.Modifier{rom, identifier}, most: 548, port: wire.ProxyPort, leftOut: []int{1, 3, 6, 12, 15, 28, 42, 51, 66}},
	} {
		f := &fakeMachines{machines: []inventory.Machine{machine(withLongNames)}, grants: map[string]inventory.Grant{"node1": armed("node1")}}
		var log strings.Builder
		s, _ := newServer(t, f, func(cfg *Config) { cfg.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		in := dhcp.Link{Name: "eth0", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.10.20.2/24")}}
		if c.port == wire.ProxyPort {
			in.Mode, in.Port, in.From = inventory.DHCPProxy, wire.ProxyPort, netip.MustParseAddrPort("10.10.20.170:4011")
		}
		p := packet(t, dhcpv4.MessageTypeDiscover, c.mods...)
		r := s.dhcp.Handle(t.Context(), p.ToBytes(), in)
		if r.Route == dhcp.RouteNone {
			t.Fatalf("%s: no answer", c.name)
		}
		sent := r.Packet.ToBytes()
		got := allOptions(t, sent)
		if len(sent) > c.most {
			t.Errorf("%s: %d bytes, want at most %d", c.name, len(sent), c.most)
		}
		for _, code := range []int{1, 3, 6, 12, 15, 28, 42, 51, 66} {
			want := !slices.Contains(c.leftOut, code) && (code != 66 || strings.HasPrefix(c.name, "ROM"))
			if has := got.Has(dhcpv4.GenericOptionCode(code)); has != want {
				t.Errorf("%s: option %d: %t, want %t", c.name, code, has, want)
			}
		}
		if (len(c.leftOut) > 0 && c.port == 0) != strings.Contains(log.String(), "left out of the reply") {
			t.Errorf("%s: the log says %s", c.name, log.String())
		}
		for _, code := range []uint8{61, 82, 97} {
			if !bytes.Equal(got[code], p.Options[code]) {
				t.Errorf("%s: option %d is %x", c.name, code, got[code])
			}
		}
		if p.Options.Has(dhcpv4.OptionClassIdentifier) &&
			(!got.Has(dhcpv4.OptionBootfileName) || r.Packet.BootFileName == "" || got.Has(dhcpv4.OptionOptionOverload)) {
			t.Errorf("%s: the boot file is missing: %s", c.name, describe(r))
		}
		if p.Options.Has(dhcpv4.OptionRelayAgentInformation) && lastOption(sent) != 82 {
			t.Errorf("%s: option 82 is not the last", c.name)
		}
	}
}

// udhcpc of BusyBox accepts 576 bytes, and reads what is in file and sname.
func TestLabUdhcpcReadsFileAndSname(t *testing.T) {
	t.Parallel()
	if !inNamespaces(t) {
		return
	}
	busybox := filepath.Join(os.Getenv("HOME"), ".cache", "ingot-lab", "pkg", "busybox", "bin", "busybox")
	if !exists(busybox) {
		t.Skip("busybox is missing: make deps")
	}
	var cli *net.Interface
	atClient(t, func() (err error) {
		cli, err = net.InterfaceByName("cli0")
		return err
	})
	f := &fakeMachines{machines: []inventory.Machine{machine(func(m *inventory.Machine) {
		withLongNames(m)
		m.Interfaces[0].MAC = cli.HardwareAddr.String()
		m.Interfaces[0].Nameservers = slices.Concat(m.Interfaces[0].Nameservers, m.Interfaces[0].TimeServers)
	})}}
	var log strings.Builder
	s, _ := newServer(t, f, func(c *Config) {
		c.Interfaces, c.HTTPAddr, c.Log = []string{"srv0"}, nil, slog.New(slog.NewTextHandler(&log, nil))
	})
	c, err := dhcp.Listen(t.Context(), "srv0", 67, testSelf)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.dhcp.Serve(ctx, c) }()

	script := filepath.Join(t.TempDir(), "script")
	write(t, script, "#!"+busybox+" sh\n[ \"$1\" = bound ] && echo \"$ip|$hostname|$domain|$dns|$ntpsrv\"\nexit 0\n")
	if err := os.Chmod(script, 0o755); err != nil {
		t.Fatal(err)
	}
	got := within(t, clientNS, busybox, "udhcpc", "-f", "-n", "-q", "-i", "cli0", "-s", script)
	i := f.machines[0].Interfaces[0]
	const four = "10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4"
	if want := strings.Join([]string{testAddr, i.Hostname, i.Domain, four + " " + four, four}, "|") + "\n"; got != want {
		t.Errorf("udhcpc has %q, want %q", got, want)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if strings.Contains(log.String(), "left out") {
		t.Error(log.String())
	}
}
