package cli

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

func TestWhyNamesTheHostOfAConflict(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, printExplanation(&out, inventory.Explanation{MAC: "52:54:00:00:00:0b", Lease: &inventory.DHCPLease{
		Address: netip.MustParseAddr("192.0.2.11"), State: inventory.LeaseConflict, Other: "52:54:00:99:99:99",
	}}))
	require.Contains(t, out.String(), "lease of 192.0.2.11: conflict with 52:54:00:99:99:99")
}

func TestLeasesOfDiscoveryAreListed(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, printLeases(&out, []inventory.DHCPLease{{
		MAC: "52:54:00:00:00:0b", Address: netip.MustParseAddr("192.0.2.200"), State: inventory.LeaseDiscovery, Where: "eth0",
	}}))
	require.Regexp(t, `192\.0\.2\.200 +– +52:54:00:00:00:0b +discovery +– +– +eth0`, out.String())
}
