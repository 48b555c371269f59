package inventory

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Rows of capabilities that contradict themselves would be noticed only on a
// machine.
func TestCapabilitiesHoldTogether(t *testing.T) {
	for name, can := range drivers {
		if can.Manual {
			require.False(t, can.Soft || can.BootDevice || can.Persistent || can.EFI || can.ResetsBMC || can.SelfTest, name)
		}
		require.True(t, can.Manual || !can.Wakes, "%s: what only wakes is switched off by hand", name)
		require.True(t, can.BootDevice || !can.Persistent && !can.EFI, name)
		require.False(t, can.NeedsHost && can.Shared, name)
		require.Contains(t, Drivers(), name)
	}
	var none *BMC
	require.True(t, none.Manual())
	require.False(t, none.Wakes())
	require.Zero(t, (&BMC{Driver: "ilo"}).Capabilities().Port)
	require.False(t, KnownDriver("ilo"))
}
