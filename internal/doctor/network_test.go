package doctor

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/hostnet"
	"github.com/ingotmetal/ingot/inventory"
)

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

func TestDoctorLooksAtDiscoveryRanges(t *testing.T) {
	all := []hostnet.Interface{{Name: "eth0"}, {Name: "eth1", Addresses: []string{"10.0.1.2/24", "10.0.2.2/24"}}}
	find := func(name, from, to string) []Finding {
		return rangeFindings(map[string]inventory.Range{name: {From: addr(from), To: addr(to)}}, all, []netip.Addr{addr("10.0.1.1")})
	}
	require.Empty(t, find("eth1", "10.0.2.200", "10.0.2.230"))
	require.Empty(t, find("eth0", "10.0.2.200", "10.0.2.230"), "checkInterfaces reports that it has no address")
	require.Empty(t, find("10.0.3.1/24", "10.0.3.200", "10.0.3.230"), "a relay")

	f := find("eth1", "10.0.1.250", "10.0.2.20")
	require.Len(t, f, 1)
	require.Equal(t, StateFail, f[0].State)
	require.Contains(t, f[0].Text, "10.0.1.250-10.0.2.20 is not in the subnet of eth1 (10.0.1.2/24, 10.0.2.2/24)")
	f = find("eth1", "10.0.1.1", "10.0.1.9")
	require.Len(t, f, 1)
	require.Contains(t, f[0].Text, "10.0.1.1-10.0.1.9 of eth1 contains 10.0.1.1")
}
