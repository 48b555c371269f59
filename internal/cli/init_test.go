package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/config"
)

// init does not ask the operator to write what init has written.
func TestInitKnowsWhatItHasWritten(t *testing.T) {
	n := config.Netboot{Interfaces: []string{"eth1"}}
	require.True(t, initFlags{interfaces: []string{"eth1"}}.agree(n))
	require.True(t, initFlags{}.agree(n))
	require.False(t, initFlags{interfaces: []string{"eth2"}}.agree(n))

	f := initFlags{relayOnly: true, relays: []string{"10.0.20.1"}, address: "192.0.2.10"}
	require.False(t, f.agree(n))
	n = config.Netboot{RelayOnly: true, Relays: []string{"10.0.20.1"}, Address: "192.0.2.10"}
	require.True(t, f.agree(n))
	f.address = "192.0.2.11"
	require.False(t, f.agree(n))
}
