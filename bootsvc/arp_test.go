package bootsvc

import (
	"net"
	"net/netip"
	"testing"
)

// S48: a probe believes the host that answers, and no entry of the kernel's table.
func TestLabProbeARP(t *testing.T) {
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
	for _, c := range []struct{ address, besides, want string }{
		{"10.10.20.50", testMAC, mac}, {"10.10.20.50", mac, ""}, {"10.10.20.51", testMAC, ""},
	} {
		got, ok := s.probe(netip.MustParseAddr(c.address), c.besides)
		if got != c.want || ok != (c.want != "") {
			t.Errorf("%s besides %s: %q, want %q", c.address, c.besides, got, c.want)
		}
	}
}
