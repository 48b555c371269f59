package inventory

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
)

func TestRange(t *testing.T) {
	var r Range
	require.NoError(t, r.UnmarshalText([]byte("10.0.0.250 - 10.0.1.5")))
	require.Equal(t, "10.0.0.250-10.0.1.5", r.String())
	require.True(t, r.Contains(netip.MustParseAddr("10.0.1.0")))
	require.False(t, r.Contains(netip.MustParseAddr("10.0.1.6")))
	for _, text := range []string{"", "10.0.0.1", "10.0.0.9-10.0.0.1", "10.0.0.0-10.1.0.0", "fd00::1-fd00::2", "a-b"} {
		require.ErrorIs(t, r.UnmarshalText([]byte(text)), ErrInvalid, text)
	}

	free, err := r.FirstFree(func(a netip.Addr) (bool, error) { return a.Less(netip.MustParseAddr("10.0.0.252")), nil })
	require.NoError(t, err)
	require.Equal(t, "10.0.0.252", free.String())
	_, err = r.FirstFree(func(netip.Addr) (bool, error) { return true, nil })
	require.ErrorIs(t, err, ErrConflict)
	other := errors.New("other")
	_, err = r.FirstFree(func(netip.Addr) (bool, error) { return false, other })
	require.ErrorIs(t, err, other)
}

// S16: text that a machine reports cannot make a name, a label or a MAC that is not valid.
func TestS16AcceptRule(t *testing.T) {
	facts := action.Facts{
		Manufacturer: "Example Inc.", Product: "R 750\"; rm -rf /", Serial: "SN{mac}/../1", Firmware: "uefi", Arch: "x86_64",
		NICs: []action.NIC{{MAC: "02:00:00:00:00:01"}, {MAC: "02:00:00:00:00:02"}, {MAC: "nonsense"}},
	}
	r := AcceptRule{
		Match: map[string]string{"manufacturer": "Example*", "firmware": "uefi"}, Name: "node-{serial}",
		Labels: map[string]string{"rack": "a1"}, Image: "debian",
	}
	const mac = "02:00:00:00:00:01"
	require.True(t, r.Matches(mac, facts))
	m, err := r.Machine(mac, facts, netip.MustParseAddr("10.0.0.5"))
	require.NoError(t, err)
	m = Canonical(m)
	require.Empty(t, Validate(m))
	require.Equal(t, "node-sn-mac-1", m.Name)
	require.Equal(
		t,
		map[string]string{"manufacturer": "Example-Inc", "product": "R-750-rm--rf", "serial": "SN-mac-..-1", "rack": "a1"},
		m.Labels,
	)
	require.Len(t, m.Interfaces, 1, "a rule takes the MAC that DHCP admitted, and none that the machine claims")
	require.Equal(t, "255.255.255.0", m.Interfaces[0].Netmask)
	m = FromFacts("node", Interface{MAC: mac}, facts)
	require.Len(t, m.Interfaces, 2)
	require.False(t, m.Interfaces[0].DisableNetboot)
	require.True(t, m.Interfaces[1].UEFI && m.Interfaces[1].DisableNetboot)
	for range 2 * maxReportedNICs {
		facts.NICs = append(facts.NICs, action.NIC{MAC: "02:00:00:00:00:03"})
	}
	require.Len(t, FromFacts("node", Interface{MAC: mac}, facts).Interfaces, 1+maxReportedNICs)

	facts.Serial = "***"
	_, err = r.Machine(mac, facts, netip.Addr{})
	require.ErrorContains(t, err, "it reports no {serial}")
	facts.Firmware = "bios"
	require.False(t, r.Matches(mac, facts))
}

func TestDiscoveryIsChecked(t *testing.T) {
	guests := Range{netip.MustParseAddr("10.0.0.200"), netip.MustParseAddr("10.0.0.230")}
	d := Discovery{Ranges: map[string]Range{"eth1": guests}, Accept: []AcceptRule{
		{Match: map[string]string{"colour": "red", "serial": "["}, Name: "n-{rack}", Addresses: guests, Netmask: "24"}, {},
	}}
	text := d.Check("discovery").Error()
	for _, want := range []string{
		`discovery.accept[0].match.colour`, `unknown fact "colour"`, `invalid pattern "["`, `unknown fact "rack"`, "overlaps 10.0.0.200-10.0.0.230",
		`invalid netmask "24"`, "discovery.accept[1].name", "discovery.accept[1].addresses",
	} {
		require.Contains(t, text, want)
	}
}
