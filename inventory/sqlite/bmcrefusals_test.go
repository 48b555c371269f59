package sqlite

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// TestS29BMCRefusals: refused log-ins are remembered until they are removed.
func TestS29BMCRefusals(t *testing.T) {
	s := newWorld(t)
	ctx := t.Context()
	none, err := s.BMCRefusals.BMCRefusals(ctx, "10.0.9.1:443")
	require.NoError(t, err)
	require.Zero(t, none)
	for n := range 3 {
		r := inventory.BMCRefusals{Count: n, Last: time.Unix(1_700_000_000, int64(n)), Credentials: []string{"aa", "bb"}}
		require.NoError(t, s.BMCRefusals.PutBMCRefusals(ctx, "10.0.9.1:443", r))
		got, err := s.BMCRefusals.BMCRefusals(ctx, "10.0.9.1:443")
		require.NoError(t, err)
		if n == 0 {
			r = inventory.BMCRefusals{}
		}
		require.Equal(t, r, got)
	}
	require.NoError(t, s.BMCRefusals.PutBMCRefusals(ctx, "10.0.9.1:443", inventory.BMCRefusals{}))
	none, err = s.BMCRefusals.BMCRefusals(ctx, "10.0.9.1:443")
	require.NoError(t, err)
	require.Zero(t, none)
}
