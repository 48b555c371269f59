package agentapi

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// Neither the log nor the memory of its lines grows with the number of clients.
func TestLinesAboutABootAreLoggedOnce(t *testing.T) {
	var x onceLog
	g := inventory.Grant{Owner: inventory.Owner{Machine: "m1", Epoch: 1}, Boot: 1}
	require.True(t, x.first(g, "a"))
	for range 3 {
		require.False(t, x.first(g, "a"))
	}
	require.True(t, x.first(g, "b"))
	for g.Boot = 2; g.Boot < 3*maxLogged; g.Boot++ {
		require.True(t, x.first(g, "a"))
		require.LessOrEqual(t, len(x.lines), maxLogged)
	}
}

// A correctly derived token of another owner is not stored and so is unknown.
func TestTokensDifferByOwnerBootAndNonce(t *testing.T) {
	key, o := make([]byte, 32), inventory.Owner{Machine: "m1", Run: "r1", Epoch: 1}
	token := deriveToken(key, o, 1, "a")
	require.Equal(t, token, deriveToken(key, o, 1, "a"))
	other := o
	other.Machine = "m2"
	for _, t2 := range []string{deriveToken(key, other, 1, "a"), deriveToken(key, o, 2, "a"), deriveToken(key, o, 1, "b")} {
		require.NotEqual(t, token, t2)
	}
}

// S7: a guest reports once in a pause, from whatever address, and the memory of that is bounded.
func TestS7ReportsAreLimited(t *testing.T) {
	var r reported
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	require.True(t, r.begin("a", "10.0.0.1", now))
	require.False(t, r.begin("a", "10.0.0.2", now))
	require.False(t, r.begin("b", "10.0.0.1", now))
	require.False(t, r.isRecent("10.0.0.2", now), "what was refused counts for nothing")
	require.True(t, r.begin("a", "10.0.0.1", now.Add(discoverPause)))
	for n := range 2 * maxReported {
		r.begin(fmt.Sprint("mac", n), fmt.Sprint("address", n), now)
	}
	require.LessOrEqual(t, len(r.last), maxReported+1)
	require.True(t, r.begin("c", "10.0.0.3", now.Add(2*discoverPause)), "room for new ones")
}
