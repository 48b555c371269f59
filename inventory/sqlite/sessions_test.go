package sqlite

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

func TestEndedSessionsAreKeptAndBounded(t *testing.T) {
	w := newWorld(t)
	ids := func() map[string]time.Time {
		t.Helper()
		out, err := w.Sessions.EndedSessions(t.Context())
		require.NoError(t, err)
		return out
	}
	require.Empty(t, ids())
	require.NoError(t, w.Sessions.EndSession(t.Context(), "past", w.in(-time.Second)))
	require.Contains(t, ids(), "past")
	until := w.in(time.Hour)
	require.NoError(t, w.Sessions.EndSession(t.Context(), "s0", until))
	require.NotContains(t, ids(), "past", "it has expired")
	for n := 1; n < maxEndedSessions; n++ {
		require.NoError(t, w.Sessions.EndSession(t.Context(), fmt.Sprintf("s%d", n), until))
	}
	require.Len(t, ids(), maxEndedSessions)
	require.True(t, until.Equal(ids()["s0"]))
	require.NoError(t, w.Sessions.EndSession(t.Context(), "one more", until))
	require.Len(t, ids(), 1)
	require.True(t, until.Equal(ids()[inventory.AllSessions]))
}
