package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/internal/config"
)

// The tables of a NAS at 192.168.1.10, as /proc/net/route has them on x86-64: without a route to 10.10.20.0/24, and with one by 192.168.1.2.
const (
	routesHome = `Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	0101A8C0	0003	0	0	0	00000000	0	0	0
eth0	0001A8C0	00000000	0001	0	0	0	00FFFFFF	0	0	0
`
	routesLab = routesHome + "eth0	00140A0A	0201A8C0	0003	0	0	0	00FFFFFF	0	0	0\n"
)

func TestWayTo(t *testing.T) {
	for _, c := range []struct{ routes, to, prefix, way string }{
		{routesHome, "10.10.20.1", "0.0.0.0/0", "192.168.1.1"},
		{routesHome, "192.168.1.2", "192.168.1.0/24", "eth0"},
		{routesLab, "10.10.20.1", "10.10.20.0/24", "192.168.1.2"},
		{routesLab, "10.10.30.1", "0.0.0.0/0", "192.168.1.1"},
		{strings.ReplaceAll(routesLab, "0003", "0203"), "10.10.20.1", "", ""}, // rejected
		{"", "10.10.20.1", "", ""},
		{"eth0	zz	0101A8C0	0003	0	0	0	00000000	0	0	0", "10.10.20.1", "", ""},
	} {
		w, known := wayTo(c.routes, netip.MustParseAddr(c.to))
		if known != (c.prefix != "") || known && (w.to.String() != c.prefix || w.String() != c.way) {
			t.Errorf("to %s: %v by %s (%t), want %q by %q", c.to, w.to, w, known, c.prefix, c.way)
		}
	}
}

// TestDoctorLooksForTheWayToRelays, of servers with an interface, too: a
// default route alone is worth a word.
func TestDoctorLooksForTheWayToRelays(t *testing.T) {
	relay := "127.0.0.2" // the kernel has a way to it, whatever this host is connected to
	byDefault := routesHome
	bySelf := routesHome + "eth0	0000007F	0201A8C0	0003	0	0	0	000000FF	0	0	0\n"
	for name, c := range map[string]struct {
		netboot config.Netboot
		routes  string
		state   string
	}{
		"an interface":                 {config.Netboot{Interfaces: []string{"eth0"}}, byDefault, isWarn},
		"an interface, and a route":    {config.Netboot{Interfaces: []string{"eth0"}}, bySelf, isOK},
		"relay-only":                   {config.Netboot{RelayOnly: true}, byDefault, isWarn},
		"relay-only, and a route":      {config.Netboot{RelayOnly: true}, bySelf, isOK},
		"behind published ports":       {config.Netboot{RelayOnly: true, Listen: "0.0.0.0"}, byDefault, isOK},
		"a table that nobody can read": {config.Netboot{RelayOnly: true}, "", isOK},
	} {
		c.netboot.Relays = []string{relay, "10.10.0.0/16"}
		d := &doctor{cfg: config.Config{Netboot: c.netboot}}
		d.relays(t.Context(), c.routes)
		if len(d.findings) != 1 || d.findings[0].State != c.state || d.findings[0].What != "relay" {
			t.Errorf("%s: %+v, want %s", name, d.findings, c.state)
		}
		if c.state == isWarn && (len(d.findings) == 0 || !strings.Contains(d.findings[0].Text, "192.168.1.1") || !strings.Contains(d.findings[0].Remedy, "Static Route")) {
			t.Errorf("%s: %+v does not say what to do", name, d.findings)
		}
	}
}
