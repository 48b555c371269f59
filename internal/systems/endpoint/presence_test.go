package endpoint

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPresence(t *testing.T) {
	found, mac, err := Presence{}.Answers(t.Context(), netip.MustParseAddr("127.0.0.1"))
	require.NoError(t, err)
	require.True(t, found, "this host refuses connections, and so is there")
	require.Empty(t, mac)
	found, _, err = Presence{}.Answers(t.Context(), netip.MustParseAddr("192.0.2.7"))
	require.NoError(t, err)
	require.False(t, found, "no host has an address of a documentation network")
}
