package sqlite

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRelays(t *testing.T) {
	w := newWorld(t)
	gateway, began := netip.MustParseAddr("10.10.20.1"), time.Date(2026, 11, 22, 1, 0, 0, 0, time.UTC)
	at, err := w.Relayed(t.Context(), gateway)
	require.NoError(t, err)
	require.True(t, at.IsZero())
	require.NoError(t, w.PutRelay(t.Context(), gateway, began.Add(time.Minute)))
	require.NoError(t, w.PutRelay(t.Context(), gateway, began))
	at, err = w.Relayed(t.Context(), gateway)
	require.NoError(t, err)
	require.True(t, began.Add(time.Minute).Equal(at), "%s: what was heard later stays", at)

	// S48: who forges giaddrs pushes out the oldest.
	for n := range maxRelays {
		require.NoError(t, w.PutRelay(t.Context(), netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), began.Add(time.Hour)))
	}
	var rows int
	require.NoError(t, w.ro.GetContext(t.Context(), &rows, "SELECT count(*) FROM relay"))
	require.Equal(t, maxRelays, rows)
	at, err = w.Relayed(t.Context(), gateway)
	require.NoError(t, err)
	require.True(t, at.IsZero())
}
