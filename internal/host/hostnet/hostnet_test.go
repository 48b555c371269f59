package hostnet

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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

func TestRouteTo(t *testing.T) {
	for _, c := range []struct{ routes, to, prefix, way string }{
		{routesHome, "10.10.20.1", "0.0.0.0/0", "192.168.1.1"},
		{routesHome, "192.168.1.2", "192.168.1.0/24", "eth0"},
		{routesLab, "10.10.20.1", "10.10.20.0/24", "192.168.1.2"},
		{routesLab, "10.10.30.1", "0.0.0.0/0", "192.168.1.1"},
		{strings.ReplaceAll(routesLab, "0003", "0203"), "10.10.20.1", "", ""}, // rejected
		{"", "10.10.20.1", "", ""},
		{"eth0	zz	0101A8C0	0003	0	0	0	00000000	0	0	0", "10.10.20.1", "", ""},
	} {
		w, known := RouteTo(c.routes, netip.MustParseAddr(c.to))
		if known != (c.prefix != "") || known && (w.To.String() != c.prefix || w.String() != c.way) {
			t.Errorf("to %s: %v by %s (%t), want %q by %q", c.to, w.To, w, known, c.prefix, c.way)
		}
	}
}

func TestLocalURL(t *testing.T) {
	for _, c := range []struct{ listen, cert, want string }{
		{"127.0.0.1:8080", "", "http://127.0.0.1:8080"},
		{"127.0.0.1:8080", "/x.pem", "https://127.0.0.1:8080"},
		{"0.0.0.0:8080", "", "https://127.0.0.1:8080"},
		{":8080", "", "https://127.0.0.1:8080"},
		{"192.168.1.10:8080", "", "https://192.168.1.10:8080"},
		{"[::1]:8080", "", "http://[::1]:8080"},
	} {
		require.Equal(t, c.want, LocalURL(config.Config{Listen: c.listen, TLSCert: c.cert}))
	}
}

func TestGateways(t *testing.T) {
	require.Equal(t, []netip.Addr{netip.MustParseAddr("192.168.1.1")}, Gateways(routesLab))
	require.Empty(t, Gateways(""))
}

// A member of a bridge or a bond is not offered: its controller has its packets.
func TestController(t *testing.T) {
	sys := t.TempDir()
	for name, mark := range map[string]string{"eth0": "brport", "eth1": "bonding_slave", "eth2": ""} {
		require.NoError(t, os.MkdirAll(filepath.Join(sys, name, mark), 0o755))
	}
	require.NoError(t, os.Symlink("../br0", filepath.Join(sys, "eth0", "master")))
	require.NoError(t, os.Symlink("../bond0", filepath.Join(sys, "eth1", "master")))
	require.NoError(t, os.Symlink("../vrf-blue", filepath.Join(sys, "eth2", "master"))) // keeps its addresses and packets
	require.Equal(t, "br0", controllerIn(sys, "eth0"))
	require.Equal(t, "bond0", controllerIn(sys, "eth1"))
	require.Empty(t, controllerIn(sys, "eth2"))
	require.Empty(t, controllerIn(sys, "eth9"))
}
