package bootsvc

import (
	"net"
	"net/netip"
	"testing"

	"github.com/ingotmetal/ingot/bootsvc/neighbours"
)

// S48: a probe believes the host that answers, and no entry of the kernel's table.
func TestLabProbeARP(t *testing.T) {
	t.Parallel()
	if !inNamespaces(t) {
		return
	}
	const old = "02:00:00:00:00:77"
	ip(t, "-n", clientNS, "addr", "add", "10.10.20.50/24", "dev", "cli0")
	for _, a := range []string{"10.10.20.50", "10.10.20.51"} {
		ip(t, "neigh", "replace", a, "lladdr", old, "nud", "stale", "dev", "srv0")
	}
	var cli *net.Interface
	atClient(t, func() (err error) {
		cli, err = net.InterfaceByName("cli0")
		return err
	})
	s, _ := newServer(t, &fakeMachines{}, func(c *Config) { c.Interfaces = []string{"srv0"} })
	mac := cli.HardwareAddr.String()
	for _, c := range []struct{ address, except, want string }{
		{"10.10.20.50", testMAC, mac}, {"10.10.20.50", mac, ""}, {"10.10.20.51", testMAC, ""},
	} {
		got, ok := s.discovery.probe(netip.MustParseAddr(c.address), c.except)
		if got != c.want || ok != (c.want != "") {
			t.Errorf("%s except %s: %q, want %q", c.address, c.except, got, c.want)
		}
	}
}

// TestLabNeighbours: the kernel is asked for the MAC of one address.
func TestLabNeighbours(t *testing.T) {
	t.Parallel()
	if !inNamespaces(t) {
		return
	}
	ip(t, "-n", clientNS, "address", "add", testAddr+"/24", "dev", "cli0")
	var n neighbours.Table
	client := netip.MustParseAddr(testAddr)
	if mac, ok := n.MAC(client); ok || !n.Unresolved(client) {
		t.Errorf("%s is known as %s before any packet", client, mac)
	}
	s, _ := newServer(t, &fakeMachines{}, nil)
	if mac, ok := neighbours.NewProber(nil, &n, s.cfg.Log).AskKernel(client); !ok || n.Unresolved(client) {
		t.Errorf("%s is %q after a packet to it", client, mac)
	}
	for a, unresolved := range map[string]bool{"10.10.20.99": true, "10.10.20.2": false, "192.0.2.1": false, "127.0.0.1": false} {
		if mac, ok := n.MAC(netip.MustParseAddr(a)); ok || n.Unresolved(netip.MustParseAddr(a)) != unresolved {
			t.Errorf("%s: %q, unresolved %t", a, mac, !unresolved)
		}
	}
}
