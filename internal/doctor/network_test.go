package doctor

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
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
	require.Contains(t, f[0].Text, "10.0.1.250-10.0.2.20 is not in a subnet of eth1 (10.0.1.2/24, 10.0.2.2/24)")
	f = find("eth1", "10.0.1.1", "10.0.1.9")
	require.Len(t, f, 1)
	require.Contains(t, f[0].Text, "10.0.1.1-10.0.1.9 of eth1 contains 10.0.1.1")
}

// asSnippet returns a server that answers as the snippet for 10.0.0.2 says.
func asSnippet(loader string) neighbours.ForeignServer {
	self := addr("10.0.0.2")
	return neighbours.ForeignServer{
		Server: addr("10.0.0.3"), Offered: addr("10.0.0.150"), BootOffer: neighbours.BootOffer{BootFile: loader, Next: self},
		ByClient: map[string]*neighbours.BootOffer{
			"UEFI PXE":                   {BootFile: loader, Next: self},
			"UEFI PXE as architecture 9": {BootFile: loader, Next: self},
			"BIOS PXE":                   {BootFile: "undionly.kpxe", Next: self},
			"UEFI HTTP":                  {BootFile: "http://10.0.0.2/ipxe/binary/snponly.efi", Class: "HTTPClient"},
			"iPXE":                       {BootFile: "http://10.0.0.2:80/autoexec.ipxe"},
		},
	}
}

// In mode off, the other server has to name what the snippet says, with or without Secure Boot, and with the address of
// the server on all interfaces. Without the loader of UEFI PXE the check fails; other clients cause a warning.
func TestDoctorChecksTheServerOfModeOff(t *testing.T) {
	n := config.Netboot{
		Interfaces: []string{"eth0", "eth1"}, Address: "10.0.0.2", HTTP: []int{80, 7080},
		DHCP: map[string]inventory.DHCPMode{"eth1": inventory.DHCPOff, "eth2": inventory.DHCPProxy},
	}
	check := func(name string, f neighbours.ForeignServer) Finding {
		t.Helper()
		found := checkServers(name, n, []neighbours.ForeignServer{f})
		require.Len(t, found, 1)
		return found[0]
	}
	for _, loader := range []string{"snponly.efi", "shimx64.efi"} {
		require.Equal(t, ok("10.0.0.3 assigns addresses on eth1, and sends machines to Ingot"), check("eth1", asSnippet(loader)))
	}

	for client, c := range map[string]struct {
		answer      neighbours.BootOffer
		state, text string
	}{
		"UEFI PXE": {
			neighbours.BootOffer{BootFile: "snponly.efi", Next: addr("10.0.1.2")},
			StateFail,
			`UEFI PXE gets "snponly.efi" of 10.0.1.2, not "snponly.efi" of 10.0.0.2`,
		},
		"UEFI PXE as architecture 9": {
			neighbours.BootOffer{BootFile: "other.efi"},
			StateWarn,
			`UEFI PXE as architecture 9 gets "other.efi" without a next server, not "snponly.efi" of 10.0.0.2`,
		},
		"BIOS PXE": {neighbours.BootOffer{}, StateWarn, `BIOS PXE gets no boot file, not "undionly.kpxe" of 10.0.0.2`},
		"UEFI HTTP": {
			neighbours.BootOffer{BootFile: "http://10.0.0.2/ipxe/binary/snponly.efi"},
			StateWarn,
			`UEFI HTTP gets "http://10.0.0.2/ipxe/binary/snponly.efi" without option 60 (HTTPClient), not "http`,
		},
		"iPXE": {
			neighbours.BootOffer{BootFile: "http://10.0.0.2:81/autoexec.ipxe"},
			StateWarn,
			`iPXE gets "http://10.0.0.2:81/autoexec.ipxe", not "http://10.0.0.2/autoexec.ipxe"`,
		},
	} {
		f := asSnippet("snponly.efi")
		f.ByClient[client] = &c.answer
		got := check("eth1", f)
		require.Equal(t, c.state, got.State, got.Text)
		require.Contains(t, got.Text, ": "+c.text)
		require.NotContains(t, got.Text, ";", "the other parts are right")
		require.Contains(t, got.Remedy, "ingot dhcp snippet")
		f.ByClient[client] = nil
		require.Contains(t, check("eth1", f).Text, client+" gets no answer")
		delete(f.ByClient, client)
		require.Equal(t, StateOK, check("eth1", f).State, "it was not asked")
	}

	signed := asSnippet("snponly-shim.efi")
	signed.ByClient["UEFI HTTP"] = &neighbours.BootOffer{BootFile: "http://10.0.0.2/ipxe/binary/snponly-shim.efi", Class: "HTTPClient"}
	for loader, f := range map[string]neighbours.ForeignServer{"": signed, "shim": asSnippet("shimx64.efi"), "ipxe-shim": signed} {
		n.Loader = loader
		require.Equal(t, StateOK, check("eth1", f).State, loader)
	}
	n.Loader = "ipxe-shim"
	got := check("eth1", asSnippet("shimx64.efi"))
	require.Equal(t, StateFail, got.State)
	require.Contains(t, got.Text, `UEFI PXE gets "shimx64.efi" of 10.0.0.2, not "snponly-shim.efi" of 10.0.0.2`)
	require.Contains(t, got.Text, `not "http://10.0.0.2/ipxe/binary/snponly-shim.efi"`)
	n.Loader = "shim"
	require.Equal(t, StateFail, check("eth1", asSnippet("snponly.efi")).State)
	n.Loader = ""

	require.Equal(t, StateWarn, check("eth0", asSnippet("snponly.efi")).State, "a second server")
	require.Contains(t, check("eth2", asSnippet("snponly.efi")).Text, "also sends the boot file")
	require.Equal(
		t,
		ok("10.0.0.3 assigns addresses on eth2"),
		check("eth2", neighbours.ForeignServer{Server: addr("10.0.0.3"), Offered: addr("10.0.0.150")}),
	)
	none := checkServers("eth1", n, []neighbours.ForeignServer{{Server: addr("10.0.0.3"), Proxy: true}})
	require.Len(t, none, 2)
	require.Contains(t, none[0].Remedy, "turn off PXE on 10.0.0.3")
	require.Contains(t, none[1].Text, "no DHCP server assigns addresses on eth1")
}

func TestDoctorFindsOffersThatAreReservations(t *testing.T) {
	machines := []apitypes.MachineView{
		{Machine: inventory.Machine{Name: "node-1", Interfaces: []inventory.Interface{{MAC: "52:54:00:00:00:01", Address: addr("10.0.0.150")}}}},
		{Machine: inventory.Machine{Name: "node-2", Interfaces: []inventory.Interface{{MAC: "52:54:00:00:00:02"}}}},
	}
	found := offerFindings([]foreignOffer{
		{"eth1", asSnippet("snponly.efi")}, {"eth1", neighbours.ForeignServer{Server: addr("10.0.0.4"), Proxy: true}},
	}, machines)
	require.Len(t, found, 1)
	require.Equal(t, StateWarn, found[0].State)
	require.Contains(t, found[0].Text, "10.0.0.3 on eth1 offered 10.0.0.150")
	require.Contains(t, found[0].Text, "reserved for node-1 (52:54:00:00:00:01)")
}
