package bootsvc

import (
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
)

// A client that asks over InfiniBand, or another network than Ethernet, is not answered. The log says why, and
// "ingot machine seen" if the request has an address.
func TestOtherHardwareIsNamed(t *testing.T) {
	over := func(kind iana.HWType, address string) dhcpv4.Modifier {
		return func(p *dhcpv4.DHCPv4) {
			p.HWType, p.ClientHWAddr = kind, nil
			if address != "" {
				p.ClientHWAddr = net.HardwareAddr(address)
			}
		}
	}
	const mac = "\x52\x54\x00\x20\x01\x01"
	identifier := generic(61, 0xff, 0, 0xab, 0xcd, 0xef, 0, 2)
	relay := dhcpv4.WithGatewayIP(net.ParseIP("10.10.20.1"))
	for name, c := range map[string]struct {
		mods      []dhcpv4.Modifier
		edit      func(*Config)
		log, seen string
	}{
		"IPoIB (RFC 4390)":             {mods: []dhcpv4.Modifier{over(32, ""), identifier}, log: "InfiniBand: not supported"},
		"FlexBoot":                     {mods: []dhcpv4.Modifier{over(32, mac), pxeClient(0)}, log: "InfiniBand: not supported", seen: "InfiniBand: not supported"},
		"FlexBoot, relayed":            {mods: []dhcpv4.Modifier{over(32, mac), relay}, log: "relay=10.10.20.1", seen: "InfiniBand: not supported"},
		"20 bytes":                     {mods: []dhcpv4.Modifier{over(32, strings.Repeat("a", 20))}, log: "InfiniBand: not supported"},
		"IEEE 1394":                    {mods: []dhcpv4.Modifier{over(24, mac)}, log: "hardware type 24: not supported", seen: "hardware type 24: not supported"},
		"a reply":                      {mods: []dhcpv4.Modifier{over(32, mac), func(p *dhcpv4.DHCPv4) { p.OpCode = dhcpv4.OpcodeBootReply }}},
		"BOOTP":                        {mods: []dhcpv4.Modifier{over(32, mac), dhcpv4.WithoutOption(dhcpv4.OptionDHCPMessageType)}},
		"a relay that is not listed":   {mods: []dhcpv4.Modifier{over(32, mac), relay}, edit: listed("10.10.30.1/32")},
		"a client of a relay's server": {mods: []dhcpv4.Modifier{over(32, mac)}, edit: relayOnly},
	} {
		var log strings.Builder
		s, j := newServer(t, &fakeMachines{}, func(cfg *Config) {
			cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
			if c.edit != nil {
				c.edit(cfg)
			}
		})
		p := packet(t, dhcpv4.MessageTypeDiscover, c.mods...)
		if r := s.dhcp.Handle(t.Context(), p.ToBytes(), dhcp.Link{Name: "eth0"}); r.Route != dhcp.RouteNone {
			t.Errorf("%s: answered with %s", name, describe(r))
		}
		if !strings.Contains(log.String(), c.log) || (c.log == "") != !strings.Contains(log.String(), "not answered") {
			t.Errorf("%s: the log says %q, want %q", name, log.String(), c.log)
		}
		s.rec.Flush(t.Context())
		seen := ""
		if len(j.seen) > 0 {
			seen = j.seen[0].Class
		}
		if seen != c.seen {
			t.Errorf("%s: seen %q, want %q", name, seen, c.seen)
		}
	}
}

func listed(relay string) func(*Config) {
	return func(c *Config) { c.Relays = []netip.Prefix{netip.MustParsePrefix(relay)} }
}
