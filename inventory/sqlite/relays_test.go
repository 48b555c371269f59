package sqlite

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRelays(t *testing.T) {
	w := newWorld(t)
	gateway, began := netip.MustParseAddr("10.10.20.1"), w.in(-2*time.Hour)
	at, err := w.Relays.Relayed(t.Context(), gateway)
	require.NoError(t, err)
	require.True(t, at.IsZero())
	require.NoError(t, w.Relays.PutRelay(t.Context(), gateway, began.Add(time.Minute)))
	require.NoError(t, w.Relays.PutRelay(t.Context(), gateway, began))
	at, err = w.Relays.Relayed(t.Context(), gateway)
	require.NoError(t, err)
	require.True(t, began.Add(time.Minute).Equal(at), "%s: the last contact stays", at)

	// A stored time in the future, from a clock that was ahead, is replaced by any time.
	require.NoError(t, w.Relays.PutRelay(t.Context(), gateway, w.in(24*time.Hour)))
	require.NoError(t, w.Relays.PutRelay(t.Context(), gateway, began.Add(time.Minute)))
	at, err = w.Relays.Relayed(t.Context(), gateway)
	require.NoError(t, err)
	require.True(t, began.Add(time.Minute).Equal(at), "%s: a time that is still to come stays", at)

	// S48: forged giaddrs remove the oldest relays.
	for n := range maxRelays {
		require.NoError(t, w.Relays.PutRelay(t.Context(), netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), began.Add(time.Hour)))
	}
	var rows int
	require.NoError(t, w.ro.GetContext(t.Context(), &rows, "SELECT count(*) FROM relay"))
	require.Equal(t, maxRelays, rows)
	at, err = w.Relays.Relayed(t.Context(), gateway)
	require.NoError(t, err)
	require.True(t, at.IsZero())

	// A relay is recorded again at its next packet, and then stays. A relay with a time in the future
	// is removed first.
	require.NoError(t, w.Relays.PutRelay(t.Context(), netip.MustParseAddr("10.9.9.9"), w.in(24*time.Hour)))
	require.NoError(t, w.Relays.PutRelay(t.Context(), gateway, w.in(0)))
	at, err = w.Relays.Relayed(t.Context(), gateway)
	require.NoError(t, err)
	require.True(t, w.in(0).Equal(at), at)
	at, err = w.Relays.Relayed(t.Context(), netip.MustParseAddr("10.9.9.9"))
	require.NoError(t, err)
	require.True(t, at.IsZero(), at)
}
